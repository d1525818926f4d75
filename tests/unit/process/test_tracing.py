"""Traces: the header goes on whether spans are exported or not."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from berth.exits import UsageError
from berth.messages.subjects import parse_traceparent, trace_of_pod
from berth.observability.tracing import SAMPLERS, Tracing

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(params=["off", "exported"])
def tracing(request):
    made = Tracing(InMemorySpanExporter() if request.param == "exported" else None, service="scorer")
    yield made
    made.close()


def test_a_span_goes_on_in_its_parents_trace_under_an_id_of_its_own(tracing):
    with tracing.span("rank", parent=PARENT) as span:
        trace_id, span_id = parse_traceparent(span.traceparent)
    assert trace_id == span.trace_id == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert span_id != "00f067aa0ba902b7"


def test_a_pod_seen_for_the_first_time_begins_a_trace(tracing):
    with tracing.span("queue") as one, tracing.span("queue") as other:
        assert parse_traceparent(one.traceparent) is not None
        assert one.trace_id != other.trace_id


@pytest.mark.parametrize(
    "header",
    ["", "garbage", PARENT[:-1], PARENT.upper(), "00-" + "0" * 32 + "-00f067aa0ba902b7-01", PARENT.replace("-", "_")],
)
def test_a_header_that_is_not_valid_begins_a_new_trace(tracing, header):
    assert parse_traceparent(header) is None
    with tracing.span("rank", parent=header) as span:
        assert parse_traceparent(span.traceparent) is not None


@given(st.text(max_size=60))
def test_no_header_breaks_reading(header):
    assert parse_traceparent(header) is None or len(header) == 55


def test_spans_of_two_services_hang_together():
    queued, ranked = InMemorySpanExporter(), InMemorySpanExporter()
    watcher, scorer = Tracing(queued, service="watcher"), Tracing(ranked, service="scorer")
    with watcher.span("queue") as first:
        first.note("pod", "default/web-0")
    with scorer.span("rank", parent=first.traceparent):
        pass
    watcher.close()
    scorer.close()
    (queue,), (rank,) = queued.get_finished_spans(), ranked.get_finished_spans()
    assert (queue.name, queue.attributes["pod"]) == ("queue", "default/web-0")
    assert rank.parent.span_id == queue.context.span_id
    assert rank.resource.attributes["service.name"] == "berth-scorer"


def test_a_trace_ends_with_the_span_that_has_all_others():
    exporter = InMemorySpanExporter()
    tracing, pod = Tracing(exporter, service="watcher"), trace_of_pod("uid-web")
    with tracing.span("enqueue", parent=pod, is_first=True):
        pass
    tracing.whole("schedule", pod, seconds=2.5, notes={"pod": "default/web"})
    tracing.close()

    enqueue, whole = exporter.get_finished_spans()
    assert enqueue.parent.span_id == whole.context.span_id
    assert enqueue.context.trace_id == whole.context.trace_id
    assert whole.parent is None
    assert whole.end_time - whole.start_time == 2_500_000_000
    assert whole.end_time >= enqueue.end_time
    assert (whole.name, whole.attributes["pod"]) == ("schedule", "default/web")
    assert whole.resource.attributes["service.name"] == "berth-watcher"


def test_what_is_over_is_a_span_inside_its_parent():
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, service="scorer")
    with tracing.span("rank", parent=PARENT) as rank:
        assert rank.is_recorded
        began = time.perf_counter()
        tracing.past(
            "Filter", rank.traceparent, began=began, seconds=time.perf_counter() - began, notes={"status": "x"}
        )
    tracing.close()

    part, whole = exporter.get_finished_spans()
    assert (part.name, part.attributes["status"]) == ("Filter", "x")
    assert part.parent.span_id == whole.context.span_id
    slack = 1_000_000  # nanoseconds: two clocks are read one after the other
    assert whole.start_time - slack <= part.start_time <= part.end_time <= whole.end_time + slack


@pytest.mark.parametrize("sampler", ["always_off", "traceidratio:0"])
def test_a_trace_that_is_not_sampled_has_no_span(sampler):
    exporter = InMemorySpanExporter()
    tracing, pod = Tracing(exporter, service="watcher", sampler=sampler), trace_of_pod("uid-web")
    with tracing.span("enqueue", parent=pod, is_first=True) as span:
        assert not span.is_recorded
    tracing.whole("schedule", pod, seconds=1, notes={})
    tracing.close()

    assert exporter.get_finished_spans() == ()


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("environment", "is_exporting"),
    [
        ({}, False),
        (ENDPOINT, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "true"}, False),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "false"}, True),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_spans_are_exported_when_opentelemetrys_variables_ask_for_it(environment, is_exporting):
    tracing = Tracing.from_environment(environment, service="scorer")
    tracing.close()
    assert tracing.is_exporting is is_exporting


def test_all_variables_of_no_use_are_named_at_once():
    environment = {
        **ENDPOINT,
        "OTEL_TRACES_EXPORTER": "zipkin",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "10%",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/there/is/none",
    }
    with pytest.raises(UsageError) as caught:
        Tracing.from_environment(environment, service="scorer")
    assert str(caught.value).splitlines() == [
        "OTEL_TRACES_EXPORTER: want otlp or none, got 'zipkin'",
        (
            "OTEL_EXPORTER_OTLP_PROTOCOL: want http/protobuf, got 'grpc': "
            "name a collector's port for OTLP over HTTP, usually 4318"
        ),
        "OTEL_TRACES_SAMPLER_ARG: want a number from 0 to 1, got '10%'",
        "OTEL_EXPORTER_OTLP_CERTIFICATE: cannot read '/there/is/none'",
    ]
    with pytest.raises(UsageError, match=r"OTEL_TRACES_SAMPLER: want one of always_on, .*, got 'jaeger_remote'"):
        Tracing.from_environment({**ENDPOINT, "OTEL_TRACES_SAMPLER": "jaeger_remote"}, service="scorer")


def exported(sampler: str, trace_id: str) -> list[str]:
    """The spans of a pod on its way through two services, whose first parent is on no service."""
    memory = [InMemorySpanExporter(), InMemorySpanExporter()]
    watcher, scorer = (Tracing(each, service="any", sampler=sampler) for each in memory)
    with watcher.span("enqueue", parent=f"00-{trace_id}-00f067aa0ba902b7-00", is_first=True) as span:
        pass
    with scorer.span("rank", parent=span.traceparent):
        pass
    watcher.close()
    scorer.close()
    return [span.name for each in memory for span in each.get_finished_spans()]


LOW, HIGH = "1" + "0" * 31, "f" * 32
"""Trace ids of which the one is in every ratio but 0, and the other in none but 1."""


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_pod_is_in_all_spans_or_in_none(sampler):
    named = f"{sampler}:0.5" if sampler.endswith("ratio") else sampler
    whole = ["enqueue", "rank"]
    assert exported(named, LOW) == ([] if sampler.endswith("off") else whole)
    assert exported(named, HIGH) == (whole if sampler.endswith("on") else [])


def test_no_pod_is_sampled_by_a_ratio_of_0():
    assert exported("traceidratio:0", LOW) == exported("parentbased_traceidratio:0", LOW) == []


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, ("berth-scorer", "scorer-1", None)),
        ({"OTEL_SERVICE_NAME": "mine"}, ("mine", "scorer-1", None)),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=ours,service.instance.id=i,k8s.cluster.name=c"},
            ("ours", "i", "c"),
        ),
    ],
)
def test_opentelemetrys_variables_name_the_service(monkeypatch, variables, names):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, service="scorer", identity="scorer-1")
    with tracing.span("rank"):
        pass
    tracing.close()
    (span,) = exporter.get_finished_spans()
    keys = ("service.name", "service.instance.id", "k8s.cluster.name")
    assert tuple(span.resource.attributes.get(key) for key in keys) == names


def test_an_exception_is_on_its_span_without_passwords_and_without_a_traceback():
    exporter = InMemorySpanExporter()
    tracing = Tracing(exporter, service="watcher")
    with pytest.raises(RuntimeError), tracing.span("enqueue"):
        raise RuntimeError("connecting to https://who:secret@api:6443/: refused")
    tracing.close()
    (span,) = exporter.get_finished_spans()
    (event,) = span.events
    assert event.attributes == {
        "exception.type": "RuntimeError",
        "exception.message": "connecting to https://***@api:6443/: refused",
    }
    assert not span.status.is_ok
    assert "secret" not in span.to_json()
