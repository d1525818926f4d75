"""Reads the bus into the model and sends changes to pages. After a lost connection everything is read again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from berth.bus.interface import BusRefusedError, Session, StoredMessage, StreamReader
from berth.bus.topology import BANDWIDTH, DEAD, DECISIONS
from berth.errors import BerthError, TemporaryError, first_error
from berth.messages.livedata import LiveSource
from berth.messages.shadow import ALL_SHADOWS
from berth.safetext import one_line, without_passwords
from berth_cli.bus import NatsServer, name_source, open_session
from berth_cli.console.decisionlog import DEAD_KEPT, HISTORY
from berth_cli.console.hub import Hub
from berth_cli.console.model import ConsoleModel
from berth_cli.mirror import open_mirror
from berth_cli.options import ANSWERED_BY
from berth_cli.rendering import note
from berth_cli.services import STREAMS

TICK_SECONDS: Final = 0.1  # between two frames: the limit of what a person notices
TICKS_A_SECOND: Final = 10
SERVICES_SECONDS: Final = 2.0  # between two requests for the services' statistics
LOOK_SECONDS: Final = 0.5  # between two looks at NATS's clock and at the number of open pages
RETRY_SECONDS: Final = 1.0

_encoder: Final = msgspec.json.Encoder()


class BusAwayError(TemporaryError):
    """The bus is not being read."""


class Feed:
    def __init__(self, server: NatsServer, sources: Collection[LiveSource] = ()) -> None:
        """``sources``: the live data that filters read."""
        self.model = ConsoleModel()
        self.hub = Hub(self._whole)
        self._server = server
        self._sources = sources
        self._session: Session | None = None
        self._has_read = False
        self._is_catching_up = False
        self._clock_offset = 0.0  # NATS's clock less this machine's, in seconds

    @property
    def session(self) -> Session:
        """The session on which pods are looked up.

        Raises:
            BusAwayError: no session is open.
        """
        if self._session is None:
            raise BusAwayError(f"reading NATS: {self.model.bus.reason or 'not yet at the end of what it has'}")
        return self._session

    async def run(self) -> None:
        """Read the bus until cancelled.

        Raises:
            UsageError: of the first session: wrong address or user.
        """
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            while True:
                await self._read_until_lost()
                await asyncio.sleep(RETRY_SECONDS)

    async def _read_until_lost(self) -> None:
        try:
            async with self._following():
                await self._ask_services()
        except BaseExceptionGroup as group:
            error = first_error(group)
            if not self._may_come_back(error):
                raise
            self._lost(error)
        except BerthError as error:
            if not self._may_come_back(error):
                raise
            self._lost(error)

    def _may_come_back(self, error: BaseException) -> bool:
        # After a first session, or if NATS is only unreachable, the feed tries again; any other first error ends the
        # command.
        is_away = isinstance(error, TemporaryError | BusRefusedError)
        return is_away or (isinstance(error, BerthError) and self._has_read)

    def _lost(self, error: BaseException) -> None:
        reason = without_passwords(one_line(str(error)))
        if self.model.bus.connected or self.model.bus.reason != reason:
            note(f"{reason}; trying again")
        self.model.disconnected(reason, at=time.time())

    async def _subscribe_to_shadows(self, session: Session) -> None:
        # Users declared before shadows existed have no right to subscribe to them.
        try:
            await session.subscribe(ALL_SHADOWS, self._on_difference)
        except BusRefusedError as error:
            note(f"shadows are not shown: {one_line(str(error))}")

    def _on_difference(self, subject: str, data: bytes, _headers: Mapping[str, str]) -> None:
        self.model.shadows.received(subject, data, self.now())

    @asynccontextmanager
    async def _following(self) -> AsyncIterator[None]:
        async with (
            open_session(self._server, name="console", is_named=False) as session,
            open_mirror(session, sources=self._sources, also=(BANDWIDTH,)) as mirror,
        ):
            await self._read_clock(session)
            await self._subscribe_to_shadows(session)
            state = await session.state(DECISIONS)
            last = max(0, state.last_sequence - HISTORY)
            async with (
                asyncio.TaskGroup() as tasks,
                session.read_stream(DECISIONS, after=last) as decisions,
                session.read_stream(DEAD, after=await _recent(session, DEAD, DEAD_KEPT)) as dead,
            ):
                if self._has_read:
                    note("NATS is back")
                self._has_read = self._is_catching_up = True
                source, lacks_older = str(ANSWERED_BY.get()), last >= state.first_sequence
                self.model.connected(mirror, source=source, at=time.time(), lacks_older=lacks_older)
                following = [
                    tasks.create_task(_follow(decisions, self.model.decided)),
                    tasks.create_task(_follow(dead, self.model.dead_lettered)),
                ]
                try:
                    await decisions.caught_up.wait()
                    await dead.caught_up.wait()
                    self.model.counted_dead(await session.state(DEAD))
                    self._session, self._is_catching_up = session, False
                    self._renew_pages()
                    yield
                finally:
                    if self._is_catching_up:  # Lost meanwhile: pages keep the nodes of the former mirror.
                        self._renew_pages()
                    self._session, self._is_catching_up = None, False
                    for task in following:
                        task.cancel()

    async def _ask_services(self) -> None:
        asked_at = 0.0
        while True:
            session = self.session
            await self._read_clock(session)
            if len(self.hub) and time.monotonic() - asked_at >= SERVICES_SECONDS:
                asked_at = time.monotonic()
                source = ANSWERED_BY.get()
                if source is not None and not source.cluster:  # NATS is there before a watcher has named its cluster.
                    self.model.named(str(await name_source(session, source.nats)))
                streams = [await session.state(stream) for stream in STREAMS]
                self.model.counted_dead(streams[-1])
                self.model.services_answered(await session.services(), streams)
            await asyncio.sleep(LOOK_SECONDS)

    async def _read_clock(self, session: Session) -> None:
        self._clock_offset = (await session.state(DECISIONS)).now.timestamp() - time.time()

    def now(self) -> float:
        return time.time() + self._clock_offset

    async def _tick(self) -> None:
        ticks = 0
        while True:
            await asyncio.sleep(TICK_SECONDS)
            ticks += 1
            if self._is_catching_up:  # Pages have the former mirror.
                continue
            frame = self.model.changes(now=self.now(), every_second=ticks % TICKS_A_SECOND == 0)
            self.hub.publish(None if frame.is_empty or not len(self.hub) else _encoder.encode(frame))

    def _renew_pages(self) -> None:
        # Pages have the former mirror and former streams.
        self.model.settle(now=self.now())
        self.hub.renew()

    def _whole(self) -> bytes:
        return _encoder.encode(self.model.whole(now=self.now()))


async def _recent(session: Session, stream: str, messages: int) -> int:
    return max(0, (await session.state(stream)).last_sequence - messages)


async def _follow(reader: StreamReader, received: Callable[[Sequence[StoredMessage]], None]) -> None:
    async for batch in reader.batches():
        received(batch)
