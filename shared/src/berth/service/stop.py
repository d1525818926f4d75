"""SIGTERM and SIGINT, heard by a thread of their own: also when the main loop hangs, and the process ends in time."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from berth.service.exits import Exit
from berth.service.logging import get_logger
from berth.service.watchdog import main_thread_stands

log = get_logger()

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
