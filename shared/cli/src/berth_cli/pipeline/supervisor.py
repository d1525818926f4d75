"""Child processes of one foreground process: started, restarted with back-off when they end, stopped together.

Each child ends with its parent, even if the parent is killed: forked services by the fork server, other programs by the
kernel (Linux). berth's own services watch their parent too (``BERTH_PARENT_PID``).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from berth.clock import Backoff
from berth.exits import UsageError
from berth_cli.pipeline.forkserver import ForkRequest, ForkServer, NotForkedError

# Short at first, so that a killed child restarts soon; then longer, to save CPU.
BACKOFF: Final = Backoff(initial=timedelta(seconds=0.5), maximum=timedelta(seconds=10), jitter_ratio=0)
SETTLED: Final = timedelta(seconds=30)  # running time that resets the back-off
GRACE: Final = timedelta(seconds=12)  # from SIGTERM to SIGKILL; a service ends within 10 s
USAGE: Final = 2  # exit code for wrong settings: a restart does not help
LAST_BYTES: Final = 16 * 1024
LAST_LINES: Final = 20  # lines of the log printed when a program has ended: enough for a traceback

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)

Report = Callable[[str], None]


class ChildRefusedError(UsageError):
    """A child rejects its settings; a restart would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    module: str = ""  # of a Python program: it is forked if the supervisor forks this module
    log: Path | None = None  # for its output; None: the parent's output
    stops_last: bool = False  # stops last, because the others need it while they stop


class Child(Protocol):
    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    async def wait(self) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...


class Supervisor:
    """Keeps programs running inside its block, and stops them at its end.

    Programs of the modules ``forked`` are forked from a process that imports these at once, or, where that is
    impossible, started by their command line as others are.

    The block ends with :class:`ChildRefusedError` (in a group) when a child rejects its settings.
    """

    def __init__(self, report: Report, *, forked: Sequence[str] = ()) -> None:
        self._report = report
        self._forked = forked if sys.platform == "linux" else ()
        self._fork_server: ForkServer | None = None
        self._running: dict[str, Child] = {}
        self._group = asyncio.TaskGroup()
        self._keepers: dict[bool, list[asyncio.Task[None]]] = {False: [], True: []}
        self.restarts = 0

    async def __aenter__(self) -> Self:
        if self._forked:
            self._fork_server = await ForkServer.start(self._forked)
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await _cancelled(self._keepers[False])
        finally:
            for keeper in self._keepers[True]:
                keeper.cancel()
            try:
                await self._group.__aexit__(kind, error, trace)
            finally:
                if self._fork_server is not None:
                    await self._fork_server.close()

    def start(self, program: Program) -> None:
        keeper = self._group.create_task(self._keep(program), name=program.name)
        self._keepers[program.stops_last].append(keeper)

    def pid(self, name: str) -> int | None:
        """The child's process id; ``None`` if the child does not run."""
        process = self._running.get(name)
        return None if process is None else process.pid

    async def _keep(self, program: Program) -> None:
        failures = 0
        while True:
            started = asyncio.get_running_loop().time()
            code = await self._run_once(program)
            for line in last_log_lines(program) if code >= 0 else ():  # The log of a killed process has no reason.
                self._report(f"{program.name}: {line}")
            if code == USAGE:
                raise ChildRefusedError(f"{program.name} cannot start with these settings, see its output above")
            if asyncio.get_running_loop().time() - started > SETTLED.total_seconds():
                failures = 0
            failures += 1
            pause = BACKOFF.after(failures)
            self.restarts += 1
            self._report(f"{program.name} ended ({_ending(code)}); restarting it in {pause:g} s")
            await asyncio.sleep(pause)

    async def _run_once(self, program: Program) -> int:
        process = await self._start(program)
        self._running[program.name] = process
        try:
            return await process.wait()
        finally:
            del self._running[program.name]
            await _end(process)

    async def _start(self, program: Program) -> Child:
        if self._fork_server is not None and program.module in self._forked:
            arguments = program.command[program.command.index(program.module) + 1 :]
            request = ForkRequest(
                name=program.name,
                module=program.module,
                arguments=arguments,
                environment=program.environment,
                log=program.log,
            )
            with contextlib.suppress(NotForkedError):
                return await self._fork_server.fork(request)
        output = program.log.open("ab") if program.log is not None else None
        try:
            return await asyncio.create_subprocess_exec(
                *program.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **program.environment, "BERTH_PARENT_PID": str(os.getpid())},
                start_new_session=True,  # Ctrl-C goes to the parent only, which stops the children in order.
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        finally:
            if output is not None:
                output.close()


def _die_with_parent() -> None:
    # nats-server watches no parent: the kernel kills it when its own ends, for any reason.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _end(process: Child) -> None:
    """Send SIGTERM, later SIGKILL, and wait for the end, also when this task is being cancelled."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(asyncio.shield(process.wait()), GRACE.total_seconds())
    except TimeoutError:
        process.kill()
        await process.wait()


def last_log_lines(program: Program) -> list[str]:
    """Last lines of the program's log; empty without a log file."""
    if program.log is None or not program.log.exists():
        return []
    with program.log.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_BYTES))
        return log.read().decode(errors="replace").splitlines()[-LAST_LINES:]


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
