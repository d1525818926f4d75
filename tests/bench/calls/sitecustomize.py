"""Write every call of berth's functions to ``$BERTH_CALLS/<pid>``, a line each: time in ns, module, function.

Python imports a ``sitecustomize`` on its path before the program: ``bench.trace_pod`` puts this folder there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import CodeType, FrameType

FOLDER = Path(os.environ["BERTH_CALLS"])
names: dict[CodeType, bytes] = {}
"""The end of the line of each function; empty for functions of others."""


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
            name = names[code] = f" {module} {code.co_qualname}\n".encode() if is_berths else b""
        if name:
            os.write(written, b"%d%b" % (time.time_ns(), name))

    sys.setprofile(on_event)


os.register_at_fork(after_in_child=begin)
begin()
