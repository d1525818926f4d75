"""The scorer's metrics: rankings by extension point and plugin, held messages, and the view."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from berth.framework.plugincalls import Timing
from berth.framework.profile import Profile
from berth.messages.attempts import Ranked
from berth.observability.metrics import Meter
from berth.ranking.view import View

LABELS: Final[Mapping[str, str]] = {
    "NormalizeScore": "ScoreExtensionNormalize",
    "AddPod": "PreFilterExtensionAddPod",
    "RemovePod": "PreFilterExtensionRemovePod",
}  # kube-scheduler's, where they differ from the extension points


def count_ranking(metrics: Meter, message: Ranked, profile: Profile, timing: Timing, seconds: float) -> None:
    metrics.observe("scheduler_scheduling_algorithm_duration_seconds", seconds)
    if message.view_age_seconds is not None:
        metrics.observe("berth_view_age_seconds", message.view_age_seconds)
    if profile.post_filters and "PostFilter" in timing.points:
        metrics.count("scheduler_preemption_attempts_total")
    for point, took in timing.points.items():
        metrics.observe(
            "scheduler_framework_extension_point_duration_seconds",
            took.seconds,
            extension_point=LABELS.get(point, point),
            status=took.code.label,
            profile=message.profile,
        )
    for (plugin, point), took in timing.plugins.items():
        metrics.observe(
            "scheduler_plugin_execution_duration_seconds",
            took.seconds,
            plugin=plugin,
            extension_point=LABELS.get(point, point),
            status=took.code.label,
        )


def set_gauges(metrics: Meter, view: View, *, held: int) -> None:
    metrics.set("berth_held_pods", held)
    metrics.set("berth_proposals", len(view.proposals))
    metrics.set("scheduler_cache_size", view.snapshot.node_count, type="nodes")
    metrics.set("scheduler_cache_size", view.snapshot.pod_count, type="pods")
    metrics.set("scheduler_cache_size", len(view.proposals), type="assumed_pods")
    for kind, complete_at in view.complete.items():
        metrics.set("berth_mirror_complete_timestamp_seconds", complete_at.timestamp(), kind=kind)
