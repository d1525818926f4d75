"""When messages count as orphans, by what a server says of a stream and its consumer."""

from datetime import UTC, datetime

import pytest

from berth.bus.interface import ConsumerState, StreamState
from berth.leader.checks import OrphanCheck, orphans

FOUND = "PENDING holds messages that its consumer 'scorer' does not deliver: 1 at least"


def consumer(*, undelivered: int = 0, unacknowledged: int = 0, acknowledged_to: int = 0) -> ConsumerState:
    return ConsumerState(
        name="scorer",
        undelivered=undelivered,
        unacknowledged=unacknowledged,
        redelivered=0,
        acknowledged_to=acknowledged_to,
    )


def stream(messages: int, first: int, last: int, *consumers: ConsumerState) -> StreamState:
    return StreamState(
        stream="PENDING",
        messages=messages,
        bytes=0,
        last_sequence=last,
        first_sequence=first,
        first_time=None,
        now=datetime.now(UTC),
        consumers=consumers,
    )


@pytest.mark.parametrize(
    ("held", "it", "published", "count"),
    [
        pytest.param(stream(0, 11, 10), consumer(acknowledged_to=10), 0, 0, id="an empty stream"),
        pytest.param(stream(3, 8, 10), consumer(undelivered=2, unacknowledged=1), 0, 0, id="all are accounted for"),
        pytest.param(stream(3, 8, 10), consumer(acknowledged_to=10), 0, 3, id="none is"),
        pytest.param(stream(3, 2, 10), consumer(unacknowledged=2, acknowledged_to=1), 0, 1, id="one of three is not"),
        pytest.param(stream(3, 8, 10), consumer(unacknowledged=2), 1, 0, id="the third was published meanwhile"),
        pytest.param(stream(9, 2, 10), consumer(unacknowledged=9, acknowledged_to=2), 0, 1, id="the oldest below"),
        pytest.param(stream(1, 8, 10), consumer(unacknowledged=4), 0, 0, id="some were acknowledged meanwhile"),
    ],
)
def test_orphans_are_counted_and_never_too_many(held, it, published, count):
    assert orphans(held, it, published) == count


class FakeSession:
    """A session whose stream and consumer are what the test says."""

    def __init__(self, *states: StreamState, names: tuple[str, ...] = ("scorer",)) -> None:
        self.states, self.names = list(states), names

    async def state(self, stream: str) -> StreamState:
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def consumers(self, stream: str) -> list[str]:
        return list(self.names)


async def found(session: FakeSession, times: int) -> list[str]:
    check = OrphanCheck(session, "PENDING", "scorer")
    return [await check.find() for _ in range(times)]


async def test_the_same_oldest_message_must_be_found_three_times_in_a_row():
    stuck = stream(1, 8, 10, consumer(acknowledged_to=10))
    assert await found(FakeSession(stuck), 6) == ["", "", FOUND, "", "", FOUND]


async def test_a_queue_that_moves_on_has_no_orphans():
    """Each is acknowledged, and its removal has not come yet."""
    moving = [stream(1, n, n + 2, consumer(acknowledged_to=n + 2)) for n in range(20) for _ in range(2)]
    assert not any(await found(FakeSession(*moving), 20))


async def test_a_check_without_orphans_in_between_begins_the_count_anew():
    stuck = stream(1, 8, 10, consumer(acknowledged_to=10))
    fine = stream(1, 8, 10, consumer(unacknowledged=1))
    assert await found(FakeSession(*[stuck] * 4, fine, *[stuck] * 6), 6) == ["", "", "", "", "", FOUND]


async def test_a_consumer_whose_leader_does_not_answer_is_not_missing():
    assert not any(await found(FakeSession(stream(1, 8, 10)), 6))
    assert any(await found(FakeSession(stream(1, 8, 10), names=()), 6))
