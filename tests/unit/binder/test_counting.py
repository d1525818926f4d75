"""What the binder counts."""

from msgspec import structs

from berth.api.messages import Decision, Outcome, Preemption, Victim
from berth.process.metrics import RecordingMeter
from berth_binder.cache import Cache
from berth_binder.decisions import count_decision
from berth_binder.events import BindingAnswer
from berth_binder.runner import clear_gauges, count_binding, set_gauges
from harness.builders.objects import a_pod


def a_decision(outcome: Outcome, reason: str = "") -> Decision:
    fixed = {"attempt": "u.1.1", "epoch": 1, "profile": "berth", "namespace": "default", "pod": "web", "uid": "u"}
    return Decision(**fixed, outcome=outcome, reason=reason)


def test_attempts_are_counted_as_kube_scheduler_does():
    meter = RecordingMeter()
    for outcome in (Outcome.BOUND, Outcome.UNSCHEDULABLE, Outcome.ERROR, Outcome.WAITING):
        count_decision(meter, a_decision(outcome))
    for result in ("scheduled", "unschedulable", "error"):
        assert meter.value("scheduler_schedule_attempts_total", result=result, profile="berth") == 1
    assert meter.value("berth_decisions_total", outcome="waiting", profile="berth") == 1


def test_conflicts_are_counted_by_reason():
    meter = RecordingMeter()
    count_decision(meter, a_decision(Outcome.CONFLICT, "stale"))
    assert meter.value("berth_conflicts_total", reason="stale") == 1


def test_a_binding_without_an_answer_is_counted_as_none():
    meter = RecordingMeter()
    count_binding(meter, BindingAnswer(uid="u", status=0), 0.5, profile="berth")
    count_binding(meter, BindingAnswer(uid="u", status=201), 0.1, profile="berth")
    assert meter.value("berth_bindings_total", code="none") == 1
    assert meter.value("berth_bindings_total", code="201") == 1
    assert meter.observed["berth_binding_duration_seconds",] == [0.5, 0.1]
    point = "scheduler_framework_extension_point_duration_seconds"
    assert meter.observed[point, "Bind", "Success", "berth"] == [0.1]
    assert meter.observed[point, "Bind", "Error", "berth"] == [0.5]


def test_an_attempt_that_ends_in_evictions_is_an_unschedulable_one_with_victims():
    meter = RecordingMeter()
    victims = [Victim(uid=name, namespace="default", name=name) for name in ("a", "b")]
    decision = structs.replace(a_decision(Outcome.PREEMPTING), preemption=Preemption(node="n", victims=victims))
    count_decision(meter, decision)
    assert meter.value("scheduler_schedule_attempts_total", result="unschedulable", profile="berth") == 1
    assert meter.observed["scheduler_preemption_victims",] == [2]


def test_what_a_leader_shows_is_taken_back_at_its_end():
    meter, cache = RecordingMeter(), Cache()
    cache.assume(a_pod("web"), "n")
    set_gauges(meter, cache, in_flight=1)
    assert meter.value("berth_reservations") == 1
    assert meter.value("scheduler_cache_size", type="assumed_pods") == 1
    clear_gauges(meter)
    assert meter.values == {}
