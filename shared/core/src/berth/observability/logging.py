"""Logs: one JSON object per line, or coloured text at a terminal, with klog's verbosity levels.

    log = get_logger()
    log.info("pod bound", pod="default/web-0", uid=uid, attempt=str(attempt), node="n1", trace_id=...)
    if process.settings.log.verbosity >= V_STEP:
        log.info(...)

Control characters and passwords in URLs are replaced in both forms (:mod:`berth.safetext`).

Keys with one meaning everywhere: ``service`` and ``identity`` (on every line), ``pod`` (namespace/name), ``uid``,
``attempt``, ``node``, ``trace_id``, ``reason``, ``error``. docs/metrics.md, "Logs", lists the lines of each level.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal, TextIO

import msgspec

if "rich" in sys.modules:
    import structlog
else:
    # structlog imports rich and pygments for tracebacks that berth does not print: 0.09 of a scorer's 0.9 s of imports.
    sys.modules["rich"] = None  # type: ignore[assignment]  # "not installed"
    import structlog

    del sys.modules["rich"]
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

from berth.safetext import in_json, lines, one_line, without_passwords
from berth.settings.settings import LogSettings, is_terminal, process_label, short_identity

# Lines of one warning: at once, and a second after that.
WARNINGS_AT_ONCE: Final = 50.0
WARNINGS_PER_SECOND: Final = 1.0
_SPARSE_LEVELS: Final = frozenset({"warning", "error"})
_LIBRARY_LEVELS: Final[Mapping[str, int]] = {"aiohttp.access": logging.WARNING, "asyncio": logging.WARNING}
_SEVERAL_LINES: Final = ("exception", "stack")


def get_logger() -> FilteringBoundLogger:
    """A logger. Cheap, and allowed before :func:`configure`."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


def log_message(direction: Literal["sent", "received"], subject: str, size: int) -> None:
    """Log a message of the bus (V_MESSAGE), never its content, which may be secret."""
    get_logger().info(f"message {direction}", subject=subject, bytes=size)


def log_request(method: str, path: str, status: int, seconds: float) -> None:
    """Log a request to the API server and its answer (V_MESSAGE), without bodies and headers."""
    get_logger().info("request", method=method, path=path, status=status, milliseconds=round(seconds * 1000, 1))


def configure(settings: LogSettings, *, service: str, identity: str, stream: TextIO = sys.stderr) -> None:
    """Write all logs of this process to ``stream``, including libraries' logs and Python's warnings."""
    as_text = settings.format == "text" or (settings.format == "auto" and is_terminal())
    shared = _shared(service, identity)
    structlog.configure(
        processors=[_SparseWarnings(), *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    _route_standard_logging(_formatter(shared, as_text=as_text), stream)


class _SparseWarnings:
    """Leaves out repeats of a warning above a rate, so that a flood of unusable messages fills no disk.

    The next line of that warning says how many were left out.
    """

    def __init__(self) -> None:
        self._lines: dict[str, tuple[float, float, int]] = {}  # by message: lines allowed, at which time, left out

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        if method not in _SPARSE_LEVELS:
            return event
        now, message = time.monotonic(), str(event["event"])
        allowed, at, left_out = self._lines.get(message, (WARNINGS_AT_ONCE, now, 0))
        allowed = min(WARNINGS_AT_ONCE, allowed + (now - at) * WARNINGS_PER_SECOND)
        if allowed < 1:
            self._lines[message] = allowed, now, left_out + 1
            raise structlog.DropEvent
        self._lines[message] = allowed - 1, now, 0
        return {**event, "left_out": left_out} if left_out else event


def _shared(service: str, identity: str) -> list[Processor]:
    def who(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Add service and identity to every line, because the lines of many processes are collected in one place."""
        return {**event, "service": service, "identity": identity}

    return [structlog.stdlib.add_log_level, _time, structlog.processors.format_exc_info, who]


def _formatter(shared: list[Processor], *, as_text: bool) -> logging.Formatter:
    last: list[Processor] = [_for_people] if as_text else [_message_first, _json]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
    )


def _route_standard_logging(formatter: logging.Formatter, stream: TextIO) -> None:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.captureWarnings(capture=True)
    for name, level in _LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(level)


def _time(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    event["time"] = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return event


def _message_first(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    # Time, level and message come first; the rest keeps its order.
    first = {"time": event.pop("time", ""), "level": event.pop("level", ""), "msg": event.pop("event", "")}
    return first | dict(event)


def _for_people(logger: WrappedLogger, method: str, event: EventDict) -> str:
    # Coloured. The short identity distinguishes scorer-1 from scorer-2 in a terminal with both.
    service, identity = str(event.pop("service", "")), str(event.pop("identity", ""))
    event["service"] = process_label(service, short_identity(identity))
    event["timestamp"] = event.pop("time", "")
    safe = {key: _safe(key, value) for key, value in event.items()}
    renderer = structlog.dev.ConsoleRenderer(colors=_wants_colors(), exception_formatter=structlog.dev.plain_traceback)
    return without_passwords(renderer(logger, method, safe))


def _wants_colors() -> bool:
    # Any text in NO_COLOR turns colours off (https://no-color.org).
    return is_terminal() and not os.environ.get("NO_COLOR")


def _safe(key: str, value: Any) -> Any:
    # Names and reasons come from outside. Tracebacks keep their lines.
    if not isinstance(value, str):
        return value if isinstance(value, int | float | None) else one_line(repr(value))
    return lines(value) if key in _SEVERAL_LINES else one_line(value)


def _json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return without_passwords(in_json(msgspec.json.encode(event, enc_hook=_as_text).decode()))


def _as_text(value: Any) -> str:
    # A value that JSON does not support.
    return str(value)
