import os
from pathlib import Path

import pytest

from harness.plugins import leftover_processes

TESTS = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not leftover_processes.PROC.is_dir(), reason="there is no /proc: use Linux")

LEAVES_ORPHAN = """
    import subprocess
    def test_it(): subprocess.run(["sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $! >pid"], check=True)
"""


@pytest.fixture
def machine(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder where pytest runs with the plugin under test."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # saves a second per run
    pytester.plugins = ["harness.plugins.leftover_processes", "xdist.plugin"]
    return pytester


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_process_that_outlives_its_parent_fails_the_run_and_is_killed(machine, workers):
    machine.makepyfile(LEAVES_ORPHAN)

    result = machine.runpytest_subprocess("-n", workers)

    pid = int((machine.path / "pid").read_text())
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*processes left behind by a test*", f"{pid}: sleep 300"])
    assert not _is_running(pid)


def test_a_process_without_the_runs_environment_is_found_by_its_parent(machine):
    machine.makepyfile("import subprocess\ndef test_it(): subprocess.Popen(['/bin/sleep', '300'], env={})")

    result = machine.runpytest_subprocess()

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*: /bin/sleep 300"])


def test_a_run_whose_processes_have_ended_passes(machine):
    machine.makepyfile("import subprocess\ndef test_it(): subprocess.run(['true'], check=True)")

    result = machine.runpytest_subprocess()

    assert result.ret == pytest.ExitCode.OK
    result.stdout.no_fnmatch_line("*left behind*")


def _is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        os.kill(pid, 0)
        return (leftover_processes.PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
