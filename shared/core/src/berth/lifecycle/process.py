"""The life cycle of a service process: start, stop, and an end by a deadline even when something hangs.

    async def serve(process: Process) -> None:
        async for session in sessions(bus, name="watcher", process=process):
            ...

    raise SystemExit(run(serve, settings, name="watcher"))

SIGTERM and SIGINT set ``process.stopping``. The service then finishes its current work and returns. Shortly before
``stop_deadline`` it is cancelled. At the deadline the process is ended, with a log line that names the hanging tasks.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from berth.api.config.encode import ConfigurationDigests
from berth.clock import Clock, SteadyClock
from berth.errors import BerthError
from berth.exits import Exit, ReadyFileError, UsageError, exit_for
from berth.lifecycle.peers import Peers
from berth.lifecycle.shutdown import Deadline, StopThread, Watchdog, end_with_parent, seconds_left
from berth.memory import keep_freed_memory
from berth.observability import logging as service_logging
from berth.observability.health import Health, health_server, write_when_working
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter, PrometheusMeter
from berth.observability.tracing import Tracing
from berth.settings.settings import Settings

T = TypeVar("T")


log = get_logger()


# Pause before unfinished work is cancelled again: longer than releasing a Lease takes. Before Python 3.12
# `asyncio.wait_for`, which libraries use, loses a cancellation that arrives together with its result.
CANCEL_AGAIN_SECONDS: Final = 3.0
# The part of the time until the deadline after which a service that has not returned is cancelled.
CANCEL_SHARE: Final = 0.8


# Decoded messages are freed by reference counting. The collector only finds cycles, and it blocks the loop. With
# 150,000 pods held and 300,000 decoded, CPython's defaults (700, 10, 10) stop it for 1.0 s in all, 0.9 s at once; these
# for 0.09 s, 17 ms at once. Old objects are examined after 250 million new ones, so the views and cores of a session
# are collected by hand (berth.lifecycle.sessions.sessions).
GC_THRESHOLDS: Final = (50_000, 50, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The parts that every service uses. Tests create one with a clock that they move."""

    name: str
    settings: Settings = field(default_factory=Settings)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)  # set once: finish current work, start no new work
    health: Health = field(default_factory=Health)
    metrics: Meter
    clock: Clock = field(default_factory=SteadyClock)
    tracing: Tracing = field(default_factory=lambda: Tracing(service="untraced"))
    peers: Peers = field(default_factory=Peers)

    @property
    def identity(self) -> str:
        """The process's identity, also the holder of Leases."""
        return self.settings.identity

    async def sleep(self, seconds: float) -> bool:
        """Wait, at most until stopping. Returns whether to continue."""
        await run_until(self.clock.sleep(seconds), self.stopping)
        return not self.stopping.is_set()


ServiceMain = Callable[[Process], Awaitable[None]]


def _new_loop() -> asyncio.AbstractEventLoop:
    # uvloop if installed: request and reply are about a third faster. It does not exist for Windows.
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - does not exist on every system
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()


def run(
    service_main: ServiceMain,
    settings: Settings,
    *,
    name: str,
    digests: ConfigurationDigests | None = None,
    configuration: Mapping[str, Any] | None = None,
) -> int:
    """Run a service until it returns, fails or is stopped; returns the exit code. Call it once, in the main thread.

    ``digests``: of the service's configuration, for comparison with other services; ``configuration``: the part of it
    that anybody may see.
    """
    service_logging.configure(settings.log, service=name, identity=settings.identity)
    deadline = Deadline(settings.stop_deadline)
    stop_thread = StopThread(deadline)
    keep_freed_memory()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        peers = Peers(digests, service=name, identity=settings.identity)
        parts = _Parts(peers=peers, configuration=configuration or {}, stop_thread=stop_thread, deadline=deadline)
        return int(runner.run(_live(service_main, settings, name, parts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    peers: Peers
    configuration: Mapping[str, Any]
    stop_thread: StopThread
    deadline: Deadline


async def _live(service_main: ServiceMain, settings: Settings, name: str, parts: _Parts) -> Exit:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    parts.stop_thread.start(loop, stopping.set)
    meter = PrometheusMeter()
    try:
        tracing = Tracing.from_environment(os.environ, service=name, identity=settings.identity)
    except UsageError as error:
        return _log_error(error)
    process = Process(
        name=name, settings=settings, metrics=meter, tracing=tracing, stopping=stopping, peers=parts.peers
    )
    try:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, tracing.close)
            await _set_up(process, meter, parts.configuration, stack)
            stack.callback(
                parts.deadline.begin, loop
            )  # The deadline also covers closing, if the service ended without a signal.
            await _serve(service_main, process)
    except Exception as error:  # noqa: BLE001 - the last place that can log the error
        return _log_error(error)
    log.info("stopped")
    return Exit.DONE


async def _set_up(
    process: Process, meter: PrometheusMeter, configuration: Mapping[str, Any], stack: AsyncExitStack
) -> None:
    """Set up the process until ``stack`` is closed."""
    settings = process.settings
    if settings.parent_pid is not None:
        end_with_parent(settings.parent_pid)
    port = await stack.enter_async_context(health_server(settings.health, process.health, meter, configuration))
    stack.enter_context(Watchdog(meter))
    if settings.ready_file is not None:
        write_when_working(process.health, settings.ready_file)
    log.info("started", health_port=port)


async def _serve(service_main: ServiceMain, process: Process) -> None:
    """Run the service. If it does not return after the signal, cancel it early enough to close its clients."""
    work = asyncio.ensure_future(service_main(process))
    stopping = asyncio.ensure_future(process.stopping.wait())
    await asyncio.wait([work, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    grace = seconds_left(process.settings.stop_deadline) * CANCEL_SHARE
    _, late = await asyncio.wait([work], timeout=grace)
    if late:
        log.warning("cancelling unfinished work", seconds=grace)
        work.cancel()
    await asyncio.gather(work, return_exceptions=bool(late))


def _log_error(error: Exception) -> Exit:
    """Log the error in one line, with a traceback only for unforeseen errors."""
    error = _first(error)
    code = exit_for(error)
    if isinstance(error, BerthError | ReadyFileError):
        log.error(str(error), exit_code=int(code))
    else:
        text = f"{type(error).__name__}: {error}"
        log.error(text, exit_code=int(code), exc_info=error)
    return code


def _first(error: Exception) -> Exception:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


async def run_until(work: Coroutine[Any, Any, T], *ends: asyncio.Event) -> T | None:
    """Run ``work``. When one of ``ends`` is set, cancel it, wait for its end and return ``None``.

    Raises any exception of ``work``, also one raised after the cancellation.
    """
    task = asyncio.ensure_future(work)
    waiting = [asyncio.ensure_future(end.wait()) for end in ends]
    try:
        await asyncio.wait([task, *waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _ended(*waiting)
        if not task.done():
            await _ended(task)
    return None if task.cancelled() else task.result()


@asynccontextmanager
async def in_background(work: Coroutine[Any, Any, object], *, name: str) -> AsyncIterator[None]:
    """Run ``work`` beside the block; at its end cancel it and wait. A failure is logged when it occurs."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_failure)
    try:
        yield
    finally:
        await _ended(task)


def _log_failure(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("background task failed", task=task.get_name(), reason=repr(error))


async def _ended(*tasks: asyncio.Future[Any]) -> None:
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)
