"""The logger of modules that commands run too, and of bus and kube, which lie below the configuration of logs."""

from __future__ import annotations

import logging
import sys
from typing import Any


class _Logger:
    # Imports structlog with the first line, because a command that logs nothing should not spend 0.1 s on it.

    def info(self, event: str, **values: Any) -> None:
        _structlog().info(event, **values)

    def warning(self, event: str, **values: Any) -> None:
        _structlog().warning(event, **values)

    def exception(self, event: str, **values: Any) -> None:
        _structlog().exception(event, **values)


def get_logger() -> _Logger:
    """A logger with structlog's key/values. In a command, which configures no logs, it writes warnings to stderr."""
    return _Logger()


def _structlog() -> Any:
    import structlog  # noqa: PLC0415 - see above

    if structlog.is_configured():
        return structlog.get_logger()
    warnings = structlog.make_filtering_bound_logger(logging.WARNING)
    # structlog's default is standard output, which has the command's answer.
    return structlog.wrap_logger(structlog.PrintLogger(sys.stderr), wrapper_class=warnings)
