"""How Bindings are counted."""

from berth_binder.apicalls import count_binding
from berth_binder.events import BindingAnswer
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
