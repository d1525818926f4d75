"""Checks of a leader: whether it makes progress, and whether its consumer delivers every message of the stream.

Orphans are messages that a work queue stores and its consumer never delivers. nats-server writes a stream and its
consumer's state apart: after a kill or a full disk the consumer may count stored messages as acknowledged. Only a new
consumer delivers them (docs/adr/0021-orphans-are-delivered-by-a-new-consumer.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from berth.bus.interface import ConsumerState, Session, StreamState
from berth.leader.session import LeaderSession, Role
from berth.lifecycle.process import Process
from berth.lifecycle.sessions import Refusals
from berth.observability.health import Progress

PROGRESS_SECONDS: Final = 1.0  # Between two checks for progress.
CHECK_SECONDS: Final = 3.0  # Between two checks for orphans, of two requests each.
# Orphans are reported after this many checks in a row with the same oldest message. Messages that are acknowledged or
# published between two requests are not orphans.
CHECKS: Final = 3
VERIFY_EVERY: Final = 3  # Checks for orphans per verification of all streams and buckets, a request each.


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChecks:
    """Checks of one leadership. Each runs until cancelled."""

    process: Process
    leadership: LeaderSession
    role: Role

    async def check_progress(
        self, progress: Progress, describe: Callable[[], str], *, waiting: Callable[[], int], begun: Callable[[], int]
    ) -> None:
        """Give up the Lease when work waits and no work begins, as ``Progress.check``."""
        progress.begin()
        while True:
            await self.process.clock.sleep(PROGRESS_SECONDS)
            reason = progress.check(describe, waiting=waiting(), begun=begun())
            if reason is not None:
                self.process.metrics.count("berth_stalls_total", role=self.role)
                self.leadership.end(reason)

    async def check_orphans(
        self,
        session: Session,
        orphans: OrphanCheck,
        on_found: Callable[[str], Awaitable[None]],
        *,
        verifies: bool = False,
    ) -> None:
        """Call ``on_found`` with the reason when the consumer is missing, or does not deliver its stream's messages.

        ``verifies``: verify streams and buckets too, in the same task, because ``on_found`` may remove the consumer. A
        missing one ends the leadership, and the next session creates it.
        """
        refusals = Refusals("cannot look after the streams")
        for number in itertools.count(1):
            await self.process.clock.sleep(CHECK_SECONDS)
            with refusals.logged_once():
                if problem := await orphans.find():
                    self.process.metrics.count("berth_orphans_found_total", stream=orphans.stream)
                    await on_found(problem)
            if verifies and number % VERIFY_EVERY == 0:
                with refusals.logged_once():
                    await session.verify()


class OrphanCheck:
    """Finds orphans of one consumer. Call ``find`` every ``CHECK_SECONDS``."""

    def __init__(self, session: Session, stream: str, consumer: str) -> None:
        self._session = session
        self.stream = stream
        self._consumer = consumer
        self._oldest: int | None = None
        self._times = 0

    async def find(self) -> str:
        """Return the problem as a sentence if ``CHECKS`` checks in a row found it; else an empty string.

        Raises:
            BusLostError, UnansweredError, MissingError: as :meth:`Session.state`.
            BusRefusedError: this client may not ask.
        """
        problem, oldest = await self._problem()
        self._times = self._times + 1 if problem and oldest == self._oldest else bool(problem)
        self._oldest = oldest
        if self._times < CHECKS:
            return ""
        self._times = 0
        return problem

    async def _problem(self) -> tuple[str, int]:
        """The current problem, and the sequence of the oldest message."""
        before = await self._session.state(self.stream)
        consumer = next((one for one in before.consumers if one.name == self._consumer), None)
        if consumer is None:
            # The list of a NATS cluster lacks a consumer whose leader does not answer; the names have it.
            is_there = self._consumer in await self._session.consumers(self.stream)
            return "" if is_there else f"{self.stream} has no consumer {self._consumer!r}", 0
        if not orphans(before, consumer):
            return "", 0
        after = await self._session.state(self.stream)
        count = orphans(after, consumer, published=after.last_sequence - before.last_sequence)
        problem = f"{self.stream} holds messages that its consumer {self._consumer!r} does not deliver"
        return (f"{problem}: {count} at least" if count else ""), after.first_sequence


def orphans(stream: StreamState, consumer: ConsumerState, published: int = 0) -> int:
    """Minimum number of orphans, if the stream was read after its consumer, and ``published`` came in between."""
    if not stream.messages:
        return 0
    is_oldest = stream.first_sequence <= consumer.acknowledged_to
    return max(int(is_oldest), stream.messages - published - consumer.undelivered - consumer.unacknowledged)
