"""Ending with the process that started this one, also when that is killed with -9 and can tell nobody."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from typing import Final

from berth.api.errors import BerthError

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
