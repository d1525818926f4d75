"""PENDING is acknowledged only once RANKED is stored."""

import asyncio
from datetime import UTC, datetime

import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.bus.interface import PubAck, StoreFullError, UnansweredError
from berth.messages.attempts import Pending, Ranked
from berth_scorer.backlog import Outbox, PendingDelivery, SentRankings
from harness.fakes.recording_meter import RecordingMeter

POD = Pod(metadata=ObjectMeta(name="web", namespace="default", uid="u"))


class FakeDelivery:
    """A delivery that records how it is settled."""

    sequence, delivered, subject, data = 1, 1, "berth.pending.berth.default.web", b"{}"
    time = datetime(2026, 1, 1, tzinfo=UTC)

    def __init__(self):
        self.headers, self.calls = {}, []

    def ack(self):
        self.calls.append("ack")

    def nak(self, delay=None):
        self.calls.append("nak")

    def in_progress(self):
        self.calls.append("in progress")

    def set_aside(self):
        self.calls.append("set aside")


class FakeSession:
    """A session that stores when the test allows it, or raises."""

    max_message_bytes = 1024 * 1024
    is_duplicate = False

    def __init__(self, error=None):
        self.stored, self.asked, self.error = asyncio.Event(), asyncio.Event(), error

    def publish_soon(self, subject, data, *, on_answer, message_id=None, headers=None):
        self.published = (subject, data)
        self.asked.set()
        if self.error is not None:
            on_answer(self.error)
        else:
            self.storing = asyncio.create_task(self.store(on_answer))

    async def store(self, on_answer):
        await self.stored.wait()
        on_answer(PubAck(stream="RANKED", sequence=1, duplicate=self.is_duplicate))


@pytest.fixture
def delivery():
    return FakeDelivery()


def item(delivery):
    return PendingDelivery(delivery=delivery, pending=Pending(attempt="u.1.1", profile="berth", pod=POD), taken_at=0.0)


def answer():
    return Ranked(attempt="u.1.1", profile="berth", pod=POD)


async def test_a_message_is_acknowledged_once_its_answer_is_stored(delivery):
    session = FakeSession()
    outbox = Outbox(session, RecordingMeter())
    outbox.hold(delivery)
    outbox.send(item(delivery), answer(), {})
    await session.asked.wait()
    outbox.send_in_progress()
    assert delivery.calls == ["in progress"]
    session.stored.set()
    await outbox.wait_empty()
    assert delivery.calls == ["in progress", "ack"]
    assert len(outbox) == 0


async def test_a_message_is_redelivered_when_its_answer_cannot_be_stored(delivery):
    session = FakeSession(UnansweredError("publishing: no answer"))
    outbox = Outbox(session, RecordingMeter())
    outbox.hold(delivery)
    outbox.send(item(delivery), answer(), {})
    await outbox.wait_empty()
    assert delivery.calls == ["nak"]
    assert len(outbox) == 0


@pytest.mark.parametrize(
    ("error", "settled"), [pytest.param(None, "ack", id="stored"), pytest.param(UnansweredError("no"), "nak", id="not")]
)
async def test_of_a_message_that_is_held_already_the_newest_delivery_is_settled(delivery, error, settled):
    session, again = FakeSession(error), FakeDelivery()
    session.stored.set()
    outbox = Outbox(session, RecordingMeter())
    assert outbox.hold(delivery)
    assert not outbox.hold(again)
    outbox.send_in_progress()
    outbox.send(item(delivery), answer(), {})
    await outbox.wait_empty()
    assert delivery.calls == ["set aside"]
    assert again.calls == ["in progress", settled]
    assert len(outbox) == 0


async def test_a_message_that_is_returned_is_returned_by_its_newest_delivery(delivery):
    outbox, again = Outbox(FakeSession(), RecordingMeter()), FakeDelivery()
    outbox.hold(delivery)
    outbox.hold(again)
    outbox.release(delivery)
    assert (delivery.calls, again.calls) == (["set aside"], ["nak"])


async def test_what_was_sent_is_known_by_its_bytes_and_once(delivery):
    session = FakeSession()
    outbox = Outbox(session, RecordingMeter())
    sending = asyncio.create_task(outbox.publish(item(delivery), answer(), {}))
    await session.asked.wait()
    subject, data = session.published
    assert not outbox.sent.has("berth.ranked.berth.default.other", data)
    assert outbox.sent.has(subject, data)
    assert not outbox.sent.has(subject, data)
    session.stored.set()
    await sending


async def test_an_answer_that_the_stream_had_already_is_not_waited_for(delivery):
    """Nothing is stored then, so no copy of it comes."""
    session = FakeSession()
    session.is_duplicate = True
    session.stored.set()
    outbox = Outbox(session, RecordingMeter())
    await outbox.publish(item(delivery), answer(), {})
    assert delivery.calls == ["ack"]
    assert not outbox.sent.has(*session.published)


@pytest.mark.parametrize(
    ("error", "may_come"),
    [
        pytest.param(StoreFullError("publishing: insufficient resources"), False, id="it is not stored"),
        pytest.param(UnansweredError("publishing: no answer"), True, id="nobody knows"),
    ],
)
async def test_a_copy_is_waited_for_only_if_it_may_come(delivery, error, may_come):
    session = FakeSession(error)
    outbox = Outbox(session, RecordingMeter())
    outbox.send(item(delivery), answer(), {})
    await outbox.wait_empty()
    assert outbox.sent.has(*session.published) == may_come


def test_another_scorers_ranking_of_the_pod_ends_the_wait_for_a_copy():
    sent = SentRankings()
    sent.add("berth.ranked.berth.default.web", b"{}")
    assert not sent.has("berth.ranked.berth.default.web", b"{} ")
    assert not sent.has("berth.ranked.berth.default.web", b"{}")


def test_only_so_many_rankings_are_remembered():
    sent = SentRankings()
    for number in range(SentRankings.MOST + 1):
        sent.add(f"berth.ranked.berth.default.{number}", b"{}")
    assert not sent.has("berth.ranked.berth.default.0", b"{}")
    assert sent.has("berth.ranked.berth.default.1", b"{}")
