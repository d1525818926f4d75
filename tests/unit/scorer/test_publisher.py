"""Which outcome of a publish the core receives, and which copies of this scorer's answers are waited for."""

from datetime import UTC, datetime

import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.bus.interface import BusLostError, PubAck, StoreFullError, TooLargeError, UnansweredError
from berth.messages.attempts import Pending, Ranked
from berth_scorer.effects import RankingPublisher, SentRankings
from berth_scorer.events import PendingDelivery, PublishRanked, RankedNotStored, RankedRefused, RankedStored
from harness.fakes.recording_meter import RecordingMeter

POD = Pod(metadata=ObjectMeta(name="web", namespace="default", uid="u"))


class FakeDelivery:
    """A delivery; nothing is settled here."""

    sequence, delivered, subject, data = 7, 1, "berth.pending.berth.default.web", b"{}"
    time = datetime(2026, 1, 1, tzinfo=UTC)


class FakeSession:
    """A session that answers a publish at once."""

    max_message_bytes = 1024 * 1024

    def __init__(self, answer):
        self.answer = answer

    def publish_soon(self, subject, data, *, on_answer, message_id=None, headers=None):
        self.published = (subject, data)
        on_answer(self.answer)


def stored(*, duplicate=False):
    return PubAck(stream="RANKED", sequence=1, duplicate=duplicate)


def published(answer):
    """The publisher, what it published, and the event."""
    session, events = FakeSession(answer), []
    publisher = RankingPublisher(session, RecordingMeter(), events.append, later=lambda _, again: again())
    held = PendingDelivery(
        delivery=FakeDelivery(), pending=Pending(attempt="u.1.1", profile="berth", pod=POD), sequence=7, taken_at=0.0
    )
    publisher.publish_soon(
        PublishRanked(held=held, message=Ranked(attempt="u.1.1", profile="berth", pod=POD), headers={})
    )
    (event,) = events
    return publisher, session.published, event


@pytest.mark.parametrize(
    ("answer", "event"),
    [
        pytest.param(stored(), RankedStored(sequence=7), id="stored"),
        pytest.param(stored(duplicate=True), RankedStored(sequence=7), id="a duplicate"),
        pytest.param(UnansweredError("no answer"), RankedNotStored(sequence=7), id="no answer"),
        pytest.param(BusLostError("lost"), RankedNotStored(sequence=7), id="no connection"),
        pytest.param(StoreFullError("full"), RankedNotStored(sequence=7), id="no room"),
        pytest.param(TooLargeError("large"), RankedRefused(sequence=7, reason="large"), id="too large"),
    ],
)
def test_outcome_of_a_publish_is_an_event(answer, event):
    assert published(answer)[2] == event


@pytest.mark.parametrize(
    ("answer", "will_come"),
    [
        pytest.param(stored(), True, id="stored"),
        pytest.param(stored(duplicate=True), False, id="a duplicate is not stored again"),
        pytest.param(StoreFullError("full"), False, id="not stored"),
        pytest.param(UnansweredError("no answer"), False, id="perhaps stored: as another scorer's, or kept for ever"),
    ],
)
def test_copy_is_waited_for_only_if_it_will_come(answer, will_come):
    publisher, (subject, data), _ = published(answer)
    assert publisher.sent.has(subject, data) == will_come
    assert not publisher.sent.has(subject, data)


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
