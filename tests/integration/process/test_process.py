"""A service as a real process: how it starts, stops, breaks and ends with its parent."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.servers.child_processes import ended_with_the_block
from harness.servers.small_disk import FILLER, small_disk

PROGRAM = """
import asyncio, sys, time
import numpy  # its library has threads that were there before anybody thought of signals
from berth.errors import TemporaryError
from berth.lifecycle.process import run
from berth.settings.sources import SettingsError, read_settings

async def polite(process):
    process.health.condition("work").ready()
    await process.stopping.wait()

async def never_ends(process):
    process.health.condition("work").ready()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def finishes_when_cancelled(process):
    process.health.condition("work").ready()
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.1)
        print("closed", flush=True)

async def hangs_in_python(process):
    process.health.condition("work").ready()
    await asyncio.sleep(0.1)
    while True:
        pass

async def hangs_in_a_thread(process):
    process.health.condition("work").ready()
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)
    await process.stopping.wait()

async def breaks(process):
    async with asyncio.TaskGroup() as group:
        group.create_task(broken())

async def broken():
    raise ZeroDivisionError("division by zero in the core")

async def cannot_reach(process):
    raise TemporaryError("reading the lease: no answer")

raise SystemExit(run(globals()[sys.argv[1]], read_settings(), name="watcher"))
"""


class Service:
    """A started process, and the lines of its log."""

    def __init__(self, what: str, folder: Path, **environment: str) -> None:
        self.ready_file = folder / "ready"
        given = {"BERTH_READY_FILE": str(self.ready_file), "BERTH_LOG_FORMAT": "json", "BERTH_HEALTH_HOST": "127.0.0.1"}
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, what],
                env={**os.environ, **given, **environment},
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def wait_until_ready(self) -> None:
        wait_for(self.ready_file.exists)

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    @property
    def lines(self) -> list[dict]:
        written = self._log.read_bytes().rpartition(b"\n")[0]  # the last line may be on its way
        return [json.loads(line) for line in written.splitlines() if line.startswith(b"{")]

    @property
    def last(self) -> dict:
        return self.lines[-1]


def wait_for(holds, within: float = 60) -> None:
    end = time.monotonic() + within
    while not holds():
        assert time.monotonic() < end, f"did not happen within {within} s"
        time.sleep(0.02)


@pytest.fixture
def service(tmp_path: Path) -> Iterator:
    started = []

    def start(what: str, **environment: str) -> Service:
        started.append(Service(what, tmp_path, **environment))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        each.process.stdout.close()


def test_sigterm_ends_a_service_with_exit_code_0(service):
    polite = service("polite")
    polite.wait_until_ready()
    assert (polite.stop(), polite.last["msg"]) == (0, "stopped")


def test_health_is_served_from_the_start(service):
    polite = service("polite")
    polite.wait_until_ready()
    port = next(line["health_port"] for line in polite.lines if line["msg"] == "started")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
        assert answer.read() == b"ok"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        assert b"process_cpu_seconds_total" in answer.read()


@pytest.mark.parametrize("what", ["never_ends", "hangs_in_python", "hangs_in_a_thread"])
def test_a_service_that_hangs_ends_at_the_deadline_and_says_what_hung(service, what):
    hanging = service(what, BERTH_STOP_DEADLINE="2s")
    hanging.wait_until_ready()
    time.sleep(0.3)  # into the loop that hangs
    began = time.monotonic()
    assert hanging.stop() == 1
    assert time.monotonic() - began > 1
    assert hanging.last["msg"] == "ending: unfinished work at the deadline"
    assert hanging.last["under_way"]


def test_a_service_that_does_not_finish_is_cancelled_early_enough(service):
    slow = service("finishes_when_cancelled", BERTH_STOP_DEADLINE="5s")
    slow.wait_until_ready()
    assert (slow.stop(), slow.process.stdout.read()) == (0, b"closed\n")


def test_a_second_interrupt_ends_it_at_once(service):
    hanging = service("never_ends")
    hanging.wait_until_ready()
    hanging.process.send_signal(signal.SIGINT)
    wait_for(lambda: any(line["msg"] == "stopping" for line in hanging.lines))
    hanging.process.send_signal(signal.SIGINT)
    assert hanging.process.wait(timeout=60) == 1
    assert hanging.last["msg"] == "ending at once: interrupted a second time"


def test_ctrl_c_and_the_word_of_whoever_started_it_are_one_wish(service):
    slow = service("finishes_when_cancelled", BERTH_STOP_DEADLINE="5s")
    slow.wait_until_ready()
    slow.process.send_signal(signal.SIGINT)
    wait_for(lambda: any(line["msg"] == "stopping" for line in slow.lines))
    assert (slow.stop(), slow.process.stdout.read()) == (0, b"closed\n")


def test_an_unforeseen_exception_is_one_line_and_exit_code_1(service):
    broken = service("breaks")
    assert broken.process.wait(timeout=60) == 1
    assert broken.last["msg"] == "ZeroDivisionError: division by zero in the core"
    assert "in broken" in broken.last["exception"]


@pytest.mark.requires("small-disk")
def test_a_ready_file_on_a_full_disk_is_one_line_and_exit_code_1(service, tmp_path: Path):
    with small_disk(tmp_path / "disk", 1) as disk:
        disk.fill()
        ready_file = disk.folder / "ready"
        full = service("polite", BERTH_READY_FILE=str(ready_file))
        assert full.process.wait(timeout=60) == 1
        assert full.last["msg"] == f"writing the ready file '{ready_file}': No space left on device"
        assert "exception" not in full.last
        assert [each.name for each in disk.folder.iterdir()] == [FILLER]


def test_something_that_is_not_reachable_is_exit_code_3_without_a_traceback(service):
    lost = service("cannot_reach")
    assert lost.process.wait(timeout=60) == 3
    assert lost.last["msg"] == "reading the lease: no answer"
    assert "exception" not in lost.last


def test_a_stalled_main_loop_is_named_while_it_stalls(service):
    hanging = service("hangs_in_python", BERTH_STOP_DEADLINE="2s")
    hanging.wait_until_ready()

    def is_named() -> bool:  # a busy machine may have made it stall before
        stalls = [line["where"] for line in hanging.lines if line["msg"] == "main loop is stalled"]
        return any("hangs_in_python" in call for where in stalls for call in where)

    wait_for(is_named)


PARENT = """
import os, subprocess, sys, time
environment = {**os.environ, "BERTH_PARENT_PID": str(os.getpid())}
child = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]], env=environment)
print(child.pid, flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("what", ["polite", "hangs_in_python"])
def test_a_child_ends_with_its_parent_also_on_kill_9(tmp_path, what):
    ready = tmp_path / "ready"
    environment = {**os.environ, "BERTH_READY_FILE": str(ready), "BERTH_STOP_DEADLINE": "2s"}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, PROGRAM, what],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with ended_with_the_block(parent):
        child = int(parent.stdout.readline())
        wait_for(ready.exists)
        assert is_alive(child)
        parent.kill()
    wait_for(lambda: not is_alive(child))


def is_alive(pid: int) -> bool:
    """Not a zombie either, which stays until whoever adopted it looks."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_whose_parent_has_gone_before_it_looks_ends(service):
    orphan = service("polite", BERTH_PARENT_PID="1")
    assert orphan.process.wait(timeout=60) == 1
    assert "ending with parent 1" in orphan.last["msg"]
