"""How Bindings are counted, and the gauges of a leader."""

from berth_binder.cache import Cache
from berth_binder.events import BindingAnswer
from berth_binder.runner import clear_gauges, count_binding, set_gauges
from harness.builders.objects import a_pod
from harness.fakes.recording_meter import RecordingMeter


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
