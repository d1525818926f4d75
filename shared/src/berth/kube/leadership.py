"""What a leader holds: whether it still leads, by its own clock, and the annotations of its Lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Protocol

from berth.api.errors import BerthError, TemporaryError
from berth.kube.clock import Clock
from berth.kube.election import LeaseSettings, Tenure, held_by, released
from berth.kube.lease_object import LeaseConflictError, LeaseObject, StoredLease

logger = logging.getLogger(__name__)

RELEASE_TIMEOUT = timedelta(seconds=2)
"""How long giving the Lease back may take at the end of a process; otherwise it runs out by itself."""
CONFLICTS = 5
"""How often one write is tried again because somebody else wrote annotations at the same time."""


class LeadershipLostError(TemporaryError):
    """The Lease is somebody else's, or gone, or was not renewed in time: leading is over, start anew."""


class AnnotationConflictError(TemporaryError):
    """Somebody else has changed the very annotation that was to be written: look at it and decide again."""


class Leadership(Protocol):
    """What a leader holds in its hands, whether it was elected or not."""

    @property
    def lost(self) -> asyncio.Event:
        """Set once leading is over."""
        ...

    @property
    def annotations(self) -> Mapping[str, str]:
        """The Lease's annotations, at most a retry period old while the API server answers."""
        ...

    def expired(self) -> bool:
        """Whether leading is over, judged now by the clock. Asked before each thing that only a leader may do."""
        ...

    async def annotate(self, changes: Mapping[str, str]) -> None:
        """Write annotations by compare-and-set: those named must still be as ``annotations`` shows them.

        Raises:
            AnnotationConflictError: one of them was changed meanwhile; ``annotations`` shows how.
            LeadershipLostError: leading is over.
            ApiUnreachableError: no answer; they may have been written.
            ApiRefusedError: the API server does not allow it.
        """
        ...


class ElectedLeadership:
    """Leading by a Lease. ``keep`` renews it until it is lost; every write is a renewal."""

    def __init__(  # noqa: PLR0913 - which Lease, as it was taken, as whom, how, since when, by which clock
        self,
        lease: LeaseObject,
        taken: StoredLease,
        *,
        identity: str,
        settings: LeaseSettings,
        tenure: Tenure,
        clock: Clock,
    ) -> None:
        self.lost = asyncio.Event()
        self._lease = lease
        self._stored = taken
        self._identity = identity
        self._settings = settings
        self._tenure = tenure
        self._clock = clock
        self._one_write_at_a_time = asyncio.Lock()

    @property
    def annotations(self) -> Mapping[str, str]:
        """The Lease's annotations as they were read or written last."""
        return self._stored.annotations

    def expired(self) -> bool:
        """Whether leading is over. By the clock: a process that was paused knows it before it does anything."""
        return self.lost.is_set() or self._tenure.expired(self._clock.now())

    async def annotate(self, changes: Mapping[str, str]) -> None:
        """Write annotations; see :class:`Leadership`."""
        await self._write(changes, decided_on=self.annotations)

    async def keep(self) -> None:
        """Renew until leading is over; ``lost`` is set then, at the renew deadline at the latest."""
        try:
            while not self.expired():
                await self._clock.sleep(min(self._settings.retry_period.total_seconds(), max(self._seconds_left(), 0)))
                await self._renew()
        finally:
            self.lost.set()

    async def release(self) -> None:
        """Give the Lease back if it is still held, so that the next leader need not wait. Never raises for the API."""
        self._tenure.over = True
        self.lost.set()
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT.total_seconds()):
                await self._release()
        except (BerthError, TimeoutError) as exc:
            logger.info("lease %s runs out by itself: %s", self._lease, exc or "no answer")

    async def _renew(self) -> None:
        try:
            await self._write({}, decided_on={})
        except LeadershipLostError as exc:
            logger.warning("%s", exc)
            self.lost.set()
        except BerthError as exc:
            logger.warning("%s; %.1f s left", exc, max(self._seconds_left(), 0))

    async def _write(self, changes: Mapping[str, str], *, decided_on: Mapping[str, str]) -> None:
        async with self._one_write_at_a_time:
            for _ in range(CONFLICTS):
                self._want_to_lead()
                want_unchanged(self.annotations, changes, decided_on)
                if await self._written(changes):
                    return
        raise LeaseConflictError(f"writing lease {str(self._lease)!r}: written by others {CONFLICTS} times in a row")

    async def _written(self, changes: Mapping[str, str]) -> bool:
        sent_at = self._clock.now()
        spec = held_by(self._identity, self._stored.lease.spec, self._settings, datetime.now(UTC))
        try:
            self._stored = await self._lease.write(self._stored, spec, changes, self._patience())
        except LeaseConflictError:
            await self._read_again()
            return False
        if not self._tenure.renewed(sent_at, self._clock.now()):
            self._want_to_lead()
        return True

    async def _read_again(self) -> None:
        self._want_to_lead()
        stored = await self._lease.read(self._patience())
        holder = "nobody" if stored is None else stored.lease.spec.holder_identity or "nobody"
        if stored is None or holder != self._identity:
            self._tenure.over = True
            self.lost.set()
            raise LeadershipLostError(f"leading by lease {str(self._lease)!r}: it is now held by {holder!r}")
        self._stored = stored

    async def _release(self) -> None:
        for _ in range(CONFLICTS):
            if self._stored.lease.spec.holder_identity != self._identity:
                return
            try:
                self._stored = await self._lease.write(
                    self._stored, released(self._stored.lease.spec, datetime.now(UTC)), {}
                )
            except LeaseConflictError:
                stored = await self._lease.read()
                if stored is None:
                    return
                self._stored = stored

    def _want_to_lead(self) -> None:
        if self.expired():
            limit = self._settings.renew_deadline.total_seconds()
            raise LeadershipLostError(f"leading by lease {str(self._lease)!r}: not renewed within {limit:g} s")

    def _patience(self) -> timedelta:
        """For one request: half of the deadline, so that there is a second try, and never beyond it."""
        left = timedelta(seconds=max(self._seconds_left(), 0.001))
        return min(left, self._settings.renew_deadline / 2)

    def _seconds_left(self) -> float:
        return self._tenure.seconds_left(self._clock.now())


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task of a leadership and wait for its end; what went wrong in it otherwise is said in the log."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled() and task.exception() is not None:
        logger.error("%s: %r", task.get_name(), task.exception())


def want_unchanged(now: Mapping[str, str], changes: Mapping[str, str], decided_on: Mapping[str, str]) -> None:
    """Compare before setting; an annotation that already is what it shall be is no conflict: an answer was lost.

    Raises:
        AnnotationConflictError: an annotation to be written is neither as decided on nor as wanted.
    """
    for key, wanted in changes.items():
        if now.get(key) not in (decided_on.get(key), wanted):
            raise AnnotationConflictError(
                f"writing annotation {key!r}: decided on {decided_on.get(key)!r}, but it is {now.get(key)!r} now"
            )
