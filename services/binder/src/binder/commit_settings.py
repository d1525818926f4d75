"""The numbers of the binder's core."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from binder.pauses import Pauses


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSettings:
    """The core's numbers."""

    max_in_flight: int = 32
    """POSTs and readings on the wire at once, 1 is strictly serial."""
    best: int = 8
    """K, the nodes that RANKED names."""
    tries: int = 5
    """Exceptions of our own, one after the other, that a pod may meet before it is given up (PROTOCOL 6)."""
    collisions: int = 3
    """409 answers in a row after which the next try is put off: somebody writes the pod faster than we read it."""
    word_every: timedelta = timedelta(seconds=10)
    """How often ``waiting`` is said; a third of the 30 s for which a scorer counts a proposal after the last word."""
    ask_again: timedelta = timedelta(seconds=1)
    """How often a plugin that said wait is asked again."""
    nak_delay: timedelta = timedelta(seconds=5)
    """After which a message of an unknown profile comes again: a binder that knows it may lead by then."""
    pauses: Pauses = field(default_factory=Pauses)
