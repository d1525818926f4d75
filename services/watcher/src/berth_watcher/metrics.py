"""The watcher's gauges, which only the leader sets. ``berth.observability.metrics`` documents them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berth.observability.metrics import GaugeName, Meter
from berth_watcher.events import Service

GAUGES: Final[tuple[GaugeName, ...]] = (
    "scheduler_pending_pods",
    "scheduler_unschedulable_pods",
    "berth_mirror_objects",
    "berth_mirror_unsettled_keys",
    "berth_mirror_reduced_objects",
    "berth_in_flight_pods",
    "berth_window_pods",
    "berth_stalled_pods",
)  # only the leader has values


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    pending: Mapping[str, int]  # pods by kube-scheduler's queue
    queues: Mapping[str, int]  # pods by the queue that people see
    # Rejected pods not tried again since, by plugin and profile: once per plugin, and once for all names that are not
    # plugins of the profile.
    unschedulable: Mapping[tuple[str, str], int]
    incoming: Mapping[tuple[str, str], int]  # pods that entered a queue in this term, by queue and event
    in_flight: Mapping[str, int]  # used slots of the window, by profile
    window_size: Mapping[str, int]
    groups: Mapping[str, int]  # PodGroups with pods that wait, by what they do
    is_draining: bool
    # Pods in flight that wait for a service for longer than an attempt takes, by profile and service.
    stalled: Mapping[tuple[str, Service], int]
    objects: Mapping[str, int]  # by kind
    unsettled_keys: int  # keys of `cluster` whose latest change is not stored
    # Objects too large for the bus or undecodable, in cluster in a smaller form or not at all, by kind.
    reduced: Mapping[str, int]


def stats_of(figures: Figures) -> dict[str, object]:
    """The leader's queues and stalled pods, as ``nats micro stats`` and ``berth top`` show them."""
    return {
        "queues": dict(figures.queues),
        "in_flight": dict(figures.in_flight),
        "window": dict(figures.window_size),
        "groups": dict(figures.groups),
        "draining": figures.is_draining,
        "stalled": [
            {"profile": profile, "waits_for": service, "pods": pods}
            for (profile, service), pods in figures.stalled.items()
            if pods
        ],
    }


class Gauges:
    """The gauges of one term; ``clear`` them when it ends."""

    def __init__(self, metrics: Meter) -> None:
        self._metrics = metrics
        self._shown_plugins: set[tuple[str, str]] = set()
        self._counted: Counter[tuple[str, str]] = Counter()

    def update(self, figures: Figures) -> None:
        """Set the metrics, and count the pods that entered a queue since the last update."""
        metrics = self._metrics
        for queue, pods in figures.pending.items():
            metrics.set("scheduler_pending_pods", pods, queue=queue)
        for kind, objects in figures.objects.items():
            metrics.set("berth_mirror_objects", objects, kind=kind)
            metrics.set("berth_mirror_reduced_objects", figures.reduced.get(kind, 0), kind=kind)
        self._set_unschedulable(figures)
        self._count_incoming(figures)
        metrics.set("berth_mirror_unsettled_keys", figures.unsettled_keys)
        for profile, pods in figures.in_flight.items():
            metrics.set("berth_in_flight_pods", pods, profile=profile)
        for profile, slots in figures.window_size.items():
            metrics.set("berth_window_pods", slots, profile=profile)
        for (profile, service), pods in figures.stalled.items():
            metrics.set("berth_stalled_pods", pods, profile=profile, waits_for=service)

    def clear(self) -> None:
        """Remove the gauges: the next leader sets its own."""
        for name in GAUGES:
            self._metrics.clear(name)

    def _set_unschedulable(self, figures: Figures) -> None:
        for plugin, profile in self._shown_plugins - figures.unschedulable.keys():
            self._metrics.set("scheduler_unschedulable_pods", 0, plugin=plugin, profile=profile)
        for (plugin, profile), pods in figures.unschedulable.items():
            self._metrics.set("scheduler_unschedulable_pods", pods, plugin=plugin, profile=profile)
        self._shown_plugins |= figures.unschedulable.keys()

    def _count_incoming(self, figures: Figures) -> None:
        for (queue, event), pods in figures.incoming.items():
            more = pods - self._counted[queue, event]
            if more:
                self._metrics.count("scheduler_queue_incoming_pods_total", more, queue=queue, event=event)
                self._counted[queue, event] = pods
