"""How long extension points and plugins took in one cycle. The clock is handed in; nothing here reads one by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from berth.framework.status import Code

Clock = Callable[[], float]
"""Seconds, from whenever on."""


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds, and how it ended."""

    seconds: float
    code: Code


class Timing:
    """Filled in by one cycle.

    ``points``: by extension point, all plugins together. ``plugins``: by plugin and extension point, what all calls
    of the cycle took together; filled in for a profile that was told to (``Profile.time_plugins``). A plugin whose
    answers were remembered was not asked, and is not there.
    """

    def __init__(self, clock: Clock) -> None:
        self.points: dict[str, Took] = {}
        self.plugins: dict[tuple[str, str], Took] = {}
        self.clock = clock
        self._point = ""
        self._since = 0.0

    def begin(self, point: str) -> None:
        """Plugins of this point are asked from here on."""
        self._point, self._since = point, self.clock()

    def end(self, code: Code = Code.SUCCESS) -> None:
        """They have all been asked."""
        self.points[self._point] = Took(self.clock() - self._since, code)
        self._point = ""

    def fail(self) -> None:
        """The cycle has ended in an error, wherever it was."""
        if self._point:
            self.end(Code.ERROR)

    def asked(self, plugin: str, point: str, seconds: float, code: Code) -> None:
        """A plugin was called. Of several calls one success counts, and an error more than that."""
        before = self.plugins.get((plugin, point))
        if before is not None:
            seconds += before.seconds
            code = Code.SUCCESS if before.code is Code.SUCCESS and code is not Code.ERROR else code
        self.plugins[plugin, point] = Took(seconds, code)


def no_clock() -> float:
    """For whoever does not want to know."""
    return 0.0
