"""An asyncio event loop whose time jumps, and the processes that share it.

Nothing waits: when no callback is ready, the time moves to the next timer. Every callback belongs to the simulated
process whose context it carries, so that one process can be paused (SIGSTOP) or killed (SIGKILL: none of its callbacks
run again, no ``finally`` included) while the others go on. The same callbacks always run in the same order.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

START_SECONDS: Final = 1000.0
"""The loop's time at the start of a run."""
STEP_SECONDS: Final = 1e-6
"""What a callback takes. Without it, a wait for a time that a rounding error has not quite reached never ends."""


@dataclass(eq=False)
class SimulatedProcess:
    """One process. ``wall_offset`` and ``steady_offset`` are what its clocks have more than the truth, in seconds."""

    name: str
    wall_offset: float = 0.0
    steady_offset: float = 0.0
    is_paused: bool = False
    is_dead: bool = False
    parts: list[Any] = field(default_factory=list)
    """Its cores and caches, whose sizes are looked at."""
    deferred: list[asyncio.Handle] = field(default_factory=list)
    """What has become ready while it was paused."""


WORLD: Final = SimulatedProcess("world")
"""Whoever is no process of berth: the servers, the network, the script of the run."""
OWNER: Final[contextvars.ContextVar[SimulatedProcess]] = contextvars.ContextVar("owner", default=WORLD)
WORLD_CONTEXT: Final = contextvars.Context()


class TooManyStepsError(Exception):
    """A service works without end."""


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. ``run_until`` runs it up to a time; it never touches a file descriptor."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START_SECONDS
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._names = itertools.count()
        self.steps = 0
        """Callbacks that have been run."""
        self.most_steps = 10**7
        self.tasks: list[asyncio.Task[Any]] = []
        """Kept until the end of the run, so that no dead process's coroutine is closed in the middle of it."""
        self.set_task_factory(self._new_task)

    def time(self) -> float:
        return self._now

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def in_world(self, delay: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Call back on behalf of the servers and the network, also when the caller is a process of berth."""
        return self.call_at(self._now + delay, callback, *args, context=WORLD_CONTEXT)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers stay in the heap until their time."""

    def _new_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **more: Any) -> asyncio.Task[Any]:
        task = NumberedTask(coro, loop=loop, **more)
        task.number = next(self._names)
        task._log_destroy_pending = False
        self.tasks.append(task)
        return task

    def resume(self, process: SimulatedProcess) -> None:
        """SIGCONT: what became ready meanwhile runs now, in the order in which it became ready."""
        process.is_paused = False
        self._ready.extend(process.deferred)
        process.deferred = []

    def run_until(self, end: float) -> None:
        """Run everything up to this time."""
        asyncio.events._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._close_generator)
        ready, timers = self._ready, self._timers
        try:
            while True:
                while ready:
                    self._run(ready.popleft())
                if not timers or timers[0][0] > end:
                    break
                when, _, timer = heapq.heappop(timers)
                if not timer._cancelled:
                    self._now = max(self._now, when)
                    self._run(timer)
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio.events._set_running_loop(None)
        self._now = max(self._now, end)

    def _run(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        owner = handle._context.get(OWNER, WORLD)
        if owner.is_dead or owner.is_paused:  # a dead one's are run when the run is over and its tasks are cancelled
            owner.deferred.append(handle)
            return
        self.steps += 1
        if self.steps > self.most_steps:
            raise TooManyStepsError(f"{self.steps} callbacks by {self._now - START_SECONDS:.1f} s")
        self._now += STEP_SECONDS
        handle._run()

    def _close_generator(self, generator: Any) -> None:
        """A generator was dropped before its end: its ``finally`` runs in a task."""
        self.call_soon(self.create_task, generator.aclose())

    def end(self, seconds: float) -> None:
        """Cancel every task, and let what they do about it take so long. Then nothing is left to be collected."""
        for _ in range(5):  # a task may begin others while it ends
            left = [task for task in self.tasks if not task.done()]
            if not left:
                break
            for task in left:
                task.cancel()
            self.run_until(self._now + seconds)
        self.tasks.clear()
        self._timers.clear()
        self._ready.clear()
        self.close()

    def _write_to_self(self) -> None:
        """Nobody waits for a file descriptor."""


class NumberedTask(asyncio.Task):
    """A task that sorts into sets by its number, not by its address: ``asyncio.wait`` and groups iterate over sets."""

    number = 0

    def __hash__(self) -> int:
        return self.number
