"""Schedulers of the same pods that live: berth does not lead beside them (docs/adr/0027)."""

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
from berth.observability.logging import get_logger

log = get_logger()

LOOK_SECONDS: Final = 5.0
"""Between two looks of a leader. Another scheduler that starts waits for its caches for about as long."""
ALLOW: Final = "--allow-other-scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherScheduler:
    """The holder of such a Lease, which has not run out."""

    lease: str
    holder: str
    duration_seconds: int
    is_renewed: bool
    """Whether the Lease was seen to change, so that its holder lives. Otherwise it may have ended without a word."""

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
    """Looks for them, as long as the process lives: a Lease is live for its duration after it was seen to change."""

    def __init__(
        self,
        client: KubeClient,
        leases: Iterable[LeaseName],
        *,
        is_allowed: bool = False,
        clock: Clock | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """``is_allowed``: they are warned about, by ``warn`` or in the log, and are in nobody's way."""
        self._leases = [LeaseObject(client, lease.namespace, lease.name) for lease in leases]
        self._is_allowed = is_allowed
        self._clock = clock or SteadyClock()
        self._warn = warn or log.warning
        self._observations = LeaseObservations()
        self._first_seen: dict[str, float] = {}
        self._logged: set[str] = set()

    async def in_the_way(self) -> OtherScheduler | None:
        """Look; returns the first of them that keeps berth from leading.

        Raises:
            ApiUnreachableError: no answer.
            ApiRefusedError: an answer that says neither; a missing right is only logged.
        """
        found = [other for lease in self._leases if (other := await self._look(lease)) is not None]
        if not self._is_allowed:
            return next(iter(found), None)
        for other in found:
            self._warn_once(f"{other.holder!r} holds the Lease {other.lease!r}: it binds the same pods as berth")
        return None

    async def appeared(self) -> OtherScheduler | None:
        """As ``in_the_way``, for a leader: only one that is known to live. No answer is none."""
        try:
            other = await self.in_the_way()
        except BerthError:
            return None  # a leader that reaches no API server loses its own Lease
        return other if other is not None and other.is_renewed else None

    async def living(self, pause_seconds: float) -> OtherScheduler | None:
        """Look until one is known to live, which is returned, or all have ended. Raises as ``in_the_way``."""
        while (other := await self.in_the_way()) is not None and not other.is_renewed:
            await self._clock.sleep(pause_seconds)
        return other

    async def _look(self, lease: LeaseObject) -> OtherScheduler | None:
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
