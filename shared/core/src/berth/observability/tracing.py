"""Traces: one per pod, from its first event to its Binding, carried by its messages as W3C ``traceparent``.

The header is always created and passed on, since readers of messages may use it. Spans are exported by OTLP only when
OpenTelemetry's variables ask for it (docs/metrics.md has them); otherwise its SDK is not imported.

    tracing = Tracing.from_environment(os.environ, service="scorer")
    with tracing.span("rank", parent=delivery.headers.get(TRACEPARENT)) as span:
        headers = {TRACEPARENT: span.traceparent}
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from berth.exits import UsageError
from berth.messages.subjects import parse_traceparent

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from berth.observability.exportedspans import ExportedSpans

# Of each pair the variable for traces alone counts first.
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
CERTIFICATES: Final = ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE")
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


class Span(Protocol):
    """One step of a pod's trace."""

    @property
    def traceparent(self) -> str:
        """The header of the next message."""
        ...

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits, the key ``trace_id`` of log lines."""
        ...

    @property
    def is_recorded(self) -> bool:
        """Whether the span will be exported, so that its parts are worth a span each."""
        ...

    def note(self, key: str, value: str | int, /) -> None:
        """Set an attribute of the span. Has no effect when spans are not exported."""
        ...


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
        self._exported: ExportedSpans | None = None
        # Whether spans may be exported. If not, a span whose ids are not passed on can be left out.
        self.is_exporting: Final = exporter is not None
        if exporter is not None:
            from berth.observability.exportedspans import ExportedSpans  # noqa: PLC0415 - OpenTelemetry's SDK, rarely used

            self._exported = ExportedSpans(exporter, service=service, identity=identity, sampler=sampler)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], *, service: str, identity: str = "") -> Tracing:
        """Export by OTLP over HTTP if OpenTelemetry's own variables name an endpoint.

        Raises:
            UsageError: with every variable whose value cannot be used.
        """
        wanted = environment.get(EXPORTER, "").strip().lower()
        named = wanted == "otlp" or any(environment.get(name) for name in ENDPOINTS)
        if wanted == "none" or not (named or wanted) or environment.get(DISABLED, "").strip().lower() == "true":
            return cls(service=service)
        if problems := list(_problems(environment)):
            raise UsageError("\n".join(problems))
        from berth.observability.exportedspans import otlp_exporter  # noqa: PLC0415 - 0.2 s, rarely needed

        return cls(otlp_exporter(), service=service, identity=identity, sampler=_named_sampler(environment))

    def span(self, name: str, *, parent: str | None = None, is_first: bool = False) -> AbstractContextManager[Span]:
        """A child span of ``parent`` (a ``traceparent``); without a valid parent, a new trace.

        ``is_first``: no service has sampled the trace yet, so the parent's flag is ignored.
        """
        if self._exported is None:
            return UnexportedSpan(parent)
        return self._exported.span(name, parent, is_first=is_first)

    def past(self, name: str, parent: str, *, began: float, seconds: float, notes: Mapping[str, str | int]) -> None:
        """A child span that has ended. ``began`` is a time of ``time.perf_counter``."""
        if self._exported is not None:
            self._exported.past(name, parent, began=began, seconds=seconds, notes=notes)

    def whole(self, name: str, traceparent: str, *, seconds: float, notes: Mapping[str, str | int]) -> None:
        """The first span of a trace: it ends now, and its children already have its ids as their parent's."""
        if self._exported is not None and (ids := parse_traceparent(traceparent)) is not None:
            self._exported.whole(name, ids, seconds=seconds, notes=notes)

    def close(self) -> None:
        """Export the remaining spans, and stop. Blocks while the collector does not answer: call it in a thread."""
        if self._exported is not None:
            self._exported.close()


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
    # The default is every pod, because each service may be configured to export without the others.
    name = environment.get(SAMPLER, "").strip().lower() or "always_on"
    ratio = environment.get(SAMPLER_ARG, "").strip()
    return f"{name}:{ratio or 1}" if name.endswith("traceidratio") else name
