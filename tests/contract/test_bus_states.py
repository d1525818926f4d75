"""What a bus must do for the state of streams, consumers and services, in memory and on a real nats-server."""

import asyncio
from datetime import timedelta

import pytest

from berth.bus.interface import Endpoint, MissingError, StreamState
from harness.plugins.fixtures_bus import SHORT_ACK_WAIT

SUBJECTS = [f"berth.pending.berth.default.web-{number}" for number in range(3)]


def scorer(state: StreamState) -> tuple[int, int, int]:
    (consumer,) = state.consumers
    assert consumer.name == "scorer"
    return consumer.undelivered, consumer.unacknowledged, consumer.redelivered


async def test_an_empty_stream_has_no_oldest_message(on):
    session = await on.session()
    state = await session.state("DECISIONS")
    assert (state.stream, state.messages, state.first_time, state.consumers) == ("DECISIONS", 0, None, ())


async def test_the_age_of_the_oldest_message_is_by_the_servers_clock(on):
    session = await on.session()
    await session.publish("berth.decision.berth.default.web", b"first")
    await on.pass_time(timedelta(seconds=0.3))
    await session.publish("berth.decision.berth.default.web", b"second")
    state = await session.state("DECISIONS")
    assert (state.messages, state.last_sequence) == (2, 2)
    assert state.bytes > 0
    assert timedelta(seconds=0.3) <= state.now - state.first_time < timedelta(seconds=5)


async def test_a_consumer_counts_undelivered_unacknowledged_and_redelivered(on):
    session = await on.session()
    for subject in SUBJECTS:
        await session.publish(subject, b"")
    assert scorer(await session.state("PENDING")) == (3, 0, 0)
    async with session.consume("PENDING", "scorer", max_unacked=1) as deliveries:
        await anext(deliveries)
        assert scorer(await session.state("PENDING")) == (2, 1, 0)
        await on.pass_time(SHORT_ACK_WAIT + timedelta(seconds=0.3))
    async with session.consume("PENDING", "scorer", max_unacked=3) as deliveries:
        taken = [await anext(deliveries) for _ in SUBJECTS]
        assert scorer(await session.state("PENDING")) == (0, 3, 1)
        for delivery in taken:
            delivery.ack()
        async with asyncio.timeout(30):  # an ack is fire and forget
            while scorer(await session.state("PENDING")) != (0, 0, 0):
                await on.pass_time(timedelta(milliseconds=10))


async def test_a_missing_stream_has_no_state(on):
    session = await on.session()
    with pytest.raises(MissingError, match="stream not found"):
        await session.state("NOBODY")


async def test_services_are_listed_with_their_identity_and_stats(on):
    watcher, scorer, other = [await on.session(name) for name in ("watcher", "scorer", "other")]
    await scorer.register("berth-scorer", identity="host_1_scorer-1", version="1.2.3", stats=lambda: {"answered": 7})
    await watcher.register("berth-watcher", identity="host_1_watcher", version="1.2.3", stats=dict)
    found = await other.services()
    assert [(one.service, one.identity, one.version, one.stats) for one in found] == [
        ("berth-scorer", "host_1_scorer-1", "1.2.3", {"answered": 7}),
        ("berth-watcher", "host_1_watcher", "1.2.3", {}),
    ]
    await scorer.close()
    assert [one.service for one in await other.services()] == ["berth-watcher"]


async def test_services_of_one_name_are_listed_alone(on):
    watcher, scorer = [await on.session(name) for name in ("watcher", "scorer")]
    await scorer.register("berth-scorer", identity="one", version="1.2.3", stats=dict)
    await watcher.register("berth-watcher", identity="two", version="1.2.3", stats=lambda: {"leading": 1})
    (found,) = await scorer.services("berth-watcher")
    assert (found.identity, found.stats) == ("two", {"leading": 1})


async def test_a_service_answers_at_its_endpoints_and_nobody_elsewhere(on):
    service, person = [await on.session(name) for name in ("service", "person")]
    endpoints = [
        Endpoint(name="queue", answer=lambda request: {"asked": request.decode()}),
        Endpoint(name="retry", answer=lambda _: {"done": True}, for_admins=True),
    ]
    await service.register("berth-watcher", identity="host_1", version="1", stats=lambda: {"n": 1}, endpoints=endpoints)
    assert await person.ask("berth.service.berth-watcher.host_1.queue", b"web") == b'{"asked":"web"}'
    assert await person.ask("berth.admin.berth-watcher.host_1.retry", b"") == b'{"done":true}'
    assert await person.ask("berth.service.berth-watcher.host_1", b"") == b'{"n":1}'
    assert [one.stats for one in await person.services()] == [{"n": 1}]
    for nobody in ("berth.service.berth-watcher.host_1.retry", "berth.service.berth-watcher.host_2.queue"):
        with pytest.raises(MissingError):
            await person.ask(nobody, b"")


async def test_a_bus_without_services_lists_none(on):
    assert await (await on.session()).services() == []


async def test_a_broadcast_reaches_all_subscribers_and_is_stored_nowhere(on):
    one, other, sender = [await on.session(name) for name in ("one", "other", "sender")]
    received: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
    for session in (one, other):
        await session.subscribe("berth.announce.>", lambda subject, data, _: received.put_nowait((subject, data)))
    await sender.broadcast("berth.announce.berth-scorer.one", b"here")
    async with asyncio.timeout(30):
        assert [await received.get() for _ in range(2)] == [("berth.announce.berth-scorer.one", b"here")] * 2
    await sender.broadcast("berth.announce.nobody.listens", b"")


@pytest.mark.slow  # waits until the limit is renewed
async def test_a_flood_of_broadcasts_ends_at_the_subscribers_limit_for_some_seconds(on):
    one, sender = [await on.session(name) for name in ("one", "sender")]
    received: list[str] = []
    copies: list[str] = []
    await one.subscribe("berth.announce.>", lambda subject, *_: received.append(subject.rpartition(".")[2]), most=3)
    await one.subscribe_stored("berth.ranked.>", lambda copy: copies.append(copy.subject.rpartition(".")[2]), most=3)
    for number in range(10):
        await sender.broadcast(f"berth.announce.berth-scorer.{number}", b"")
        await sender.publish(f"berth.ranked.berth.default.{number}", b"")
    async with asyncio.timeout(60):
        while received[-1:] != ["late"] or copies[-1:] != ["late"]:  # once the limits are renewed
            await sender.broadcast("berth.announce.berth-scorer.late", b"")
            await sender.publish("berth.ranked.berth.default.late", b"")
            await asyncio.sleep(0.5)
    for found in (received, copies):
        assert found[:3] == ["0", "1", "2"]
        assert "3" not in found
