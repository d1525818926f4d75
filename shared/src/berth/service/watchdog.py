"""How late the main loop is, and where it stands when it hangs."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from typing import Final, Self

from berth.service.logging import get_logger
from berth.service.meter import Meter

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
