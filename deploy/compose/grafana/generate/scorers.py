"""How each scorer keeps up, and where the time of a ranking goes."""

from __future__ import annotations

from typing import Final

from panels import A_PROCESS, PROCESS, Dashboard, Panel, age, gauge, mean, quantile, quantiles, rate

SCORERS: Final = Dashboard(
    uid="berth-scorers",
    title="berth: scorers and plugins",
    rows={
        "Lag of each scorer": (
            Panel(
                title="Mirror",
                about="How long ago a scorer last knew every kind completely. A quiet kind is told of every 30 s.",
                unit="s",
                queries={A_PROCESS: age("berth_mirror_complete_timestamp_seconds", *PROCESS)},
            ),
            Panel(
                title="Age of the view, 99th percentile",
                about="Of what pods were ranked on.",
                unit="s",
                queries={A_PROCESS: quantile(0.99, "berth_view_age_seconds", *PROCESS)},
            ),
            Panel(
                title="Held before ranking, 99th percentile",
                about="For its turn, or for changes that the view had yet to reach.",
                unit="s",
                queries={A_PROCESS: quantile(0.99, "berth_hold_duration_seconds", *PROCESS)},
            ),
            Panel(
                title="Pods in hand",
                about="Taken and not answered; at most 64.",
                unit="short",
                queries={A_PROCESS: gauge("berth_held_pods", *PROCESS)},
            ),
            Panel(
                title="Proposals counted",
                about="Own and peers': the same at each scorer that keeps up.",
                unit="short",
                queries={A_PROCESS: gauge("berth_proposals", *PROCESS)},
            ),
            Panel(
                title="Mirror by kind",
                about="The kind whose watermark is the oldest is the one to look for.",
                unit="s",
                queries={"{{kind}}": age("berth_mirror_complete_timestamp_seconds", "kind")},
            ),
        ),
        "Ranking": (
            Panel(
                title="Pods ranked",
                about="By scorer: they take from one queue, so that who is faster takes more.",
                unit="cps",
                queries={A_PROCESS: rate("scheduler_scheduling_algorithm_duration_seconds_count", *PROCESS)},
            ),
            Panel(
                title="Ranking one pod",
                about="All nodes, all plugins.",
                unit="s",
                queries=quantiles("scheduler_scheduling_algorithm_duration_seconds"),
            ),
            Panel(
                title="What is in the view",
                about="The most that any process counts.",
                unit="short",
                queries={"{{type}}": gauge("scheduler_cache_size", "type", how="max")},
            ),
        ),
        "Plugins": (
            Panel(
                title="By extension point, mean of a pod",
                about="Points follow each other, so that they add up. Bind is the API server's answer.",
                unit="s",
                queries={
                    "{{extension_point}}": mean(
                        "scheduler_framework_extension_point_duration_seconds", "extension_point"
                    )
                },
                stacked=True,
            ),
            Panel(
                title="By extension point, 99th percentile",
                about="The same, of the slow ones.",
                unit="s",
                queries={
                    "{{extension_point}}": quantile(
                        0.99, "scheduler_framework_extension_point_duration_seconds", "extension_point"
                    )
                },
            ),
            Panel(
                title="By plugin, mean of a pod",
                about="Of every eleventh pod, and of plugins that were asked: what is remembered costs nothing.",
                unit="s",
                queries={
                    "{{plugin}} {{extension_point}}": mean(
                        "scheduler_plugin_execution_duration_seconds", "plugin", "extension_point"
                    )
                },
                stacked=True,
            ),
        ),
    },
)
