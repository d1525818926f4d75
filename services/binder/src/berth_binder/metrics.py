"""The binder's metrics: Bindings, Decisions, foreign Bindings, and the leader's gauges.

Names and meanings are in ``berth.observability.metrics``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from berth.lifecycle.process import Process
from berth.messages.attempts import Decision, Outcome
from berth.observability.logging import get_logger
from berth.observability.metrics import GaugeName, Meter, result_of
from berth_binder.cache import Cache, ForeignBindings
from berth_binder.events import BindingAnswer

log = get_logger()

# Interval between updates of the gauges; Prometheus scrapes less often.
GAUGES_SECONDS: Final = 1.0
# Minimum interval between warnings about foreign Bindings.
FOREIGN_SECONDS: Final = 60.0
# Set by the leader only.
GAUGES: Final[tuple[GaugeName, ...]] = ("berth_reservations", "berth_bindings_in_flight", "scheduler_cache_size")


def count_binding(metrics: Meter, answer: BindingAnswer, seconds: float, *, profile: str) -> None:
    """Count the answer to a Binding and its duration, which is also the duration of the extension point Bind."""
    metrics.observe(
        "scheduler_framework_extension_point_duration_seconds",
        seconds,
        extension_point="Bind",
        status="Success" if answer.succeeded else "Error",
        profile=profile,
    )
    metrics.count("berth_bindings_total", code=str(answer.status) if answer.status else "none")
    metrics.observe("berth_binding_duration_seconds", seconds)


def count_decision(metrics: Meter, decision: Decision) -> None:
    """Count a stored Decision; the outcomes of kube-scheduler also under its metric names."""
    metrics.count("berth_decisions_total", outcome=decision.outcome.value, profile=decision.profile)
    metrics.count("berth_messages_published_total", stream="DECISIONS")
    if decision.outcome is Outcome.CONFLICT:
        metrics.count("berth_conflicts_total", reason=decision.reason)
    if decision.preemption is not None and decision.preemption.victims:
        metrics.observe("scheduler_preemption_victims", len(decision.preemption.victims))
    result = result_of(decision.outcome)
    if result is not None:
        metrics.count("scheduler_schedule_attempts_total", result=result, profile=decision.profile)


async def report_foreign_bindings(seen: ForeignBindings, profiles: Iterable[str], process: Process) -> None:
    """Count Bindings of other clients from now on, and warn at most once a minute.

    Only a warning, because a tenant may have the right to bind the pods of a namespace (docs/adr/0027).
    """
    counted, warned, warned_at = seen.counts.copy(), seen.counts.total(), -FOREIGN_SECONDS
    for profile in profiles:
        process.metrics.count("berth_foreign_bindings_total", 0, profile=profile)
    while True:
        for profile, more in (seen.counts - counted).items():
            process.metrics.count("berth_foreign_bindings_total", more, profile=profile)
        counted, now = seen.counts.copy(), process.clock.now()
        if counted.total() > warned and now - warned_at >= FOREIGN_SECONDS:
            pod, node = seen.last
            log.warning(
                "another client binds pods of berth's profiles: both may use the same free resources",
                pods=counted.total() - warned,
                pod=pod,
                node=node,
            )
            warned, warned_at = counted.total(), now
        await process.clock.sleep(GAUGES_SECONDS)


def set_gauges(metrics: Meter, cache: Cache, *, in_flight: int) -> None:
    metrics.set("berth_reservations", len(cache.assumed_pods))
    metrics.set("berth_bindings_in_flight", in_flight)
    metrics.set("scheduler_cache_size", cache.snapshot.node_count, type="nodes")
    metrics.set("scheduler_cache_size", cache.snapshot.pod_count, type="pods")
    metrics.set("scheduler_cache_size", len(cache.assumed_pods), type="assumed_pods")


def clear_gauges(metrics: Meter) -> None:
    """Clear the gauges at the end of a leadership, because this binder no longer knows them."""
    for name in GAUGES:
        metrics.clear(name)
