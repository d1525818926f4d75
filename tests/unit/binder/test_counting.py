"""What the binder counts."""

from berth.api.messages import Decision, Outcome
from berth.service.meter import RecordingMeter
from binder.answers import Answer
from binder.counting import count_binding, count_decision


def said(outcome: Outcome, reason: str = "") -> Decision:
    fixed = {"attempt": "u.1.1", "epoch": 1, "profile": "berth", "namespace": "default", "pod": "web", "uid": "u"}
    return Decision(**fixed, outcome=outcome, reason=reason)


def test_attempts_are_counted_as_kube_scheduler_does():
    meter = RecordingMeter()
    for outcome in (Outcome.BOUND, Outcome.UNSCHEDULABLE, Outcome.ERROR, Outcome.WAITING):
        count_decision(meter, said(outcome))
    for result in ("scheduled", "unschedulable", "error"):
        assert meter.value("scheduler_schedule_attempts_total", result=result, profile="berth") == 1
    assert meter.value("berth_decisions_total", outcome="waiting", profile="berth") == 1


def test_conflicts_are_counted_by_reason():
    meter = RecordingMeter()
    count_decision(meter, said(Outcome.CONFLICT, "stale"))
    assert meter.value("berth_conflicts_total", reason="stale") == 1


def test_a_binding_without_an_answer_is_counted_as_none():
    meter = RecordingMeter()
    count_binding(meter, Answer(status=0), 0.5)
    count_binding(meter, Answer(status=201), 0.1)
    assert meter.value("berth_bindings_total", code="none") == 1
    assert meter.value("berth_bindings_total", code="201") == 1
    assert meter.observed["berth_binding_duration_seconds",] == [0.5, 0.1]
