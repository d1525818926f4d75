"""What a bus must do for work queues, on the bus in memory and on a real nats-server."""

import asyncio
from contextlib import aclosing
from datetime import timedelta

import pytest

from berth.bus.interface import (
    BusLostError,
    BusRefusedError,
    MissingError,
    PubAck,
    StoreFullError,
    TooLargeError,
    message_size,
)
from berth.bus.topology import RANKED_BYTES
from berth.errors import BerthError
from harness.plugins.fixtures_bus import SHORT_ACK_WAIT, SHORT_DUPLICATE_WINDOW, TEST_TOPOLOGY, BusUnderTest

LONG = 10.0
AT_ONCE = 500
"""Publishes without an answer: fewer than NATS lets wait for a stream."""
MOMENT = timedelta(milliseconds=150)


def pending(pod: str) -> str:
    return f"berth.pending.berth.default.{pod}"


def ranked(pod: str) -> str:
    return f"berth.ranked.berth.default.{pod}"


async def take(consumption, count: int) -> list:
    """The next deliveries; a test that gets fewer fails."""
    async with asyncio.timeout(LONG):
        return [await anext(aiter(consumption)) for _ in range(count)]


async def nothing_comes(on: BusUnderTest, consumption) -> None:
    """Nothing is delivered while a moment passes."""
    waiting = asyncio.ensure_future(anext(aiter(consumption)))
    await on.pass_time(MOMENT)
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_message_is_delivered_with_its_data_and_headers(on):
    session = await on.session()
    ack = await session.publish(pending("web-0"), b"pod", message_id="u.1.1", headers={"traceparent": "00-1-2-01"})
    assert (ack.stream, ack.sequence, ack.duplicate) == ("PENDING", 1, False)
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        (delivery,) = await take(consumption, 1)
    assert (delivery.subject, delivery.data, delivery.sequence, delivery.delivered) == (pending("web-0"), b"pod", 1, 1)
    assert dict(delivery.headers) == {"Nats-Msg-Id": "u.1.1", "traceparent": "00-1-2-01"}
    assert delivery.time.tzinfo is not None


async def test_the_publishers_headers_are_not_changed(on):
    session = await on.session()
    headers = {"traceparent": "x"}
    await session.publish(pending("web-0"), b"", message_id="u.1.1", headers=headers)
    assert headers == {"traceparent": "x"}


async def test_a_repeated_message_id_is_stored_once(on):
    session = await on.session()
    first = await session.publish(pending("web-0"), b"pod", message_id="u.1.1")
    again = await session.publish(pending("web-0"), b"pod", message_id="u.1.1")
    assert (again.sequence, again.duplicate) == (first.sequence, True)


async def test_a_message_id_is_forgotten_after_the_duplicate_window(on):
    session = await on.session()
    await session.publish(pending("web-0"), b"pod", message_id="u.1.1")
    await on.pass_time(SHORT_DUPLICATE_WINDOW * 2)
    assert not (await session.publish(pending("web-0"), b"pod", message_id="u.1.1")).duplicate


async def test_a_subject_of_no_stream_is_missing(on):
    session = await on.session()
    with pytest.raises(MissingError, match=r"elsewhere\.x"):
        await session.publish("elsewhere.x", b"")


async def test_a_message_above_the_limit_is_refused(on):
    session = await on.session()
    with pytest.raises(TooLargeError):
        await session.publish(pending("web-0"), bytes(TEST_TOPOLOGY.message_bytes + 1))


@pytest.mark.parametrize("over", [1, 30])
async def test_headers_count_for_the_limit_and_a_refusal_costs_no_session(over: int, on):
    session = await on.session()
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    room = session.max_message_bytes - message_size(b"", {**headers, "Nats-Msg-Id": "u.1.1"})
    with pytest.raises(TooLargeError, match=str(session.max_message_bytes)):
        await session.publish(pending("web-0"), bytes(room + over), message_id="u.1.1", headers=headers)
    await session.publish(pending("web-0"), bytes(room), message_id="u.1.1", headers=headers)
    assert not session.lost.is_set()


async def test_a_publish_that_nobody_awaits_tells_its_puback_or_its_error_once(on):
    session = await on.session()
    answers: asyncio.Queue[PubAck | BerthError] = asyncio.Queue()

    async def publish(subject: str, data: bytes, message_id: str | None = None) -> PubAck | type[BerthError]:
        session.publish_soon(
            subject, data, message_id=message_id, headers={"traceparent": "x"}, on_answer=answers.put_nowait
        )
        answer = await asyncio.wait_for(answers.get(), LONG)
        return answer if isinstance(answer, PubAck) else type(answer)

    assert await publish(pending("web-0"), b"pod", "u.1.1") == PubAck(stream="PENDING", sequence=1)
    stored = await session.last("PENDING", pending("web-0"))
    assert (stored.data, dict(stored.headers)) == (b"pod", {"Nats-Msg-Id": "u.1.1", "traceparent": "x"})
    assert await publish(pending("web-0"), b"pod", "u.1.1") == PubAck(stream="PENDING", sequence=1, duplicate=True)
    assert await publish("elsewhere.x", b"") is MissingError
    assert await publish(pending("web-1"), bytes(TEST_TOPOLOGY.message_bytes + 1)) is TooLargeError
    await session.close()
    assert await publish(pending("web-1"), b"pod") is BusLostError
    assert answers.empty()


async def test_publishes_that_nobody_awaits_are_stored_in_their_order(on):
    session = await on.session()
    answers: asyncio.Queue[PubAck | BerthError] = asyncio.Queue()
    for number in range(50):
        session.publish_soon(pending(f"web-{number}"), b"%d" % number, on_answer=answers.put_nowait)
    async with asyncio.timeout(LONG):
        acks = [await answers.get() for _ in range(50)]
    assert [ack.sequence for ack in acks] == list(range(1, 51))
    assert [stored.data async for stored in session.scan("PENDING", pending("*"))] == [b"%d" % n for n in range(50)]


async def test_a_full_work_queue_refuses_new_pods_and_keeps_those_that_it_has(on):
    session = await on.session()
    size = TEST_TOPOLOGY.message_bytes - 1_000
    fit = TEST_TOPOLOGY.pending_bytes // TEST_TOPOLOGY.message_bytes
    for number in range(fit):
        await session.publish(pending(f"web-{number}"), bytes(size), message_id=f"u.{number}.1")
    with pytest.raises(StoreFullError, match="maximum bytes"):
        await session.publish(pending("web-more"), bytes(size), message_id="v.1.1")
    assert (await session.state("PENDING")).messages == fit
    assert session.unstored()["PENDING"].answered
    await session.publish(pending("web-0"), bytes(size), message_id="u.0.2")  # takes the place of the older attempt
    assert session.unstored() == {}


async def test_short_messages_that_are_no_rankings_leave_the_binder_a_bounded_number_to_look_at(on):
    session, most = await on.session(), TEST_TOPOLOGY.ranked_bytes // RANKED_BYTES
    answers: asyncio.Queue[PubAck | BerthError] = asyncio.Queue()
    found: list[PubAck | BerthError] = []
    async with asyncio.timeout(LONG):
        for number in range(most + 10):
            session.publish_soon(ranked(f"junk-{number}"), b"junk", on_answer=answers.put_nowait)
            if number >= AT_ONCE:
                found.append(await answers.get())
        found += [await answers.get() for _ in range(AT_ONCE)]
    assert sum(isinstance(one, StoreFullError) for one in found) == 10
    assert (await session.state("RANKED")).messages == most
    await session.publish(ranked("junk-0"), b"another attempt")  # takes the place of the older one


async def test_messages_arrive_in_stream_order(on):
    session = await on.session()
    for number in range(50):
        await session.publish(ranked(f"web-{number}"), b"")
    await session.create_consumer("RANKED", "binder-1")
    async with session.consume("RANKED", "binder-1", max_unacked=64) as consumption:
        assert [delivery.sequence for delivery in await take(consumption, 50)] == list(range(1, 51))


async def test_an_acknowledged_message_is_gone(on):
    session = await on.session()
    await session.publish(pending("web-0"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        (delivery,) = await take(consumption, 1)
        delivery.ack()
        await on.pass_time(SHORT_ACK_WAIT * 2)
        await nothing_comes(on, consumption)
    assert await session.last("PENDING", pending("web-0")) is None


async def test_an_unsettled_message_is_redelivered_after_the_ack_wait(on):
    session = await on.session()
    await session.publish(pending("web-0"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        await take(consumption, 1)
        await on.pass_time(SHORT_ACK_WAIT * 1.5)
        (again,) = await take(consumption, 1)
        assert (again.sequence, again.delivered) == (1, 2)


async def test_a_message_in_progress_is_not_redelivered(on):
    session = await on.session()
    await session.publish(pending("web-0"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        (delivery,) = await take(consumption, 1)
        for _ in range(4):
            await on.pass_time(SHORT_ACK_WAIT / 2)
            delivery.in_progress()
        await nothing_comes(on, consumption)


async def test_a_nak_without_delay_redelivers_at_once(on):
    session = await on.session()
    await session.publish(pending("web-0"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        (delivery,) = await take(consumption, 1)
        delivery.nak()
        (again,) = await take(consumption, 1)
        assert again.delivered == 2


async def test_a_nak_with_a_delay_redelivers_after_it(on):
    session = await on.session()
    await session.publish(pending("web-0"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        (delivery,) = await take(consumption, 1)
        delivery.nak(timedelta(seconds=0.5))
        await nothing_comes(on, consumption)
        await on.pass_time(timedelta(seconds=0.5))
        assert (await take(consumption, 1))[0].delivered == 2


async def test_a_delivery_is_settled_once(on):
    session = await on.session()
    await session.publish(pending("web-0"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=1) as consumption:
        (delivery,) = await take(consumption, 1)
        delivery.ack()
        delivery.nak()
        delivery.ack()
        await nothing_comes(on, consumption)
        await session.publish(pending("web-1"), b"")
        await session.publish(pending("web-2"), b"")
        await take(consumption, 1)
        await nothing_comes(on, consumption)  # settled twice, the slot would count twice


async def test_a_newer_message_replaces_the_older_one_of_its_subject(on):
    session = await on.session()
    await session.publish(pending("web-0"), b"first")
    await session.publish(pending("web-0"), b"second")
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        assert [delivery.data for delivery in await take(consumption, 1)] == [b"second"]
        await nothing_comes(on, consumption)


async def test_a_newer_message_replaces_also_a_delivered_one(on):
    session = await on.session()
    await session.publish(pending("web-0"), b"first")
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        (first,) = await take(consumption, 1)
        await session.publish(pending("web-0"), b"second")
        (second,) = await take(consumption, 1)
        assert second.data == b"second"
        second.in_progress()
        await on.pass_time(SHORT_ACK_WAIT * 0.9)
        second.in_progress()
        await on.pass_time(SHORT_ACK_WAIT * 0.9)  # the ack wait of the first one is over: nothing is redelivered
        first.ack()
        second.in_progress()
        await nothing_comes(on, consumption)
    assert [stored.data async for stored in session.scan("PENDING", "berth.pending.>")] == [b"second"]


async def test_no_more_than_the_limit_is_unsettled(on):
    session = await on.session()
    for number in range(20):
        await session.publish(pending(f"web-{number}"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=8) as consumption:
        held = await take(consumption, 8)
        await nothing_comes(on, consumption)
        held[0].ack()
        held[1].nak(timedelta(seconds=60))
        await take(consumption, 2)
        await nothing_comes(on, consumption)


async def test_message_set_aside_is_kept_and_does_not_count(on):
    session = await on.session()
    for number in range(20):
        await session.publish(pending(f"web-{number}"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=8) as consumption:
        held = await take(consumption, 8)
        for delivery in held[:3]:
            delivery.set_aside()
            delivery.set_aside()
        await take(consumption, 3)
        await nothing_comes(on, consumption)
        held[0].ack()
        await nothing_comes(on, consumption)
        held[7].ack()
        await take(consumption, 1)
    async with asyncio.timeout(LONG):  # an ack is fire and forget
        while len([stored async for stored in session.scan("PENDING", "berth.pending.>")]) != 18:
            await on.pass_time(timedelta(milliseconds=10))


async def test_every_message_is_delivered_with_a_small_limit(on):
    session = await on.session()
    for number in range(300):
        await session.publish(pending(f"web-{number}"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=3) as consumption:
        for expected in range(1, 301):
            (delivery,) = await take(consumption, 1)
            assert delivery.sequence == expected
            delivery.ack()


async def test_each_message_goes_to_one_scorer(on):
    one, two = await on.session("one"), await on.session("two")
    async with (
        one.consume("PENDING", "scorer", max_unacked=4) as first,
        two.consume("PENDING", "scorer", max_unacked=4) as second,
    ):
        for number in range(8):
            await one.publish(pending(f"web-{number}"), b"")
        got = [*await take(first, 4), *await take(second, 4)]
    assert sorted(delivery.sequence for delivery in got) == list(range(1, 9))


async def test_unsettled_messages_of_a_lost_session_go_to_another_scorer(on):
    one, two = await on.session("one"), await on.session("two")
    await one.publish(pending("web-0"), b"")
    async with one.consume("PENDING", "scorer", max_unacked=4) as consumption:
        (lost,) = await take(consumption, 1)
        await one.close()
        with pytest.raises(BusLostError):
            await take(consumption, 1)
    lost.ack()  # a delivery can only be settled on its own session
    await on.pass_time(SHORT_ACK_WAIT * 1.5)
    async with two.consume("PENDING", "scorer", max_unacked=4) as consumption:
        assert (await take(consumption, 1))[0].delivered == 2


async def test_unread_messages_of_a_leaving_scorer_go_to_another_at_once(on):
    session = await on.session()
    for number in range(4):
        await session.publish(pending(f"web-{number}"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        await take(consumption, 1)
        await on.pass_time(MOMENT)
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        assert sorted(delivery.sequence for delivery in await take(consumption, 3)) == [2, 3, 4]


async def test_deleting_the_consumer_ends_its_deliveries(on):
    session = await on.session()
    await session.create_consumer("RANKED", "binder-1")
    async with session.consume("RANKED", "binder-1", max_unacked=4) as consumption:
        waiting = asyncio.ensure_future(take(consumption, 1))
        await on.pass_time(MOMENT)
        await session.delete_consumer("RANKED", "binder-1")
        with pytest.raises(MissingError, match="binder-1"):
            await waiting


async def test_a_missing_consumer_cannot_be_consumed(on):
    session = await on.session()
    with pytest.raises(MissingError, match="binder-7"):
        async with session.consume("RANKED", "binder-7", max_unacked=4) as consumption:
            await take(consumption, 1)


async def test_a_second_consumer_of_a_work_queue_is_refused(on):
    session = await on.session()
    await session.create_consumer("RANKED", "binder-1")
    with pytest.raises(BusRefusedError, match="delete"):
        await session.create_consumer("RANKED", "binder-2")
    await session.delete_consumer("RANKED", "binder-1")
    await session.create_consumer("RANKED", "binder-2")
    assert await session.consumers("RANKED") == ["binder-2"]


async def test_creating_and_deleting_a_consumer_are_idempotent(on):
    session = await on.session()
    await session.create_consumer("RANKED", "binder-1")
    await session.create_consumer("RANKED", "binder-1")
    assert await session.consumers("RANKED") == ["binder-1"]
    await session.delete_consumer("RANKED", "binder-1")
    await session.delete_consumer("RANKED", "binder-1")
    assert await session.consumers("RANKED") == []


async def test_an_undeclared_consumer_is_refused(on):
    session = await on.session()
    with pytest.raises(BusRefusedError, match="nobody-knows"):
        await session.create_consumer("RANKED", "nobody-knows")


async def test_a_new_binder_gets_everything_unacknowledged_in_stream_order(on):
    session = await on.session()
    for number in range(6):
        await session.publish(ranked(f"web-{number}"), b"")
    await session.create_consumer("RANKED", "binder-1")
    async with session.consume("RANKED", "binder-1", max_unacked=6) as consumption:
        held = await take(consumption, 6)
        held[1].ack()
        held[4].ack()
        await session.publish(ranked("web-6"), b"")
        async with asyncio.timeout(30):
            while await stored_sequences(session) != [1, 3, 4, 6, 7]:  # noqa: ASYNC110 - acknowledgements have no answer
                await asyncio.sleep(0.01)
    await session.delete_consumer("RANKED", "binder-1")
    await session.create_consumer("RANKED", "binder-2")
    async with session.consume("RANKED", "binder-2", max_unacked=16) as consumption:
        assert [delivery.sequence for delivery in await take(consumption, 5)] == [1, 3, 4, 6, 7]


async def stored_sequences(session):
    return [stored.sequence async for stored in session.scan("RANKED", "berth.ranked.>")]


async def test_a_scan_has_thousands_of_messages_in_order_delivered_ones_too(on):
    session = await on.session()
    for start in range(0, 5000, 500):
        await asyncio.gather(*(session.publish(pending(f"web-{n}"), b"%d" % n) for n in range(start, start + 500)))
    async with session.consume("PENDING", "scorer", max_unacked=10) as consumption:
        await take(consumption, 10)
        found = [stored async for stored in session.scan("PENDING", "berth.pending.>")]
        rest = [stored async for stored in session.scan("PENDING", "berth.pending.>", after=4990)]
    assert [stored.sequence for stored in found] == list(range(1, 5001))
    assert {stored.subject for stored in found} == {pending(f"web-{n}") for n in range(5000)}
    assert [stored.sequence for stored in rest] == list(range(4991, 5001))


async def test_a_scan_of_an_empty_stream_is_empty(on):
    session = await on.session()
    assert [stored async for stored in session.scan("RANKED", "berth.ranked.>")] == []


async def test_a_scan_has_only_what_the_filter_matches(on):
    session = await on.session()
    for namespace in ("a", "b", "a"):
        await session.publish(f"berth.decision.berth.{namespace}.web", b"", headers={"Berth-Outcome": namespace})
    async with aclosing(session.scan("DECISIONS", "berth.decision.*.a.>")) as found:
        assert [(one.sequence, dict(one.headers)) async for one in found] == [
            (1, {"Berth-Outcome": "a"}),
            (3, {"Berth-Outcome": "a"}),
        ]


async def test_the_last_message_of_a_subject(on):
    session = await on.session()
    await session.publish("berth.decision.berth.default.web", b"waiting")
    await session.publish("berth.decision.berth.default.web", b"bound", message_id="d")
    last = await session.last("DECISIONS", "berth.decision.berth.default.web")
    assert last is not None
    assert (last.sequence, last.data, dict(last.headers)) == (2, b"bound", {"Nats-Msg-Id": "d"})
    assert await session.last("DECISIONS", "berth.decision.berth.default.other") is None


@pytest.mark.parametrize("subject", ["", "berth.pending.a b", "berth.pending.\r\nPUB x 0"])
async def test_an_invalid_subject_is_refused(on, subject):
    session = await on.session()
    with pytest.raises(BusRefusedError):
        await session.publish(subject, b"")


async def test_a_delivery_can_be_settled_after_consuming_ended(on):
    session = await on.session()
    await session.publish(pending("web-0"), b"")
    async with session.consume("PENDING", "scorer", max_unacked=1) as consumption:
        (delivery,) = await take(consumption, 1)
    delivery.ack()
    await session.publish(pending("web-1"), b"")
    await on.pass_time(SHORT_ACK_WAIT * 1.5)
    async with session.consume("PENDING", "scorer", max_unacked=2) as consumption:
        (other,) = await take(consumption, 1)
        assert (other.sequence, other.delivered) == (2, 1)
        await nothing_comes(on, consumption)


async def test_a_message_that_is_deleted_is_neither_delivered_nor_kept(on):
    session = await on.session()
    for name in ("web-0", "web-1"):
        await session.publish(pending(name), b"pod")
    async with session.consume("PENDING", "scorer", max_unacked=4) as consumption:
        first, second = await take(consumption, 2)
        first.nak(timedelta(days=36500))
        await session.delete("PENDING", first.sequence)
        await session.delete("PENDING", first.sequence)
        await session.delete("PENDING", 99)
        second.ack()
        await nothing_comes(on, consumption)
    assert [stored.subject async for stored in session.scan("PENDING", "berth.pending.>")] == []
