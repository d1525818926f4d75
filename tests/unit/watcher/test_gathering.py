"""Events are handled one by one, or gathered while pods wait for a slot of the window."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace

import pytest

from berth.lifecycle.process import Process
from berth_watcher import runner
from berth_watcher.events import KeyWritten
from berth_watcher.runner import WatcherParts, WatcherRunner
from berth_watcher.settings import WatcherSettings
from harness.fakes.recording_meter import RecordingMeter


class CountingCore:
    """Stands for the core: it notes how many events each of its calls has."""

    def __init__(self, *, waiting: int) -> None:
        self.waiting = waiting
        self.is_queue_running = True
        self.calls: list[int] = []
        self.called = asyncio.Event()

    def next_wakeup(self) -> None:
        """Nothing is due."""

    def handle(self, events, now, may_continue) -> list:
        count = len(list(events))
        if count:
            self.calls.append(count)
            self.called.set()
        return []


def watcher() -> WatcherRunner:
    process = Process(name="watcher", metrics=RecordingMeter())
    settings = WatcherSettings()
    parts = WatcherParts(
        process=process, client=None, informers=None, store=None, progress=None, profiles={}, settings=settings
    )
    leading = WatcherRunner(parts, None, SimpleNamespace(check=lambda: None, number=1))
    leading._gauges_due = float("inf")
    return leading


@pytest.mark.slow
@pytest.mark.parametrize(("waiting", "calls"), [(1, [1, 9]), (0, [1] * 10)])
async def test_events_are_gathered_only_while_pods_wait_for_a_slot(monkeypatch, waiting: int, calls: list[int]):
    monkeypatch.setattr(runner, "GATHER_SECONDS", 0.3)
    leading, core = watcher(), CountingCore(waiting=waiting)
    running = asyncio.create_task(leading._run_core(core, SimpleNamespace(run=lambda _effects: None)))
    for number in range(10):
        leading._inbox.put(KeyWritten(key="node.n", sequence=number))
        for _ in range(5):
            await asyncio.sleep(0)
    async with asyncio.timeout(10):
        while sum(core.calls) < 10:
            core.called.clear()
            await core.called.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert core.calls == calls
