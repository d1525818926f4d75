"""Services are forked from a process that has imported them, and look as if they had been started alone."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from berth_cli.pipeline.forkserver import ForkRequest, ForkServer, NotForkedError
from berth_cli.pipeline.supervisor import Program, Supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems start each service by itself")

SERVICE = """
import json, os, sys, time
IMPORTED_BY = os.getpid()
def no_fork():
    raise BlockingIOError("no room")
if "NO_ROOM" in os.environ:
    os.fork = no_fork
def main():
    what = sys.argv[1]
    if what == "tell":
        told = {"argv": sys.argv, "color": os.environ.get("COLOR"), "pid": os.getpid(), "parent": os.getppid()}
        told |= {"told_parent": os.environ["BERTH_PARENT_PID"], "session": os.getsid(0), "imported_by": IMPORTED_BY}
        told |= {"path": os.environ.get("PATH"), "home": os.environ.get("HOME")}
        print(json.dumps(told))
    elif what == "fail":
        raise ValueError("no")
    elif what == "exit":
        sys.exit(int(sys.argv[2]))
    else:
        open(what, "a").write(f"{os.getpid()} {os.getppid()}\\n")
        time.sleep(600)
if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def _package(tmp_path, monkeypatch):
    folder = tmp_path / "packages" / "a_service"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text(SERVICE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))


def program(*arguments, **other):
    command = (sys.executable, "-m", "a_service", *map(str, arguments))
    return Program(name="service-1", command=command, module="a_service", **other)


def request(*arguments, **other):
    return ForkRequest(module="a_service", arguments=[str(each) for each in arguments], **other)


def told_of(pid, name):
    return Path(f"/proc/{pid}/{name}").read_text()


def lives(pid):
    try:
        return told_of(pid, "stat").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition):
    async with asyncio.timeout(60):
        while not (met := condition()):  # noqa: ASYNC110 - a process has no event for it
            await asyncio.sleep(0.01)
    return met


def started(path, count=1):
    """The ids of a service that has started so often, and of its parent, the last time."""
    lines = path.read_text().splitlines() if path.exists() else []
    return tuple(map(int, lines[-1].split())) if len(lines) >= count else None


@pytest.fixture
async def server():
    server = await ForkServer.start(["a_service"])
    yield server
    await server.close()


@pytest.fixture
def fork(server):
    async def fork(*arguments, name="service-1", log=None, **environment):
        return await server.fork(request(*arguments, name=name, log=log, environment=environment))

    return fork


async def test_a_forked_service_is_a_process_of_its_own(fork, tmp_path):
    log = tmp_path / "log"
    child = await fork("tell", "a b", log=log, COLOR="x", PATH="/bin")
    assert await child.wait() == 0
    told = json.loads(log.read_text())
    assert told["argv"] == ["a_service", "tell", "a b"]
    assert (told["color"], told["path"], told["home"]) == ("x", "/bin", os.environ.get("HOME"))
    assert told["pid"] == told["session"] == child.pid
    assert told["parent"] == int(told["told_parent"]) == told["imported_by"]


async def test_ps_shows_the_name(fork, tmp_path):
    child = await fork(tmp_path / "up")
    await until(lambda: started(tmp_path / "up"))
    assert told_of(child.pid, "comm") == "berth-service-1\n"


@pytest.mark.parametrize(("arguments", "code"), [(("exit", 3), 3), (("exit", 0), 0), (("fail",), 1)])
async def test_exit_codes_are_reported(fork, tmp_path, arguments, code):
    child = await fork(*arguments, log=tmp_path / "log")
    assert await child.wait() == code == child.returncode
    assert ("ValueError: no" in (tmp_path / "log").read_text()) == (arguments == ("fail",))


async def test_a_killed_service_is_reported_and_another_signal_is_not_sent(fork, tmp_path):
    child = await fork(tmp_path / "up")
    assert child.returncode is None
    child.kill()
    assert await child.wait() == -signal.SIGKILL
    child.send_signal(signal.SIGTERM)


async def test_a_service_ends_by_sigterm_which_the_server_ignores(fork, tmp_path):
    child = await fork(tmp_path / "up")
    _, server = await until(lambda: started(tmp_path / "up"))
    os.kill(server, signal.SIGTERM)
    child.send_signal(signal.SIGTERM)
    assert await child.wait() == -signal.SIGTERM
    assert await (await fork("exit", 3)).wait() == 3


async def test_a_service_that_is_not_wanted_any_more_ends(fork, tmp_path):
    asking = asyncio.create_task(fork(tmp_path / "up"))
    await asyncio.sleep(0)
    asking.cancel()
    other = await fork(tmp_path / "other", name="service-2")
    await until(lambda: started(tmp_path / "other"))
    found = started(tmp_path / "up")  # it may have ended before it wrote
    assert found is None or await until(lambda: not lives(found[0]))
    assert lives(other.pid)


async def test_all_end_with_the_server(fork, tmp_path):
    child = await fork(tmp_path / "up")
    _, parent = await until(lambda: started(tmp_path / "up"))
    os.kill(parent, signal.SIGKILL)
    assert await child.wait() == -signal.SIGKILL
    assert not lives(child.pid)
    with pytest.raises(NotForkedError):
        await fork("exit", 0)


async def test_all_end_with_a_parent_that_is_killed(tmp_path):
    code = f"""
import asyncio
from berth_cli.pipeline.supervisor import Program, Supervisor
async def main():
    async with Supervisor(print, forked=["a_service"]) as supervisor:
        supervisor.start(Program(name="a", command=("-m", "a_service", {str(tmp_path / "up")!r}), module="a_service"))
        await asyncio.Event().wait()
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    try:
        child, server = await until(lambda: started(tmp_path / "up"))
    finally:
        parent.kill()
        await parent.wait()
    await until(lambda: not lives(child) and not lives(server))


async def test_closing_ends_what_still_runs(tmp_path):
    server = await ForkServer.start(["a_service"])
    child = await server.fork(request(tmp_path / "up", name="service-1"))
    await until(lambda: started(tmp_path / "up"))
    await server.close()
    assert child.returncode == -signal.SIGKILL
    assert not lives(child.pid)


async def test_a_supervisor_forks_and_stops_what_it_has_forked(tmp_path):
    async with Supervisor(print, forked=["a_service"]) as supervisor:
        supervisor.start(program(tmp_path / "up"))
        pid, parent = await until(lambda: started(tmp_path / "up"))
        await until(lambda: supervisor.pid("service-1") == pid)
        assert parent != os.getpid()
        os.kill(pid, signal.SIGKILL)
        again, same = await until(lambda: started(tmp_path / "up", 2))
        assert (again != pid, same) == (True, parent)
    assert not lives(again)
    assert not lives(parent)


async def test_without_a_server_a_supervisor_starts_programs_by_themselves(tmp_path):
    async with Supervisor(print, forked=["a_service"]) as supervisor:
        supervisor.start(program(tmp_path / "up"))
        _, parent = await until(lambda: started(tmp_path / "up"))
        os.kill(parent, signal.SIGKILL)
        _, parent = await until(lambda: started(tmp_path / "up", 2))
        assert parent == os.getpid()


async def test_a_server_that_cannot_fork_lives_on_and_the_program_starts_by_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_ROOM", "1")
    async with Supervisor(print, forked=["a_service"]) as supervisor:
        for name in ("one", "two"):
            supervisor.start(replace(program(tmp_path / name), name=name))
            _, parent = await until(lambda name=name: started(tmp_path / name))
            assert parent == os.getpid()
            assert supervisor.restarts == 0


async def test_what_cannot_be_imported_says_so_itself(tmp_path):
    reported, log = [], tmp_path / "log"
    (tmp_path / "packages" / "a_service" / "__main__.py").write_text("import nothing_of_this_name")
    async with Supervisor(reported.append, forked=["a_service"]) as supervisor:
        supervisor.start(program("tell", log=log))
        await until(lambda: reported)
    assert log.read_text().count("No module named 'nothing_of_this_name'") == 1
