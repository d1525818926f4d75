"""How long to wait after a failure: twice as long after each, with jitter, so that many do not come back at once."""

from __future__ import annotations

import random
from datetime import timedelta


class Backoff:
    """Counts failures in a row. Pauses double from ``initial`` to ``maximum``; chance cuts each by up to a half."""

    def __init__(self, *, initial: timedelta, maximum: timedelta, chance: random.Random | None = None) -> None:
        self._initial = initial
        self._maximum = maximum
        self._chance = chance or random.Random()
        self.failures = 0

    def failed(self) -> timedelta:
        """One more failure; returns the pause before the next try."""
        full: timedelta = min(self._initial * (1 << min(self.failures, 30)), self._maximum)
        self.failures += 1
        return full * self._chance.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """Whatever was wrong is over: the next failure is a first one."""
        self.failures = 0
