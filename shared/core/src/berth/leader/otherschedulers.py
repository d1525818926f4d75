"""Other schedulers of the same pods, beside which berth does not lead (docs/adr/0027)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from berth.clock import Clock, SteadyClock
from berth.errors import BerthError
from berth.kube.client import KubeClient
from berth.kube.errors import ApiRefusedError
from berth.leader.lease import LeaseObject, LeaseObservations, is_live
from berth.leader.samepods import LeaseName
from berth.log import get_logger

log = get_logger()

# Seconds between two checks of a leader. A starting scheduler waits for its caches about as long.
CHECK_SECONDS: Final = 5.0
ALLOW: Final = "--allow-other-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherScheduler:
    """The holder of a live Lease by which another scheduler leads."""

    lease: str
    holder: str
    duration_seconds: int
    # Whether the Lease changed since it was first read, so that its holder lives.
    is_renewed: bool

    def __str__(self) -> str:
        if not self.is_renewed:
            return (
                f"waiting up to {self.duration_seconds} s to see whether {self.holder!r} still renews the Lease"
                f" {self.lease!r}, by which another scheduler of the same pods leads"
            )
        return (
            f"another scheduler of the same pods leads: {self.holder!r} holds the Lease {self.lease!r}:"
            f" stop it, or let both schedule with {ALLOW} (docs/moving-over.md)"
        )


class OtherSchedulers:
    """Finds schedulers of the same pods by their Leases, each live for its duration after it was seen to change."""

    def __init__(
        self,
        client: KubeClient,
        leases: Iterable[LeaseName],
        *,
        is_allowed: bool = False,
        clock: Clock | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """``is_allowed``: other schedulers cause a warning, by ``warn`` or in the log, and do not block leading."""
        self._leases = [LeaseObject(client, lease.namespace, lease.name) for lease in leases]
        self._is_allowed = is_allowed
        self._clock = clock or SteadyClock()
        self._warn = warn or _log
        self._observations = LeaseObservations()
        self._first_seen: dict[str, float] = {}
        self._logged: set[str] = set()

    async def blocking(self) -> OtherScheduler | None:
        """Read the Leases; return the first scheduler that blocks leading.

        Raises:
            ApiUnreachableError: no answer.
            ApiRefusedError: an unusable answer; a missing right is only logged.
        """
        found = [other for lease in self._leases if (other := await self._find(lease)) is not None]
        if not self._is_allowed:
            return next(iter(found), None)
        for other in found:
            self._warn_once(f"{other.holder!r} holds the Lease {other.lease!r}: it binds the same pods as berth")
        return None

    async def appeared(self) -> OtherScheduler | None:
        """The scheduler as in ``blocking``, for a leader: only a scheduler known to live, and without errors."""
        try:
            other = await self.blocking()
        except BerthError:
            return None  # a leader that cannot reach the API server loses its own Lease
        return other if other is not None and other.is_renewed else None

    async def living(self, pause_seconds: float) -> OtherScheduler | None:
        """Check until a scheduler is known to live, and return it, or until all have ended. Raises as ``blocking``."""
        while (other := await self.blocking()) is not None and not other.is_renewed:
            await self._clock.sleep(pause_seconds)
        return other

    async def _find(self, lease: LeaseObject) -> OtherScheduler | None:
        try:
            stored = await lease.read()
        except ApiRefusedError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            self._warn_once(f"cannot see whether another scheduler has the same pods: {error}")
            return None
        now = self._clock.now()
        first = self._first_seen.setdefault(str(lease), now)
        seen = self._observations.note(lease, None if stored is None else stored.lease, now)
        if seen is None or not is_live(seen, now):
            return None
        return OtherScheduler(
            lease=str(lease),
            holder=seen.holder,
            duration_seconds=seen.lease.spec.lease_duration_seconds or 0,
            is_renewed=seen.unchanged_since > first,
        )

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._logged:
            self._logged.add(sentence)
            self._warn(sentence)


def _log(sentence: str) -> None:
    log.warning("other schedulers of the same pods", reason=sentence)
