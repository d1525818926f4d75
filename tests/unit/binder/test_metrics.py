"""How Bindings, Decisions and what other schedulers do are counted, and the gauges of a leader."""

import asyncio

import msgspec
import pytest
from msgspec import structs

from berth.api.devices import ResourceClaim
from berth.kube.listwatch import Upserted
from berth.lifecycle.process import Process
from berth.messages.attempts import Decision, Outcome, Preemption, Victim
from berth_binder import metrics
from berth_binder.apicalls import count_binding
from berth_binder.cache import Cache, ForeignBindings
from berth_binder.effects import count_decision
from berth_binder.events import BindingAnswer
from berth_binder.metrics import clear_gauges, report_device_conflicts, report_foreign_bindings, set_gauges
from harness.builders.objects import a_pod
from harness.fakes.recording_meter import RecordingMeter
from harness.fakes.ticking_clock import TickingClock


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


def test_binding_without_an_answer_is_counted_as_none():
    meter = RecordingMeter()
    count_binding(meter, BindingAnswer(uid="u", status=0), 0.5, profile="berth")
    count_binding(meter, BindingAnswer(uid="u", status=201), 0.1, profile="berth")
    assert meter.value("berth_bindings_total", code="none") == 1
    assert meter.value("berth_bindings_total", code="201") == 1
    assert meter.observed["berth_binding_duration_seconds",] == [0.5, 0.1]
    point = "scheduler_framework_extension_point_duration_seconds"
    assert meter.observed[point, "Bind", "Success", "berth"] == [0.1]
    assert meter.observed[point, "Bind", "Error", "berth"] == [0.5]


def test_gauges_are_cleared_at_the_end_of_a_leadership():
    meter, cache = RecordingMeter(), Cache()
    cache.assume(a_pod("web"), "n")
    set_gauges(meter, cache, in_flight=1)
    assert meter.value("berth_reservations") == 1
    assert meter.value("scheduler_cache_size", type="assumed_pods") == 1
    clear_gauges(meter)
    assert meter.values == {}


@pytest.mark.slow
async def test_bindings_of_others_are_counted_at_once_and_warned_about_once_a_minute(monkeypatch):
    class Log:
        def warning(self, _text: str, *, pods: int, pod: str, node: str) -> None:
            warned.append((pods, pod, node))

    warned, seen = [], ForeignBindings()
    process = Process(name="binder", metrics=RecordingMeter(), clock=TickingClock())
    monkeypatch.setattr(metrics, "log", Log())
    seen.note(a_pod("of-the-former-leader", node="n1"))
    reporting = asyncio.create_task(report_foreign_bindings(seen, ["berth", "other"], process))
    await process.clock.run(2)
    counted = ("berth_foreign_bindings_total", "berth")
    assert {name: process.metrics.values[name] for name in (counted, (counted[0], "other"))} == dict.fromkeys(
        [counted, (counted[0], "other")], 0
    )

    for number in range(3):
        seen.note(a_pod(f"web-{number}", node="n2"))
        await process.clock.run(2)
        assert process.metrics.values[counted] == number + 1
    assert warned == [(1, "default/web-0", "n2")]
    await process.clock.run(60)
    assert warned[1:] == [(2, "default/web-2", "n2")]
    await process.clock.run(120)
    assert len(warned) == 2
    reporting.cancel()


@pytest.mark.slow
async def test_devices_that_two_claims_have_are_counted_at_once_and_warned_about_once_a_minute(monkeypatch):
    class Log:
        def warning(self, _text: str, *, devices: int, device: str, claims: list[str]) -> None:
            warned.append((devices, device, claims))

    def show(name: str) -> None:
        results = [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]
        metadata = {"name": name, "namespace": "default", "uid": name}
        body = {"metadata": metadata, "status": {"allocation": {"devices": {"results": results}}}}
        cache.observe(Upserted(kind="resourceclaim", object=msgspec.convert(body, ResourceClaim)))

    warned, cache = [], Cache()
    process = Process(name="binder", metrics=RecordingMeter(), clock=TickingClock())
    monkeypatch.setattr(metrics, "log", Log())
    show("a"), show("b")
    reporting = asyncio.create_task(report_device_conflicts(cache, process))
    await process.clock.run(2)
    assert (process.metrics.value("berth_device_conflicts_total"), warned) == (0, [])
    show("c")
    await process.clock.run(2)
    assert process.metrics.value("berth_device_conflicts_total") == 1
    assert warned == [(1, "d/p/x", ["default/a", "default/b", "default/c"])]
    show("d")
    await process.clock.run(30)
    assert (process.metrics.value("berth_device_conflicts_total"), len(warned)) == (2, 1)
    await process.clock.run(60)
    assert len(warned) == 2
    reporting.cancel()
