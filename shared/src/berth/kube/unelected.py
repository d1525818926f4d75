"""Leading without an election (``--leader-elect=false``): the Lease has no holder, but its annotations are kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta

from berth.api.errors import BerthError
from berth.kube.client import KubeClient
from berth.kube.clock import Clock, SteadyClock
from berth.kube.election import LeaseSettings
from berth.kube.leadership import CONFLICTS, Leadership, end, want_unchanged
from berth.kube.lease_object import LeaseConflictError, LeaseObject, StoredLease, write_annotations

logger = logging.getLogger(__name__)


class Unelected:
    """Stands where an Elector stands, for one who is told to be alone."""

    def __init__(self, client: KubeClient, namespace: str, name: str, clock: Clock | None = None) -> None:
        self._lease = LeaseObject(client, namespace, name)
        self._clock = clock or SteadyClock()
        self._period = LeaseSettings().retry_period

    @asynccontextmanager
    async def lead(self, annotations: Mapping[str, str] | None = None) -> AsyncIterator[Leadership]:
        """Lead at once, as soon as the Lease object is there with these annotations and an empty holder."""
        made = await self._made(annotations or {})
        leadership = UnelectedLeadership(self._lease, made, self._period, self._clock)
        following = asyncio.create_task(leadership.follow(), name=f"following lease {self._lease}")
        try:
            yield leadership
        finally:
            await end(following)

    async def _made(self, annotations: Mapping[str, str]) -> StoredLease:
        while True:
            try:
                return await write_annotations(self._lease, await self._lease.read(), annotations)
            except BerthError as exc:
                logger.warning("%s", exc)
            await self._clock.sleep(self._period.total_seconds())


class UnelectedLeadership:
    """Leading because one was told to: nothing but the process's own end ends it, and whoever sees a higher term."""

    def __init__(self, lease: LeaseObject, stored: StoredLease, period: timedelta, clock: Clock) -> None:
        self.lost = asyncio.Event()
        self._lease = lease
        self._stored = stored
        self._period = period
        self._clock = clock
        self._one_write_at_a_time = asyncio.Lock()

    @property
    def annotations(self) -> Mapping[str, str]:
        """The Lease's annotations as they were read or written last."""
        return self._stored.annotations

    def expired(self) -> bool:
        """Never by itself."""
        return self.lost.is_set()

    async def annotate(self, changes: Mapping[str, str]) -> None:
        """Write annotations; see :class:`berth.kube.leadership.Leadership`."""
        decided_on = self.annotations
        async with self._one_write_at_a_time:
            for _ in range(CONFLICTS):
                want_unchanged(self.annotations, changes, decided_on)
                if await self._written(changes):
                    return
        raise LeaseConflictError(f"writing lease {str(self._lease)!r}: written by others {CONFLICTS} times in a row")

    async def follow(self) -> None:
        """Read the Lease again and again, so that a higher term in it is seen."""
        while True:
            await self._clock.sleep(self._period.total_seconds())
            try:
                async with self._one_write_at_a_time:
                    await self._read_again()
            except BerthError as exc:
                logger.warning("%s", exc)

    async def _written(self, changes: Mapping[str, str]) -> bool:
        try:
            self._stored = await write_annotations(self._lease, self._stored, changes)
        except LeaseConflictError:
            await self._read_again()
            return False
        return True

    async def _read_again(self) -> None:
        stored = await self._lease.read()
        self._stored = stored or await write_annotations(self._lease, None, {})
