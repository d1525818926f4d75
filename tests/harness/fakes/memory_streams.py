"""A stream in memory, ordered reading of it, and the matching of subjects against filters, as nats-server does it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, Generic, TypeVar

from berth.bus.interface import (
    MESSAGE_ID,
    PubAck,
    StoredMessage,
    StoreFullError,
    StreamState,
    TooLargeError,
    WrongLastSequenceError,
    message_size,
)
from berth.bus.jetstream import EXPECTED_SEQUENCE, TTL
from berth.bus.settings import TopologySettings
from berth.bus.topology import (
    StreamSpec,
)
from berth.errors import BerthError
from harness.fakes.bus_clock import BusClock
from harness.fakes.memory_queue import WorkQueue

T = TypeVar("T")
Listener = Callable[[StoredMessage], None]


class MemoryStream:
    """Messages in order, with the limits per subject, age and size that are declared, and a message's own TTL."""

    def __init__(self, declared: StreamSpec, settings: TopologySettings, clock: BusClock) -> None:
        self.declared: Final = declared
        self.last_sequence = 0
        self.queue: Final = WorkQueue(declared.name, self, clock) if declared.retention == "workqueue" else None
        self._settings = settings
        self._clock = clock
        self._matches = matches_any(declared.subjects)
        self._messages: dict[int, StoredMessage] = {}
        self._by_subject: dict[str, dict[int, None]] = {}
        self._ids: dict[str, tuple[int, datetime]] = {}
        self._bytes = 0
        self._listeners: list[Listener] = []

    @property
    def name(self) -> str:
        return self.declared.name

    def accepts(self, subject: str) -> bool:
        """Whether the stream has the subject."""
        return self._matches(subject)

    # --- writing

    def store(self, subject: str, data: bytes, headers: Mapping[str, str]) -> PubAck:
        """Store a message, unless its message id is known.

        Raises:
            WrongLastSequenceError: the subject has another last sequence than the message expects.
            TooLargeError: above the declared limit.
        """
        message_id = headers.get(MESSAGE_ID, "")
        if (known := self._known(message_id)) is not None:
            return PubAck(stream=self.name, sequence=known, duplicate=True)
        if (refusal := self._refusal(subject, data, headers)) is not None:
            raise refusal
        self._make_room(subject, data, headers)
        stored = self._append(subject, data, headers)
        if message_id:
            self._ids[message_id] = (stored.sequence, self._clock.now() + self._settings.duplicate_window)
        for listener in list(self._listeners):
            listener(stored)
        if self.queue is not None:
            self.queue.dispatch()
        return PubAck(stream=self.name, sequence=stored.sequence)

    def remove(self, sequence: int) -> None:
        stored = self._messages.pop(sequence, None)
        if stored is None:
            return
        self._bytes -= len(stored.data)
        there = self._by_subject[stored.subject]
        del there[sequence]
        if not there:
            del self._by_subject[stored.subject]

    def _known(self, message_id: str) -> int | None:
        """The sequence of a message id within its duplicate window. Ids are in the order of their expiry."""
        now = self._clock.now()
        while self._ids and next(iter(self._ids.values()))[1] <= now:
            del self._ids[next(iter(self._ids))]
        known = self._ids.get(message_id)
        return known[0] if known else None

    def _refusal(self, subject: str, data: bytes, headers: Mapping[str, str]) -> BerthError | None:
        limit = self._settings.message_bytes
        if (size := message_size(data, headers)) > limit:
            return TooLargeError(f"publishing {size} bytes to {subject!r}: {self.name} takes {limit} at most")
        if self.declared.discard == "new" and 0 < self.declared.max_bytes < self._bytes_with(subject, size):
            return StoreFullError(f"publishing to {subject!r}: maximum bytes of {self.name} exceeded")
        is_full = 0 < self.declared.max_msgs <= len(self._messages)
        if self.declared.discard == "new" and is_full and subject not in self._by_subject:
            return StoreFullError(f"publishing to {subject!r}: maximum messages of {self.name} exceeded")
        last_sequence = max(self._by_subject.get(subject, {0: None}))
        expected = headers.get(EXPECTED_SEQUENCE)
        if expected is not None and int(expected) != last_sequence:
            return WrongLastSequenceError(f"publishing to {subject!r}: wrong last sequence: {last_sequence}")
        return None

    def _bytes_with(self, subject: str, size: int) -> int:
        """The bytes of the stream once a message of this size has taken the place of those that it replaces."""
        there = self._by_subject.get(subject, ()) if self.declared.max_msgs_per_subject == 1 else ()
        return self._bytes + size - sum(len(self._messages[sequence].data) for sequence in there)

    def _make_room(self, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        there = list(self._by_subject.get(subject, ()))
        allowed = self.declared.max_msgs_per_subject
        for sequence in there[: max(0, len(there) + 1 - allowed)] if allowed > 0 else ():
            self.remove(sequence)
        while self._messages and 0 < self.declared.max_bytes < self._bytes + len(data):
            self.remove(next(iter(self._messages)))

    def _append(self, subject: str, data: bytes, headers: Mapping[str, str]) -> StoredMessage:
        self.last_sequence += 1
        now = self._clock.now()
        stored = StoredMessage(subject=subject, sequence=self.last_sequence, data=data, headers=dict(headers), time=now)
        self._messages[stored.sequence] = stored
        self._by_subject.setdefault(subject, {})[stored.sequence] = None
        self._bytes += len(data)
        if (ttl := self._ttl(headers)) is not None:
            self._clock.call_at(now + ttl, lambda: self.remove(stored.sequence))
        return stored

    def _ttl(self, headers: Mapping[str, str]) -> timedelta | None:
        """How long a message stays: its own TTL, else the stream's age."""
        own = headers.get(TTL)
        if own is not None and self.declared.key_value:
            return timedelta(seconds=int(own.removesuffix("s")))
        return self.declared.max_age or None

    # --- reading

    def get(self, sequence: int) -> StoredMessage | None:
        """The message with that sequence, unless it has been removed."""
        return self._messages.get(sequence)

    def last(self, subject: str) -> StoredMessage | None:
        """The last message of a subject or filter."""
        if (there := self._by_subject.get(subject)) is not None:
            return self._messages[max(there)]
        test = matches(subject)
        return next((one for one in reversed(self._messages.values()) if test(one.subject)), None)

    def state(self) -> StreamState:
        """The counters of the stream and its consumers."""
        first = next(iter(self._messages.values()), None)
        consumers = self.queue.consumers.values() if self.queue is not None else ()
        return StreamState(
            stream=self.name,
            messages=len(self._messages),
            bytes=self._bytes,
            last_sequence=self.last_sequence,
            first_sequence=first.sequence if first else self.last_sequence + 1,
            now=self._clock.now(),
            first_time=first.time if first else None,
            consumers=tuple(consumer.state() for consumer in consumers),
        )

    def all_after(self, sequence: int) -> Iterator[StoredMessage]:
        """The messages above a sequence, in order."""
        return iter([stored for number, stored in self._messages.items() if number > sequence])

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call the listener with every new message; the returned function removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)


class MemoryReader(Generic[T]):
    """One reader: first what the stream holds, then every new message."""

    def __init__(
        self,
        stream: MemoryStream,
        filters: tuple[str, ...],
        includes: Callable[[StoredMessage], bool],
        convert: Callable[[StoredMessage], T],
    ) -> None:
        self.position = 0
        self.caught_up = asyncio.Event()
        self.failure: BerthError | None = None
        self._stream = stream
        self._matches = matches_any(filters)
        self._convert = convert
        self._unread = deque(
            one.sequence for one in stream.all_after(0) if includes(one) and self._matches(one.subject)
        )
        self._filtered_end = self._unread[-1] if self._unread else 0
        self._stream_end = stream.last_sequence
        self._left_out: set[int] = set()
        self._changed = asyncio.Event()
        self._stop_listening = stream.listen(self._on_stored)
        if not self._unread:
            self._catch_up()

    async def batches(self) -> AsyncIterator[list[T]]:
        """What has arrived, in order, without end."""
        while self.failure is None:
            was_caught_up = self.caught_up.is_set()
            batch = self._drain()
            if batch or self.caught_up.is_set() != was_caught_up:
                yield batch
            elif self.failure is None:
                self._changed.clear()
                await self._changed.wait()
        raise self.failure

    def leave_out(self, sequence: int) -> None:
        """As :meth:`berth.bus.interface.BucketReader.leave_out`."""
        if sequence > self.position:
            self._left_out.add(sequence)

    def fail(self, failure: BerthError) -> None:
        """End the iteration with this error."""
        self.failure = self.failure or failure
        self._changed.set()

    def close(self) -> None:
        self._stop_listening()

    def _drain(self) -> list[T]:
        batch = []
        while self._unread:
            self.position = self._unread.popleft()
            if self.position in self._left_out:
                self._left_out.discard(self.position)
                continue
            if (stored := self._stream.get(self.position)) is not None:
                batch.append(self._convert(stored))
        if self.position >= self._filtered_end:
            self._catch_up()
        return batch

    def _catch_up(self) -> None:
        self.position = max(self.position, self._stream_end)
        self.caught_up.set()

    def _on_stored(self, stored: StoredMessage) -> None:
        if self._matches(stored.subject):
            self._unread.append(stored.sequence)
            self._changed.set()


def is_subject(text: str) -> bool:
    """Whether a client may publish to it: not empty, no white space."""
    return bool(text) and not set(text) & set(" \t\r\n")


@lru_cache(maxsize=256)
def matches(pattern: str) -> Callable[[str], bool]:
    """The test for one filter: ``*`` stands for one token, ``>`` at the end for one or more."""
    tokens = pattern.split(".")
    if "*" not in tokens:
        return _prefix_or_equal(pattern)
    open_ended = tokens[-1] == ">"
    fixed = tokens[:-1] if open_ended else tokens

    def test(subject: str) -> bool:
        found = subject.split(".")
        has_length = len(found) > len(fixed) if open_ended else len(found) == len(fixed)
        return has_length and all(want in ("*", got) for want, got in zip(fixed, found, strict=False))

    return test


def matches_any(filters: Iterable[str]) -> Callable[[str], bool]:
    """The test for several filters at once."""
    tests = [matches(one) for one in filters]
    return tests[0] if len(tests) == 1 else lambda subject: any(test(subject) for test in tests)


def _prefix_or_equal(pattern: str) -> Callable[[str], bool]:
    """The test for a filter without ``*``."""
    if pattern == ">":
        return bool
    if pattern.endswith(".>"):
        prefix = pattern[:-1]
        return lambda subject: subject.startswith(prefix) and len(subject) > len(prefix)
    return lambda subject: subject == pattern
