"""Traces: one per pod, from its first event to its Binding, carried by its messages as W3C ``traceparent``.

The header is always created and passed on, since readers of messages may use it. Spans are exported by OTLP only when
OpenTelemetry's variables ask for it (docs/tracing.md has them); otherwise its SDK is not imported.

    tracing = Tracing.from_environment(os.environ, service="scorer")
    with tracing.span("rank", parent=delivery.headers.get(TRACEPARENT)) as span:
        headers = {TRACEPARENT: span.traceparent}
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from berth.exits import UsageError
from berth.safetext import one_line, without_passwords
from berth.tls import requests_adapter

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Span as SdkSpan

NAME: Final = "berth"
"""Of the instrumentation, on each span."""
TRACEPARENT: Final = "traceparent"
"""The header's name."""
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
CERTIFICATES: Final = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")
"""Where there are two variables the one for traces alone counts first."""
SAMPLER: Final = "OTEL_TRACES_SAMPLER"
SAMPLER_ARG: Final = "OTEL_TRACES_SAMPLER_ARG"
EXPORTER: Final = "OTEL_TRACES_EXPORTER"
DISABLED: Final = "OTEL_SDK_DISABLED"
PROTOCOL: Final = "http/protobuf"
SAMPLERS: Final = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)
_VERSION: Final = "00-"
_LENGTH: Final = 55
_HEXADECIMAL: Final = frozenset("0123456789abcdef")


class Span(Protocol):
    """One step of a pod's trace."""

    @property
    def traceparent(self) -> str:
        """What the next message carries."""
        ...

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits, the key ``trace_id`` of log lines."""
        ...

    @property
    def is_recorded(self) -> bool:
        """Whether the span will be exported: then its parts are worth a span each."""
        ...

    def note(self, key: str, value: str | int, /) -> None:
        """Set an attribute of the span. Has no effect when spans are not exported."""
        ...


def parse_traceparent(header: str | None) -> tuple[str, str] | None:
    """Trace id and span id of a header; ``None`` for a missing or an invalid one, as the standard requires."""
    if header is None or len(header) != _LENGTH or not header.startswith(_VERSION):
        return None
    trace_id, span_id = header[3:35], header[36:52]
    if header[35] != "-" or header[52] != "-" or not _HEXADECIMAL.issuperset(trace_id + span_id + header[53:]):
        return None
    return (trace_id, span_id) if int(trace_id, 16) and int(span_id, 16) else None


def trace_id_of(headers: Mapping[str, str]) -> str:
    """The key ``trace_id`` of log lines about a message; empty when it carries no valid context."""
    known = parse_traceparent(headers.get(TRACEPARENT))
    return known[0] if known else ""


def trace_of_pod(uid: str) -> str:
    """The ``traceparent`` of a pod. It is made from the uid, so that all attempts are in one trace under any leader."""
    digest = hashlib.blake2b(uid.encode(), digest_size=24).hexdigest()
    return f"00-{digest[:32]}-{digest[32:]}-00"


class UnexportedSpan:
    """A span without export: only its ids are passed on. About 2 µs."""

    __slots__ = ("_span_id", "trace_id")

    def __init__(self, parent: str | None) -> None:
        known = parse_traceparent(parent)
        self.trace_id = known[0] if known else f"{random.getrandbits(128) or 1:032x}"
        self._span_id = f"{random.getrandbits(64) or 1:016x}"

    @property
    def traceparent(self) -> str:
        """The header of the next message; its flag means not sampled."""
        return f"00-{self.trace_id}-{self._span_id}-00"

    @property
    def is_recorded(self) -> bool:
        return False

    def note(self, key: str, value: str | int, /) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class Tracing:
    """Creates the spans of one service."""

    def __init__(
        self, exporter: SpanExporter | None = None, *, service: str, identity: str = "", sampler: str = "always_on"
    ) -> None:
        """``sampler`` is one of :data:`SAMPLERS`, with its argument after a colon: ``traceidratio:0.1``."""
        self._sampler = _sampler(sampler) if exporter is not None else None
        self._processor = _processor(exporter) if exporter is not None else None
        self._provider = _provider(self._processor, self._sampler, service, identity) if self._processor else None
        self._tracer = self._provider.get_tracer(NAME) if self._provider is not None else None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, service: str, identity: str = "") -> Tracing:
        """Export by OTLP over HTTP when OpenTelemetry's own variables name an endpoint.

        Raises:
            UsageError: with every variable that has a value of no use.
        """
        wanted = environment.get(EXPORTER, "").strip().lower()
        named = wanted == "otlp" or any(environment.get(name) for name in ENDPOINTS)
        if wanted == "none" or not (named or wanted) or environment.get(DISABLED, "").strip().lower() == "true":
            return cls(service=service)
        if problems := list(_problems(environment)):
            raise UsageError("\n".join(problems))
        return cls(_otlp_exporter(), service=service, identity=identity, sampler=_named_sampler(environment))

    @property
    def is_exporting(self) -> bool:
        """Whether spans may be exported. Where a span's ids are not passed on, none is needed otherwise."""
        return self._tracer is not None

    def span(self, name: str, *, parent: str | None = None, is_first: bool = False) -> AbstractContextManager[Span]:
        """A child span of ``parent`` (a ``traceparent``); without a valid parent, a new trace.

        ``is_first``: no service has sampled the trace yet, so the parent's flag says nothing.
        """
        if self._tracer is None:
            return UnexportedSpan(parent)
        return self._exported(name, parent, is_first=is_first)

    def past(self, name: str, parent: str, *, began: float, seconds: float, notes: Mapping[str, str | int]) -> None:
        """A child span of something that is over. ``began`` is a time of ``time.perf_counter``."""
        if self._tracer is not None:
            start = time.time_ns() - int((time.perf_counter() - began) * 1e9)
            span = self._tracer.start_span(name, context=_context(parent, None), start_time=start, attributes={**notes})
            span.end(end_time=start + int(seconds * 1e9))

    def whole(self, name: str, traceparent: str, *, seconds: float, notes: Mapping[str, str | int]) -> None:
        """The first span of a trace, which has ended now and whose ids its children have known from the beginning."""
        ids = parse_traceparent(traceparent)
        if self._processor is None or self._provider is None or self._sampler is None or ids is None:
            return
        if _is_sampled(self._sampler, ids[0], name):
            self._processor.on_end(_first_span(self._provider.resource, name, ids, seconds, notes))

    def close(self) -> None:
        """Export the remaining spans, and stop. Blocks while the collector does not answer: call it in a thread."""
        if self._provider is not None:
            self._provider.shutdown()

    @contextmanager
    def _exported(self, name: str, parent: str | None, *, is_first: bool) -> Iterator[Span]:
        assert self._tracer is not None  # noqa: S101 - span() has checked it
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


def _otlp_exporter() -> SpanExporter:
    import requests  # noqa: PLC0415 - with the exporter 0.2 s, rarely needed
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    session = requests.Session()
    session.mount("https://", requests_adapter())
    return OTLPSpanExporter(session=session)


def _problems(environment: Mapping[str, str]) -> Iterator[str]:
    """Each variable whose value would be ignored or fail later."""
    exporter = environment.get(EXPORTER, "").strip().lower()
    if exporter not in {"", "otlp"}:
        yield f"{EXPORTER}: want otlp or none, got {exporter!r}"
    name, protocol = _first_set(environment, PROTOCOLS)
    if protocol not in {"", PROTOCOL}:
        yield f"{name}: want {PROTOCOL}, got {protocol!r}: name a collector's port for OTLP over HTTP, usually 4318"
    sampler = environment.get(SAMPLER, "").strip().lower()
    if sampler and sampler not in SAMPLERS:
        yield f"{SAMPLER}: want one of {', '.join(SAMPLERS)}, got {sampler!r}"
    ratio = environment.get(SAMPLER_ARG, "").strip()
    if sampler.endswith("traceidratio") and ratio and not _is_ratio(ratio):
        yield f"{SAMPLER_ARG}: want a number from 0 to 1, got {ratio!r}"
    name, path = _first_set(environment, CERTIFICATES)
    if path and not os.access(path, os.R_OK):
        yield f"{name}: cannot read {path!r}"


def _first_set(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    found = ((name, environment[name].strip()) for name in names if environment.get(name, "").strip())
    return next(found, (names[0], ""))


def _is_ratio(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _named_sampler(environment: Mapping[str, str]) -> str:
    """Unless one is named, every pod of this service: each service may be configured to export without the others."""
    name = environment.get(SAMPLER, "").strip().lower() or "always_on"
    ratio = environment.get(SAMPLER_ARG, "").strip()
    return f"{name}:{ratio or 1}" if name.endswith("traceidratio") else name


class ExportedSpan:
    """A span of OpenTelemetry's SDK."""

    def __init__(self, span: SdkSpan) -> None:
        self._span = span

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits."""
        return f"{self._span.get_span_context().trace_id:032x}"

    @property
    def traceparent(self) -> str:
        """What the next message carries."""
        context = self._span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    @property
    def is_recorded(self) -> bool:
        return self._span.is_recording()

    def note(self, key: str, value: str | int, /) -> None:
        """Put an attribute on the span."""
        self._span.set_attribute(key, value)


def _record(span: SdkSpan, error: Exception) -> None:
    """Put an exception on a span as on a log line: without passwords. Its traceback is in the log.

    The SDK would put both on the span as they are.
    """
    from opentelemetry.trace import StatusCode  # noqa: PLC0415 - see the module's docstring

    kind, message = type(error).__name__, without_passwords(one_line(str(error)))
    span.add_event("exception", {"exception.type": kind, "exception.message": message})
    span.set_status(StatusCode.ERROR, f"{kind}: {message}")


def _sampler(named: str) -> Sampler:
    from opentelemetry.sdk.trace.sampling import (  # noqa: PLC0415 - see the module's docstring
        ALWAYS_OFF,
        ALWAYS_ON,
        ParentBased,
        TraceIdRatioBased,
    )

    name, _, argument = named.partition(":")
    match name.removeprefix("parentbased_"):
        case "always_on":
            root: Sampler = ALWAYS_ON
        case "always_off":
            root = ALWAYS_OFF
        case _:
            root = TraceIdRatioBased(float(argument))
    return ParentBased(root) if name.startswith("parentbased_") else root


def _processor(exporter: SpanExporter) -> SpanProcessor:
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - see the module's docstring

    return BatchSpanProcessor(exporter)


def _provider(processor: SpanProcessor, sampler: Sampler | None, service: str, identity: str) -> TracerProvider:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415 - see the docstring
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - the same

    named = OTELResourceDetector().detect().attributes  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    resource = Resource.create({"service.name": f"berth-{service}", "service.instance.id": identity, **named})
    provider = TracerProvider(resource=resource, sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider


def _is_sampled(sampler: Sampler, trace_id: str, name: str) -> bool:
    from opentelemetry.context import Context  # noqa: PLC0415 - see the module's docstring
    from opentelemetry.sdk.trace.sampling import Decision  # noqa: PLC0415 - the same

    return sampler.should_sample(Context(), int(trace_id, 16), name).decision is Decision.RECORD_AND_SAMPLE


def _first_span(
    resource: Resource, name: str, ids: tuple[str, str], seconds: float, notes: Mapping[str, str | int]
) -> ReadableSpan:
    """With the ids that its children have as their parent's: the SDK's tracers choose ids of their own."""
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 - see the module's docstring
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415 - the same
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415 - the same

    now, sampled = time.time_ns(), TraceFlags(TraceFlags.SAMPLED)
    return ReadableSpan(
        name,
        context=SpanContext(int(ids[0], 16), int(ids[1], 16), is_remote=False, trace_flags=sampled),
        resource=resource,
        attributes=notes,
        start_time=now - int(seconds * 1e9),
        end_time=now,
        instrumentation_scope=InstrumentationScope(NAME),
    )


def _context(parent: str | None, deciding: Sampler | None) -> Context:
    """The parent as a context; its flag is what ``deciding`` would say of a trace without one, when that is given."""
    from opentelemetry.context import Context  # noqa: PLC0415 - see the module's docstring
    from opentelemetry.sdk.trace.sampling import Decision  # noqa: PLC0415 - the same
    from opentelemetry.trace import (  # noqa: PLC0415 - the same
        NonRecordingSpan,
        SpanContext,
        TraceFlags,
        set_span_in_context,
    )

    known = parse_traceparent(parent)
    if parent is None or known is None:
        return Context()
    trace_id, span_id = int(known[0], 16), int(known[1], 16)
    flags = int(parent[-2:], 16)
    if deciding is not None:
        flags = int(deciding.should_sample(Context(), trace_id, "").decision is Decision.RECORD_AND_SAMPLE)
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return set_span_in_context(NonRecordingSpan(context), Context())
