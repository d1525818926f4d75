"""What a server in memory holds: streams, their consumers, ``bus.id``, and who listens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from berth.bus.clock import BusClock
from berth.bus.filters import is_subject, takes
from berth.bus.interface import BusRefusedError, MissingError, PubAck
from berth.bus.memory_queue import WorkQueue
from berth.bus.memory_stream import MemoryStream
from berth.bus.settings import TopologySettings
from berth.bus.topology import BUS_ID_KEY, CONTROL, bucket_prefix, bucket_stream, shared_consumers, streams

Listener = Callable[[str, bytes, Mapping[str, str]], None]


class MemoryStore:
    """Everything that sessions do to the server's state."""

    def __init__(self, settings: TopologySettings, clock: BusClock, name: str) -> None:
        self.settings: Final = settings
        self.clock: Final = clock
        self._name = name
        self._number = 1
        self._streams: dict[str, MemoryStream] = {}
        self._listeners: list[tuple[Callable[[str], bool], Listener]] = []

    def wipe(self) -> None:
        """Be another, empty store."""
        self._streams = {}
        self._number += 1

    def listen(self, subject: str, listener: Listener) -> Callable[[], None]:
        """Call the listener with what passes under a subject; what comes back takes it off."""
        entry = (takes(subject), listener)
        self._listeners.append(entry)
        return lambda: self._listeners.remove(entry)

    def stream(self, name: str) -> MemoryStream:
        """A stream by name.

        Raises:
            MissingError: it is not there.
        """
        if name not in self._streams:
            raise MissingError(f"using stream {name!r}: stream not found")
        return self._streams[name]

    def queue(self, name: str) -> WorkQueue:
        """A work queue by its stream's name.

        Raises:
            MissingError: it is not there.
            BusRefusedError: it is no work queue.
        """
        queue = self.stream(name).queue
        if queue is None:
            raise BusRefusedError(f"using stream {name!r} as a work queue: it is none")
        return queue

    def store(self, subject: str, data: bytes, headers: Mapping[str, str]) -> PubAck:
        """Hand a message to everybody who listens, and to the stream that takes it.

        Raises:
            BusRefusedError: it is no subject.
            MissingError: no stream takes it.
        """
        if not is_subject(subject):
            raise BusRefusedError(f"publishing to {subject!r}: no subject: it is empty or has white space")
        stream = next((one for one in self._streams.values() if one.accepts(subject)), None)
        for test, listener in self._listeners:
            if test(subject):
                asyncio.get_running_loop().call_soon(listener, subject, data, headers)
        if stream is None:
            raise MissingError(f"publishing to {subject!r}: no stream takes it")
        return stream.store(subject, data, headers)

    def apply(self) -> str:
        """Make what is declared; returns ``bus.id``."""
        for declared in streams(self.settings):
            self._streams.setdefault(declared.name, MemoryStream(declared, self.settings, self.clock))
        for consumer in shared_consumers(self.settings):
            self.queue(consumer.stream).create(consumer)
        if not self.bus_id():
            self.store(bucket_prefix(CONTROL) + BUS_ID_KEY, f"{self._name}-{self._number}".encode(), {})
        return self.bus_id()

    def bus_id(self) -> str:
        """``bus.id``, or nothing."""
        control = self._streams.get(bucket_stream(CONTROL))
        stored = control.last(bucket_prefix(CONTROL) + BUS_ID_KEY) if control else None
        return stored.data.decode() if stored else ""

    def verify(self) -> None:
        """Raise for the first thing that is missing."""
        for declared in streams(self.settings):
            self.stream(declared.name)
        for consumer in shared_consumers(self.settings):
            if consumer.name not in self.queue(consumer.stream).consumers:
                raise MissingError(f"looking for consumer {consumer.name!r} of {consumer.stream}: consumer not found")
