"""Orphans: messages that a work queue holds and its consumer never delivers.

nats-server writes a stream and the state of its consumer apart. After a kill or a full disk the consumer may count
messages as acknowledged that the stream holds again, or still. It delivers them no more, and no acknowledgement removes
them. A new consumer of the stream delivers all of them.
"""

from __future__ import annotations

from typing import Final

from berth.bus.interface import ConsumerState, Session, StreamState

CHECK_SECONDS: Final = 3.0
"""Between two checks for orphans: two requests."""
CHECKS: Final = 3
"""So many checks in a row must find the same message to be the oldest one, and orphans. What is acknowledged just then,
or was published between two requests, is no orphan."""


class OrphanCheck:
    """Finds orphans of one consumer. Call ``find`` every ``CHECK_SECONDS``."""

    def __init__(self, session: Session, stream: str, consumer: str) -> None:
        self._session = session
        self.stream = stream
        self._consumer = consumer
        self._oldest: int | None = None
        self._times = 0

    async def find(self) -> str:
        """What is wrong, as a sentence, if it has been so for ``CHECKS`` checks; else an empty one.

        Raises:
            BusLostError, UnansweredError, MissingError: as :meth:`Session.state`.
            BusRefusedError: this client may not ask.
        """
        problem, oldest = await self._look()
        self._times = self._times + 1 if problem and oldest == self._oldest else bool(problem)
        self._oldest = oldest
        if self._times < CHECKS:
            return ""
        self._times = 0
        return problem

    async def _look(self) -> tuple[str, int]:
        """What is wrong now, and the sequence of the oldest message."""
        before = await self._session.state(self.stream)
        consumer = next((one for one in before.consumers if one.name == self._consumer), None)
        if consumer is None:
            # Of a NATS cluster the list leaves out a consumer whose leader does not answer; the names have it.
            is_there = self._consumer in await self._session.consumers(self.stream)
            return "" if is_there else f"{self.stream} has no consumer {self._consumer!r}", 0
        if not orphans(before, consumer):
            return "", 0
        after = await self._session.state(self.stream)
        count = orphans(after, consumer, published=after.last_sequence - before.last_sequence)
        problem = f"{self.stream} holds messages that its consumer {self._consumer!r} does not deliver"
        return (f"{problem}: {count} at least" if count else ""), after.first_sequence


def orphans(stream: StreamState, consumer: ConsumerState, published: int = 0) -> int:
    """How many there are at least, when the stream was read after its consumer, and ``published`` in between."""
    if not stream.messages:
        return 0
    is_oldest = stream.first_sequence <= consumer.acknowledged_to
    return max(int(is_oldest), stream.messages - published - consumer.undelivered - consumer.unacknowledged)
