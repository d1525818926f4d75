"""What the binder counts (names and meanings: ``berth.service.meter``)."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from berth.api.messages import Decision, Outcome
from berth.service.meter import GaugeName, Meter
from berth.service.schedulerwords import result_of
from binder.answers import Answer
from binder.ledger import Ledger

GAUGES: Final[tuple[GaugeName, ...]] = ("berth_reservations", "berth_bindings_in_flight", "scheduler_cache_size")
"""What only the one who leads can say."""


def count_decision(metrics: Meter, said: Decision) -> None:
    """Count a Decision that DECISIONS has stored; those that kube-scheduler knows also under its own name."""
    metrics.count("berth_decisions_total", outcome=said.outcome.value, profile=said.profile)
    metrics.count("berth_messages_published_total", stream="DECISIONS")
    if said.outcome is Outcome.CONFLICT:
        metrics.count("berth_conflicts_total", reason=said.reason)
    if said.preemption is not None and said.preemption.victims:
        metrics.observe("scheduler_preemption_victims", len(said.preemption.victims))
    result = result_of(said.outcome)
    if result is not None:
        metrics.count("scheduler_schedule_attempts_total", result=result, profile=said.profile)


def count_binding(metrics: Meter, answer: Answer, seconds: float, *, profile: str) -> None:
    """Count the answer to a Binding, and how long it took; that is also what the extension point Bind takes."""
    status = "Success" if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES else "Error"
    metrics.observe(
        "scheduler_framework_extension_point_duration_seconds",
        seconds,
        extension_point="Bind",
        status=status,
        profile=profile,
    )
    metrics.count("berth_bindings_total", code=str(answer.status) if answer.status else "none")
    metrics.observe("berth_binding_duration_seconds", seconds)


def show(metrics: Meter, ledger: Ledger, *, on_wire: int) -> None:
    """Set what is shown of how things stand."""
    metrics.set("berth_reservations", len(ledger.reservations))
    metrics.set("berth_bindings_in_flight", on_wire)
    metrics.set("scheduler_cache_size", ledger.snapshot.node_count, type="nodes")
    metrics.set("scheduler_cache_size", ledger.snapshot.pod_count, type="pods")
    metrics.set("scheduler_cache_size", len(ledger.reservations), type="assumed_pods")


def clear(metrics: Meter) -> None:
    """Take it back: somebody else leads, or nobody."""
    for name in GAUGES:
        metrics.clear(name)
