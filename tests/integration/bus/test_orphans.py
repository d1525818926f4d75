"""Messages that a real nats-server holds and delivers no more, and how they are found and delivered again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from berth.bus.session import NatsBus, NatsSession
from berth.bus.settings import BusSettings
from berth.errors import BerthError
from berth.leader.checks import CHECKS, OrphanCheck
from harness.plugins.fixtures_bus import SHORT_ACK_WAIT, TEST_TOPOLOGY
from harness.servers.nats_server import NatsServer

pytestmark = pytest.mark.requires("nats-server")

ALL_PENDING = "berth.pending.>"
FOUND = "PENDING holds messages that its consumer 'scorer' does not deliver: 3 at least"


@asynccontextmanager
async def session_on(server: NatsServer) -> AsyncIterator[NatsSession]:
    session = await NatsBus(BusSettings(servers=(server.address,), topology=TEST_TOPOLOGY)).connect(name="test")
    await session.apply()
    yield session
    await session.close()


async def publish(session: NatsSession, count: int) -> None:
    for number in range(count):
        await session.publish(f"berth.pending.berth.default.web-{number}", b"{}")


async def delivered(session: NatsSession, *, acknowledge: bool = True) -> list[int]:
    """What is delivered until nothing comes for two seconds."""
    sequences = []
    async with session.consume("PENDING", "scorer", max_unacked=64) as deliveries:
        while True:
            try:
                delivery = await asyncio.wait_for(anext(deliveries), 2)
            except TimeoutError:
                return sequences
            sequences.append(delivery.sequence)
            if acknowledge:
                delivery.ack()


async def left(session: NatsSession) -> list[int]:
    return [message.sequence async for message in session.scan("PENDING", ALL_PENDING)]


async def checked(session: NatsSession) -> list[str]:
    check = OrphanCheck(session, "PENDING", "scorer")
    return [await check.find() for _ in range(CHECKS)]


async def remade(session: NatsSession) -> None:
    await session.delete_consumer("PENDING", "scorer")
    await session.create_consumer("PENDING", "scorer")


def state_of_the_consumer(server: NatsServer) -> Path:
    (folder,) = Path(server.settings.store).rglob("PENDING/obs/scorer")
    return folder / "o.dat"


async def test_messages_below_the_consumers_saved_state_are_found_and_delivered_again(own_nats_server, tmp_path):
    """The stream has lost its last writes and the consumer has not: after a full disk, or a machine without power."""
    async with session_on(own_nats_server) as session:
        await publish(session, 10)
        assert len(await delivered(session)) == 10
    own_nats_server.stop()
    shutil.copy(state_of_the_consumer(own_nats_server), tmp_path / "later")
    own_nats_server.lose_store()
    own_nats_server.start()
    async with session_on(own_nats_server) as session:
        await publish(session, 3)
    own_nats_server.stop()
    shutil.copy(tmp_path / "later", state_of_the_consumer(own_nats_server))
    own_nats_server.start()

    async with session_on(own_nats_server) as session:
        assert await delivered(session) == []
        assert await left(session) == [1, 2, 3]
        assert await checked(session) == ["", "", FOUND]
        await remade(session)
        assert await delivered(session) == [1, 2, 3]
        assert await left(session) == []
        assert not any(await checked(session))


async def test_a_kill_between_delivery_and_acknowledgement_leaves_no_orphan(own_nats_server):
    async with session_on(own_nats_server) as session:
        await publish(session, 3)
        assert await delivered(session, acknowledge=False) != []
        own_nats_server.kill()
    own_nats_server.start()
    async with session_on(own_nats_server) as session:
        assert not any(await checked(session))
        await asyncio.sleep(SHORT_ACK_WAIT.total_seconds())
        assert set(await delivered(session)) == {1, 2, 3}
        assert await left(session) == []


async def test_after_kills_under_load_everything_is_delivered(own_nats_server):
    """Of ten kills like these more than half leave messages that are below the ack floor."""
    chance = random.Random(1)
    for _ in range(3):
        async with session_on(own_nats_server) as session:
            work = [asyncio.create_task(each) for each in (acknowledge_late(session, chance), burst(session, chance))]
            await asyncio.sleep(0.7)
            own_nats_server.kill()
            await asyncio.gather(*work)
        own_nats_server.start()
        async with session_on(own_nats_server) as session:
            await asyncio.sleep(SHORT_ACK_WAIT.total_seconds())
            await delivered(session)
            if await left(session):
                assert (await checked(session))[-1].startswith("PENDING holds messages that its consumer 'scorer'")
                await remade(session)
                await delivered(session)
            assert await left(session) == []


async def burst(session: NatsSession, chance: random.Random) -> None:
    with contextlib.suppress(BerthError):
        while True:
            names = [chance.randrange(40) for _ in range(20)]
            subjects = [f"berth.pending.berth.default.web-{name}" for name in names]
            await asyncio.gather(*(session.publish(subject, bytes(3000)) for subject in subjects))
            await asyncio.sleep(0.001)


async def acknowledge_late(session: NatsSession, chance: random.Random) -> None:
    with contextlib.suppress(BerthError):
        async with session.consume("PENDING", "scorer", max_unacked=64) as deliveries:
            async for delivery in deliveries:
                asyncio.get_running_loop().call_later(chance.choice((0.0, 0.02, 0.3)), delivery.ack)
