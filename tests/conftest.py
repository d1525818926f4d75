"""What every suite has: the list of suites left out, the look for processes left behind, and the real parts."""

import gc
import signal
from collections.abc import Iterator

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: programs of tests would ignore it too
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = [
    "pytester",
    "harness.plugins.tiers",
    "harness.plugins.left_out",
    "harness.plugins.leftover_processes",
    "harness.plugins.failed_tests",
    "harness.plugins.plain_tracebacks",
    "harness.plugins.fixtures_bus",
    "harness.plugins.fixtures_cluster",
    "harness.plugins.long_runs",
    "harness.plugins.fixtures_kube",
    "harness.plugins.fixtures_pipeline",
]


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # with the modules of all tests, each collection that a service asks for would take 0.3 s


@pytest.fixture
def collector_is_off() -> Iterator[None]:
    """As in a service, where the garbage collector looks at old objects after 250 million new ones."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
