"""Ends a process in time: on a signal, with its parent, and when the main loop hangs.

A separate thread receives SIGTERM and SIGINT, so that the process ends even if the main loop hangs. A watchdog measures
the delay of the main loop and logs where it hangs.
"""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Self

from berth.errors import BerthError
from berth.exits import Exit
from berth.observability.logging import get_logger
from berth.observability.metrics import Meter

_PR_SET_PDEATHSIG: Final = 1

# Between two checks of the parent, on systems whose kernel sends no signal. getppid takes 0.1 µs.
POLL_SECONDS: Final = 0.5


class OrphanedError(BerthError):
    """The parent had ended before this process could watch it."""


def end_with_parent(parent_pid: int) -> None:
    """Get SIGTERM as soon as the parent has ended, also when it is killed with -9. The process then stops as usual.

    The parent's *thread* that started this process must live as long as the parent: on Linux the kernel signals at its
    end.

    Raises:
        OrphanedError: the parent has ended already, or is not the one named.
    """
    if sys.platform == "linux":
        # SIGTERM even if the parent requested SIGKILL, so that the Lease is released; the stop deadline ends a process
        # that hangs.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        raise OrphanedError(f"ending with parent {parent_pid}: it has ended, the parent is {os.getppid()} now")
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(parent_pid,), name="parent", daemon=True).start()


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


log = get_logger()


BEAT_SECONDS: Final = 0.25  # between two beats of the loop: 4 timers per second

# Time without a beat that counts as a stall: a third of the scorer's ack_wait, after which NATS redelivers.
STALL_SECONDS: Final = 1.0

FRAMES: Final = 5  # innermost calls in a stall's log line


class Watchdog:
    """Use ``with`` inside the loop: a timer in the loop sets beats, and a thread checks them."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._loop = asyncio.get_running_loop()
        self._beaten_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._timer.cancel()
        self._ended.set()

    def _beat(self) -> None:
        now = time.monotonic()
        lag = max(now - self._beaten_at - BEAT_SECONDS, 0.0)
        self._beaten_at = now
        self._meter.observe("berth_main_loop_lag_seconds", lag)
        if lag > STALL_SECONDS:
            self._meter.count("berth_main_loop_stalls_total")
            log.warning("main loop stalled", seconds=round(lag, 3))
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _look(self) -> None:
        """Log where the loop hangs, once for each stall."""
        said_for = 0.0
        while not self._ended.wait(BEAT_SECONDS):
            beaten_at = self._beaten_at
            silent = time.monotonic() - beaten_at
            if silent > STALL_SECONDS + BEAT_SECONDS and beaten_at != said_for:
                said_for = beaten_at
                log.warning("main loop is stalled", seconds=round(silent, 3), where=main_thread_stands())


def main_thread_stands() -> list[str]:
    """The main thread's innermost calls, for a log line about a hang."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the documented way
    stack = traceback.extract_stack(frame)[-FRAMES:] if frame else []
    return [f"{call.name} ({call.filename}:{call.lineno})" for call in stack]


SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

IMPATIENT: Final = 2  # SIGINTs that end the process at once

# The process ends this much before its deadline, because the measured time begins earlier and ends later.
MARGIN_SECONDS: Final = 0.5

# Pause after the deadline thread's attempt. Then C code ends a process in which no Python thread can run.
BACKSTOP_SECONDS: Final = 0.3


def seconds_left(deadline: timedelta) -> float:
    """Seconds between the signal and the end of the process."""
    return max(deadline.total_seconds() - MARGIN_SECONDS, MARGIN_SECONDS)


class Deadline:
    """Ends the process some seconds after it began to stop, even if it hangs."""

    def __init__(self, after: timedelta) -> None:
        self.seconds = seconds_left(after)
        self._begun = threading.Lock()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the countdown. Later calls have no effect."""
        if not self._begun.acquire(blocking=False):
            return
        # Implemented in C: it also ends code that holds the GIL.
        faulthandler.dump_traceback_later(self.seconds + BACKSTOP_SECONDS, exit=True)
        threading.Thread(target=self._enforce, args=(loop,), name="deadline", daemon=True).start()

    def _enforce(self, loop: asyncio.AbstractEventLoop) -> None:
        time.sleep(self.seconds)
        log.error("ending: unfinished work at the deadline", seconds=self.seconds, under_way=_under_way(loop))
        os._exit(Exit.NO)


class StopThread:
    """Receives SIGTERM and SIGINT. A second SIGINT ends the process at once.

    One SIGTERM and one SIGINT count as one: Ctrl-C reaches every process of a terminal, and their parent signals them
    too. The interpreter writes each signal's number to a socket, in whichever thread the kernel interrupted, so signals
    are received also when the main thread hangs. (``sigwait`` is not enough: NumPy's threads do not block signals.)
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._numbers, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._early: list[int] = []
        for number in SIGNALS:
            signal.signal(number, lambda received, _frame: self._early.append(received))

    def start(self, loop: asyncio.AbstractEventLoop, on_signal: Callable[[], object]) -> None:
        """Call ``on_signal`` in the loop at the first signal, or now if it has arrived. Call this in the loop."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._writer.send(bytes(self._early))
        threading.Thread(target=self._wait, args=(loop, on_signal), name="stop", daemon=True).start()

    def _wait(self, loop: asyncio.AbstractEventLoop, on_signal: Callable[[], object]) -> None:
        first = self._next()
        self._deadline.begin(loop)
        log.info("stopping", signal=first.name)
        try:
            loop.call_soon_threadsafe(on_signal)
        except RuntimeError:
            log.info("the main loop has ended already")
        received = [first]
        while received.count(signal.SIGINT) < IMPATIENT:
            received.append(self._next())
        log.error("ending at once: interrupted a second time")
        os._exit(Exit.NO)

    def _next(self) -> signal.Signals:
        while (number := self._numbers.recv(1)[0]) not in SIGNALS:
            pass  # A signal with another handler.
        return signal.Signals(number)


def _under_way(loop: asyncio.AbstractEventLoop) -> list[str]:
    try:
        names = sorted(task.get_name() for task in asyncio.all_tasks(loop))
    except RuntimeError:  # The set changed while it was read from this thread.
        names = []
    return [*names, *main_thread_stands()]
