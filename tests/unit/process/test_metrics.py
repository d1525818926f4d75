"""The table of metrics and the two meters that keep it."""

from pathlib import Path
from typing import get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from berth.observability.metrics import METRICS, CounterName, GaugeName, HistogramName, PrometheusMeter
from harness.fakes.recording_meter import RecordingMeter

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("kind", "names"), [("counter", CounterName), ("gauge", GaugeName), ("histogram", HistogramName)]
)
def test_the_table_and_the_types_name_the_same_metrics(kind, names):
    assert set(get_args(names)) == {name for name, metric in METRICS.items() if metric.kind == kind}


def test_every_metric_is_named_as_prometheus_asks_and_explained():
    for name, metric in METRICS.items():
        assert name.startswith(("scheduler_", "berth_", "leader_election_", "rest_client_"))
        assert name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(metric.buckets)
        assert metric.meaning.endswith(".")
        assert len(metric.labels) == 1 or not metric.values


def test_every_metric_of_the_table_is_counted_somewhere():
    sources = [
        path.read_text()
        for folder in (ROOT / "shared", ROOT / "services")
        for path in folder.rglob("*.py")
        if path.name != "meter.py"
    ]
    unused = [name for name in METRICS if not any(f'"{name}"' in source for source in sources)]
    assert unused == []


@pytest.fixture
def meter_text():
    return lambda meter: meter.exposition().decode()


@pytest.fixture(params=[RecordingMeter, PrometheusMeter])
def meter(request):
    return request.param()


def test_a_label_that_is_missing_or_unknown_is_refused(meter):
    with pytest.raises(ValueError, match="label"):
        meter.count("berth_decisions_total", outcome="bound")
    with pytest.raises(ValueError, match="label"):
        meter.count("berth_decisions_total", outcome="bound", profile="berth", pod="web-0")


def test_counts_sets_and_observations_come_out_as_they_went_in():
    meter = PrometheusMeter()
    for _ in range(3):
        meter.count("berth_decisions_total", outcome="bound", profile="berth")
    meter.count("berth_decisions_total", 2, profile="berth", outcome="gone")
    meter.set("scheduler_pending_pods", 7, queue="active")
    meter.observe("scheduler_pod_scheduling_attempts", 2)
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(meter.exposition().decode())
        for sample in family.samples
    }
    assert samples["berth_decisions_total", ("outcome", "bound"), ("profile", "berth")] == 3
    assert samples["berth_decisions_total", ("outcome", "gone"), ("profile", "berth")] == 2
    assert samples["scheduler_pending_pods", ("queue", "active")] == 7
    assert samples["scheduler_pod_scheduling_attempts_bucket", ("le", "1.0")] == 0
    assert samples["scheduler_pod_scheduling_attempts_bucket", ("le", "2.0")] == 1


def test_what_was_never_counted_stands_at_0_where_the_labels_are_known(meter_text):
    said = meter_text(PrometheusMeter())
    assert 'berth_dead_letters_total{cause="failed"} 0.0' in said
    assert 'berth_conflicts_total{reason="no-candidate"} 0.0' in said


def test_a_gauge_that_was_taken_back_is_not_shown_any_more(meter_text):
    meter = PrometheusMeter()
    meter.set("scheduler_pending_pods", 7, queue="active")
    meter.set("berth_proposals", 7)
    meter.clear("scheduler_pending_pods")
    meter.clear("berth_proposals")
    assert "scheduler_pending_pods{" not in meter_text(meter)
    assert "berth_proposals 0.0" in meter_text(meter)
    meter.set("scheduler_pending_pods", 3, queue="active")
    assert 'scheduler_pending_pods{queue="active"} 3.0' in meter_text(meter)


def test_two_meters_of_one_process_do_not_meet():
    PrometheusMeter().count("berth_bus_sessions_total")
    assert "berth_bus_sessions_total 0.0" in PrometheusMeter().exposition().decode()
