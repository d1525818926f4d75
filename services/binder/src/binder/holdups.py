"""Commitments that cannot go on now: which pause, until when, and whose ``waiting`` is to be said."""

from __future__ import annotations

from dataclasses import dataclass, field

from binder.commitment import Commitment, Phase


@dataclass(slots=True)
class HoldUps:
    """Few as a rule: looking through them is cheaper than keeping them in order."""

    _paused: dict[str, Commitment] = field(default_factory=dict)
    _troubled: dict[str, Commitment] = field(default_factory=dict)

    def put_off(self, commitment: Commitment, due: float, why: str) -> None:
        """Pause until then; from now on it counts as held up until it is settled."""
        commitment.phase = Phase.PAUSED
        commitment.due, commitment.hold_up = due, why
        self._paused[commitment.uid] = commitment
        self._troubled[commitment.uid] = commitment

    def resume(self, now: float) -> Commitment | None:
        """Of the pauses that are over, take the one that stands first in the stream."""
        over = [it for it in self._paused.values() if it.due <= now]
        first = min(over, key=lambda it: it.sequence, default=None)
        if first is not None:
            del self._paused[first.uid]
        return first

    def speechless(self, now: float) -> list[Commitment]:
        """Those of which ``waiting`` is to be said (again)."""
        return [it for it in self._troubled.values() if it.next_word is not None and it.next_word <= now]

    def settled(self, uid: str) -> None:
        """It has come to its end."""
        self._paused.pop(uid, None)
        self._troubled.pop(uid, None)

    def due(self, *, has_place: bool) -> float | None:
        """When something is due by the clock alone. A pause that is over ends only when there is a place for it."""
        times = [it.next_word for it in self._troubled.values() if it.next_word is not None]
        if has_place:
            times += [it.due for it in self._paused.values()]
        return min(times, default=None)
