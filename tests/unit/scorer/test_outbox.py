"""A PENDING is given up only for a RANKED that the stream has."""

import asyncio
from datetime import UTC, datetime

import pytest

from berth.api.messages import Pending, Ranked
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.bus.interface import PubAck, UnansweredError
from berth.process.metrics import RecordingMeter
from berth_scorer.backlog import PendingDelivery
from berth_scorer.outbox import Outbox

POD = Pod(metadata=ObjectMeta(name="web", namespace="default", uid="u"))


class Lent:
    """A delivery that remembers what became of it."""

    sequence, delivered, subject, data = 1, 1, "berth.pending.berth.default.web", b"{}"
    time = datetime(2026, 1, 1, tzinfo=UTC)

    def __init__(self):
        self.headers, self.became = {}, []

    def ack(self):
        self.became.append("ack")

    def nak(self, delay=None):
        self.became.append("nak")

    def in_progress(self):
        self.became.append("in progress")


class Storing:
    """A session whose streams store when they are told to, or answer with an error."""

    def __init__(self, error=None):
        self.stored, self.asked, self.error = asyncio.Event(), asyncio.Event(), error

    async def publish(self, subject, data, *, message_id=None, headers=None):
        self.asked.set()
        if self.error is not None:
            raise self.error
        await self.stored.wait()
        return PubAck(stream="RANKED", sequence=1)


@pytest.fixture
def lent():
    return Lent()


def held(lent):
    return PendingDelivery(delivery=lent, pending=Pending(attempt="u.1.1", profile="berth", pod=POD), taken_at=0.0)


def answer():
    return Ranked(attempt="u.1.1", profile="berth", pod=POD)


async def test_a_message_is_acknowledged_only_once_its_answer_is_stored(lent):
    session = Storing()
    outbox = Outbox(session, RecordingMeter())
    outbox.hold(lent)
    outbox.send(held(lent), answer(), {})
    await session.asked.wait()
    outbox.keep_alive()
    assert lent.became == ["in progress"]
    session.stored.set()
    await outbox.emptied()
    assert lent.became == ["in progress", "ack"]
    assert len(outbox) == 0


async def test_a_message_whose_answer_could_not_be_stored_comes_again(lent):
    session = Storing(UnansweredError("publishing: no answer"))
    outbox = Outbox(session, RecordingMeter())
    outbox.hold(lent)
    outbox.send(held(lent), answer(), {})
    await outbox.emptied()
    assert lent.became == ["nak"]
    assert len(outbox) == 0
