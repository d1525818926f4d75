"""Tracebacks in the log of tests as Python writes them: with every local variable they take seconds to render."""

import pytest
import structlog


def pytest_configure(config: pytest.Config) -> None:
    """Use structlog's own defaults, but for the tracebacks."""
    del config
    *processors, _ = structlog.get_config()["processors"]
    plain = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, plain])
