"""What a scorer counts (names and meanings: ``berth.service.meter``)."""

from __future__ import annotations

from typing import Final

from berth.api.messages import Ranked
from berth.framework.profile import Profile
from berth.framework.timing import Timing
from berth.service.meter import Meter
from berth.service.schedulerwords import point_of, status_of
from scorer.view import View

PLUGINS_EVERY: Final = 11
"""Of so many pods one has its plugins timed, as kube-scheduler does with a tenth of them: it takes 37 µs, which is 10 %
of a cycle at 5,000 nodes. A prime, so that pods of kinds that take turns are all met."""


def count_ranking(metrics: Meter, message: Ranked, profile: Profile, timing: Timing, seconds: float) -> None:
    """Count a ranking, and what it took, whole and by extension point."""
    metrics.observe("scheduler_scheduling_algorithm_duration_seconds", seconds)
    if message.view_age_seconds is not None:
        metrics.observe("berth_view_age_seconds", message.view_age_seconds)
    if profile.post_filters and "PostFilter" in timing.points:
        metrics.count("scheduler_preemption_attempts_total")
    for point, took in timing.points.items():
        metrics.observe(
            "scheduler_framework_extension_point_duration_seconds",
            took.seconds,
            extension_point=point_of(point),
            status=status_of(took.code),
            profile=message.profile,
        )
    for (plugin, point), took in timing.plugins.items():
        metrics.observe(
            "scheduler_plugin_execution_duration_seconds",
            took.seconds,
            plugin=plugin,
            extension_point=point_of(point),
            status=status_of(took.code),
        )


def show(metrics: Meter, view: View, *, held: int) -> None:
    """Set what is shown of how things stand."""
    metrics.set("berth_held_pods", held)
    metrics.set("berth_proposals", len(view.proposals))
    metrics.set("scheduler_cache_size", view.snapshot.node_count, type="nodes")
    metrics.set("scheduler_cache_size", view.snapshot.pod_count, type="pods")
    metrics.set("scheduler_cache_size", len(view.proposals), type="assumed_pods")
    for kind, time in view.complete.items():
        metrics.set("berth_mirror_complete_timestamp_seconds", time.timestamp(), kind=kind)
