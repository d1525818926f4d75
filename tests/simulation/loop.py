"""An asyncio event loop whose time jumps, and the processes that share it.

Nothing waits: when no callback is ready, the time moves to the next timer. Every callback belongs to the simulated
process whose context it carries, so that one process can be paused (SIGSTOP) or killed (SIGKILL: none of its callbacks
run again, no ``finally`` included) while the others go on. The same callbacks always run in the same order.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import math
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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
    deferred: list[Callback] = field(default_factory=list)
    """What has become ready while it was paused."""
    resumed_at: float = -math.inf
    """When it last went on after a pause."""


WORLD: Final = SimulatedProcess("world")
"""Whoever is no process of berth: the servers, the network, the script of the run."""
OWNER: Final[contextvars.ContextVar[SimulatedProcess]] = contextvars.ContextVar("owner", default=WORLD)
WORLD_CONTEXT: Final = contextvars.Context()


class TooManyStepsError(Exception):
    """A service works without end."""


class Callback:
    """What asyncio calls a Handle, with a third of its cost: a run makes thousands."""

    __slots__ = ("args", "call", "context", "is_cancelled", "time")

    def __init__(
        self, time: float, call: Callable[..., object] | None, args: tuple[Any, ...], context: contextvars.Context
    ) -> None:
        self.time = time
        self.call = call
        self.args = args
        self.context = context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True
        self.call, self.args = None, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.time


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop. ``run_until`` runs it up to a time; it never touches a file descriptor."""

    def __init__(self) -> None:
        super().__init__()
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign] - one call less
        self._now = START_SECONDS
        self._numbers = 0
        self._timers: list[tuple[float, int, Callback]] = []
        self._ready: deque[Callback] = deque()
        self._names = 0
        self.steps = 0
        """Callbacks that have been run."""
        self.most_steps = 10**7
        self.readings = 0
        """Of the stopwatch."""
        self.tasks: list[asyncio.Task[Any]] = []
        """Kept until the end of the run, so that no dead process's coroutine is closed in the middle of it."""
        self.on_error: Callable[[BaseException], None] = lambda _error: None
        """Called with what a callback that is no task has raised."""

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override] - a Callback instead of a Handle
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Callback:
        handle = Callback(self._now, callback, args, contextvars.copy_context() if context is None else context)
        self._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override] - as call_soon
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Callback:
        timer = Callback(when, callback, args, contextvars.copy_context() if context is None else context)
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, timer))
        return timer

    def call_later(  # type: ignore[override] - as call_soon
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Callback:
        timer = Callback(self._now + delay, callback, args, contextvars.copy_context() if context is None else context)
        self._numbers += 1
        heapq.heappush(self._timers, (timer.time, self._numbers, timer))
        return timer

    def in_world(self, delay: float, callback: Callable[..., object], *args: Any) -> Callback:
        """Call back on behalf of the servers and the network, also when the caller is a process of berth."""
        timer = Callback(self._now + delay, callback, args, WORLD_CONTEXT)
        self._numbers += 1
        heapq.heappush(self._timers, (timer.time, self._numbers, timer))
        return timer

    def create_task(self, coro: Any, **more: Any) -> asyncio.Task[Any]:  # type: ignore[override] - all it is given
        task = NumberedTask(coro, loop=self, **more)
        self._names += 1
        task.number = self._names
        task._log_destroy_pending = False
        self.tasks.append(task)
        return task

    def resume(self, process: SimulatedProcess) -> None:
        """SIGCONT: what became ready meanwhile runs now, in the order in which it became ready."""
        process.is_paused, process.resumed_at = False, self.time()
        self._ready.extend(process.deferred)
        process.deferred = []

    def run_until(self, end: float) -> None:
        """Run everything up to this time."""
        asyncio.events._set_running_loop(self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._close_generator)
        ready, timers, pop = self._ready, self._timers, heapq.heappop
        try:
            while True:
                if ready:
                    callback = ready.popleft()
                elif not timers or timers[0][0] > end:
                    break
                else:
                    when, _, callback = pop(timers)
                    if when > self._now and not callback.is_cancelled:
                        self._now = when
                if callback.is_cancelled:
                    continue
                context = callback.context
                if context is not WORLD_CONTEXT:
                    owner = context.get(OWNER, WORLD)
                    if owner.is_dead or owner.is_paused:  # a dead one's run when the run is over
                        owner.deferred.append(callback)
                        continue
                self.steps += 1
                if self.steps > self.most_steps:
                    raise TooManyStepsError(f"{self.steps} callbacks by {self._now - START_SECONDS:.1f} s")
                self._now += STEP_SECONDS
                try:
                    context.run(callback.call, *callback.args)  # type: ignore[arg-type] - it is not cancelled
                except Exception as error:  # noqa: BLE001 - it is judged as a problem of the run
                    self.on_error(error)
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio.events._set_running_loop(None)
        self._now = max(self._now, end)

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
