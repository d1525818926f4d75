"""A process that has imported the services, and forks one whenever it is asked to (docs/adr/0030).

A service spends half a second of CPU on its imports, and `berth up` starts four at once. Forked, they start within some
milliseconds, at the first time and after each end, and share the memory that the imports take.

The server is a program of its own, which has neither an event loop nor threads: those do not survive a fork. It answers
on one connection, a JSON object a line::

    {"number":1,"command":["python","-m","berth_watcher","--nats",...],"environment":{...}}
    {"number":1,"pid":4711}
    {"pid":4711,"code":0}

A forked service is a process like one that was started with its command line: a session of its own, its environment,
its output, its name in ``ps``. It ends with the server, and that with its parent. Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

import msgspec

import berth.bootstrap  # noqa: F401 - before what the services import

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NAME: Final = 15
"""Numbers of prctl (2)."""
_ROOM: Final = 4096
"""Bytes of the server's command line: a process cannot show a longer one than it was started with."""
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46
"""Where /proc/PID/stat has the addresses of the command line, counted from the field after the program's name."""
_POLL_SECONDS: Final = 0.02
_POLLS: Final = 50


class ForkRequest(msgspec.Struct, frozen=True):
    """Start a service. ``command``: the Python program, ``-m``, the module, its arguments."""

    number: int
    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: str | None = None


class ForkAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A service runs (``number``) or could not start (``pid`` is 0), or has ended (``code``, negative: a signal)."""

    pid: int
    number: int = 0
    code: int | None = None


class NotForkedError(Exception):
    """The server has ended, or has no room for a process."""


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
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self, code: int) -> None:
        """It has ended."""
        if not self._ended.done():
            self._ended.set_result(code)


class ForkServer:
    """The parent's side of a server."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._writer = writer
        self._numbers = 0
        self._asked: dict[int, asyncio.Future[ForkedChild]] = {}
        self._children: dict[int, ForkedChild] = {}
        self._is_lost = False
        self._reading = asyncio.create_task(self._read(reader), name="fork server")

    @classmethod
    async def start(cls, modules: Sequence[str]) -> ForkServer:
        """Start it; it imports these modules at once, and answers later."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", __name__, str(theirs.fileno()), ",".join(modules), " " * _ROOM),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        return cls(process, *await asyncio.open_connection(sock=ours))

    async def fork(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path | None
    ) -> ForkedChild:
        """Start a service.

        Raises:
            NotForkedError: the server cannot.
        """
        if self._is_lost:
            raise NotForkedError
        self._numbers += 1
        request = ForkRequest(self._numbers, name, command, environment, None if log is None else str(log))
        answer = self._asked[request.number] = asyncio.get_running_loop().create_future()
        self._writer.write(msgspec.json.encode(request) + b"\n")
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(_stop)
            raise

    async def close(self) -> None:
        """End the server, and with it what it has started."""
        self._writer.close()
        await self._process.wait()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            async for line in reader:
                self._on_answer(msgspec.json.decode(line, type=ForkAnswer))
        await self._lose()

    def _on_answer(self, answer: ForkAnswer) -> None:
        if answer.code is not None:
            self._children.pop(answer.pid).end(answer.code)
            return
        asked = self._asked.pop(answer.number)
        if not answer.pid:
            asked.set_exception(NotForkedError())
            return
        child = self._children[answer.pid] = ForkedChild(answer.pid)
        asked.set_result(child)

    async def _lose(self) -> None:
        """What the server has started is told by the kernel to end. It must have ended before it is started again."""
        self._is_lost = True
        for asked in self._asked.values():
            asked.set_exception(NotForkedError())
            asked.exception()  # retrieved: who asked may have gone
        self._asked.clear()
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                for _ in range(_POLLS):  # a killed process that nobody waits for may stay in the table
                    child.kill()
                    await asyncio.sleep(_POLL_SECONDS)
            child.end(-signal.SIGKILL)
        self._children.clear()


def _stop(started: asyncio.Future[ForkedChild]) -> None:
    """Nobody waits for this one any more."""
    if started.exception() is None:
        started.result().send_signal(signal.SIGTERM)


def die_with_parent() -> None:
    """The kernel kills this process when its parent ends, for any reason (Linux)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """The server: import, and fork until the connection ends."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    modules = _imported(sys.argv[2].split(","))
    gc.collect()
    gc.freeze()  # a collection would write to pages that all share
    server = os.getpid()
    request = _serve(connection)
    if request is not None:  # from here on this is a service
        _become(request, server)
        modules[request.command[2]].main()


def _imported(names: Sequence[str]) -> Mapping[str, ModuleType]:
    try:
        return {name: importlib.import_module(f"{name}.__main__") for name in names}
    except Exception:  # noqa: BLE001 - whatever it is: the service says it when it is started alone
        sys.exit(1)


def _serve(connection: socket.socket) -> ForkRequest | None:
    """Returns twice, like ``fork``: in a child what that is to become, and ``None`` in the server at the end."""
    awake, waker = os.pipe()
    for end in (awake, waker):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker)
    rest = b""
    while True:
        ready, _, _ = select.select([connection.fileno(), awake], [], [])
        if awake in ready:
            os.read(awake, _ROOM)
            for pid, code in _ended():
                _send(connection, ForkAnswer(pid, code=code))
        if connection.fileno() not in ready:
            continue
        data = connection.recv(_ROOM)
        if not data:
            return None
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            request = msgspec.json.decode(line, type=ForkRequest)
            pid = _fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (awake, waker):
                    os.close(end)
                connection.close()
                return request
            _send(connection, ForkAnswer(max(0, pid), number=request.number))


def _fork() -> int:
    """As ``os.fork``; -1 when there is no room for a process."""
    try:
        return os.fork()
    except OSError:
        return -1


def _ended() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, os.waitstatus_to_exitcode(status)


def _send(connection: socket.socket, answer: ForkAnswer) -> None:
    with contextlib.suppress(BrokenPipeError):  # `berth up` has ended: the next read says so
        connection.sendall(msgspec.json.encode(answer) + b"\n")


def _become(request: ForkRequest, server: int) -> None:
    """Make this process what it would be had it been started with its command line."""
    os.setsid()
    die_with_parent()
    if request.log is not None:
        log = os.open(request.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
    os.environ.clear()
    os.environ.update(request.environment, BERTH_PARENT_PID=str(server))
    sys.argv = [request.command[2], *request.command[3:]]
    with contextlib.suppress(OSError):  # without /proc it keeps the server's
        _rename(request)


def _rename(request: ForkRequest) -> None:
    """The name and the command line that ``ps`` and ``top`` show."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"berth-{request.name}".encode())
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
    room = end - begin if begin else 0  # 0: the kernel does not tell
    text = b"\0".join(map(os.fsencode, request.command))[: max(0, room - 1)]
    ctypes.memmove(begin, text.ljust(room, b"\0"), room)


if __name__ == "__main__":
    main()
