"""Stream order, and what is remembered of an epoch."""

from berth.api.subjects import Attempt
from berth_binder.attempt import RankedDelivery
from berth_binder.core import DecidedAttempts, StreamOrder
from berth_binder.effects import RankedMessage
from harness.worlds.binder_bench import make_pod, ranked


def claim(sequence: int) -> RankedDelivery:
    message = ranked(make_pod("web"), "n1")
    held = RankedMessage(sequence=sequence, delivery=None)
    return RankedDelivery(ranked=message, attempt=Attempt.parse(message.attempt), held=held)


def test_messages_leave_in_the_order_of_the_stream_whenever_they_came():
    order = StreamOrder()
    for sequence in (5, 3, 9, 3):
        order.push(claim(sequence))
    assert [order.pop().held.sequence for _ in range(len(order))] == [3, 3, 5, 9]


def test_of_one_sequence_the_first_to_arrive_is_first():
    order = StreamOrder()
    first, second = claim(1), claim(1)
    order.push(first)
    order.push(second)
    assert order.pop() is first


def test_a_decided_attempt_covers_itself_and_earlier_ones_also_those_of_earlier_terms():
    given = DecidedAttempts()
    given.remember(Attempt.parse("uid.3.2"))
    assert given.covers(Attempt.parse("uid.3.2"))
    assert given.covers(Attempt.parse("uid.2.9"))
    assert not given.covers(Attempt.parse("uid.3.3"))
    assert not given.covers(Attempt.parse("other.1.1"))


def test_the_memory_is_bounded_and_the_oldest_is_forgotten():
    given = DecidedAttempts(limit=2)
    for uid in ("a", "b", "c"):
        given.remember(Attempt.parse(f"{uid}.1.1"))
    assert len(given) == 2
    assert not given.covers(Attempt.parse("a.1.1"))
    assert given.covers(Attempt.parse("c.1.1"))


def test_an_earlier_attempt_that_is_decided_late_takes_nothing_back():
    given = DecidedAttempts()
    given.remember(Attempt.parse("uid.2.5"))
    given.remember(Attempt.parse("uid.2.4"))
    assert given.covers(Attempt.parse("uid.2.5"))
