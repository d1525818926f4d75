"""What the watcher counts (names and meanings: ``berth.service.meter``)."""

from __future__ import annotations

from collections import Counter
from typing import Final

from berth.api.messages import Decision
from berth.bus.port import Stored
from berth.bus.topology import DECISIONS, PENDING
from berth.service.meter import GaugeName, Meter
from berth.service.schedulerwords import result_of
from watcher.dispatcher import Figures
from watcher.effects import CountScheduled, PublishPending

MANY_ATTEMPTS: Final = 15
"""From here on attempts are not told apart in labels."""
GAUGES: Final[tuple[GaugeName, ...]] = (
    "scheduler_pending_pods",
    "scheduler_unschedulable_pods",
    "berth_mirror_objects",
    "berth_mirror_unsettled_keys",
    "berth_in_flight_pods",
    "berth_window_pods",
)
"""What only the one who leads can say."""


def count_published(metrics: Meter, published: PublishPending) -> None:
    """Count an attempt that PENDING has stored, and how long its pod had waited for its turn."""
    metrics.count("berth_messages_published_total", stream=PENDING)
    if published.waited_seconds is not None:
        metrics.observe("berth_stage_duration_seconds", published.waited_seconds, stage="queue")


def count_scheduled(metrics: Meter, scheduled: CountScheduled) -> None:
    """Count a pod that is where it wanted to be."""
    attempts = str(scheduled.attempts) if scheduled.attempts < MANY_ATTEMPTS else f"{MANY_ATTEMPTS}+"
    metrics.observe("scheduler_pod_scheduling_sli_duration_seconds", scheduled.seconds, attempts=attempts)
    metrics.observe("scheduler_pod_scheduling_attempts", scheduled.attempts)


def count_decision(metrics: Meter, said: Decision, stored: Stored) -> None:
    """Count how long an attempt took, as told by the times at which NATS stored its messages: one clock for all."""
    if not said.outcome.final or said.asked_at is None:
        return
    result = result_of(said.outcome)
    if result is not None:
        seconds = (stored.time - said.asked_at).total_seconds()
        metrics.observe("scheduler_scheduling_attempt_duration_seconds", seconds, result=result, profile=said.profile)
    if said.ranked_at is not None:
        ranking, committing = said.ranked_at - said.asked_at, stored.time - said.ranked_at
        metrics.observe("berth_stage_duration_seconds", ranking.total_seconds(), stage="rank")
        metrics.observe("berth_stage_duration_seconds", committing.total_seconds(), stage="commit")


def count_heard(metrics: Meter, decisions: int) -> None:
    """Count messages read from DECISIONS."""
    metrics.count("berth_messages_received_total", decisions, stream=DECISIONS)


class Gauges:
    """What one leadership shows of how things stand; ``clear`` it when it is over."""

    def __init__(self, metrics: Meter) -> None:
        self._metrics = metrics
        self._refusing: set[tuple[str, str]] = set()
        self._entered: Counter[tuple[str, str]] = Counter()

    def show(self, figures: Figures) -> None:
        """Set everything, and count who came to a queue since the last time."""
        metrics = self._metrics
        for queue, pods in figures.pending.items():
            metrics.set("scheduler_pending_pods", pods, queue=queue)
        for kind, objects in figures.objects.items():
            metrics.set("berth_mirror_objects", objects, kind=kind)
        self._show_refused(figures)
        self._count_entered(figures)
        metrics.set("berth_mirror_unsettled_keys", figures.mirror_behind)
        metrics.set("berth_in_flight_pods", figures.in_flight)
        metrics.set("berth_window_pods", figures.window)

    def clear(self) -> None:
        """Somebody else leads, or nobody: what this process says would be old, and counted twice."""
        for name in GAUGES:
            self._metrics.clear(name)

    def _show_refused(self, figures: Figures) -> None:
        for plugin, profile in self._refusing - figures.refused.keys():
            self._metrics.set("scheduler_unschedulable_pods", 0, plugin=plugin, profile=profile)
        for (plugin, profile), pods in figures.refused.items():
            self._metrics.set("scheduler_unschedulable_pods", pods, plugin=plugin, profile=profile)
        self._refusing = set(figures.refused)

    def _count_entered(self, figures: Figures) -> None:
        for (queue, event), pods in figures.entered.items():
            more = pods - self._entered[queue, event]
            if more:
                self._metrics.count("scheduler_queue_incoming_pods_total", more, queue=queue, event=event)
                self._entered[queue, event] = pods
