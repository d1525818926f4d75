"""Write every call of berth's functions to ``$BERTH_CALLS/<pid>``, a line each: time in ns, task, module, function.

The task is the coroutine with which asyncio's present task began; in a callback, the function of berth's that the event
loop called. Python imports a ``sitecustomize`` on its path before the program: ``bench.trace_pod`` puts this folder
there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import CodeType, FrameType

FOLDER = Path(os.environ["BERTH_CALLS"])
names: dict[CodeType, bytes] = {}
"""Module and function of each code; empty for functions of others."""


def begin() -> None:
    """Profile this process from here on. Called again in a process that was forked."""
    written = os.open(FOLDER / str(os.getpid()), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def on_event(frame: FrameType, event: str, _argument: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        name = names.get(code)
        if name is None:
            module = frame.f_globals.get("__name__", "")
            is_berths = "/berth" in code.co_filename and (module.startswith("berth") or module == "__main__")
            name = names[code] = f"{module} {code.co_qualname}".encode() if is_berths else b""
        if name:
            os.write(written, b"%d %b %b\n" % (time.time_ns(), _task(frame), name))

    sys.setprofile(on_event)


def _task(frame: FrameType) -> bytes:
    asyncio = sys.modules.get("asyncio")
    try:
        task = asyncio.current_task() if asyncio is not None else None
    except (AttributeError, RuntimeError):  # asyncio is being imported, or no loop runs
        task = None
    if task is not None:
        return getattr(task.get_coro(), "__qualname__", "-").encode()
    outermost, above = frame.f_code, frame.f_back
    while above is not None and "/asyncio/" not in above.f_code.co_filename:
        outermost = above.f_code if names.get(above.f_code) else outermost
        above = above.f_back
    return outermost.co_qualname.encode() if asyncio is not None else b"-"


os.register_at_fork(after_in_child=begin)
begin()
