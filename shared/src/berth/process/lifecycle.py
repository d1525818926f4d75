"""Keeps glibc from giving freed memory back to the kernel again and again.

A cycle makes and frees arrays of a few dozen kilobytes. Where they lie at the end of the heap, glibc trims it once 128
KiB are free there, and the next cycle has every page faulted in anew: 290 us a pod of a known class at 5,000 equal
nodes, 174 without that. A process that has freed something large is spared by chance (glibc then moves its thresholds):
here it is no chance.


The life of a service process: start, stop, and the end that comes whatever hangs.

    def main() -> None:
        raise SystemExit(run(serve, settings, name="watcher"))

    async def serve(process: Process) -> None:
        async for session in sessions(bus, name="watcher", process=process):
            ...

SIGTERM and SIGINT set ``process.stopping``. The service then finishes what is under way and returns. Shortly before
``stop_deadline`` it is cancelled; at the deadline the process ends without asking, with a line that names what hung.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from berth.api.errors import BerthError
from berth.kube.clock import Clock, SteadyClock
from berth.process import logging as service_logging
from berth.process.exits import Exit, exit_for
from berth.process.health import Health, write_when_working
from berth.process.healthserver import health_server
from berth.process.logging import get_logger
from berth.process.metrics import Meter, PrometheusMeter, RecordingMeter
from berth.process.settings import Settings
from berth.process.shutdown import Deadline, StopThread, Watchdog, end_with_parent, seconds_left
from berth.process.tasks import run_until
from berth.process.tracing import Tracing

_TRIM_THRESHOLD: Final = -1

_MMAP_THRESHOLD: Final = -3
"""Names of glibc's parameters (malloc.h)."""

_ON_HEAP: Final = 32 * 1024 * 1024
"""Bytes below which an array lies on the heap: as far as glibc moves its threshold by itself, at most. An array of one
number for each of 50,000 nodes has 400,000."""

_KEPT: Final = 2 * _ON_HEAP
"""Bytes at the end of the heap that stay: twice that, as glibc sets it when it moves its threshold."""


def keep_freed_memory() -> bool:
    """Tell the allocator; once a process is enough. Whether it listens: only glibc has to be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _ON_HEAP))


log = get_logger()


CANCEL_SHARE: Final = 0.8
"""Of the time until the end: what a service may take to finish before it is cancelled. The rest is for closing."""

GC_THRESHOLDS: Final = (50_000, 50, 100)
"""Decoded messages are freed by counting; the collector only finds cycles, and stops the loop to look for them. With
150,000 pods held and 300,000 decoded, CPython's defaults (700, 10, 10) stop it for 1.0 s, once for 0.9 s; these for
0.09 s, once for 17 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What a service is given. Tests make one of their own, with a clock that they move."""

    name: str
    settings: Settings = field(default_factory=Settings)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once: finish what is under way, take nothing new."""
    health: Health = field(default_factory=Health)
    metrics: Meter = field(default_factory=RecordingMeter)
    clock: Clock = field(default_factory=SteadyClock)
    tracing: Tracing = field(default_factory=lambda: Tracing(service="untraced"))

    @property
    def identity(self) -> str:
        """Who this process is; also the holder identity in Leases."""
        return self.settings.identity

    async def sleep(self, seconds: float) -> bool:
        """Wait so long, or until stopping; says whether to go on."""
        await run_until(self.clock.sleep(seconds), self.stopping)
        return not self.stopping.is_set()


ServiceMain = Callable[[Process], Awaitable[None]]


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where there is one: request and reply are about a third faster on it. Windows has none."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - not there on every system
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


def run(service_main: ServiceMain, settings: Settings, *, name: str) -> int:
    """Run a service until it returns, fails or is told to stop; returns the exit code. Once, in the main thread."""
    service_logging.configure(settings.log, service=name, identity=settings.identity)
    deadline = Deadline(settings.stop_deadline)
    stop_thread = StopThread(deadline)
    keep_freed_memory()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return int(runner.run(_live(service_main, settings, name, stop_thread, deadline)))


async def _live(
    service_main: ServiceMain, settings: Settings, name: str, stop_thread: StopThread, deadline: Deadline
) -> Exit:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    stop_thread.start(loop, stopping.set)
    meter = PrometheusMeter()
    tracing = Tracing.from_environment(os.environ, service=name, identity=settings.identity)
    process = Process(name=name, settings=settings, metrics=meter, tracing=tracing, stopping=stopping)
    try:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
            await _surround(process, meter, stack)
            stack.callback(
                deadline.begin, loop
            )  # from here on closing things has its time, also when nobody asked for the end
            await _serve(service_main, process)
    except Exception as error:  # noqa: BLE001 - the last place that can say what happened
        return _told(error)
    log.info("stopped")
    return Exit.DONE


async def _surround(process: Process, meter: PrometheusMeter, stack: AsyncExitStack) -> None:
    """Put round the service what every process has, until ``stack`` is left."""
    settings = process.settings
    if settings.parent_pid is not None:
        end_with_parent(settings.parent_pid)
    port = await stack.enter_async_context(health_server(settings.health, process.health, meter))
    stack.enter_context(Watchdog(meter))
    if settings.ready_file is not None:
        write_when_working(process.health, settings.ready_file)
    log.info("started", health_port=port)


async def _serve(service_main: ServiceMain, process: Process) -> None:
    """Run the service; when it is told to stop and does not, cancel it while there is time left to close things."""
    work = asyncio.ensure_future(service_main(process))
    told = asyncio.ensure_future(process.stopping.wait())
    await asyncio.wait([work, told], return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    grace = seconds_left(process.settings.stop_deadline) * CANCEL_SHARE
    _, late = await asyncio.wait([work], timeout=grace)
    if late:
        log.warning("cancelling what is still under way", seconds=grace)
        work.cancel()
    await asyncio.gather(work, return_exceptions=bool(late))


def _told(error: Exception) -> Exit:
    """One line that a person can act on; where it was only for errors that nobody foresaw."""
    error = _first(error)
    code = exit_for(error)
    if isinstance(error, BerthError):
        log.error(str(error), exit_code=int(code))
    else:
        said = f"{type(error).__name__}: {error}"
        log.error(said, exit_code=int(code), exc_info=error)
    return code


def _first(error: Exception) -> Exception:
    """What went wrong first, out of the groups that task groups make."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
