"""Leader election by a Lease: one process leads at a time, and its own clock decides when its leading ends.

The client library's election is not safe enough. Here a renewal without an answer counts against the deadline, the end
is judged by the clock and not by a task that may be late, and every write is a compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from berth.api.errors import BerthError
from berth.api.workloads import LeaseSpec
from berth.kube.client import KubeClient
from berth.kube.clock import Clock, SteadyClock
from berth.leader.lease import (
    ANNOTATION_SETTLED,
    CONFLICTS,
    RELEASE_TIMEOUT,
    ElectionStep,
    HeldLease,
    LeadershipLostError,
    LeaseConflictError,
    LeaseObject,
    LeaseObservations,
    StoredLease,
    cancel,
    check_unchanged,
    cleared,
    held_record,
    next_step,
    released_record,
    settled_of,
)
from berth.process.lifecycle import run_until
from berth.process.settings import LeaseSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectorStatus:
    """The state of an election, for /readyz and the log."""

    leading: bool = False
    holder: str = ""
    """The holder in the last read of the Lease; empty for none."""
    last_error: str | None = None
    """The last error; ``None`` once the API server has answered again."""


class Elector:
    """Waits until it may lead, then leads. A process has one for each Lease."""

    def __init__(  # noqa: PLR0913, PLR0917 - the Lease, the identity, the settings, the clock
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        settings: LeaseSettings | None = None,
        clock: Clock | None = None,
        observations: LeaseObservations | None = None,
    ) -> None:
        self._lease = LeaseObject(client, namespace, name)
        self._identity = identity
        self._settings = settings or LeaseSettings()
        problems = self._settings.problems()
        if problems:
            raise ValueError("; ".join(problems))
        self._clock = clock or SteadyClock()
        self._observations = observations or LeaseObservations()
        self.status = ElectorStatus()

    @asynccontextmanager
    async def lead(self, annotations: Mapping[str, str] | None = None) -> AsyncIterator[HeldLease]:
        """Wait for the Lease, lead inside the block, release the Lease at its end.

        ``annotations`` are written together with the holder, so that they never belong to a former holder.
        """
        lease = await self._acquire(annotations or {})
        self.status = ElectorStatus(leading=True, holder=self._identity)
        renewing = asyncio.create_task(lease.keep(), name=f"renewing lease {self._lease}")
        try:
            yield lease
        finally:
            self.status = ElectorStatus(holder=self._identity)
            await cancel(renewing)
            await lease.release()

    async def _acquire(self, annotations: Mapping[str, str]) -> ElectedLease:
        released = asyncio.Event()
        following = asyncio.create_task(self._follow(released), name=f"following lease {self._lease}")
        try:
            return await self._acquire_when(released, annotations)
        finally:
            following.cancel()  # not waited for: a cancellation here would lose a Lease that was just taken

    async def _follow(self, released: asyncio.Event) -> None:
        """Notice a released Lease at once. Without the right to watch it, it is noticed at the next read."""
        while True:
            try:
                async with aclosing(self._lease.holders()) as holders:
                    async for holder in holders:
                        if not holder:
                            released.set()
            except BerthError as exc:
                logger.debug("%s", exc)
            await self._clock.sleep(self._settings.retry_period.total_seconds())

    async def _acquire_when(self, released: asyncio.Event, annotations: Mapping[str, str]) -> ElectedLease:
        while True:
            released.clear()
            try:
                lease = await self._try(annotations)
            except LeaseConflictError:
                lease = None  # another process was faster
            except BerthError as exc:
                self._failed(str(exc))
                lease = None
            if lease is not None and not lease.expired():
                return lease
            await run_until(self._wait(), released)

    async def _wait(self) -> None:
        await self._clock.sleep(self._settings.retry_period.total_seconds() * random.uniform(0.8, 1.0))

    async def _try(self, annotations: Mapping[str, str]) -> ElectedLease | None:
        stored = await self._lease.read()
        now = self._clock.now()
        observation = self._observations.note(self._lease, stored, now)
        self.status = ElectorStatus(holder=observation.holder if observation else "")
        if next_step(observation, self._identity, now) is ElectionStep.WAIT:
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
        lease = ElectedLease(
            self._lease, taken, identity=self._identity, settings=self._settings, deadline=deadline, clock=self._clock
        )
        lease.former_settled = settled_of(stored)
        return lease

    def _record(self, before: LeaseSpec) -> dict[str, Any]:
        return held_record(self._identity, before, self._settings, datetime.now(UTC))

    def _failed(self, error: str) -> None:
        if error != self.status.last_error:
            logger.warning("electing a leader: %s", error)
        self.status = ElectorStatus(holder=self.status.holder, last_error=error)


class ElectedLease:
    """The Lease of an elected leader. ``keep`` renews it until it is lost; every write also renews it."""

    def __init__(  # noqa: PLR0913 - the Lease, its state, the identity, the settings, the deadline, the clock
        self,
        lease: LeaseObject,
        taken: StoredLease,
        *,
        identity: str,
        settings: LeaseSettings,
        deadline: LeaseDeadline,
        clock: Clock,
    ) -> None:
        self.lost = asyncio.Event()
        self.former_settled = self.settled = ""
        self._lease = lease
        self._stored = taken
        self._identity = identity
        self._settings = settings
        self._deadline = deadline
        self._clock = clock
        self._write_lock = asyncio.Lock()

    @property
    def annotations(self) -> Mapping[str, str]:
        return self._stored.annotations

    def expired(self) -> bool:
        """Whether leading is over. The clock decides, so that a process stops at once after a pause."""
        return self.lost.is_set() or self._deadline.expired(self._clock.now())

    async def annotate(self, changes: Mapping[str, str]) -> None:
        await self._write(changes, decided_on=self.annotations)

    async def keep(self) -> None:
        """Renew until leading is over. Then ``lost`` is set, at the renew deadline at the latest."""
        try:
            while not self.expired():
                await self._clock.sleep(min(self._settings.retry_period.total_seconds(), max(self._seconds_left(), 0)))
                await self._renew()
        finally:
            self.lost.set()

    async def release(self) -> None:
        """Release the Lease if it is still held, so that the next leader need not wait. Raises no error of the API."""
        self._deadline.over = True
        self.lost.set()
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT.total_seconds()):
                await self._release()
        except (BerthError, TimeoutError) as exc:
            logger.info("lease %s was not released, it expires: %s", self._lease, exc or "no answer")

    async def _renew(self) -> None:
        try:
            await self._write({}, decided_on={})
        except LeadershipLostError as exc:
            logger.warning("%s", exc)
            self.lost.set()
        except BerthError as exc:
            logger.warning("%s; %.1f s left", exc, max(self._seconds_left(), 0))

    async def _write(self, changes: Mapping[str, str], *, decided_on: Mapping[str, str]) -> None:
        async with self._write_lock:
            for _ in range(CONFLICTS):
                self._check_leading()
                check_unchanged(self.annotations, changes, decided_on)
                if await self._written(changes):
                    return
        raise LeaseConflictError(f"writing lease {str(self._lease)!r}: written by others {CONFLICTS} times in a row")

    async def _written(self, changes: Mapping[str, str]) -> bool:
        sent_at = self._clock.now()
        spec = held_record(self._identity, self._stored.lease.spec, self._settings, datetime.now(UTC))
        try:
            self._stored = await self._lease.write(self._stored, spec, changes, self._timeout())
        except LeaseConflictError:
            await self._read_again()
            return False
        if not self._deadline.renewed(sent_at, self._clock.now()):
            self._check_leading()
        return True

    async def _read_again(self) -> None:
        self._check_leading()
        stored = await self._lease.read(self._timeout())
        holder = "nobody" if stored is None else stored.lease.spec.holder_identity or "nobody"
        if stored is None or holder != self._identity:
            self._deadline.over = True
            self.lost.set()
            raise LeadershipLostError(f"leading by lease {str(self._lease)!r}: it is now held by {holder!r}")
        self._stored = stored

    async def _release(self) -> None:
        for _ in range(CONFLICTS):
            if self._stored.lease.spec.holder_identity != self._identity:
                return
            try:
                released = released_record(self._stored.lease.spec, datetime.now(UTC))
                settled = {ANNOTATION_SETTLED: self.settled} if self.settled else {}
                self._stored = await self._lease.write(self._stored, released, settled)
            except LeaseConflictError:
                stored = await self._lease.read()
                if stored is None:
                    return
                self._stored = stored

    def _check_leading(self) -> None:
        if self.expired():
            limit = self._settings.renew_deadline.total_seconds()
            raise LeadershipLostError(f"leading by lease {str(self._lease)!r}: not renewed within {limit:g} s")

    def _timeout(self) -> timedelta:
        """Time-out of one request: at most half of the deadline, so that there is time for a second try."""
        left = timedelta(seconds=max(self._seconds_left(), 0.001))
        return min(left, self._settings.renew_deadline / 2)

    def _seconds_left(self) -> float:
        return self._deadline.seconds_left(self._clock.now())


@dataclass(slots=True)
class LeaseDeadline:
    """When leading ends by the holder's clock, unless the Lease is renewed. An end is final."""

    renewed_at: float
    deadline_seconds: float
    over: bool = False

    def expired(self, now: float) -> bool:
        """Whether the renew deadline has passed. Others can lead only some seconds later."""
        self.over = self.over or self.seconds_left(now) <= 0
        return self.over

    def seconds_left(self, now: float) -> float:
        """Seconds until the renew deadline."""
        return self.renewed_at + self.deadline_seconds - now

    def renewed(self, sent_at: float, now: float) -> bool:
        """A renewal sent at ``sent_at`` was answered. Returns whether it was in time; a late one has no effect."""
        if self.expired(now):
            return False
        self.renewed_at = sent_at
        return True
