"""An ordered reading of a stream in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from berth.api.errors import BerthError
from berth.bus.filters import takes_any
from berth.bus.interface import StoredMessage
from berth.bus.memory_stream import MemoryStream

T = TypeVar("T")


class MemoryReader(Generic[T]):
    """One reading: what was there when it began, then what is stored from then on."""

    def __init__(
        self,
        stream: MemoryStream,
        filters: tuple[str, ...],
        begins_with: Callable[[StoredMessage], bool],
        shape: Callable[[StoredMessage], T],
    ) -> None:
        self.position = 0
        self.caught_up = asyncio.Event()
        self.failure: BerthError | None = None
        self._stream = stream
        self._takes = takes_any(filters)
        self._shape = shape
        self._to_come = deque(
            one.sequence for one in stream.all_after(0) if begins_with(one) and self._takes(one.subject)
        )
        self._end = self._to_come[-1] if self._to_come else 0
        self._last_at_start = stream.last_sequence
        self._woken = asyncio.Event()
        self._stop_listening = stream.listen(self._hear)
        if not self._to_come:
            self._finish_start()

    async def batches(self) -> AsyncIterator[list[T]]:
        """What has arrived, in order, for ever."""
        while self.failure is None:
            was_caught_up = self.caught_up.is_set()
            batch = self._drain()
            if batch or self.caught_up.is_set() != was_caught_up:
                yield batch
            elif self.failure is None:
                self._woken.clear()
                await self._woken.wait()
        raise self.failure

    def fail(self, failure: BerthError) -> None:
        """Nothing will come any more."""
        self.failure = self.failure or failure
        self._woken.set()

    def close(self) -> None:
        """Read no more."""
        self._stop_listening()

    def _drain(self) -> list[T]:
        batch = []
        while self._to_come:
            self.position = self._to_come.popleft()
            if (stored := self._stream.get(self.position)) is not None:
                batch.append(self._shape(stored))
        if self.position >= self._end:
            self._finish_start()
        return batch

    def _finish_start(self) -> None:
        self.position = max(self.position, self._last_at_start)
        self.caught_up.set()

    def _hear(self, stored: StoredMessage) -> None:
        if self._takes(stored.subject):
            self._to_come.append(stored.sequence)
            self._woken.set()
