"""The stream order of messages, and the attempts that are remembered as decided."""

from berth.api.subjects import Attempt
from berth_binder.attempt import DecidedAttempts, RankedQueue
from berth_binder.events import RankedDelivery
from harness.worlds.binder_bench import delivery, make_pod, ranked


def delivered(sequence: int) -> RankedDelivery:
    return delivery(ranked(make_pod("web"), "n1"), sequence)


def test_messages_leave_in_stream_order():
    queue = RankedQueue()
    for sequence in (5, 3, 9, 3):
        queue.push(delivered(sequence))
    assert [queue.pop().sequence for _ in range(len(queue))] == [3, 3, 5, 9]


def test_first_arrival_of_a_sequence_is_first():
    queue = RankedQueue()
    first, second = delivered(1), delivered(1)
    queue.push(first)
    queue.push(second)
    assert queue.pop() is first


def test_decided_attempt_covers_itself_and_earlier_ones():
    decided = DecidedAttempts()
    decided.add(Attempt.parse("uid.3.2"))
    assert decided.covers(Attempt.parse("uid.3.2"))
    assert decided.covers(Attempt.parse("uid.2.9"))
    assert not decided.covers(Attempt.parse("uid.3.3"))
    assert not decided.covers(Attempt.parse("other.1.1"))


def test_oldest_decided_attempt_is_forgotten():
    decided = DecidedAttempts(limit=2)
    for uid in ("a", "b", "c"):
        decided.add(Attempt.parse(f"{uid}.1.1"))
    assert len(decided) == 2
    assert not decided.covers(Attempt.parse("a.1.1"))
    assert decided.covers(Attempt.parse("c.1.1"))


def test_late_decision_of_an_earlier_attempt_changes_nothing():
    decided = DecidedAttempts()
    decided.add(Attempt.parse("uid.2.5"))
    decided.add(Attempt.parse("uid.2.4"))
    assert decided.covers(Attempt.parse("uid.2.5"))
