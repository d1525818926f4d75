"""A view that follows live scorers: it advances to the positions of each live ranking.

Otherwise a shadow's view would be ahead of the live ranking, and equal configurations would seem to differ. So changes
are held until a live ranking has counted them (its ``positions``) or no older ranking can arrive. No I/O; ``now`` is in
monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import merge
from typing import Final

from berth.bus.interface import Entry, StoredMessage
from berth.messages.attempts import Positions, Ranked
from berth.messages.groupattempts import GroupRanked
from berth.ranking.view import View

# Time that changes are held while no ranking waits: longer than a live scorer that keeps up holds a pod.
HOLD_SECONDS: Final = 0.25
# Changes held. Beyond it the oldest are applied, because memory matters more than an exact view.
MOST_HELD: Final = 20_000


@dataclass(frozen=True, slots=True)
class _HeldChange:
    message: Entry | StoredMessage
    arrived_at: float


@dataclass(frozen=True, slots=True)
class Applied:
    """The applied Decisions, and reports of undecodable messages."""

    decisions: list[StoredMessage]
    problems: list[str]


class AlignedView:
    """A view and the changes held back from it."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._arrived_cluster = self._arrived_decisions = 0
        self._cluster: deque[_HeldChange] = deque()
        self._decisions: deque[_HeldChange] = deque()

    def __len__(self) -> int:
        return len(self._cluster) + len(self._decisions)

    def add_mirror(self, entries: Iterable[Entry], position: int, now: float) -> None:
        """Add entries of ``cluster``, in order, up to this position."""
        self._cluster.extend(_HeldChange(entry, now) for entry in entries)
        self._arrived_cluster = max(position, self._arrived_cluster)

    def add_decisions(self, batch: Iterable[StoredMessage], position: int, now: float) -> None:
        """Add messages of DECISIONS, in order, up to this position."""
        self._decisions.extend(_HeldChange(stored, now) for stored in batch)
        self._arrived_decisions = max(position, self._arrived_decisions)

    def has_arrived(self, positions: Positions) -> bool:
        """Whether the view can advance to these positions."""
        return self._arrived_cluster >= positions.cluster and self._arrived_decisions >= positions.decisions

    def due_at(self) -> float | None:
        """The time at which the oldest held change is applied."""
        oldest = [held[0].arrived_at for held in (self._cluster, self._decisions) if held]
        return min(oldest) + HOLD_SECONDS if oldest else None

    def advance_to(self, live: Ranked | GroupRanked, now: float) -> Applied:
        """Apply the changes that a live ranking had counted."""
        positions = live.positions
        applied = self._apply(
            _taken(self._cluster, lambda held: held.message.sequence <= positions.cluster),
            _taken(self._decisions, lambda held: held.message.sequence <= positions.decisions),
            now,
        )
        for uid in live.received.expired:
            self.view.proposals.withdraw(uid)
        return applied

    def apply_due(self, now: float, *, is_idle: bool) -> Applied:
        """Apply changes that were held long enough, if ``is_idle``, and changes beyond ``MOST_HELD``."""
        before = now - HOLD_SECONDS if is_idle else float("-inf")
        return self._apply(_older(self._cluster, before), _older(self._decisions, before), now)

    def release(self, now: float) -> Applied:
        """Apply all changes, before there is a live ranking to follow."""
        return self._apply(_taken(self._cluster, lambda _: True), _taken(self._decisions, lambda _: True), now)

    def _apply(self, cluster: list[_HeldChange], decisions: list[_HeldChange], now: float) -> Applied:
        """Apply by NATS's times, as far as each stream's own order allows."""
        applied = Applied([], [])
        for held in merge(cluster, decisions, key=lambda each: each.message.time):
            message = held.message
            if isinstance(message, Entry):
                applied.problems.extend(self.view.apply_mirror([message], message.sequence))
            else:
                applied.problems.extend(self.view.apply_decisions([message], message.sequence, now))
                applied.decisions.append(message)
        return applied


def _taken(held: deque[_HeldChange], wanted: Callable[[_HeldChange], bool]) -> list[_HeldChange]:
    taken = []
    while held and wanted(held[0]):
        taken.append(held.popleft())
    return taken


def _older(held: deque[_HeldChange], before: float) -> list[_HeldChange]:
    return _taken(held, lambda oldest: oldest.arrived_at <= before or len(held) > MOST_HELD)
