"""How long to wait before the API server is asked again: doubling, cut by chance, and never less than it asked for."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """Back-off of one pod's requests."""

    first: timedelta = timedelta(milliseconds=100)
    """After the first failure: an API server that fails over is back within some hundred of these."""
    longest: timedelta = timedelta(seconds=5)
    """Well below Lease and proposal, so that a pod is bound soon after the API server answers again."""
    chance: random.Random = field(default_factory=random.Random)

    def after(self, failures: int, asked: timedelta | None = None) -> float:
        """Seconds to wait after so many failures in a row (from 1). Retry-After is kept, up to ``longest``."""
        full = min(self.first * (1 << min(failures - 1, 16)), self.longest)
        pause = full * self.chance.uniform(0.5, 1.0)
        least = min(asked, self.longest) if asked is not None else timedelta()
        return max(pause, least).total_seconds()
