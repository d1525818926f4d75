"""How long to wait before the API server is asked again: doubling, cut by chance, and never less than it asked for.

The numbers of the binder's core.

The binder's own numbers, beside those that the services share (PROTOCOL 7).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta

from berth.process.settings import Settings
from berth_binder.eventrecorder import BudgetSettings


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BinderSettings:
    """How the shell works."""

    commit: CommitSettings = field(default_factory=CommitSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    hold: int = 1024
    """Messages held at once: far more than are on the wire, so that pods whose Binding is left open hold up nobody."""
    keep_alive: timedelta = timedelta(seconds=10)
    """How often held messages say ``in_progress``: a third of the ack_wait, so that two may be lost."""
    binding_timeout: timedelta = timedelta(seconds=10)
    """After which a Binding counts as not answered. The pod is read then: too short costs a request and no more."""
    finish: timedelta = timedelta(seconds=5)
    """How long what is under way may take on stopping: half of the 10 s in which the process has to end."""
    stranger_delay: timedelta = timedelta(seconds=5)
    """When a message of an unknown newer schema is offered again: somebody newer may lead by then."""


def binder_settings(settings: Settings) -> BinderSettings:
    """The binder's numbers that follow from those of all services."""
    numbers = settings.numbers
    commit = CommitSettings(max_in_flight=numbers.max_in_flight_bindings, best=numbers.best)
    return BinderSettings(commit=commit, keep_alive=numbers.binder_ack_wait / 3)
