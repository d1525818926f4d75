"""No test leaves a process behind: the run fails when one outlives it, and names its command line.

Processes are known by a variable that every descendant inherits, so that one whose parent was killed counts too; a
child without that variable is known by its parent. What is found is killed, so that it cannot disturb the next run.
Reads /proc; where there is none (macOS, Windows), the header of the run has a note that processes are not checked.
"""

import contextlib
import os
import signal
import time
import uuid
from pathlib import Path

import pytest

RUN_VARIABLE = "BERTH_TEST_RUN"
PROC = Path("/proc")
GRACE_SECONDS = 3.0  # a process that got its signal at the end of the last test may still be ending
ZOMBIE = "Z"

run_key = pytest.StashKey[str]()
leftover_key = pytest.StashKey[dict[int, str]]()


def pytest_configure(config: pytest.Config) -> None:
    if _is_worker(config):
        return
    config.stash[run_key] = run = uuid.uuid4().hex
    os.environ[RUN_VARIABLE] = f"{os.environ.get(RUN_VARIABLE, '')}/{run}"  # a run inside a test's run belongs to both


def pytest_report_header() -> str | None:
    return None if PROC.is_dir() else "processes left behind: not looked for, there is no /proc"


@pytest.hookimpl(trylast=True)  # after the fixtures of the session and xdist's workers have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _is_worker(session.config):
        return
    leftover = _wait_for_the_end(session.config.stash[run_key])
    session.config.stash[leftover_key] = leftover
    for pid in leftover:
        _kill(pid)
    if leftover and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    leftover = config.stash.get(leftover_key, {})
    if leftover:
        terminalreporter.section("processes left behind by a test (killed now)", red=True)
    for pid, command in leftover.items():
        terminalreporter.line(f"{pid}: {command}")


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")  # a worker of xdist: the process that started it checks for all


def _wait_for_the_end(run: str) -> dict[int, str]:
    deadline = time.monotonic() + GRACE_SECONDS
    while (leftover := processes_of(run)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return leftover


def processes_of(run: str) -> dict[int, str]:
    """Return the command lines, by process id, of the living processes that this run of pytest started."""
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()] if PROC.is_dir() else []
    return {pid: _command_line(pid) for pid in pids if pid != os.getpid() and _belongs_to(pid, run)}


def _belongs_to(pid: int, run: str) -> bool:
    try:
        state, parent = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[:2]
        return state != ZOMBIE and (int(parent) == os.getpid() or run in _environment(pid))
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return False


def _environment(pid: int) -> str:
    try:
        return (PROC / str(pid) / "environ").read_text(errors="replace")
    except PermissionError:  # another user's process
        return ""


def _command_line(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except (FileNotFoundError, ProcessLookupError):
        return "(ended meanwhile)"


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(pid, signal.SIGKILL)
