"""Which subjects a filter takes: ``*`` stands for one token, ``>`` at the end for one or more.

A stream in memory: what it stores, refuses and forgets, as the real server does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from berth.api.errors import BerthError
from berth.bus.interface import PubAck, StoredMessage, StreamState, TooLargeError, WrongLastSequenceError
from berth.bus.kv import ROLLUP, TTL
from berth.bus.settings import TopologySettings
from berth.bus.streams import EXPECTED_SEQUENCE, MESSAGE_ID
from berth.bus.topology import StreamSpec
from harness.fakes.memory_queue import BusClock, WorkQueue


def is_subject(text: str) -> bool:
    """Whether a client may publish to it: it is not empty and has no white space."""
    return bool(text) and not set(text) & set(" \t\r\n")


@lru_cache(maxsize=256)
def takes(one: str) -> Callable[[str], bool]:
    """The test for one filter."""
    tokens = one.split(".")
    if "*" not in tokens:
        return _plain(one)
    open_ended = tokens[-1] == ">"
    fixed = tokens[:-1] if open_ended else tokens

    def test(subject: str) -> bool:
        found = subject.split(".")
        long_enough = len(found) > len(fixed) if open_ended else len(found) == len(fixed)
        return long_enough and all(want in ("*", got) for want, got in zip(fixed, found, strict=False))

    return test


def takes_any(filters: Iterable[str]) -> Callable[[str], bool]:
    """The test for several filters at once."""
    tests = [takes(one) for one in filters]
    return tests[0] if len(tests) == 1 else lambda subject: any(test(subject) for test in tests)


def _plain(one: str) -> Callable[[str], bool]:
    """Without ``*`` the text is compared as it is."""
    if one == ">":
        return bool
    if one.endswith(".>"):
        prefix = one[:-1]
        return lambda subject: subject.startswith(prefix) and len(subject) > len(prefix)
    return lambda subject: subject == one


Listener = Callable[[StoredMessage], None]


class MemoryStream:
    """Messages in order, at most one per subject where so declared, each as long as its age and its own time allow."""

    def __init__(self, declared: StreamSpec, settings: TopologySettings, clock: BusClock) -> None:
        self.declared: Final = declared
        self.last_sequence = 0
        self.queue: Final = WorkQueue(declared.name, self, clock) if declared.retention == "workqueue" else None
        self._settings = settings
        self._clock = clock
        self._takes = takes_any(declared.subjects)
        self._messages: dict[int, StoredMessage] = {}
        self._by_subject: dict[str, dict[int, None]] = {}
        self._ids: dict[str, tuple[int, datetime]] = {}
        self._bytes = 0
        self._listeners: list[Listener] = []

    @property
    def name(self) -> str:
        """As declared."""
        return self.declared.name

    def accepts(self, subject: str) -> bool:
        """Whether a message on the subject is this stream's."""
        return self._takes(subject)

    # --- writing

    def store(self, subject: str, data: bytes, headers: Mapping[str, str]) -> PubAck:
        """Store a message, or find that it is there already.

        Raises:
            WrongLastSequenceError: the subject stands at another sequence than the message expects.
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
        """Forget a message."""
        stored = self._messages.pop(sequence, None)
        if stored is None:
            return
        self._bytes -= len(stored.data)
        there = self._by_subject[stored.subject]
        del there[sequence]
        if not there:
            del self._by_subject[stored.subject]

    def _known(self, message_id: str) -> int | None:
        """The sequence under which a message id is remembered. Ids are in the order of their end."""
        now = self._clock.now()
        while self._ids and next(iter(self._ids.values()))[1] <= now:
            del self._ids[next(iter(self._ids))]
        known = self._ids.get(message_id)
        return known[0] if known else None

    def _refusal(self, subject: str, data: bytes, headers: Mapping[str, str]) -> BerthError | None:
        limit = self._settings.message_bytes
        if len(data) > limit:
            return TooLargeError(f"publishing {len(data)} bytes to {subject!r}: {self.name} takes {limit} at most")
        stands_at = max(self._by_subject.get(subject, {0: None}))
        expected = headers.get(EXPECTED_SEQUENCE)
        if expected is not None and int(expected) != stands_at:
            return WrongLastSequenceError(f"publishing to {subject!r}: wrong last sequence: {stands_at}")
        return None

    def _make_room(self, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        there = list(self._by_subject.get(subject, ()))
        allowed = self.declared.max_msgs_per_subject
        gone = (
            there if headers.get(ROLLUP) == "sub" else there[: max(0, len(there) + 1 - allowed)] if allowed > 0 else []
        )
        for sequence in gone:
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
        if (life := self._life(headers)) is not None:
            self._clock.call_at(now + life, lambda: self.remove(stored.sequence))
        return stored

    def _life(self, headers: Mapping[str, str]) -> timedelta | None:
        """How long a message stays: its own time, else the stream's age."""
        own = headers.get(TTL)
        if own is not None and self.declared.key_value:
            return timedelta(seconds=int(own.removesuffix("s")))
        return self.declared.max_age or None

    # --- reading

    def get(self, sequence: int) -> StoredMessage | None:
        """The message with that sequence, if it is still there."""
        return self._messages.get(sequence)

    def last(self, subject: str) -> StoredMessage | None:
        """The last message under a subject or filter."""
        if (there := self._by_subject.get(subject)) is not None:
            return self._messages[max(there)]
        test = takes(subject)
        return next((one for one in reversed(self._messages.values()) if test(one.subject)), None)

    def state(self) -> StreamState:
        """Where it and its consumers stand."""
        first = next(iter(self._messages.values()), None)
        consumers = self.queue.consumers.values() if self.queue is not None else ()
        return StreamState(
            stream=self.name,
            messages=len(self._messages),
            bytes=self._bytes,
            last_sequence=self.last_sequence,
            now=self._clock.now(),
            first_time=first.time if first else None,
            consumers=tuple(consumer.state() for consumer in consumers),
        )

    def all_after(self, sequence: int) -> Iterator[StoredMessage]:
        """The messages above a sequence, as they are now, in order."""
        return iter([stored for number, stored in self._messages.items() if number > sequence])

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call the listener with every message that is stored from now on; what comes back takes it off."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
