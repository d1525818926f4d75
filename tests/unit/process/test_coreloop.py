"""The loop round a core: events in order, slices, effects in order, gathering, and what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest

from berth.lifecycle.coreloop import CoreLoop, Inbox
from harness.fakes.ticking_clock import TickingClock


class EchoingCore:
    """Its effects are the events of each call; it is due when a test says so."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.due_at: float | None = None
        self.called = asyncio.Event()

    def due(self) -> float | None:
        return self.due_at

    def handle(self, events: Iterable[str], now: float, may_continue: Callable[[], bool]) -> list[str]:
        self.calls.append(list(events))
        self.due_at = None
        self.called.set()
        return self.calls[-1]


def loop_of(core: EchoingCore, carry_out: Callable[[str], object] = lambda _effect: None) -> CoreLoop:
    return CoreLoop(core, carry_out, clock=TickingClock(), slice_seconds=0.03)


async def passes() -> None:
    """What can run without a timer has run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def ended(running: asyncio.Task) -> None:
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running


def test_events_are_taken_while_there_is_time_and_one_at_least():
    inbox = Inbox()
    inbox.put(*range(5))
    left = iter([True, False, False])

    assert list(inbox.take(10, lambda: next(left))) == [0, 1]
    assert list(inbox.take(10, lambda: False)) == [2]
    assert list(inbox.take(1, lambda: True)) == [3]
    assert inbox.drain() == [4]
    assert not inbox


async def test_effects_are_carried_out_in_order_and_the_rest_of_one_in_a_task():
    begun, done = [], []

    def carry_out(effect: str):
        async def rest() -> None:
            done.append(effect)

        begun.append(effect)
        return rest() if effect == "slow" else None

    core = EchoingCore()
    loop = loop_of(core, carry_out)
    running = asyncio.create_task(loop.run())
    loop.inbox.put("first", "slow", "last")
    await asyncio.wait_for(loop.until(lambda: begun and not loop.tasks), 10)
    assert (begun, done) == (["first", "slow", "last"], ["slow"])
    await ended(running)


async def test_core_is_called_without_an_event_when_it_is_due():
    core = EchoingCore()
    loop = loop_of(core)
    core.due_at = 0.0
    running = asyncio.create_task(loop.run())
    await asyncio.wait_for(core.called.wait(), 10)
    assert core.calls == [[]]
    await ended(running)


class SlowCore(EchoingCore):
    """Each call takes 50 ms."""

    def __init__(self, clock: TickingClock, sent: list[str]) -> None:
        super().__init__()
        self.sent_before: list[list[str]] = []
        self._clock = clock
        self._sent = sent

    def handle(self, events: Iterable[str], now: float, may_continue: Callable[[], bool]) -> list[str]:
        self.sent_before.append([*self._sent])
        self._clock.jump(0.05)
        return super().handle([next(iter(events))], now, may_continue)


async def test_what_a_long_step_publishes_is_sent_before_the_next_one():
    """Through the connection's queue and the client's, each of which takes a turn of the event loop."""
    clock, sent = TickingClock(), []

    def publish(effect: str) -> None:
        later = asyncio.get_running_loop().call_soon
        later(later, sent.append, effect)

    core = SlowCore(clock, sent)
    loop = CoreLoop(core, publish, clock=clock, slice_seconds=0.03)
    loop.inbox.put("first", "second", "third")
    running = asyncio.create_task(loop.run())
    await asyncio.wait_for(loop.until(lambda: len(core.calls) == 3), 10)
    assert core.sent_before == [[], ["first"], ["first", "second"]]
    await ended(running)


@pytest.mark.parametrize(("seconds", "calls"), [(0.3, [1, 9]), (0.0, [1] * 10)])
async def test_events_gather_for_as_long_as_is_asked_for(seconds: float, calls: list[int]):
    core, clock = EchoingCore(), TickingClock()
    loop = CoreLoop(
        core,
        lambda _effect: None,
        clock=clock,
        slice_seconds=0.03,
        gather_seconds=lambda: seconds if core.calls else 0.0,
    )
    running = asyncio.create_task(loop.run())
    for number in range(10):
        loop.inbox.put(str(number))
        await passes()
    clock.jump(0.3)
    await passes()
    assert [len(call) for call in core.calls] == calls
    await ended(running)


async def test_error_of_an_effects_task_ends_the_loop():
    async def fail() -> None:
        raise RuntimeError("a bug")

    loop = loop_of(EchoingCore(), lambda _effect: fail())
    loop.inbox.put("event")
    with pytest.raises(RuntimeError, match="a bug"):
        await asyncio.wait_for(loop.run(), 10)


async def test_failed_inbox_ends_the_loop_with_the_first_error():
    loop = loop_of(EchoingCore())
    loop.inbox.fail(RuntimeError("first"))
    loop.inbox.fail(RuntimeError("second"))
    with pytest.raises(RuntimeError, match="first"):
        await asyncio.wait_for(loop.run(), 10)


async def test_settling_waits_for_tasks_then_cancels_them_and_has_their_results():
    async def answer() -> str:
        return "answer"

    loop = loop_of(EchoingCore())
    loop.tasks.start(answer())
    loop.tasks.start(asyncio.Event().wait())
    answered, cancelled = sorted(await loop.tasks.settle(0.001), key=repr)
    assert (answered, type(cancelled)) == ("answer", asyncio.CancelledError)
    assert not len(loop.tasks)
