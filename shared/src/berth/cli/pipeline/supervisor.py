"""Children of one foreground process: started, started again with back-off when they die, ended together.

Every child ends with its parent, also on kill -9 of it: the kernel is asked to (Linux), and berth's own services watch
their parent besides (``BERTH_PARENT_PID``).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from berth.kube.clock import Backoff

BACKOFF: Final = Backoff(initial=timedelta(seconds=0.5), maximum=timedelta(seconds=10), jitter_ratio=0)
"""Before a restart: a child that was killed is back at once, one that cannot start does not spin."""
SETTLED: Final = timedelta(seconds=30)
"""A child that lived so long starts its back-off anew."""
GRACE: Final = timedelta(seconds=12)
"""From SIGTERM to SIGKILL: a service promises to end within 10 s."""
USAGE: Final = 2
"""The exit code of a child that will never start: its settings are wrong."""
LAST_BYTES: Final = 16 * 1024
LAST_LINES: Final = 20
"""How much of its log is shown when a program has ended: enough for a traceback."""
_PR_SET_PDEATHSIG: Final = 1

Say = Callable[[str], None]


class ChildRefusedError(Exception):
    """A child says that it can never run as it was told to; starting it again would not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a child is: its name for people, its command line, and what its environment has besides ours."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    """Where its output goes; ``None`` is ours."""
    serves_others: bool = False
    """Whether the others need it: then it ends after them, so that they can still say goodbye."""


class Supervisor:
    """Keeps programs running for as long as its block lasts; leaving the block ends them all.

    The block ends with :class:`ChildRefusedError` (in a group) when a child can never run as it was told to.
    """

    def __init__(self, say: Say) -> None:
        self._say = say
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._group = asyncio.TaskGroup()
        self._keepers: dict[bool, list[asyncio.Task[None]]] = {False: [], True: []}
        self.restarts = 0

    async def __aenter__(self) -> Self:
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
            await self._group.__aexit__(kind, error, trace)

    def start(self, program: Program) -> None:
        """Keep this program running from now on."""
        keeper = self._group.create_task(self._keep(program), name=program.name)
        self._keepers[program.serves_others].append(keeper)

    def pid(self, name: str) -> int | None:
        """The process id of a running child."""
        process = self._running.get(name)
        return None if process is None else process.pid

    async def _keep(self, program: Program) -> None:
        """Run the program; when it ends, say so and start it again."""
        failures = 0
        while True:
            started = asyncio.get_running_loop().time()
            code = await self._run_once(program)
            for line in last_words(program) if code >= 0 else ():  # who was killed had no time to say why
                self._say(f"{program.name}: {line}")
            if code == USAGE:
                raise ChildRefusedError(f"{program.name} cannot start as it was told to, see its words above")
            if asyncio.get_running_loop().time() - started > SETTLED.total_seconds():
                failures = 0
            failures += 1
            pause = BACKOFF.after(failures)
            self.restarts += 1
            self._say(f"{program.name} ended ({_ending(code)}); starting it again in {pause:g} s")
            await asyncio.sleep(pause)

    async def _run_once(self, program: Program) -> int:
        process = await self._start(program)
        self._running[program.name] = process
        try:
            return await process.wait()
        finally:
            del self._running[program.name]
            await _end(process)

    async def _start(self, program: Program) -> asyncio.subprocess.Process:
        parent = os.getpid()
        output = program.log.open("ab") if program.log is not None else None
        try:
            return await asyncio.create_subprocess_exec(
                *program.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **program.environment, "BERTH_PARENT_PID": str(parent)},
                start_new_session=True,  # Ctrl-C is the parent's: it ends the children in its own order
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )
        finally:
            if output is not None:
                output.close()


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, then SIGKILL; waits until it is gone, also when this task is being cancelled."""
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(asyncio.shield(process.wait()), GRACE.total_seconds())
    except TimeoutError:
        process.kill()
        await process.wait()


def last_words(program: Program) -> list[str]:
    """The end of what a program has written, when that goes to a file which nobody reads otherwise."""
    if program.log is None or not program.log.exists():
        return []
    with program.log.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - LAST_BYTES))
        return log.read().decode(errors="replace").splitlines()[-LAST_LINES:]


def _die_with_parent() -> None:
    """Between fork and exec: the kernel ends this process when its parent ends, for whatever reason."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _ending(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
