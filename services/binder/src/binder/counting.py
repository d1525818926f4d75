"""What the binder counts (names and meanings: ``berth.service.meter``)."""

from __future__ import annotations

from typing import Final

from berth.api.messages import Decision, Outcome
from berth.service.meter import Meter
from binder.answers import Answer

_RESULTS: Final = {Outcome.BOUND: "scheduled", Outcome.UNSCHEDULABLE: "unschedulable", Outcome.ERROR: "error"}


def count_decision(metrics: Meter, said: Decision) -> None:
    """Count a Decision that DECISIONS has stored; those that kube-scheduler knows also under its own name."""
    metrics.count("berth_decisions_total", outcome=said.outcome.value, profile=said.profile)
    metrics.count("berth_messages_published_total", stream="DECISIONS")
    if said.outcome is Outcome.CONFLICT:
        metrics.count("berth_conflicts_total", reason=said.reason)
    if said.outcome in _RESULTS:
        metrics.count("scheduler_schedule_attempts_total", result=_RESULTS[said.outcome], profile=said.profile)


def count_binding(metrics: Meter, answer: Answer, seconds: float) -> None:
    """Count the answer to a Binding, and how long it took."""
    metrics.count("berth_bindings_total", code=str(answer.status) if answer.status else "none")
    metrics.observe("berth_binding_duration_seconds", seconds)
