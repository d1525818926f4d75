"""A scorer's view that follows other scorers: it reads as far as they had read when they ranked a pod.

A shadow's view would otherwise be ahead of a live ranking, by the Decision of the very pod at the latest, and two equal
configurations would seem to differ. So what arrives is held until a live ranking has counted it (its ``positions``), or
until it is certain that none that comes will be older. No I/O; ``now`` is in monotonic seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import merge
from typing import Final

from berth.bus.interface import Entry, StoredMessage
from berth.messages.attempts import Positions, Ranked
from berth.ranking.view import View

HOLD_SECONDS: Final = 0.25
"""How long what arrives is held while no ranking waits: longer than a pod is with a live scorer that keeps up."""
MOST_HELD: Final = 20_000
"""Changes that are held. Of more the oldest are applied: the view becomes less exact, and never larger."""


@dataclass(frozen=True, slots=True)
class _HeldChange:
    """A change that the view does not have yet."""

    what: Entry | StoredMessage
    arrived_at: float


@dataclass(frozen=True, slots=True)
class Applied:
    """What was applied: the Decisions among it, and what could not be decoded."""

    decisions: list[StoredMessage]
    problems: list[str]


class AlignedView:
    """A view, and what it does not have yet."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._arrived_cluster = self._arrived_decisions = 0
        self._cluster: deque[_HeldChange] = deque()
        self._decisions: deque[_HeldChange] = deque()

    def __len__(self) -> int:
        """How many changes are held."""
        return len(self._cluster) + len(self._decisions)

    def add_mirror(self, entries: Iterable[Entry], position: int, now: float) -> None:
        """Entries of the bucket ``cluster`` arrived, in order, up to this position."""
        self._cluster.extend(_HeldChange(entry, now) for entry in entries)
        self._arrived_cluster = max(position, self._arrived_cluster)

    def add_decisions(self, batch: Iterable[StoredMessage], position: int, now: float) -> None:
        """Messages of DECISIONS arrived, in order, up to this position."""
        self._decisions.extend(_HeldChange(stored, now) for stored in batch)
        self._arrived_decisions = max(position, self._arrived_decisions)

    def has_arrived(self, positions: Positions) -> bool:
        """Whether everything that a ranking on these positions had counted is here."""
        return self._arrived_cluster >= positions.cluster and self._arrived_decisions >= positions.decisions

    def due_at(self) -> float | None:
        """When the oldest change is held long enough; ``None``: none is held."""
        oldest = [held[0].arrived_at for held in (self._cluster, self._decisions) if held]
        return min(oldest) + HOLD_SECONDS if oldest else None

    def advance_to(self, live: Ranked, now: float) -> Applied:
        """Apply what a live ranking had counted."""
        positions = live.positions
        applied = self._apply(
            _taken(self._cluster, lambda held: held.what.sequence <= positions.cluster),
            _taken(self._decisions, lambda held: held.what.sequence <= positions.decisions),
            now,
        )
        for uid in live.received.expired:
            self.view.proposals.withdraw(uid)
        return applied

    def let_go(self, now: float, *, is_idle: bool) -> Applied:
        """Apply what is held long enough, if no ranking waits, and what is too much to be held."""
        before = now - HOLD_SECONDS if is_idle else float("-inf")
        return self._apply(_older(self._cluster, before), _older(self._decisions, before), now)

    def release(self, now: float) -> Applied:
        """Apply everything: at the start, before there is a live ranking to follow."""
        return self._apply(_taken(self._cluster, lambda _: True), _taken(self._decisions, lambda _: True), now)

    def _apply(self, cluster: list[_HeldChange], decisions: list[_HeldChange], now: float) -> Applied:
        """In the order of NATS's times, as far as each stream's own order leaves it."""
        applied = Applied([], [])
        for held in merge(cluster, decisions, key=lambda each: each.what.time):
            what = held.what
            if isinstance(what, Entry):
                applied.problems.extend(self.view.apply_mirror([what], what.sequence))
            else:
                applied.problems.extend(self.view.apply_decisions([what], what.sequence, now))
                applied.decisions.append(what)
        return applied


def _taken(held: deque[_HeldChange], wanted: Callable[[_HeldChange], bool]) -> list[_HeldChange]:
    """The first ones that are wanted, taken out."""
    taken = []
    while held and wanted(held[0]):
        taken.append(held.popleft())
    return taken


def _older(held: deque[_HeldChange], before: float) -> list[_HeldChange]:
    return _taken(held, lambda oldest: oldest.arrived_at <= before or len(held) > MOST_HELD)
