"""Events and conditions as the API server takes them."""

from datetime import UTC, datetime

import msgspec

from berth.api.messages import Decision, Outcome
from berth.api.pod import PodCondition
from berth.kube.events import LONGEST_NOTE
from berth_binder.eventrecorder import condition_of, event_body, event_of, series_body
from harness.worlds.binder_bench import make_pod

WALL = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)


def decision(outcome: Outcome, *, pod: str = "web", **parts: str) -> Decision:
    fixed = {"attempt": "uid-web.1.1", "epoch": 1, "profile": "berth", "namespace": "default", "uid": "uid-web"}
    return Decision(**fixed, outcome=outcome, pod=pod, **parts)


def test_an_event_says_who_reports_about_whom():
    event = event_of(decision(Outcome.BOUND, node="n1"), make_pod("web"))
    body = event_body(event, instance="host-1", wall=WALL)
    assert body["reportingController"] == "berth"
    assert body["reportingInstance"] == "berth-host-1"
    assert body["eventTime"] == "2026-01-02T03:04:05.678900Z"
    assert body["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "web",
        "uid": "uid-web",
        "resourceVersion": "10",
    }


def test_saying_the_same_twice_makes_one_event():
    one = event_of(decision(Outcome.BOUND, node="n1"), make_pod("web"))
    again = event_of(msgspec.structs.replace(decision(Outcome.BOUND, node="n1"), epoch=2), make_pod("web"))
    assert one.name == again.name


def test_the_longest_pod_name_still_gives_a_name_that_the_api_takes():
    pod = make_pod("a" * 252 + "b")
    event = event_of(decision(Outcome.BOUND, pod=pod.metadata.name, node="n1"), pod)
    assert len(event.name) <= 253


def test_notes_and_messages_are_cut_and_show_it():
    unschedulable = decision(Outcome.UNSCHEDULABLE, message="é" * 5000)
    assert len(event_of(unschedulable, make_pod("web")).note.encode()) <= LONGEST_NOTE
    assert condition_of(unschedulable, make_pod("web")).message.endswith("...")


def test_a_repeat_is_a_patch_of_the_series():
    event = event_of(decision(Outcome.UNSCHEDULABLE, message="no"), make_pod("web")).repeated()
    assert series_body(event, WALL) == {"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:05.678900Z"}}


def test_a_condition_names_its_reason():
    condition = condition_of(decision(Outcome.ERROR, message="it broke"), make_pod("web")).condition(WALL)
    assert (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "SchedulerError")
    assert condition.last_transition_time == "2026-01-02T03:04:05Z"


def test_a_condition_that_stays_false_keeps_its_time():
    present = PodCondition(type="PodScheduled", status="False", last_transition_time="2025-12-31T00:00:00Z")
    pod = make_pod("web", status={"conditions": [present]})
    condition = condition_of(decision(Outcome.UNSCHEDULABLE, message="no room"), pod).condition(WALL)
    assert condition.last_transition_time == "2025-12-31T00:00:00Z"
