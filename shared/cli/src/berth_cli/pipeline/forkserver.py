"""A process that imports the services once and forks each one that is started (docs/adr/0044).

As a program this module is the server: it has no event loop and no threads, which do not survive a fork.
:class:`ForkServer` is its parent's side. Between them is a pipe of multiprocessing: requests one way, answers the
other.

A forked service is a process like one that was started with its command line: a session, an environment and an output
of its own. It ends with the server, and the server with its parent, whose end closes the pipe. Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Final

import berth.bootstrap  # noqa: F401 - before what the services import
from berth.settings.settings import PARENT_PID_VARIABLE

_POLL_SECONDS: Final = 0.02  # between two looks at a killed process
_POLLS: Final = 50  # a killed process may stay in the table until its new parent waits for it

# Process id, and exit code (negative: a signal). Without a code the next request is answered; 0: it cannot be forked.
_Answer = tuple[int, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    name: str
    module: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)  # additions to the server's
    log: Path | None = None  # for its output; None: the server's


class NotForkedError(Exception):
    """The server has ended, or there is no room for a process."""


class ForkedChild:
    """A service as its supervisor sees it: a part of ``asyncio.subprocess.Process``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        return self._ended.result() if self._ended.done() else None

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        if not self._ended.done():
            with contextlib.suppress(ProcessLookupError):  # ended, and the server's answer is under way
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self, code: int) -> None:
        """Report its end."""
        self._ended.set_result(code)


class ForkServer:
    """The parent's side of the server."""

    def __init__(self, process: asyncio.subprocess.Process, connection: Connection) -> None:
        self._process = process
        self._connection = connection
        self._requested: deque[asyncio.Future[ForkedChild]] = deque()
        self._children: dict[int, ForkedChild] = {}
        self._losing: asyncio.Task[None] | None = None
        asyncio.get_running_loop().add_reader(connection.fileno(), self._read)

    @classmethod
    async def start(cls, modules: Sequence[str]) -> ForkServer:
        """Start the server, which imports these modules and then answers requests."""
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__, str(theirs.fileno()), *modules),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return cls(process, ours)

    async def fork(self, request: ForkRequest) -> ForkedChild:
        """Start a service.

        Raises:
            NotForkedError: the server cannot.
        """
        if self._losing is not None:
            raise NotForkedError
        answer: asyncio.Future[ForkedChild] = asyncio.get_running_loop().create_future()
        try:
            self._connection.send(request)
        except OSError as error:
            raise NotForkedError from error
        self._requested.append(answer)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(_stop)
            raise

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        await self._lose()
        self._connection.close()
        await self._process.wait()

    def _read(self) -> None:
        try:
            pid, code = self._connection.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._losing = asyncio.create_task(self._lose(), name="fork server lost")
            return
        if code is not None:
            self._children.pop(pid).end(code)
        elif pid:
            child = self._children[pid] = ForkedChild(pid)
            self._requested.popleft().set_result(child)
        else:
            self._requested.popleft().set_exception(NotForkedError())

    async def _lose(self) -> None:
        """Kill the services of the server, because they must not live beside restarted ones."""
        while self._requested:
            self._requested.popleft().set_exception(NotForkedError())
        children, self._children = self._children, {}
        for child in children.values():
            with contextlib.suppress(ProcessLookupError):
                for _ in range(_POLLS):
                    os.kill(child.pid, signal.SIGKILL)
                    await asyncio.sleep(_POLL_SECONDS)
            child.end(-signal.SIGKILL)


def _stop(answer: asyncio.Future[ForkedChild]) -> None:
    """Stop a service that was requested by a task that has ended."""
    if answer.exception() is None:
        answer.result().send_signal(signal.SIGTERM)


def main() -> None:
    """Run the server: import, and fork until the parent closes the connection."""
    connection = Connection(int(sys.argv[1]))
    # Sent to every process of a container, it would end the services without their grace. Blocked and not ignored: one
    # that reaches a service right after the fork has its effect there.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    for module in sys.argv[2:]:
        with contextlib.suppress(Exception):  # the service fails with the same error, in its own log
            importlib.import_module(f"{module}.__main__")
    gc.collect()
    gc.freeze()  # a collection would write to pages that all share
    with contextlib.suppress(EOFError, OSError):
        _serve(connection)


def _serve(connection: Connection) -> None:
    context = multiprocessing.get_context("fork")
    children: dict[int, multiprocessing.process.BaseProcess] = {}  # by sentinel
    while True:
        for ready in wait([connection, *children]):
            if isinstance(ready, int):
                child = children.pop(ready)
                child.join()
                answer: _Answer = (child.pid or 0, child.exitcode)
                child.close()
            else:
                # A daemon: multiprocessing sends it SIGTERM when the server ends.
                child = context.Process(target=_become, args=(connection, connection.recv()), daemon=True)
                answer = (_pid_of_started(child), None)
                if answer[0]:
                    children[child.sentinel] = child
            connection.send(answer)


def _pid_of_started(child: multiprocessing.process.BaseProcess) -> int:
    """Start the child; 0 when there is no room for a process."""
    try:
        child.start()
    except OSError:
        return 0
    return child.pid or 0


def _become(connection: Connection, request: ForkRequest) -> None:
    """Make this process the one that the service's command line would start."""
    connection.close()  # otherwise the parent would not see the server's end
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    if request.log is not None:
        with request.log.open("ab") as output:
            os.dup2(output.fileno(), sys.stdout.fileno())
            os.dup2(output.fileno(), sys.stderr.fileno())
    os.environ.update(request.environment)
    os.environ[PARENT_PID_VARIABLE] = str(os.getppid())
    sys.argv = [request.module, *request.arguments]
    with contextlib.suppress(OSError):  # without /proc, `ps -e` shows the server's name
        Path("/proc/self/comm").write_text(f"berth-{request.name}", encoding="utf-8")
    importlib.import_module(f"{request.module}.__main__").main()


if __name__ == "__main__":
    main()
