"""An event loop whose time jumps to the next timer as soon as nothing else is ready: waiting takes no time."""

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

PASS_SECONDS = 1e-5
"""What a pass of the loop takes, so that a task that never waits does not stop the time."""


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type] - the system's own class
    """Never waits for a timer."""

    seconds = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        """What is ready now. A loop without timers waits, for a thread that calls it."""
        if timeout is None:
            return super().select()
        found = super().select(0)
        if not found:
            self.seconds += max(timeout, PASS_SECONDS)
        return found


class JumpingLoop(asyncio.SelectorEventLoop):
    """Sleeping, timers and time-outs follow its time. Not for tests with sockets or threads: those take real time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.seconds


LOOP_FACTORIES: Mapping[str, type[JumpingLoop]] = {"jumping": JumpingLoop}
"""What a conftest's ``pytest_asyncio_loop_factories`` returns."""


class LoopTime:
    """The `berth.clock.Clock` of the running loop."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
