"""Ending with the process that started this one, also when that is killed with -9 and can tell nobody.

How late the main loop is, and where it stands when it hangs.

SIGTERM and SIGINT, heard by a thread of their own: also when the main loop hangs, and the process ends in time.
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

from berth.api.errors import BerthError
from berth.process.exits import Exit
from berth.process.logging import get_logger
from berth.process.metrics import Meter

_PR_SET_PDEATHSIG: Final = 1

POLL_SECONDS: Final = 0.5
"""Between two looks at who the parent is, where the kernel does not tell. Cheap: getppid is 0.1 µs."""


class OrphanedError(BerthError):
    """The parent had ended before this process could ask to be told."""


def end_with_parent(parent_pid: int) -> None:
    """Get SIGTERM as soon as the parent is gone, which then takes the usual way of stopping.

    On Linux the kernel tells, elsewhere a thread looks. SIGTERM, so that the Lease is given back and the next leader
    need not wait for it to run out; a parent that asked the kernel for SIGKILL is overruled from here on: the stop
    deadline ends what hangs. The parent's *thread* that starts this process has to live as long as the parent: the
    kernel tells of its end already.

    Raises:
        OrphanedError: the parent is gone already, or is not the one named.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        raise OrphanedError(f"ending with parent {parent_pid}: the parent is {os.getppid()} now, the one named is gone")
    if sys.platform != "linux":
        threading.Thread(target=_watch, args=(parent_pid,), name="parent", daemon=True).start()


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


log = get_logger()


BEAT_SECONDS: Final = 0.25
"""Between two beats of the loop. Costs 4 timers a second."""

STALL_SECONDS: Final = 1.0
"""Silence that counts as a stall: a third of the scorer's ack_wait, so that it is seen before messages go elsewhere."""

FRAMES: Final = 5
"""Innermost calls that a stall's log line shows."""


class Watchdog:
    """``with`` it inside the loop: it beats there, and a thread looks at the beats."""

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
        """Say where the loop hangs while it does: afterwards nobody knows. Once for each stall."""
        said_for = 0.0
        while not self._ended.wait(BEAT_SECONDS):
            beaten_at = self._beaten_at
            silent = time.monotonic() - beaten_at
            if silent > STALL_SECONDS + BEAT_SECONDS and beaten_at != said_for:
                said_for = beaten_at
                log.warning("main loop is stalled", seconds=round(silent, 3), where=main_thread_stands())


def main_thread_stands() -> list[str]:
    """The innermost calls of the main thread, for a log line about a hang."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001 - the documented way to look
    stack = traceback.extract_stack(frame)[-FRAMES:] if frame else []
    return [f"{call.name} ({call.filename}:{call.lineno})" for call in stack]


SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

IMPATIENT: Final = 2
"""So many SIGINTs end the process without waiting for anything."""

MARGIN_SECONDS: Final = 0.5
"""The process ends this much before its deadline: whoever measures 10 s starts earlier and looks later."""

BACKSTOP_SECONDS: Final = 0.3
"""After the thread's own end of the process: a hang that lets no Python thread run is ended from C by then."""


def seconds_left(deadline: timedelta) -> float:
    """What there is between the signal and the end of the process."""
    return max(deadline.total_seconds() - MARGIN_SECONDS, MARGIN_SECONDS)


class Deadline:
    """The end of the process, whatever hangs, from the moment on that its end begins."""

    def __init__(self, after: timedelta) -> None:
        self.seconds = seconds_left(after)
        self._begun = threading.Lock()

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Count from now; what comes later changes nothing."""
        if not self._begun.acquire(blocking=False):
            return
        # Of C, and needs no Python thread to run: code that keeps the interpreter to itself ends too.
        faulthandler.dump_traceback_later(self.seconds + BACKSTOP_SECONDS, exit=True)
        threading.Thread(target=self._enforce, args=(loop,), name="deadline", daemon=True).start()

    def _enforce(self, loop: asyncio.AbstractEventLoop) -> None:
        time.sleep(self.seconds)
        log.error("ending: still under way at the deadline", seconds=self.seconds, under_way=_under_way(loop))
        os._exit(Exit.NO)


class StopThread:
    """Hears SIGTERM and SIGINT. A second SIGINT, of one who will not wait, ends the process at once.

    One SIGTERM beside one SIGINT is one wish: Ctrl-C reaches every process of a terminal, and whoever started them
    tells them too. The interpreter writes each signal's number to a socket, in whichever thread the kernel chose to
    interrupt; so a main thread that hangs keeps none from being heard. (To block signals and ``sigwait`` is not enough:
    the threads that NumPy's library started on import do not block them.)
    """

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        self._numbers, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._early: list[int] = []
        for number in SIGNALS:
            signal.signal(number, lambda heard, _frame: self._early.append(heard))

    def start(self, loop: asyncio.AbstractEventLoop, tell: Callable[[], object]) -> None:
        """Call ``tell`` in the loop when the first signal comes, or has come. From within the loop: it listens too."""
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._writer.send(bytes(self._early))
        threading.Thread(target=self._wait, args=(loop, tell), name="stop", daemon=True).start()

    def _wait(self, loop: asyncio.AbstractEventLoop, tell: Callable[[], object]) -> None:
        first = self._next()
        self._deadline.begin(loop)
        log.info("stopping", signal=first.name)
        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:
            log.info("the main loop has ended already")
        heard = [first]
        while heard.count(signal.SIGINT) < IMPATIENT:
            heard.append(self._next())
        log.error("ending at once: interrupted a second time")
        os._exit(Exit.NO)

    def _next(self) -> signal.Signals:
        while (number := self._numbers.recv(1)[0]) not in SIGNALS:
            pass  # a signal that somebody else asked for
        return signal.Signals(number)


def _under_way(loop: asyncio.AbstractEventLoop) -> list[str]:
    """Names of the tasks that have not ended, and where the main thread is."""
    try:
        names = sorted(task.get_name() for task in asyncio.all_tasks(loop))
    except RuntimeError:  # the set changed while it was read from this thread
        names = []
    return [*names, *main_thread_stands()]
