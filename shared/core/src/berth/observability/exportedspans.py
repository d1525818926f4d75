"""Spans that are exported, by OpenTelemetry's SDK. Imported only if its variables ask for an export."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import Span as SdkSpan

from berth.messages.subjects import parse_traceparent
from berth.safetext import one_line, without_passwords
from berth.tls import requests_adapter


def otlp_exporter() -> SpanExporter:
    """An exporter by OTLP over HTTP, configured by OpenTelemetry's variables."""
    session = requests.Session()
    session.mount("https://", requests_adapter())
    return OTLPSpanExporter(session=session)


class ExportedSpans:
    def __init__(self, exporter: SpanExporter, *, service: str, identity: str, sampler: str) -> None:
        named = OTELResourceDetector().detect().attributes  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        resource = Resource.create({"service.name": f"berth-{service}", "service.instance.id": identity, **named})
        self._sampler = _sampler(sampler)
        self._ids = SpanIds()
        self._provider = TracerProvider(
            resource=resource, sampler=self._sampler, shutdown_on_exit=False, id_generator=self._ids
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("berth")

    @contextmanager
    def span(self, name: str, parent: str | None, *, is_first: bool) -> Iterator[ExportedSpan]:
        """A span that begins now (see ``Tracing.span``)."""
        started = self._tracer.start_as_current_span(
            name,
            context=_context(parent, self._sampler if is_first else None),
            record_exception=False,
            set_status_on_exception=False,
        )
        with started as span:
            try:
                yield ExportedSpan(span)
            except Exception as error:
                _record(span, error)
                raise

    def past(self, name: str, parent: str, *, began: float, seconds: float, notes: Mapping[str, str | int]) -> None:
        """A span that has ended (see ``Tracing.past``)."""
        start = time.time_ns() - int((time.perf_counter() - began) * 1e9)
        self._end(name, _context(parent, None), start, start + int(seconds * 1e9), notes)

    def whole(self, name: str, ids: tuple[str, str], *, seconds: float, notes: Mapping[str, str | int]) -> None:
        """The first span of a trace (see ``Tracing.whole``)."""
        now = time.time_ns()
        with self._ids.given(*ids):
            self._end(name, Context(), now - int(seconds * 1e9), now, notes)

    def close(self) -> None:
        self._provider.shutdown()

    def _end(self, name: str, context: Context, start: int, end: int, notes: Mapping[str, str | int]) -> None:
        span = self._tracer.start_span(name, context=context, start_time=start, attributes={**notes})
        span.end(end_time=end)


class SpanIds(RandomIdGenerator):
    """Random ids, unless the ids of a span are given."""

    def __init__(self) -> None:
        self._given: tuple[int, int] | None = None

    @contextmanager
    def given(self, trace_id: str, span_id: str) -> Iterator[None]:
        """Within this context a span that begins a trace gets these ids."""
        self._given = int(trace_id, 16), int(span_id, 16)
        try:
            yield
        finally:
            self._given = None

    def generate_trace_id(self) -> int:
        return self._given[0] if self._given else super().generate_trace_id()

    def generate_span_id(self) -> int:
        return self._given[1] if self._given else super().generate_span_id()


class ExportedSpan:
    def __init__(self, span: SdkSpan) -> None:
        self._span = span

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def traceparent(self) -> str:
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    @property
    def is_recorded(self) -> bool:
        return self._span.is_recording()

    def note(self, key: str, value: str | int, /) -> None:
        self._span.set_attribute(key, value)


def _record(span: SdkSpan, error: Exception) -> None:
    # The SDK would record message and traceback as they are. The traceback is in the log.
    kind, message = type(error).__name__, without_passwords(one_line(str(error)))
    span.add_event("exception", {"exception.type": kind, "exception.message": message})
    span.set_status(StatusCode.ERROR, f"{kind}: {message}")


def _sampler(named: str) -> Sampler:
    name, _, argument = named.partition(":")
    match name.removeprefix("parentbased_"):
        case "always_on":
            root: Sampler = ALWAYS_ON
        case "always_off":
            root = ALWAYS_OFF
        case _:
            root = TraceIdRatioBased(float(argument))
    return ParentBased(root) if name.startswith("parentbased_") else root


def _context(parent: str | None, deciding: Sampler | None) -> Context:
    """The parent as a context; with ``deciding``, its flag is the sampler's answer for a trace without a parent."""
    known = parse_traceparent(parent)
    if parent is None or known is None:
        return Context()
    trace_id, span_id = int(known[0], 16), int(known[1], 16)
    flags = int(parent[-2:], 16)
    if deciding is not None:
        flags = int(deciding.should_sample(Context(), trace_id, "").decision is Decision.RECORD_AND_SAMPLE)
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(context), Context())
