"""Faults and time of the bus in memory, as a test causes them."""

import asyncio
from datetime import timedelta

import pytest

from berth.bus.interface import BusLostError, MissingError
from harness.fakes.bus_clock import LoopClock, ManualClock
from harness.fakes.memory_bus import MemoryBus, MemorySession

PENDING = "berth.pending.berth.default.web-0"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bus(clock: ManualClock) -> MemoryBus:
    return MemoryBus(clock=clock)


async def applied(bus: MemoryBus) -> MemorySession:
    session = await bus.connect(name="test")
    await session.apply()
    return session


async def test_a_wiped_bus_loses_its_sessions_and_comes_back_with_another_id(bus):
    session = await applied(bus)
    before = session.bus_id
    bus.wipe()
    assert session.lost.is_set()
    again = await bus.connect(name="again")
    assert again.bus_id == ""
    with pytest.raises(MissingError):
        await again.verify()
    await again.apply()
    assert again.bus_id not in ("", before)


async def test_a_cut_session_is_lost_and_the_others_are_not(bus):
    session, other = await applied(bus), await bus.connect(name="other")
    bus.cut(session)
    assert session.lost.is_set()
    assert not other.lost.is_set()
    with pytest.raises(BusLostError, match="cut"):
        await session.publish(PENDING, b"")
    await other.publish(PENDING, b"")


async def test_a_publish_under_way_when_the_session_is_cut_may_have_arrived(bus):
    session, other = await applied(bus), await bus.connect(name="other")
    publishing = asyncio.ensure_future(session.publish(PENDING, b"pod"))
    await asyncio.sleep(0)
    bus.cut(session)
    with pytest.raises(BusLostError):
        await publishing
    assert await other.last("PENDING", PENDING) is not None


async def test_a_stopped_bus_is_not_reachable_and_keeps_its_store(bus):
    session = await applied(bus)
    await session.publish(PENDING, b"pod")
    bus.stop()
    with pytest.raises(BusLostError, match="stopped"):
        await bus.connect(name="again")
    bus.start()
    again = await bus.connect(name="again")
    assert again.bus_id == session.bus_id
    assert await again.last("PENDING", PENDING) is not None


async def test_unsettled_messages_are_redelivered_by_the_given_clock(bus, clock):
    session = await applied(bus)
    await session.publish(PENDING, b"pod")
    async with session.consume("PENDING", "scorer", max_unacked=1) as consumption:
        await anext(consumption)
    async with session.consume("PENDING", "scorer", max_unacked=1) as consumption:
        clock.advance(bus.settings.scorer_ack_wait)
        assert (await anext(consumption)).delivered == 2


async def test_decisions_are_forgotten_at_their_age(bus, clock):
    session = await applied(bus)
    await session.publish("berth.decision.berth.default.web-0", b"")
    clock.advance(bus.settings.decisions_age)
    assert [stored async for stored in session.scan("DECISIONS", ">")] == []


async def test_registered_services_are_listed_while_their_session_lives(bus):
    session = await applied(bus)
    await session.register("berth-scorer", identity="host-1", version="0.1.0", stats=lambda: {"held": 3})
    assert [(one.service, one.identity, one.stats()) for one in bus.services()] == [
        ("berth-scorer", "host-1", {"held": 3})
    ]
    await session.close()
    assert bus.services() == []


async def test_the_same_run_gives_the_same_times_and_sequences():
    async def run() -> list:
        clock = ManualClock()
        session = await applied(MemoryBus(clock=clock))
        for number in range(5):
            await session.publish(f"{PENDING}-{number}", b"")
            clock.advance(timedelta(seconds=1))
        return [session.bus_id, *[stored async for stored in session.scan("PENDING", ">")]]

    assert await run() == await run()


def test_a_manual_clock_calls_back_in_order_of_time():
    clock, calls = ManualClock(), []
    began = clock.now()
    clock.call_at(began + timedelta(seconds=2), lambda: calls.append(("second", clock.now() - began)))
    clock.call_at(began + timedelta(seconds=1), lambda: calls.append(("first", clock.now() - began)))
    clock.call_at(began + timedelta(seconds=9), lambda: calls.append(("never", clock.now() - began)))
    clock.advance(timedelta(seconds=3))
    assert calls == [("first", timedelta(seconds=1)), ("second", timedelta(seconds=2))]
    assert clock.now() - began == timedelta(seconds=3)


async def test_the_loops_clock_calls_back_from_the_loop():
    clock, called = LoopClock(), asyncio.Event()
    before = clock.now()
    clock.call_at(before, called.set)
    assert not called.is_set()
    async with asyncio.timeout(5):
        await called.wait()
    assert clock.now() >= before
