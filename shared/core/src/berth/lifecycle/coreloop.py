"""The loop around a service's core: events wait in an inbox, the core handles them in slices, its effects are started.

    loop = CoreLoop(core, shell.carry_out, clock=process.clock, slice_seconds=0.03)
    loop.inbox.put(event)    # by readers of the bus or the API server, and by the answers to effects
    await loop.run()

Watcher, scorer and binder have this inside: a core without I/O, a shell that carries out its effects, this loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from berth.clock import Clock

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")
EventT_contra = TypeVar("EventT_contra", contravariant=True)
EffectT_co = TypeVar("EffectT_co", covariant=True)

BATCH: Final = 512  # events in one slice: some milliseconds of work
# The part of a slice for events. The rest is for the pods that they may help, however many events arrive.
SHARE_OF_EVENTS: Final = 2 / 3
# After a step of this many seconds or more, what it has published gets so many turns of the event loop, in which it
# passes the outbox and the client's buffer. Else it would wait for the next step: a group's plan for that of the next.
LONG_STEP_SECONDS: Final = 0.005
TURNS_TO_SEND: Final = 3


class Core(Protocol[EventT_contra, EffectT_co]):
    """A service's decisions: events in, effects out, the clock handed in."""

    def handle(
        self, events: Iterable[EventT_contra], now: float, may_continue: Callable[[], bool], /
    ) -> Sequence[EffectT_co]:
        """Handle events in order, then due work. Once ``may_continue`` is false, leave the rest for the next call.

        ``now`` is in monotonic seconds.
        """
        ...

    def due(self) -> float | None:
        """When to be called without an event; ``None``: only with the next one."""
        ...


class Inbox(Generic[EventT]):
    """The one queue through which every event reaches the core, in order. ``put`` never waits."""

    def __init__(self) -> None:
        self._events: deque[EventT] = deque()
        self._filled = asyncio.Event()
        self._failure: BaseException | None = None

    def __len__(self) -> int:
        return len(self._events)

    def put(self, *events: EventT) -> None:
        self._events.extend(events)
        self._filled.set()

    def put_all(self, events: Iterable[EventT]) -> None:
        self._events.extend(events)
        self._filled.set()

    def fail(self, error: BaseException) -> None:
        """End the loop with this error, the first of several."""
        self._failure = self._failure or error
        self._filled.set()

    def take(self, most: int, may_continue: Callable[[], bool]) -> Iterable[EventT]:
        """The next events, in order, while there is time; at least one, if there is any."""
        if len(self._events) > 1:
            return self._take(most, may_continue)
        self._filled.clear()
        return self.drain()

    def _take(self, most: int, may_continue: Callable[[], bool]) -> Iterator[EventT]:
        for _ in range(min(most, len(self._events))):
            yield self._events.popleft()
            if self._events and not may_continue():
                break
        if not self._events:
            self._filled.clear()

    def drain(self) -> list[EventT]:
        """All remaining events."""
        events = [*self._events]
        self._events.clear()
        return events

    async def wait(self, seconds: float | None) -> None:
        """Wait until there is an event, or for ``seconds``.

        Raises:
            BaseException: the error of ``fail``.
        """
        if self._events:
            await asyncio.sleep(0)  # Let other tasks run.
        elif self._failure is None:
            # Not asyncio.timeout, which takes 8 µs: this waits up to three times a pod.
            timer = None if seconds is None else asyncio.get_running_loop().call_later(seconds, self._filled.set)
            try:
                await self._filled.wait()
            finally:
                if timer is not None:
                    timer.cancel()
            if not self._events:
                self._filled.clear()
        if self._failure is not None:
            raise self._failure


class EffectTasks:
    """The tasks of effects that await an answer. They belong to no task group: the end of the loop settles them."""

    def __init__(self, on_failure: Callable[[BaseException], None], on_end: Callable[[], None] = lambda: None) -> None:
        self._on_failure = on_failure
        self._on_end = on_end
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a task. Its exception ends the loop."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def settle(self, seconds: float) -> list[object]:
        """Wait for the tasks up to a limit, then cancel them. Returns the result or exception of each."""
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        results: list[object] = await asyncio.gather(*tasks, return_exceptions=True)
        return results

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
        self._on_end()


# Begins an effect; returns the rest of it as a coroutine for a task, if any.
CarryOut = Callable[[EffectT], Coroutine[Any, Any, object] | None]


class CoreLoop(Generic[EventT, EffectT]):
    """Hands the events of its inbox to a core, slice by slice, and its effects to ``carry_out``, in order."""

    def __init__(  # noqa: PLR0913 - the core, its effects, its time
        self,
        core: Core[EventT, EffectT],
        carry_out: CarryOut[EffectT],
        *,
        clock: Clock,
        slice_seconds: float,
        inbox: Inbox[EventT] | None = None,
        check: Callable[[], None] = lambda: None,
        gather_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``check`` raises when the core may not work any more. ``gather_seconds``: how long to let events gather."""
        self._core = core
        self._carry_out = carry_out
        self._clock = clock
        self._now = clock.now
        self._slice_seconds = slice_seconds
        self._check = check
        self._gather_seconds = gather_seconds
        self._progressed = asyncio.Event()
        self.inbox: Final = inbox if inbox is not None else Inbox[EventT]()
        self.tasks: Final = EffectTasks(self.inbox.fail, self._progressed.set)

    async def run(self) -> None:
        """Wait for events and due work, for ever.

        Raises:
            BaseException: from ``check``, a task of an effect, or ``Inbox.fail``.
        """
        while True:
            seconds = self._seconds_until(self._core.due())
            if not self.inbox and seconds != 0.0 and (gathering := self._gather_seconds()):
                await self._clock.sleep(gathering)
                seconds = None if seconds is None else max(0.0, seconds - gathering)
            await self.inbox.wait(seconds)
            began = self._now()
            self.step()
            if self._now() - began >= LONG_STEP_SECONDS:
                for _ in range(TURNS_TO_SEND):
                    await asyncio.sleep(0)

    def step(self) -> None:
        """Handle the events of one slice, and start the effects."""
        self._check()
        now = self._now()
        events = self.inbox.take(BATCH, self._until(now + self._slice_seconds * SHARE_OF_EVENTS))
        self.start(self._core.handle(events, now, self._until(now + self._slice_seconds)))
        self._progressed.set()

    def start(self, effects: Iterable[EffectT]) -> None:
        """Start effects in order, so that publishes reach the connection in the core's order."""
        for effect in effects:
            work = self._carry_out(effect)
            if work is not None:
                self.tasks.start(work)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds after a step or the end of a task, while ``run`` goes on."""
        while not condition():
            self._progressed.clear()
            await self._progressed.wait()

    def _seconds_until(self, due: float | None) -> float | None:
        return None if due is None else max(0.0, due - self._now())

    def _until(self, deadline: float) -> Callable[[], bool]:
        return lambda: self._now() < deadline
