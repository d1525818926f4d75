"""What a bus must do for sessions, declarations and plain subscriptions, in memory and on a real nats-server."""

import asyncio

import pytest

from berth.bus.interface import BusLostError
from harness.plugins.fixtures_bus import SHORT_ACK_WAIT


async def test_a_session_reads_the_bus_id_first(on):
    one, two = await on.session("one"), await on.session("two")
    assert one.bus_id
    assert one.bus_id == two.bus_id


async def test_applying_again_changes_nothing(on):
    session = await on.session()
    before = session.bus_id
    await session.put("cluster", "node.a", b"1")
    await session.publish("berth.pending.berth.default.web", b"")
    await session.apply()
    await session.verify()
    assert session.bus_id == before == (await on.session()).bus_id
    assert await session.get("cluster", "node.a") is not None
    assert await session.last("PENDING", "berth.pending.berth.default.web") is not None


async def test_scorers_find_their_consumer(on):
    session = await on.session()
    assert await session.consumers("PENDING") == ["scorer"]


async def test_after_closing_everything_is_refused(on):
    session = await on.session()
    await session.close()
    assert session.lost.is_set()
    await session.close()
    for call in (
        session.publish("berth.pending.berth.default.web", b""),
        session.put("cluster", "node.a", b""),
        session.get("cluster", "node.a"),
        session.last("PENDING", "berth.pending.berth.default.web"),
        session.subscribe("berth.>", lambda *_: None),
        session.apply(),
        session.verify(),
        session.consumers("PENDING"),
    ):
        with pytest.raises(BusLostError):
            await call
    with pytest.raises(BusLostError):
        [stored async for stored in session.scan("PENDING", ">")]
    with pytest.raises(BusLostError):
        async with session.read_stream("DECISIONS"):
            pass


async def test_closing_sends_what_was_acknowledged(on):
    session, other = await on.session("one"), await on.session("two")
    await session.publish("berth.pending.berth.default.web", b"")
    async with asyncio.timeout(30), session.consume("PENDING", "scorer", max_unacked=1) as consumption:
        async for delivery in consumption:
            delivery.ack()
            await session.close()
            break
    await on.pass_time(SHORT_ACK_WAIT * 1.5)
    assert await other.last("PENDING", "berth.pending.berth.default.web") is None


async def test_a_plain_subscription_receives_new_messages(on):
    session, other = await on.session("one"), await on.session("two")
    received: asyncio.Queue = asyncio.Queue()
    await session.subscribe_stored("berth.ranked.>", received.put_nowait)
    await other.publish("berth.pending.berth.default.web", b"not this")
    ack = await other.publish("berth.ranked.berth.default.web", b"this", message_id="u.1.1")
    async with asyncio.timeout(30):
        stored = await received.get()
    assert (stored.subject, stored.sequence, stored.data) == ("berth.ranked.berth.default.web", ack.sequence, b"this")
    assert dict(stored.headers) == {"Nats-Msg-Id": "u.1.1"}
    assert stored.time == (await session.last("RANKED", "berth.ranked.berth.default.web")).time
    assert received.empty()


async def test_a_service_registers(on):
    session = await on.session()
    await session.register("berth-scorer", identity="host-1", version="0.1.0", stats=lambda: {"held": 3})
