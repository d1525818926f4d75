"""RANKED messages that have not been looked at, in stream order: what is redelivered takes its old place again."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from binder.commitment import Claim


class StreamOrder:
    """A heap by stream sequence; of equal ones (a redelivery of the same message) the first to arrive comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Claim]] = []
        self._arrivals = count()

    def push(self, claim: Claim) -> None:
        """Put a message in its place."""
        heapq.heappush(self._heap, (claim.held.sequence, next(self._arrivals), claim))

    def pop(self) -> Claim:
        """Take the message that stands first. Raises IndexError when there is none."""
        return heapq.heappop(self._heap)[2]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Claim]:
        return (claim for _, _, claim in self._heap)
