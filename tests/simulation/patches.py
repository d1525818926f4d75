"""Time and chance of the interpreter, replaced while simulations run: both follow the virtual loop and the seed."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import random
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from importlib import metadata
from typing import Any, Final
from unittest import mock

import structlog

from berth import clock
from berth.lifecycle import sessions
from berth.profiles import installed
from simulation.configurations import POINTS
from simulation.loop import OWNER, START_SECONDS, VirtualLoop

EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""The true time at the start of a run."""
SERVICES: Final = ("berth.", "berth_")
READING_SECONDS: Final = 2e-4
"""Of the stopwatch. Work itself takes no virtual time."""

_current: list[VirtualLoop] = []


def use(loop: VirtualLoop) -> None:
    """The loop that tells the time from now on."""
    _current[:] = [loop]


def true_time() -> datetime:
    """The time by the world's clock."""
    return EPOCH + timedelta(seconds=_current[0].time() - START_SECONDS)


class SimulatedDatetime(datetime):
    """``datetime`` whose ``now`` is the calling process's clock."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override] - an ordinary datetime
        now = true_time() + timedelta(seconds=OWNER.get().wall_offset)
        return now if tz is UTC else now.astimezone(tz)


def steady() -> float:
    """The calling process's monotonic clock."""
    return _current[0].time() + OWNER.get().steady_offset


def _stopwatch() -> float:
    """What measures work. Each reading takes a while, so that slices of a plan end at the same places in every run."""
    loop = _current[0]
    loop.readings += 1
    return loop.time() + loop.readings * READING_SECONDS


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=random.getrandbits(128), version=4)


def _after(self: clock.Backoff, *args: Any, **more: Any) -> float:
    """Draw from the seed: a Backoff made at import has a generator of its own, which nothing seeds."""
    object.__setattr__(self, "chance", random)
    return _original_after(self, *args, **more)


_original_after = clock.Backoff.after
_ALL_TASKS: Final = getattr(asyncio.tasks, "_all_tasks" if sys.version_info < (3, 12) else "_scheduled_tasks")
ENTRY_POINTS: Final = tuple(metadata.entry_points(group=installed.GROUP))
VERSION: Final = "simulated"


@contextlib.contextmanager
def simulated(log: Any) -> Iterator[None]:
    """Replace clocks, uuids and logs of everything that is imported by now. ``log`` receives each log event."""
    patches: list[tuple[Any, str, Any]] = [
        (time, "monotonic", steady),
        # The list of all tasks is only for stack dumps, and entering a task into it costs as much as making it.
        (_ALL_TASKS, "add", lambda _task: None),
        # There is one loop: looking under a lock whether it is the right one takes longer than the wait that asks.
        (asyncio.mixins._LoopBoundMixin, "_get_loop", lambda _self: _current[0]),
        (time, "perf_counter", _stopwatch),
        (clock.SteadyClock, "now", staticmethod(steady)),
        (uuid, "uuid4", _uuid4),
        (clock.Backoff, "after", _after),
        # Nothing is collected in the middle of a run (run.py), and to go through all for each session took 14 % of one.
        (sessions, "give_back_memory", lambda: None),
        # Read once: reading the metadata of all installed distributions takes a quarter of a run.
        (installed, "entry_points", lambda **_group: (*ENTRY_POINTS, *POINTS)),
        *((module, "version", lambda _name: VERSION) for module in _services_with("version", metadata.version)),
        *((module, "datetime", SimulatedDatetime) for module in _modules_that_ask_the_time()),
    ]
    structlog.configure(processors=[log], wrapper_class=structlog.make_filtering_bound_logger(20))
    with contextlib.ExitStack() as patched:
        patched.callback(structlog.reset_defaults)
        for owner, name, value in patches:
            patched.enter_context(mock.patch.object(owner, name, value))
        yield


def _modules_that_ask_the_time() -> list[Any]:
    return [module for module in _services_with("datetime", datetime) if _asks(module)]


def _services_with(name: str, value: Any) -> list[Any]:
    """The modules of berth that have imported something under this name."""
    found = [module for each, module in sys.modules.items() if each.startswith(SERVICES)]
    return [module for module in found if module.__dict__.get(name) is value]


def _asks(module: Any) -> bool:
    try:
        return "datetime.now(" in inspect.getsource(module)
    except (OSError, TypeError):
        return False
