"""The arithmetic of a continuous pull: what may be asked for, so that no more is held than was allowed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Credit:
    """How many messages may still be asked for: those held and those asked for never exceed ``hold``."""

    hold: int
    outstanding: int = 0
    """Asked for and not yet arrived."""
    held: int = 0
    """Arrived and not yet settled."""

    def take(self) -> int:
        """How many to ask for now: nothing while more than half of the hold is still to come."""
        if self.outstanding * 2 > self.hold:
            return 0
        wanted = max(0, self.hold - self.held - self.outstanding)
        self.outstanding += wanted
        return wanted

    def arrive(self) -> None:
        """One came. What an older request brings was not counted any more: then nothing is outstanding for it."""
        self.outstanding = max(0, self.outstanding - 1)
        self.held += 1

    def give_back(self, count: int) -> None:
        """The server ended a request with so many not sent."""
        self.outstanding = max(0, self.outstanding - count)
