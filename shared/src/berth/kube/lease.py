"""Leading by a Lease: one at a time, and the one that leads knows by its own clock when it no longer does.

Safe where the library's own election is not: a renewal without an answer counts against the deadline, the end is
judged by the clock and not by a task that may be late, and every write is a compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from berth.api.errors import BerthError
from berth.api.lease import LeaseSpec
from berth.kube.client import KubeClient
from berth.kube.clock import Clock, SteadyClock
from berth.kube.election import Decision, LeaseSettings, Sighting, Tenure, decide, held_by, sight
from berth.kube.leadership import ElectedLeadership, Leadership, end
from berth.kube.lease_object import LeaseConflictError, LeaseObject, StoredLease

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectorStatus:
    """How an election stands, for /readyz and the log."""

    leading: bool = False
    holder: str = ""
    """Who holds the Lease as it was read last; empty when nobody does."""
    last_error: str | None = None
    """What went wrong last, in one sentence; ``None`` once the API server has answered again."""


class Elector:
    """Waits until it may lead, and leads. One for each Lease and process."""

    def __init__(  # noqa: PLR0913, PLR0917 - which Lease, as whom, how, by which clock
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        settings: LeaseSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._lease = LeaseObject(client, namespace, name)
        self._identity = identity
        self._settings = settings or LeaseSettings()
        problems = self._settings.problems()
        if problems:
            raise ValueError("; ".join(problems))
        self._clock = clock or SteadyClock()
        self._sighting: Sighting | None = None
        self.status = ElectorStatus()

    @asynccontextmanager
    async def lead(self, annotations: Mapping[str, str] | None = None) -> AsyncIterator[Leadership]:
        """Wait for the Lease, lead inside the block, give the Lease back at its end.

        ``annotations`` are written in the moment of taking it, so that no other holder's stand there in one's name.
        """
        leadership = await self._acquire(annotations or {})
        self.status = ElectorStatus(leading=True, holder=self._identity)
        renewing = asyncio.create_task(leadership.keep(), name=f"renewing lease {self._lease}")
        try:
            yield leadership
        finally:
            self.status = ElectorStatus(holder=self._identity)
            await end(renewing)
            await leadership.release()

    async def _acquire(self, annotations: Mapping[str, str]) -> ElectedLeadership:
        while True:
            try:
                leadership = await self._try(annotations)
            except LeaseConflictError:
                leadership = None  # somebody was faster
            except BerthError as exc:
                self._failed(str(exc))
                leadership = None
            if leadership is not None and not leadership.expired():
                return leadership
            await self._clock.sleep(self._settings.retry_period.total_seconds() * random.uniform(0.8, 1.0))

    async def _try(self, annotations: Mapping[str, str]) -> ElectedLeadership | None:
        stored = await self._lease.read()
        now = self._clock.now()
        self._sighting = None if stored is None else sight(self._sighting, stored.lease, now)
        self.status = ElectorStatus(holder=self._sighting.holder if self._sighting else "")
        if decide(self._sighting, self._identity, now) is Decision.WAIT:
            return None
        return await self._take(stored, annotations)

    async def _take(self, stored: StoredLease | None, annotations: Mapping[str, str]) -> ElectedLeadership:
        sent_at = self._clock.now()
        if stored is None:
            taken = await self._lease.create(self._record(LeaseSpec()), annotations)
        else:
            taken = await self._lease.write(stored, self._record(stored.lease.spec), annotations)
        tenure = Tenure(renewed_at=sent_at, deadline_seconds=self._settings.renew_deadline.total_seconds())
        return ElectedLeadership(
            self._lease, taken, identity=self._identity, settings=self._settings, tenure=tenure, clock=self._clock
        )

    def _record(self, before: LeaseSpec) -> dict[str, Any]:
        return held_by(self._identity, before, self._settings, datetime.now(UTC))

    def _failed(self, error: str) -> None:
        if error != self.status.last_error:
            logger.warning("electing a leader: %s", error)
        self.status = ElectorStatus(holder=self.status.holder, last_error=error)
