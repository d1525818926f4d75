"""The loop in which a service leads: again after each end, with its errors in the log."""

import asyncio
import weakref
from collections.abc import Callable
from contextlib import asynccontextmanager

import pytest

from berth.bus.interface import BusLostError
from berth.errors import TemporaryError
from berth.leader import loop
from berth.leader.loop import lead_until_stopped
from berth.leader.session import NotLeadingError
from berth.lifecycle.process import Process
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.recording_meter import RecordingMeter
from harness.fakes.ticking_clock import TickingClock


@pytest.fixture
async def bus() -> MemoryBus:
    made = MemoryBus()
    made.apply()
    return made


@pytest.fixture
def lines(monkeypatch) -> list[tuple]:
    logged = []

    class Log:
        def info(self, text: str, *, reason: str) -> None:
            logged.append(("info", text, reason))

        def warning(self, text: str, *, error: str) -> None:
            logged.append(("warning", text, error))

    monkeypatch.setattr(loop, "log", Log())
    return logged


async def run(
    bus: MemoryBus, monkeypatch, *ends: BaseException | None, work: Callable[[], object] = lambda: None
) -> int:
    """Lead once for each of `ends`, each leadership ending in it after its work; how many there were."""
    process, left = Process(name="binder", metrics=RecordingMeter(), clock=TickingClock()), list(ends)

    @asynccontextmanager
    async def lead(**_: object):
        yield

    async def serve(session, leadership) -> None:
        work()
        error = left.pop(0)
        if not left:
            process.stopping.set()
        if error is not None:
            raise error

    monkeypatch.setattr(loop, "lead", lead)
    running = asyncio.create_task(lead_until_stopped(bus, None, process, role="binder", serve=serve))
    await process.clock.run_until(running.done)
    await running
    return len(ends) - len(left)


async def test_an_error_ends_one_leadership_and_the_next_begins(bus, lines, monkeypatch):
    group = ExceptionGroup("two tasks", [TemporaryError("no answer"), ExceptionGroup("one", [TemporaryError("lost")])])
    assert await run(bus, monkeypatch, TemporaryError("refused"), group, None) == 3
    assert lines == [
        ("warning", "leading again after an error", "refused"),
        ("warning", "leading again after an error", "no answer; lost"),
    ]


async def test_not_getting_to_lead_is_no_warning(bus, lines, monkeypatch):
    assert await run(bus, monkeypatch, NotLeadingError("the process is stopping"), None) == 2
    assert lines == [("info", "not leading", "the process is stopping")]


class Core:
    """What a leader works with: its parts know each other, so that reference counts do not free it."""

    def __init__(self) -> None:
        self.itself = self


async def test_nothing_of_a_leadership_is_kept_in_the_next(bus, lines, monkeypatch, collector_is_off):
    cores: list[weakref.ref[Core]] = []
    kept: list[int] = []

    def work() -> None:
        kept.append(sum(core() is not None for core in cores))
        cores.append(weakref.ref(Core()))

    assert await run(bus, monkeypatch, *[BusLostError("cut")] * 3, None, work=work) == 4
    assert kept == [0, 0, 0, 0]


async def test_a_bug_ends_the_service(bus, lines, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        await run(bus, monkeypatch, ZeroDivisionError("a bug"))


async def test_a_lost_connection_needs_no_pause(bus, lines, monkeypatch):
    monkeypatch.setattr(loop, "PAUSE_SECONDS", float("inf"))
    assert await run(bus, monkeypatch, ExceptionGroup("tasks", [BusLostError("the server closed it")]), None) == 2
    assert lines == [("warning", "leading again on another connection", "the server closed it")]
