"""`--failed-to=FILE` writes the ids of the failed tests to FILE, a line each: `pytest @FILE` runs them again.

FILE stays empty when the run fails for another reason too: a process left behind has no test that could be repeated.
"""

from pathlib import Path

import pytest

from harness.plugins.leftover_processes import leftover_key


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--failed-to", type=Path, metavar="FILE", help="write the ids of failed tests to FILE")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if (file := config.option.failed_to) is None:
        return
    reports = [report for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, [])]
    ids = [] if config.stash.get(leftover_key, {}) else dict.fromkeys(report.nodeid for report in reports)
    file.write_text("".join(f"{each}\n" for each in ids))
