"""Announcements have a budget of their own: they wait, become series, are dropped; Bindings never wait for them."""

import pytest

from berth.api.messages import Decision, Outcome
from berth.api.pod import Pod, PodCondition
from berth_binder.eventrecorder import ConditionRecord, EventBudget, EventRecord
from berth_binder.settings import EventSettings
from harness.worlds.binder_bench import make_pod


def decided(pod: Pod, outcome: Outcome, **parts: str) -> Decision:
    return Decision(
        attempt=f"{pod.uid}.1.{parts.pop('n', '1')}",
        epoch=1,
        outcome=outcome,
        profile="berth",
        namespace="default",
        pod=pod.metadata.name,
        uid=pod.uid,
        **parts,
    )


def offer(budget: EventBudget, name: str, outcome: Outcome = Outcome.BOUND, **parts: str) -> Pod:
    pod = make_pod(name)
    budget.add(decided(pod, outcome, **parts), pod)
    return pod


def drain(budget: EventBudget, now: float = 0.0) -> list[EventRecord | ConditionRecord]:
    notes = []
    while (note := budget.next(now, bindings_wait=False)) is not None:
        notes.append(note)
        budget.done()
    return notes


def test_a_bound_pod_has_an_event_and_no_condition():
    budget = EventBudget()
    offer(budget, "web", node="n1")
    (event,) = drain(budget)
    assert (event.type, event.reason, event.action) == ("Normal", "Scheduled", "Binding")
    assert event.note == "Successfully assigned default/web to n1"


@pytest.mark.parametrize(
    ("outcome", "reason"), [(Outcome.UNSCHEDULABLE, "Unschedulable"), (Outcome.ERROR, "SchedulerError")]
)
def test_a_pod_that_is_refused_has_a_condition_and_an_event(outcome, reason):
    budget = EventBudget()
    offer(budget, "web", outcome, message="0/3 nodes are available")
    condition, event = drain(budget)
    assert (condition.reason, condition.message) == (reason, "0/3 nodes are available")
    assert (event.type, event.reason, event.action) == ("Warning", "FailedScheduling", "Scheduling")


@pytest.mark.parametrize("outcome", [Outcome.CONFLICT, Outcome.GONE, Outcome.WAITING])
def test_what_is_the_services_own_affair_is_not_told(outcome):
    budget = EventBudget()
    offer(budget, "web", outcome)
    assert budget.waiting == 0


def test_a_condition_that_the_pod_has_already_is_not_written_again():
    present = PodCondition(type="PodScheduled", status="False", reason="Unschedulable", message="no room")
    pod = make_pod("web", status={"conditions": [present]})
    budget = EventBudget()
    budget.add(decided(pod, Outcome.UNSCHEDULABLE, message="no room"), pod)
    assert [type(note) for note in drain(budget)] == [EventRecord]
    budget.add(decided(pod, Outcome.UNSCHEDULABLE, message="no room at all"), pod)
    assert ConditionRecord in [type(note) for note in drain(budget)]


def test_the_same_reason_again_is_counted_in_the_same_event():
    budget = EventBudget()
    for n in ("1", "2", "3"):
        offer(budget, "web", Outcome.UNSCHEDULABLE, message="no room", n=n)
        event = drain(budget)[-1]
    assert event.count == 3
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="another reason")
    assert drain(budget)[-1].count == 1


def test_an_event_that_has_expired_is_told_anew():
    budget = EventBudget()
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="no room", n="1")
    budget.end_series(drain(budget)[-1])
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="no room", n="2")
    assert drain(budget)[-1].count == 1


def test_a_newer_word_on_a_pod_takes_the_place_of_the_one_that_waits():
    budget = EventBudget()
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="old")
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="new")
    assert [note.message for note in drain(budget) if isinstance(note, ConditionRecord)] == ["new"]


def test_the_oldest_is_dropped_and_counted_when_too_many_wait():
    budget = EventBudget(EventSettings(queued=2))
    for name in ("one", "two", "three"):
        offer(budget, name, node="n1")
    assert budget.dropped == 1
    assert [note.pod.metadata.name for note in drain(budget)] == ["two", "three"]


def test_fewer_are_on_the_wire_while_bindings_wait():
    budget = EventBudget(EventSettings(in_flight=2, in_flight_behind_bindings=1))
    for name in ("one", "two", "three"):
        offer(budget, name, node="n1")
    assert budget.next(0.0, bindings_wait=True) is not None
    assert budget.next(0.0, bindings_wait=True) is None
    assert budget.next(0.0, bindings_wait=False) is not None
    assert budget.next(0.0, bindings_wait=False) is None
    budget.done()
    assert budget.next(0.0, bindings_wait=False) is not None


def test_the_rate_is_kept_and_the_next_time_is_known():
    budget = EventBudget(EventSettings(per_second=10, burst=1))
    for name in ("one", "two"):
        offer(budget, name, node="n1")
    assert len(drain(budget, now=0.0)) == 1
    assert budget.due(0.0) == pytest.approx(0.1)
    assert drain(budget, now=0.05) == []
    assert len(drain(budget, now=0.11)) == 1
    assert budget.due(0.11) is None
