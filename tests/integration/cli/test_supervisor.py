"""Children are kept running, stopped in order, and never left behind."""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from berth_cli.pipeline import supervisor as module
from berth_cli.pipeline.supervisor import ChildRefusedError, Program, Supervisor

FOREVER = "import time; print('up', flush=True); time.sleep(600)"


def python(code, name="child", **other):
    return Program(name=name, command=(sys.executable, "-c", code), **other)


@pytest.fixture
def reported():
    return []


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "BACKOFF", replace(module.BACKOFF, initial=module.timedelta(seconds=0.01)))


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a process has no event for it
            await asyncio.sleep(0.01)


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_killed_child_is_restarted_and_reported(reported):
    async with Supervisor(reported.append) as supervisor:
        supervisor.start(python(FOREVER, "scorer-1"))
        await until(lambda: supervisor.pid("scorer-1"))
        first = supervisor.pid("scorer-1")
        os.kill(first, signal.SIGKILL)
        await until(lambda: supervisor.pid("scorer-1") not in {None, first})
    assert reported == ["scorer-1 ended (killed by SIGKILL); restarting it in 0.01 s"]


async def test_a_child_that_keeps_failing_is_restarted_less_often(reported):
    async with Supervisor(reported.append) as supervisor:
        supervisor.start(python("raise SystemExit(1)"))
        await until(lambda: len(reported) == 3)
    assert [line.rpartition(" in ")[2] for line in reported] == ["0.01 s", "0.02 s", "0.04 s"]


async def test_a_child_with_wrong_settings_ends_the_block(reported):
    async def whole():
        async with Supervisor(reported.append) as supervisor:
            supervisor.start(python("raise SystemExit(2)", "watcher"))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await whole()
    assert caught.group_contains(ChildRefusedError, match="watcher cannot start with these settings")


async def test_leaving_ends_every_child(reported):
    async with Supervisor(reported.append) as supervisor:
        for name in ("a", "b"):
            supervisor.start(python(FOREVER, name))
        await until(lambda: supervisor.pid("a") and supervisor.pid("b"))
        pids = [supervisor.pid("a"), supervisor.pid("b")]
    assert not any(lives(pid) for pid in pids)


async def test_servers_stop_after_their_clients(reported, tmp_path):
    order = tmp_path / "order"
    slow = (
        "import signal, sys, time\ndef end(*_):\n    time.sleep({})\n    open({!r}, 'a').write({!r})\n    sys.exit()\n"
    )
    slow += "signal.signal(15, end)\nopen({!r}, 'w')\ntime.sleep(99)"
    async with Supervisor(reported.append) as supervisor:
        for name, pause, serves in (("server", 0, True), ("client", 0.3, False)):
            code = slow.format(pause, str(order), f"{name} ", str(tmp_path / name))
            supervisor.start(python(code, name, stops_last=serves))
        await until(lambda: (tmp_path / "server").exists() and (tmp_path / "client").exists())
    assert order.read_text() == "client server "


async def test_a_child_that_ignores_sigterm_is_killed(reported, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "GRACE", module.timedelta(seconds=0.2))
    deaf = (
        f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(tmp_path / 'up')!r}, 'w'); time.sleep(99)"
    )
    async with Supervisor(reported.append) as supervisor:
        supervisor.start(python(deaf))
        await until((tmp_path / "up").exists)
        pid = supervisor.pid("child")
    assert not lives(pid)


async def test_a_child_logs_to_its_file(reported, tmp_path):
    log = tmp_path / "log"
    async with Supervisor(reported.append) as supervisor:
        supervisor.start(python(FOREVER, log=log))
        await until(lambda: log.exists() and log.read_text() == "up\n")


async def test_children_end_with_a_parent_that_is_killed(tmp_path):
    code = """
import asyncio, sys
from berth_cli.pipeline.supervisor import Program, Supervisor
async def main():
    async with Supervisor(print) as supervisor:
        supervisor.start(Program(name="child", command=(sys.executable, "-c", "import time; time.sleep(600)")))
        while not supervisor.pid("child"):
            await asyncio.sleep(0.01)
        print(supervisor.pid("child"), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    try:
        child = int(await parent.stdout.readline())
    finally:
        parent.kill()
        await parent.wait()
    await until(lambda: not lives(child) or ended(child))


def ended(pid):
    """Whether it is a zombie: the test cannot reap a grandchild."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_the_end_of_a_log_file_is_reported(reported, tmp_path):
    talker = "import sys; print(*range(50), sep='\\n', flush=True); sys.exit(3)"
    async with Supervisor(reported.append) as supervisor:
        supervisor.start(python(talker, log=tmp_path / "log"))
        await until(lambda: any("exit code 3" in line for line in reported))
    first_end = reported.index(next(line for line in reported if "exit code 3" in line))
    assert reported[:first_end] == [f"child: {number}" for number in range(50 - module.LAST_LINES, 50)]


async def test_a_killed_child_has_no_log_reported(reported, tmp_path):
    async with Supervisor(reported.append) as supervisor:
        supervisor.start(python(FOREVER, log=tmp_path / "log"))
        await until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text() == "up\n")
        os.kill(supervisor.pid("child"), signal.SIGKILL)
        await until(lambda: reported)
    assert reported[0].startswith("child ended (killed by SIGKILL)")
