"""A tally: how many pods of one kind are on each row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int32]


class Tally:
    """The pods of one kind. ``counts``: int32[capacity], to be read only."""

    __slots__ = ("counts", "namespaces_seen")

    def __init__(self, capacity: int, namespaces_seen: int) -> None:
        self.namespaces_seen = namespaces_seen
        self.counts: Counts = np.zeros(capacity, dtype=np.int32)
