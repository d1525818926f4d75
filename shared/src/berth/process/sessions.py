"""One connected and verified NATS session after the other, for as long as the service lives (PROTOCOL 2).

    async for session in sessions(bus, name="scorer", process=process):
        ...work until session.lost...

NATS that cannot be reached, lacks something or has something different never ends the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

from berth.api.errors import DecodeError
from berth.bus.interface import BucketReader, Bus, BusLostError, BusRefusedError, Entry, MissingError, Session
from berth.cluster.buckets import LiveDataReader
from berth.kube.clock import Backoff
from berth.process.health import ONCE, WaitReporter
from berth.process.lifecycle import Process, run_until
from berth.process.logging import get_logger

log = get_logger()


LOOK_AGAIN_SECONDS: Final = 2.0
"""Between two looks at what only others can change."""


CREATED_SECONDS: Final = 0.1
"""Before the next look after something was created on NATS."""


BACKOFF: Final = Backoff(initial=timedelta(seconds=0.1), maximum=timedelta(seconds=2))
"""Of connecting to NATS."""


SHORT_LIFE_SECONDS: Final = 1.0
"""A session that lived shorter is followed by a pause, so that a server which drops everybody is not stormed."""


class _NotReadyError(Exception):
    """This look ended in waiting; ``again_in`` overrides the back-off."""

    def __init__(self, again_in: float | None) -> None:
        super().__init__()
        self.again_in = again_in


async def sessions(
    bus: Bus, *, name: str, process: Process, apply_when_missing: bool = False
) -> AsyncIterator[Session]:
    """Yield a session each time that one is connected and verified; the one before is closed first. Ends on stopping.

    ``apply_when_missing``: create what is missing (the watcher does); otherwise wait for whoever does. An exception of
    the loop's body leaves the loop, as everywhere: catch :class:`BusLostError` there to get the next session.
    """
    waiting = WaitReporter(process.health.condition("nats", "waiting for NATS"), process.clock)
    looks = _Looks(bus, name=name, waiting=waiting, process=process, applies=apply_when_missing)
    while not process.stopping.is_set():
        session = await run_until(looks.verified(), process.stopping)
        if session is None:
            return
        began = process.clock.now()
        waiting.over()
        process.metrics.count("berth_bus_sessions_total")
        try:
            yield session
        finally:
            process.health.condition("nats").waiting("waiting for a new connection to NATS")
            await session.close()
        if process.clock.now() - began < SHORT_LIFE_SECONDS:
            await process.sleep(LOOK_AGAIN_SECONDS / 2)


class _Looks:
    """Looks at NATS until one ends in a session."""

    def __init__(self, bus: Bus, *, name: str, waiting: WaitReporter, process: Process, applies: bool) -> None:
        self._bus = bus
        self._name = name
        self._waiting = waiting
        self._process = process
        self._applies = applies

    async def verified(self) -> Session:
        failures = 0
        while True:
            try:
                return await self._look()
            except _NotReadyError as error:
                failures += 1
                pause = BACKOFF.after(failures) if error.again_in is None else error.again_in
            await self._process.clock.sleep(pause)

    async def _look(self) -> Session:
        try:
            session = await self._bus.connect(name=self._name)
        except BusLostError as error:
            raise self._wait("unreachable", f"waiting for NATS: {error}") from error
        except BusRefusedError as error:
            raise self._wait("refused", str(error), LOOK_AGAIN_SECONDS, every=ONCE) from error
        try:
            await self._verify(session)
        except BaseException:
            await session.close()
            raise
        return session

    async def _verify(self, session: Session) -> None:
        try:
            await session.verify()
        except MissingError as error:
            await self._missing(session, error)
        except BusLostError as error:
            raise self._wait("unreachable", f"waiting for NATS: {error}") from error
        except BusRefusedError as error:
            raise self._wait("refused", str(error), LOOK_AGAIN_SECONDS, every=ONCE) from error
        if not session.bus_id:
            # The bucket came after this client's first request: a new client reads the id that counts.
            raise self._wait("missing", "waiting for bus.id", CREATED_SECONDS)

    async def _missing(self, session: Session, error: MissingError) -> None:
        if not self._applies:
            sentence = f"waiting for a watcher or `berth bus apply`: {error}"
            raise self._wait("missing", sentence, LOOK_AGAIN_SECONDS) from error
        log.info("creating what is missing on NATS", missing=str(error))
        try:
            await session.apply()
        except (BusLostError, MissingError) as lost:
            raise self._wait("unreachable", f"waiting for NATS: {lost}") from lost
        except BusRefusedError as refused:
            raise self._wait("refused", str(refused), LOOK_AGAIN_SECONDS, every=ONCE) from refused
        raise self._wait("missing", "waiting for NATS: streams and buckets were just created", CREATED_SECONDS)

    def _wait(self, cause: str, sentence: str, again_in: float | None = None, *, every: float = 10.0) -> _NotReadyError:
        self._process.metrics.count("berth_bus_waits_total", cause=cause)
        self._waiting.say(sentence, every=every)
        return _NotReadyError(again_in)


Reached = Callable[[str, int], None]
"""Told of each bucket's position once everything up to it is in the Snapshot."""


async def follow_live(
    session: Session, heard: LiveDataReader, stack: AsyncExitStack, tasks: asyncio.TaskGroup, reached: Reached
) -> list[asyncio.Task[None]]:
    """Follow each bucket that is read, in tasks of the group, which are returned once all of them have caught up."""
    begun = []
    for bucket in heard.buckets:
        following = await stack.enter_async_context(session.read_bucket(bucket))
        begun.append(tasks.create_task(_follow(bucket, following, heard, reached), name=bucket))
        await following.caught_up.wait()
    return begun


async def _follow(bucket: str, following: BucketReader, heard: LiveDataReader, reached: Reached) -> None:
    async for batch in following.batches():
        for entry in batch:
            _take(bucket, entry, heard)
        reached(bucket, following.position)


def _take(bucket: str, entry: Entry, heard: LiveDataReader) -> None:
    """Anybody may put facts: what cannot be read is said, and what was known before stays."""
    try:
        heard.apply(bucket, entry.key, entry.data, entry.time)
    except DecodeError as exc:
        log.warning("left something out of the view", subject=f"{bucket} {entry.key}", reason=str(exc))
