"""Two tiers: fast tests, which `make test` runs, and slow ones.

The folder decides: tests in FAST_FOLDERS are fast, all others are slow. In those folders the mark `slow` is for what
computes for more than half a second, and for the parameters of fixtures that stand for real servers.

A fast test fails when it waits in real time, starts a process or opens a socket; its fixtures and threads count too.
"""

import selectors
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

FAST_FOLDERS = ("unit", "contract", "fuzz")
LONGEST_WAIT_SECONDS = 0.05
"""Sum of `time.sleep` and of timers of event loops in a test; a timer that is cancelled in time costs nothing."""
WHAT_TO_DO = "move it to tests/integration, give it a clock or a fake, or mark it slow"
TESTS = Path(__file__).parents[2]

_STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
_CONNECTS = {"socket.bind", "socket.connect"}


class Watch:
    """What the running test does; the hook of the interpreter cannot be removed, so it is one for all tests."""

    def __init__(self) -> None:
        self.is_on = False
        self.start(is_on=False)

    def start(self, *, is_on: bool) -> None:
        self.is_on, self.waited_seconds, self._deeds = is_on, 0.0, []

    def audit(self, event: str, arguments: tuple) -> None:
        if not self.is_on:
            return
        if event in _STARTS:
            self._deeds.append(f"starts a process ({' '.join(map(str, arguments[1:2])) or event})")
        elif event in _CONNECTS:
            self._deeds.append(f"opens a socket ({event} {arguments[1]})")

    def complaint(self) -> str | None:
        """Return what is wrong since the last call."""
        if self.is_on and self.waited_seconds > LONGEST_WAIT_SECONDS:
            self._deeds.append(f"waits {self.waited_seconds:.2f} s in real time")
        deeds, self._deeds, self.waited_seconds = self._deeds, [], 0.0
        return f"a fast test {deeds[0]}: {WHAT_TO_DO} (harness.plugins.tiers)" if deeds else None


watch = Watch()
sys.addaudithook(watch.audit)
_monotonic, _sleep, _select = time.monotonic, time.sleep, selectors.DefaultSelector.select


def _counted_sleep(seconds: float) -> None:
    began = _monotonic()
    try:
        _sleep(seconds)
    finally:  # a signal may end it early, a busy machine late
        watch.waited_seconds += min(seconds, _monotonic() - began)


def _counted_select(self: selectors.BaseSelector, timeout: float | None = None) -> list:
    ready = _select(self, timeout)
    if not ready and timeout is not None:
        watch.waited_seconds += max(timeout, 0)
    return ready


time.sleep, selectors.DefaultSelector.select = _counted_sleep, _counted_select


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: not run by `make test`; the folder decides (harness.plugins.tiers)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_slow_folder = collection_path.parent == TESTS and collection_path.name not in FAST_FOLDERS
    return True if is_slow_folder and config.option.markexpr == "not slow" else None  # importing them takes seconds


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(TESTS) and item.path.relative_to(TESTS).parts[0] not in FAST_FOLDERS:
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    watch.start(is_on=item.get_closest_marker("slow") is None)
    try:
        return (yield)
    finally:
        watch.is_on = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when != "setup" and (complaint := watch.complaint()) and report.passed:
        report.outcome, report.longrepr = "failed", complaint
    return report
