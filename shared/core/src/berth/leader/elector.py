"""Election of one leader by a Lease, or leading without election (``--leader-elect=false``).

The client library's election lacks the guarantees of :mod:`berth.leader.heldlease`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from berth.api.workloads import LeaseSpec
from berth.clock import Clock, SteadyClock
from berth.errors import BerthError
from berth.kube.client import KubeClient
from berth.leader.heldlease import ElectedLease, HeldLease, LeaseDeadline, UnelectedLease
from berth.leader.lease import (
    ElectionStep,
    LeaseConflictError,
    LeaseObject,
    LeaseObservations,
    StoredLease,
    cleared,
    held_record,
    next_step,
    settled_of,
    write_annotations,
)
from berth.lifecycle.process import in_background, run_until
from berth.observability.logging import get_logger
from berth.settings.settings import LeaseSettings, written_path

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectorStatus:
    leading: bool = False
    holder: str = ""  # By the last read of the Lease; may be empty.
    last_error: str | None = None  # None once the API server has answered again.


class Elector:
    """Waits until it may lead, then leads. A process has one for each Lease."""

    def __init__(  # noqa: PLR0913, PLR0917 - the Lease, the identity, the settings, the clock
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        settings: LeaseSettings,
        clock: Clock | None = None,
        observations: LeaseObservations | None = None,
    ) -> None:
        self._lease = LeaseObject(client, namespace, name)
        self._identity = identity
        self._settings = settings
        problems = [f"{written_path(path)}: {problem}" for path, problem in self._settings.problems()]
        if problems:
            raise ValueError("; ".join(problems))
        self._clock = clock or SteadyClock()
        self._observations = observations or LeaseObservations()
        # When another holder's Lease expires, by the last try; None: the try failed, or the Lease is free.
        self._expires_at: float | None = None
        self.status = ElectorStatus()
        self._logged = ""  # Error of the last tries: logged once, until a try succeeds or fails with another error.

    @asynccontextmanager
    async def lead(self, annotations: Mapping[str, str] | None = None) -> AsyncIterator[HeldLease]:
        """Wait for the Lease, lead inside the block, release the Lease at its end.

        ``annotations`` are written together with the holder, so that they never belong to a former holder.
        """
        lease = await self._acquire(annotations or {})
        self.status = ElectorStatus(leading=True, holder=self._identity)
        try:
            async with in_background(lease.keep(), name=f"renewing lease {self._lease}"):
                yield lease
        finally:
            self.status = ElectorStatus(holder=self._identity)
            await lease.release()

    async def _acquire(self, annotations: Mapping[str, str]) -> ElectedLease:
        released = asyncio.Event()
        following = asyncio.create_task(self._follow(released), name=f"following lease {self._lease}")
        try:
            return await self._acquire_when(released, annotations)
        finally:
            following.cancel()  # not awaited: a cancellation here would lose a Lease that was just taken

    async def _follow(self, released: asyncio.Event) -> None:
        # Reports at once that the Lease was renewed or released. Without the right to watch, the next read does.
        period = self._settings.retry_period.total_seconds()
        while True:
            began = self._clock.now()
            with suppress(BerthError):
                async with aclosing(self._lease.changes()) as changes:
                    async for lease in changes:
                        seen = self._observations.note(self._lease, lease, self._clock.now())
                        if seen is not None and not seen.holder:
                            released.set()
            if self._clock.now() - began < period:
                await self._clock.sleep(period)

    async def _acquire_when(self, released: asyncio.Event, annotations: Mapping[str, str]) -> ElectedLease:
        while True:
            released.clear()
            try:
                lease = await self._try(annotations)
                self._logged = ""
            except LeaseConflictError:
                lease = None  # another process was faster
            except BerthError as exc:
                self._failed(str(exc))
                lease = None
            if lease is not None and not lease.expired():
                return lease
            await run_until(self._wait(), released)

    async def _wait(self) -> None:
        # Waits a retry period, or until the Lease expires if that is sooner.
        pause = self._settings.retry_period.total_seconds() * random.uniform(0.8, 1.0)
        if self._expires_at is not None:
            pause = min(pause, max(self._expires_at - self._clock.now(), 0.0))
        await self._clock.sleep(pause)

    async def _try(self, annotations: Mapping[str, str]) -> ElectedLease | None:
        self._expires_at = None
        stored = await self._lease.read()
        now = self._clock.now()
        observation = self._observations.note(self._lease, None if stored is None else stored.lease, now)
        self.status = ElectorStatus(holder=observation.holder if observation else "")
        if observation is not None and next_step(observation, self._identity, now) is ElectionStep.WAIT:
            self._expires_at = observation.expires_at
            return None
        return await self._take(stored, annotations)

    async def _take(self, stored: StoredLease | None, annotations: Mapping[str, str]) -> ElectedLease:
        sent_at = self._clock.now()
        if stored is None:
            taken = await self._lease.create(self._record(LeaseSpec()), annotations)
        else:
            changes = {**cleared(stored), **annotations}
            taken = await self._lease.write(stored, self._record(stored.lease.spec), changes)
        deadline = LeaseDeadline(renewed_at=sent_at, deadline_seconds=self._settings.renew_deadline.total_seconds())
        return ElectedLease(
            self._lease,
            taken,
            former_settled=settled_of(stored),
            identity=self._identity,
            settings=self._settings,
            deadline=deadline,
            clock=self._clock,
        )

    def _record(self, before: LeaseSpec) -> dict[str, Any]:
        return held_record(self._identity, before, self._settings, datetime.now(UTC))

    def _failed(self, error: str) -> None:
        if error != self._logged:
            self._logged = error
            log.warning("cannot take the Lease", lease=str(self._lease), error=error)
        self.status = ElectorStatus(holder=self.status.holder, last_error=error)


class Unelected:
    """Leads without election, as the only process of its role."""

    def __init__(self, client: KubeClient, namespace: str, name: str, clock: Clock | None = None) -> None:
        self._lease = LeaseObject(client, namespace, name)
        self._clock = clock or SteadyClock()
        self._period = LeaseSettings().retry_period

    @asynccontextmanager
    async def lead(self, annotations: Mapping[str, str] | None = None) -> AsyncIterator[HeldLease]:
        """Write these annotations to the Lease, without a holder, then lead."""
        before, made = await self._made(annotations or {})
        lease = UnelectedLease(self._lease, made, former_settled=settled_of(before), clock=self._clock)
        try:
            async with in_background(lease.follow(self._period), name=f"following lease {self._lease}"):
                yield lease
        finally:
            await lease.release()

    async def _made(self, annotations: Mapping[str, str]) -> tuple[StoredLease | None, StoredLease]:
        """The Lease before and after this write."""
        logged = ""
        while True:
            try:
                before = await self._lease.read()
                return before, await write_annotations(self._lease, before, {**cleared(before), **annotations})
            except BerthError as exc:
                if str(exc) != logged:
                    logged = str(exc)
                    log.warning("cannot write the Lease", lease=str(self._lease), error=logged)
            await self._clock.sleep(self._period.total_seconds())
