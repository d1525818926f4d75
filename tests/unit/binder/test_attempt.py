"""The stream order of messages, and the attempts that are remembered as decided."""

import msgspec

from berth.messages.subjects import Attempt
from berth_binder.attempts.attempt import DecidedAttempts
from berth_binder.attempts.queue import RankedQueue
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


def decided_as(attempt: str, sequence: int) -> RankedDelivery:
    return msgspec.structs.replace(delivered(sequence), attempt=Attempt.parse(attempt))


def test_decided_attempt_covers_itself_and_what_was_stored_before_it():
    decided = DecidedAttempts()
    decided.add(decided_as("uid.3.2", 7), 0.0)
    assert decided.covers(decided_as("uid.3.2", 7))
    assert decided.covers(decided_as("uid.3.2", 9)), "ranked twice"
    assert decided.covers(decided_as("uid.3.1", 6))
    assert decided.covers(decided_as("uid.2.9", 8))
    assert not decided.covers(decided_as("uid.3.3", 6))
    assert not decided.covers(decided_as("uid.3.3", 8))
    assert not decided.covers(decided_as("uid.4.1", 8))
    assert not decided.covers(decided_as("other.1.1", 1))


def test_a_huge_number_covers_no_attempt_that_was_stored_after_it():
    decided = DecidedAttempts()
    decided.add(decided_as("uid.3.999999999999999999", 7), 0.0)
    assert not decided.covers(decided_as("uid.3.4", 8))
    decided.add(decided_as("uid.3.4", 8), 0.0)
    assert decided.covers(decided_as("uid.3.4", 8))
    assert decided.covers(decided_as("uid.3.999999999999999999", 7))
    assert not decided.covers(decided_as("uid.3.5", 9))


def test_oldest_decided_attempt_is_forgotten():
    decided = DecidedAttempts(limit=2)
    for sequence, uid in enumerate(("a", "b", "c")):
        decided.add(decided_as(f"{uid}.1.1", sequence), 0.0)
    assert len(decided) == 2
    assert not decided.covers(decided_as("a.1.1", 0))
    assert decided.covers(decided_as("c.1.1", 2))


def test_what_is_remembered_of_pods_that_came_and_went_is_flat():
    decided, most = DecidedAttempts(), 0
    for number in range(20_000):  # 50 a second
        decided.add(decided_as(f"pod-{number}.1.1", number), number / 50)
        most = max(most, len(decided))
    assert most == len(decided) == 50 * 120 + 1
    assert decided.covers(decided_as("pod-19999.1.1", 19_999))


def test_late_decision_of_an_earlier_attempt_changes_nothing():
    decided = DecidedAttempts()
    decided.add(decided_as("uid.2.5", 5), 0.0)
    decided.add(decided_as("uid.2.4", 6), 0.0)
    assert decided.covers(decided_as("uid.2.5", 5))
    decided.add(decided_as("uid.1.9", 7), 0.0)
    assert decided.covers(decided_as("uid.2.5", 5))
    assert not decided.covers(decided_as("uid.2.6", 8))
