"""Leader election by a Lease: one process leads at a time, and its own clock decides when its leading ends.

The client library's election is not safe enough. Here a renewal without an answer counts against the deadline, the end
is judged by the clock and not by a task that may be late, and every write is a compare-and-set.

``--leader-elect=false`` leads without election: the Lease has no holder, but its annotations are kept.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from berth.api.errors import BerthError, TemporaryError
from berth.api.workloads import LeaseSpec
from berth.kube.client import KubeClient
from berth.kube.clock import Clock, SteadyClock
from berth.leader.lease import (
    ANNOTATION_SETTLED,
    ElectionStep,
    LeaseConflictError,
    LeaseDeadline,
    LeaseObject,
    LeaseObservation,
    StoredLease,
    held_record,
    next_step,
    observe,
    released_record,
    write_annotations,
)
from berth.process.lifecycle import run_until
from berth.process.settings import LeaseSettings

logger = logging.getLogger(__name__)


RELEASE_TIMEOUT = timedelta(seconds=2)
"""How long releasing the Lease may take at the end of a process. After that it is left to expire."""

CONFLICTS = 5
"""How often one write is tried when others write the Lease at the same time."""


class LeadershipLostError(TemporaryError):
    """Leading is over: another process holds the Lease, it was deleted, or it was not renewed in time."""


class AnnotationConflictError(TemporaryError):
    """Another process has changed the annotation: read it and decide again."""


class HeldLease(Protocol):
    """A leader's Lease, with or without election: whether it still leads, and the Lease's annotations."""

    @property
    def lost(self) -> asyncio.Event:
        """Set once leading is over."""
        ...

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations of the Lease, at most one retry period old while the API server answers."""
        ...

    former_settled: str
    """``ANNOTATION_SETTLED`` as it was when this leader took the Lease; empty for none."""
    settled: str
    """The same for this leader, written when the Lease is released."""

    def expired(self) -> bool:
        """Whether leading is over, by the clock. Call it before each action that only a leader may do."""
        ...

    async def annotate(self, changes: Mapping[str, str]) -> None:
        """Write annotations by compare-and-set: they must still have the values in ``annotations``.

        Raises:
            AnnotationConflictError: another process changed one of them; ``annotations`` has the new value.
            LeadershipLostError: leading is over.
            ApiUnreachableError: no answer; they may have been written.
            ApiRefusedError: the API server does not allow it.
        """
        ...


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
    ) -> None:
        self._lease = LeaseObject(client, namespace, name)
        self._identity = identity
        self._settings = settings or LeaseSettings()
        problems = self._settings.problems()
        if problems:
            raise ValueError("; ".join(problems))
        self._clock = clock or SteadyClock()
        self._observation: LeaseObservation | None = None
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
            await _cancel(renewing)
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
        self._observation = None if stored is None else observe(self._observation, stored.lease, now)
        self.status = ElectorStatus(holder=self._observation.holder if self._observation else "")
        if next_step(self._observation, self._identity, now) is ElectionStep.WAIT:
            return None
        return await self._take(stored, annotations)

    async def _take(self, stored: StoredLease | None, annotations: Mapping[str, str]) -> ElectedLease:
        sent_at = self._clock.now()
        if stored is None:
            taken = await self._lease.create(self._record(LeaseSpec()), annotations)
        else:
            cleared = {**_cleared(stored), **annotations}
            taken = await self._lease.write(stored, self._record(stored.lease.spec), cleared)
        deadline = LeaseDeadline(renewed_at=sent_at, deadline_seconds=self._settings.renew_deadline.total_seconds())
        lease = ElectedLease(
            self._lease, taken, identity=self._identity, settings=self._settings, deadline=deadline, clock=self._clock
        )
        lease.former_settled = _settled(stored)
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
                _check_unchanged(self.annotations, changes, decided_on)
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


class Unelected:
    """Leading without election, for the only process of its role."""

    def __init__(self, client: KubeClient, namespace: str, name: str, clock: Clock | None = None) -> None:
        self._lease = LeaseObject(client, namespace, name)
        self._clock = clock or SteadyClock()
        self._period = LeaseSettings().retry_period

    @asynccontextmanager
    async def lead(self, annotations: Mapping[str, str] | None = None) -> AsyncIterator[HeldLease]:
        """Write these annotations to the Lease, with no holder, then lead."""
        before, made = await self._made(annotations or {})
        lease = UnelectedLease(self._lease, made, self._period, self._clock)
        lease.former_settled = _settled(before)
        following = asyncio.create_task(lease.follow(), name=f"following lease {self._lease}")
        try:
            yield lease
        finally:
            await _cancel(following)
            await lease.release()

    async def _made(self, annotations: Mapping[str, str]) -> tuple[StoredLease | None, StoredLease]:
        """The Lease as it was, and as it is written now."""
        while True:
            try:
                before = await self._lease.read()
                return before, await write_annotations(self._lease, before, {**_cleared(before), **annotations})
            except BerthError as exc:
                logger.warning("%s", exc)
            await self._clock.sleep(self._period.total_seconds())


class UnelectedLease:
    """The Lease of a leader without election. It is lost only when the process ends or reads a higher number."""

    def __init__(self, lease: LeaseObject, stored: StoredLease, period: timedelta, clock: Clock) -> None:
        self.lost = asyncio.Event()
        self.former_settled = self.settled = ""
        self._lease = lease
        self._stored = stored
        self._period = period
        self._clock = clock
        self._write_lock = asyncio.Lock()

    @property
    def annotations(self) -> Mapping[str, str]:
        return self._stored.annotations

    def expired(self) -> bool:
        return self.lost.is_set()

    async def annotate(self, changes: Mapping[str, str]) -> None:
        decided_on = self.annotations
        async with self._write_lock:
            for _ in range(CONFLICTS):
                _check_unchanged(self.annotations, changes, decided_on)
                if await self._written(changes):
                    return
        raise LeaseConflictError(f"writing lease {str(self._lease)!r}: written by others {CONFLICTS} times in a row")

    async def release(self) -> None:
        """Write that nothing is under way, if so. Raises no error of the API."""
        self.lost.set()
        if not self.settled:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT.total_seconds()):
                await write_annotations(self._lease, self._stored, {ANNOTATION_SETTLED: self.settled})
        except (BerthError, TimeoutError) as exc:
            logger.info("lease %s was not written, the next leader takes longer: %s", self._lease, exc or "no answer")

    async def follow(self) -> None:
        """Read the Lease periodically, to find a higher number on it."""
        while True:
            await self._clock.sleep(self._period.total_seconds())
            try:
                async with self._write_lock:
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


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end; log any other exception of it."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        logger.error("%s: %r", task.get_name(), task.exception())


def _settled(stored: StoredLease | None) -> str:
    return "" if stored is None else stored.annotations.get(ANNOTATION_SETTLED, "")


def _cleared(stored: StoredLease | None) -> dict[str, str]:
    """The change that takes back what the former leader wrote about its end, if it wrote anything."""
    return {ANNOTATION_SETTLED: ""} if _settled(stored) else {}


def _check_unchanged(now: Mapping[str, str], changes: Mapping[str, str], decided_on: Mapping[str, str]) -> None:
    """Compare before setting. An annotation with the new value is no conflict: the answer to the write was lost.

    Raises:
        AnnotationConflictError: an annotation has neither the expected nor the new value.
    """
    for key, wanted in changes.items():
        if now.get(key) not in (decided_on.get(key), wanted):
            raise AnnotationConflictError(
                f"writing annotation {key!r}: decided on {decided_on.get(key)!r}, but it is {now.get(key)!r} now"
            )
