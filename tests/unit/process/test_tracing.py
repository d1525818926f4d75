"""Traces: the header goes on whether spans are exported or not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from berth.process.tracing import Tracing, parse_traceparent

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


def test_nothing_is_exported_unless_an_endpoint_is_named():
    assert Tracing.from_environment({}, service="scorer")._provider is None


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
