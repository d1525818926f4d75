"""Ends a call of Python code that takes too long, from within: the alarm clock of the process rings in its main thread.

What hangs in Python or in a system call (``while True``, ``time.sleep``, a socket) ends so. What hangs in C and never
comes back to the interpreter does not, and ends with the process.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

from berth.framework.guard import OutOfTime

R = TypeVar("R")

AGAIN_SECONDS: Final = 0.1
"""Until it rings again: for code that catches even the first."""
_SOONEST: Final = 1e-6
"""A timer of 0 would be none."""


class CallDeadline:
    """Runs work in the main thread and raises ``OutOfTime`` in it after ``deadline``; in other threads it only runs it.

    A call within a call shares the deadline of the outer one. Whoever uses SIGALRM besides finds it as it was.
    """

    def __init__(self, deadline: timedelta) -> None:
        self._seconds = deadline.total_seconds()
        self._running = False

    def __call__(self, work: Callable[[], R]) -> R:
        """The work's result.

        Raises:
            OutOfTime: it took too long.
        """
        if self._running or threading.current_thread() is not threading.main_thread():
            return work()
        handler, began = signal.signal(signal.SIGALRM, self._ring), time.monotonic()
        left, interval = signal.setitimer(signal.ITIMER_REAL, self._seconds, AGAIN_SECONDS)
        try:
            return self._run(work)
        finally:  # it cannot ring in here: it just did, or does not any more
            self._running = False
            remaining = max(left - (time.monotonic() - began), _SOONEST) if left else 0.0
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, remaining, interval)

    def _run(self, work: Callable[[], R]) -> R:
        try:
            self._running = True
            return work()
        finally:
            self._running = False

    def _ring(self, _number: int, _frame: object) -> None:
        if self._running:
            raise OutOfTime(self._seconds)
