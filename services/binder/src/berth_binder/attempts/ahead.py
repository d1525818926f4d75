"""Messages of RANKED that only a newer binder may understand: of a newer schema, or of a profile added there.

They are redelivered for a while, because such a binder may lead soon. Any scorer can write them,
so time and bytes are bounded: RANKED must keep room for all other pods. Pure, the clock is injected.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

# Between two deliveries of such a message.
REDELIVERY: Final = timedelta(seconds=5)
# Until it becomes a dead letter. A rollout replaces the binder within a minute; the watcher publishes the pod again.
LONGEST: Final = timedelta(minutes=2)
# Their share of RANKED's bytes.
SHARE: Final = 8
# Without a redelivery for this long, the message is no longer stored.
_FORGOTTEN: Final = 3 * REDELIVERY


class AheadMessages:
    """The messages that are put off, by sequence."""

    def __init__(self, ranked_bytes: int) -> None:
        self._most_bytes = ranked_bytes // SHARE
        self._kept: dict[int, tuple[int, float, float]] = {}  # bytes, and the times of the first and last delivery

    def may_wait(self, sequence: int, *, size: int, age: timedelta, now: float) -> bool:
        """Whether the message may be redelivered; if not, it is a dead letter.

        ``age``: since it was stored, as far as known. ``now``: monotonic seconds.
        """
        _, first, _ = self._kept.pop(sequence, (0, now, now))
        if max(age, timedelta(seconds=now - first)) > LONGEST or self._bytes_at(now) + size > self._most_bytes:
            return False
        self._kept[sequence] = size, first, now
        return True

    def _bytes_at(self, now: float) -> int:
        oldest = now - _FORGOTTEN.total_seconds()
        self._kept = {sequence: kept for sequence, kept in self._kept.items() if kept[2] >= oldest}
        return sum(size for size, _, _ in self._kept.values())
