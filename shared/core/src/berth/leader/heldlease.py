"""The Lease of a leader, with or without election: expiry, annotations, renewal, release.

Every write is a compare-and-set. With election, a renewal without an answer counts against the deadline, and the clock
decides the end, because a task may be late. Without election the Lease has annotations but no holder.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from berth.clock import Clock
from berth.errors import BerthError, TemporaryError
from berth.leader.lease import (
    ANNOTATION_SETTLED,
    LeaseConflictError,
    LeaseObject,
    StoredLease,
    held_record,
    released_record,
    write_annotations,
)
from berth.observability.logging import get_logger
from berth.settings.settings import LeaseSettings

log = get_logger()

RELEASE_TIMEOUT = timedelta(seconds=2)  # Of the whole release at the end of a process; then the Lease expires.

CONFLICTS = 5  # Maximum tries of one write while others write the Lease.


class LeadershipLostError(TemporaryError):
    """Leading is over: another process holds the Lease, it was deleted, or it was not renewed in time."""


class AnnotationConflictError(TemporaryError):
    """Another process has changed the annotation: read it and decide again."""


class HeldLease(ABC):
    def __init__(self, lease: LeaseObject, stored: StoredLease, *, former_settled: str, clock: Clock) -> None:
        self.lost = asyncio.Event()  # Set once leading is over.
        self.former_settled: Final = former_settled  # ANNOTATION_SETTLED of the former leader; may be empty.
        self.settled = ""  # The same of this leader, written with the release.
        self._lease = lease
        self._stored = stored
        self._clock = clock
        self._write_lock = asyncio.Lock()

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the Lease, at most one retry period old while the API server answers."""
        return self._stored.annotations

    @abstractmethod
    def expired(self) -> bool:
        """Whether leading is over. Call it before each action that only a leader may do."""

    async def annotate(self, changes: Mapping[str, str]) -> None:
        """Write annotations by compare-and-set: they must still have the values in ``annotations``.

        Raises:
            AnnotationConflictError: another process changed one of them; ``annotations`` has the new value.
            LeadershipLostError: leading is over.
            ApiUnreachableError: no answer; they may have been written.
            ApiRefusedError: the API server refuses the write.
        """
        await self._write(changes, decided_on=self.annotations)

    @abstractmethod
    async def release(self) -> None:
        """End leading, with a last write if needed. Raises no error of the API."""

    async def _write(self, changes: Mapping[str, str], *, decided_on: Mapping[str, str]) -> None:
        async with self._write_lock:
            for _ in range(CONFLICTS):
                self._check_leading()
                _check_unchanged(self.annotations, changes, decided_on)
                if await self._written(changes):
                    return
        raise LeaseConflictError(f"writing lease {str(self._lease)!r}: written by others {CONFLICTS} times in a row")

    def _check_leading(self) -> None:
        if self.expired():
            raise LeadershipLostError(f"leading by lease {str(self._lease)!r}: {self._why_over()}")

    @abstractmethod
    def _why_over(self) -> str:
        """Why leading is over."""

    @abstractmethod
    async def _written(self, changes: Mapping[str, str]) -> bool:
        """Write the Lease. If another process wrote it meanwhile, read it and return False."""


class ElectedLease(HeldLease):
    """The Lease of an elected leader. ``keep`` renews it until it is lost; every write also renews it."""

    def __init__(  # noqa: PLR0913 - the Lease, its state, the identity, the settings, the deadline, the clock
        self,
        lease: LeaseObject,
        stored: StoredLease,
        *,
        former_settled: str,
        identity: str,
        settings: LeaseSettings,
        deadline: LeaseDeadline,
        clock: Clock,
    ) -> None:
        super().__init__(lease, stored, former_settled=former_settled, clock=clock)
        self._identity = identity
        self._settings = settings
        self._deadline = deadline

    def expired(self) -> bool:
        # The clock decides, so that a process stops at once after a pause.
        return self.lost.is_set() or self._deadline.expired(self._clock.now())

    async def keep(self) -> None:
        """Renew until leading is over. Then ``lost`` is set, at the renew deadline at the latest."""
        try:
            while not self.expired():
                await self._clock.sleep(min(self._settings.retry_period.total_seconds(), max(self._seconds_left(), 0)))
                await self._renew()
        finally:
            self.lost.set()

    async def release(self) -> None:
        """Release the Lease if still held, so that the next leader need not wait. Raises no error of the API."""
        self._deadline.over = True
        self.lost.set()
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT.total_seconds()):
                await self._release()
        except (BerthError, TimeoutError) as exc:
            log.info("Lease not released, it expires", lease=str(self._lease), error=str(exc) or "no answer")

    async def _renew(self) -> None:
        try:
            await self._write({}, decided_on={})
        except LeadershipLostError as exc:
            log.warning("lost the Lease", lease=str(self._lease), error=str(exc))
            self.lost.set()
        except BerthError as exc:
            seconds_left = round(max(self._seconds_left(), 0), 1)
            log.warning("cannot renew the Lease", lease=str(self._lease), error=str(exc), seconds_left=seconds_left)

    def _why_over(self) -> str:
        return f"not renewed within {self._settings.renew_deadline.total_seconds():g} s"

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
        holder = "" if stored is None else stored.lease.spec.holder_identity or ""
        if stored is None or holder != self._identity:
            self._deadline.over = True
            self.lost.set()
            now = f"{holder!r} holds it now" if holder else "it has no holder any more"
            raise LeadershipLostError(f"leading by lease {str(self._lease)!r}: {now}")
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

    def _timeout(self) -> timedelta:
        # At most half of the deadline, so that there is time for a second try.
        left = timedelta(seconds=max(self._seconds_left(), 0.001))
        return min(left, self._settings.renew_deadline / 2)

    def _seconds_left(self) -> float:
        return self._deadline.seconds_left(self._clock.now())


@dataclass(slots=True)
class LeaseDeadline:
    """The end of leading by the holder's clock, unless the Lease is renewed. An end is final."""

    renewed_at: float
    deadline_seconds: float
    over: bool = False

    def expired(self, now: float) -> bool:
        """Whether the renew deadline has passed, some seconds before another process can lead."""
        self.over = self.over or self.seconds_left(now) <= 0
        return self.over

    def seconds_left(self, now: float) -> float:
        return self.renewed_at + self.deadline_seconds - now

    def renewed(self, sent_at: float, now: float) -> bool:
        """Record the answer to a renewal. Returns whether it was in time; a late one has no effect."""
        if self.expired(now):
            return False
        self.renewed_at = sent_at
        return True


class UnelectedLease(HeldLease):
    """The Lease of a leader without election. It is lost only when the process ends or reads a higher number."""

    def expired(self) -> bool:
        return self.lost.is_set()

    async def follow(self, period: timedelta) -> None:
        """Read the Lease periodically, to find a higher number."""
        logged = ""
        while True:
            await self._clock.sleep(period.total_seconds())
            try:
                async with self._write_lock:
                    await self._read_again()
                logged = ""
            except BerthError as exc:
                if str(exc) != logged:
                    logged = str(exc)
                    log.warning("cannot read the Lease", lease=str(self._lease), error=logged)

    async def release(self) -> None:
        """Write that no request is under way, if so. Raises no error of the API."""
        self.lost.set()
        if not self.settled:
            return
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT.total_seconds()):
                await write_annotations(self._lease, self._stored, {ANNOTATION_SETTLED: self.settled})
        except (BerthError, TimeoutError) as exc:
            error = str(exc) or "no answer"
            log.info("Lease not written, the next leader takes longer", lease=str(self._lease), error=error)

    def _why_over(self) -> str:
        return "the process has ended it"

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
