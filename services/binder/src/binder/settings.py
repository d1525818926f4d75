"""The binder's own numbers, beside those that the services share (PROTOCOL 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from berth.service.settings import Settings
from binder.budget import BudgetSettings
from binder.commit_settings import CommitSettings


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
