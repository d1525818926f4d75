"""How Decisions are counted, and the gauges of a leader."""

from msgspec import structs

from berth.api.messages import Decision, Outcome, Preemption, Victim
from berth_binder.cache import Cache
from berth_binder.runner import clear_gauges, count_decision, set_gauges
from harness.builders.objects import a_pod
from harness.fakes.recording_meter import RecordingMeter


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
    count_decision(meter, a_decision(Outcome.CONFLICT, "victims"))
    assert meter.value("berth_conflicts_total", reason="victims") == 1


def test_preempting_is_counted_as_unschedulable_with_victims():
    meter = RecordingMeter()
    victims = [Victim(uid=name, namespace="default", name=name) for name in ("a", "b")]
    decision = structs.replace(a_decision(Outcome.PREEMPTING), preemption=Preemption(node="n", victims=victims))
    count_decision(meter, decision)
    assert meter.value("scheduler_schedule_attempts_total", result="unschedulable", profile="berth") == 1
    assert meter.observed["scheduler_preemption_victims",] == [2]


def test_gauges_are_cleared_at_the_end_of_a_leadership():
    meter, cache = RecordingMeter(), Cache()
    cache.assume(a_pod("web"), "n")
    set_gauges(meter, cache, in_flight=1)
    assert meter.value("berth_reservations") == 1
    assert meter.value("scheduler_cache_size", type="assumed_pods") == 1
    clear_gauges(meter)
    assert meter.values == {}
