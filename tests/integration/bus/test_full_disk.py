"""NATS on a disk that is full, and what works again when there is room: seen on nats-server 2.15.

A stream whose write failed stores nothing any more and does not answer publishes, though it can be read, until the
server is restarted or the stream is made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from berth.bus.interface import BucketReader, BusLostError, MissingError, Session, StoreFullError, UnansweredError
from berth.bus.session import NatsBus
from berth.bus.settings import MEBIBYTE, BusSettings, TopologySettings
from berth.bus.topology import reserved_bytes
from harness.servers.nats_server import NatsServer, nats_server
from harness.servers.small_disk import SmallDisk, small_disk

pytestmark = [pytest.mark.requires("nats-server", "small-disk"), pytest.mark.timeout(120)]

SMALL = TopologySettings(
    decisions_bytes=MEBIBYTE,
    dead_bytes=MEBIBYTE,
    pending_bytes=4 * MEBIBYTE,
    ranked_bytes=MEBIBYTE,
    cluster_bytes=4 * MEBIBYTE,
    live_bytes=MEBIBYTE,
    control_bytes=MEBIBYTE,
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", 24) as disk:
        yield disk


@pytest.fixture
def server(disk: SmallDisk) -> Iterator[NatsServer]:
    limit = 2 * reserved_bytes(SMALL)  # above the disk's size, so that the disk is what runs out
    with nats_server(store=disk.folder / "store", store_bytes=limit) as server:
        yield server


class Sessions:
    """Opens sessions, and closes them after the test."""

    def __init__(self, server: NatsServer) -> None:
        self._bus = NatsBus(BusSettings(servers=(server.address,), topology=SMALL, answer_timeout=timedelta(seconds=1)))
        self.opened: list[Session] = []

    async def open(self) -> Session:
        self.opened.append(await self._bus.connect(name="test"))
        return self.opened[-1]


@pytest.fixture
async def sessions(server: NatsServer) -> AsyncIterator[Sessions]:
    opened = Sessions(server)
    await (await opened.open()).apply()
    yield opened
    for session in opened.opened:
        await session.close()


async def fill_pending(session: Session, size: int = 4_000) -> None:
    """Publish until that fails."""
    for number in range(1_000):
        await session.publish(f"berth.pending.berth.default.web-{number}", bytes(size))


async def test_a_stream_that_stores_nothing_is_told_from_a_server_that_does_not_answer(disk, sessions):
    [session] = sessions.opened
    disk.fill()
    with pytest.raises(UnansweredError):
        await fill_pending(session)
    [(name, unstored)] = session.unstored().items()
    assert (name, unstored.answered) == ("PENDING", False)
    assert (await session.state("PENDING")).messages >= 0  # it answers everything else
    assert not await session.remake("PENDING")  # there is no room yet


async def test_when_there_is_room_a_stream_that_was_given_up_is_made_anew_with_all_others(disk, sessions):
    session, reader = sessions.opened[0], await sessions.open()
    disk.fill()
    with pytest.raises(UnansweredError):
        await fill_pending(session)
    disk.free()
    with pytest.raises(UnansweredError):
        await session.publish("berth.pending.berth.default.more", b"x")  # room alone is not enough
    async with reader.read_bucket("control") as following:
        assert await session.remake("PENDING")
        with pytest.raises((BusLostError, MissingError)):  # what a leader reads all the time ends its leading
            await drain(following)
    assert session.lost.is_set()
    anew = await sessions.open()
    assert anew.bus_id not in ("", reader.bus_id)
    await anew.publish("berth.pending.berth.default.more", b"x")
    assert anew.unstored() == {}


async def drain(following: BucketReader) -> None:
    async with asyncio.timeout(30):
        async for _ in following.batches():
            pass


async def test_a_second_watcher_does_not_make_anew_what_the_first_has_made(disk, sessions):
    first, second = sessions.opened[0], await sessions.open()
    disk.fill()
    for session in (first, second):
        with pytest.raises(UnansweredError):
            await fill_pending(session)
    disk.free()
    assert await first.remake("PENDING")
    assert not await second.remake("PENDING")
    assert second.lost.is_set()


async def test_a_limit_of_the_server_is_answered_and_goes_away_with_its_cause(sessions):
    [session] = sessions.opened
    with pytest.raises(StoreFullError, match="maximum bytes"):
        await fill_pending(session, 100_000)
    assert session.unstored()["PENDING"].answered
    assert not await session.remake("PENDING")
    async with session.consume("PENDING", "scorer", max_unacked=1) as deliveries:
        (await anext(aiter(deliveries))).ack()
        await anext(aiter(deliveries))  # the next one comes once the first is acknowledged
    await session.publish("berth.pending.berth.default.more", bytes(50_000))
    assert session.unstored() == {}
