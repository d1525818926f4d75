"""What people are told when a pod is evicted for a more important one."""

from __future__ import annotations

from datetime import UTC, datetime

from berth.api.messages import Decision, Outcome, Preemption, Victim
from berth_binder.eventrecorder import condition_of, event_body, event_of, events_of_victims
from harness.worlds.binder_bench import make_pod

WALL = datetime(2026, 1, 1, tzinfo=UTC)
VICTIMS = [Victim(uid="u1", namespace="other", name="low-1"), Victim(uid="u2", namespace="default", name="low-2")]
EVICTED = Preemption(node="n1", victims=VICTIMS)


def a_decision(
    *, n: int = 1, outcome: Outcome = Outcome.PREEMPTING, preemption: Preemption | None = EVICTED
) -> Decision:
    return Decision(
        attempt=f"uid-vip.1.{n}",
        epoch=7,
        outcome=outcome,
        profile="berth",
        namespace="default",
        pod="vip",
        uid="uid-vip",
        node="n1",
        message="0/1 nodes are available: 1 Insufficient cpu.",
        preemption=preemption,
    )


def test_each_victim_has_an_event_that_says_for_whom_it_went():
    bodies = [event_body(note, instance="x", wall=WALL) for note in events_of_victims(a_decision(), make_pod("vip"))]
    assert [(body["reason"], body["action"], body["type"]) for body in bodies] == [
        ("Preempted", "Preempting", "Normal")
    ] * 2
    assert {body["note"] for body in bodies} == {"Preempted by pod uid-vip on node n1"}
    assert [(body["metadata"]["namespace"], body["regarding"]["name"]) for body in bodies] == [
        ("other", "low-1"),
        ("default", "low-2"),
    ]
    assert {body["related"]["name"] for body in bodies} == {"vip"}


def test_saying_it_twice_makes_one_event():
    names = [[note.name for note in events_of_victims(a_decision(n=n), make_pod("vip"))] for n in (1, 2)]
    assert names[0] == names[1]


def test_the_pod_itself_is_told_that_it_fits_nowhere_yet():
    event, condition = event_of(a_decision(), make_pod("vip")), condition_of(a_decision(), make_pod("vip"))
    assert (event.reason, event.note) == ("FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu.")
    assert (condition.reason, condition.message) == ("Unschedulable", "0/1 nodes are available: 1 Insufficient cpu.")


def test_other_decisions_tell_nobody_of_victims():
    assert events_of_victims(a_decision(outcome=Outcome.BOUND, preemption=None), make_pod("vip")) == []
