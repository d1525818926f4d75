"""The dashboard of the scorers: the lag of each, and the time that plugins and HTTP extenders take, and shadows."""

from __future__ import annotations

from typing import Final

from panels import (
    A_PROCESS,
    GREEN,
    NONE_IS_RIGHT,
    PROCESS,
    RED,
    YELLOW,
    Dashboard,
    Panel,
    Single,
    age,
    gauge,
    increase,
    mean,
    number,
    or_none,
    quantile,
    quantiles,
    rate,
)

SCORERS: Final = Dashboard(
    uid="berth-scorers",
    title="berth: scorers and plugins",
    singles=(
        Single(
            title="Scorers",
            about="Processes that rank pods; 0: nothing is ranked.",
            unit="none",
            query=number("berth_held_pods"),
            steps={0: RED, 1: GREEN},
        ),
        Single(
            title="Pods a second",
            about="Pods ranked per second.",
            unit="short",
            query=rate("scheduler_scheduling_algorithm_duration_seconds_count"),
        ),
        Single(
            title="Ranking, p99",
            about="The time to filter and score all nodes with all plugins, 99th percentile.",
            unit="s",
            query=quantile(0.99, "scheduler_scheduling_algorithm_duration_seconds"),
        ),
        Single(
            title="Pods held by scorers",
            about="PENDING messages received and not answered yet; at most 64 in each scorer.",
            unit="short",
            query=gauge("berth_held_pods"),
        ),
        Single(
            title="Oldest mirror",
            about="Time since the oldest view was last complete. Each kind is confirmed at least every 30 s.",
            unit="s",
            query=age("berth_mirror_complete_timestamp_seconds"),
            steps={0: GREEN, 60: YELLOW, 120: RED},
        ),
        Single(
            title="Extender errors in an hour",
            about="Calls of HTTP extenders that failed.",
            unit="short",
            query=or_none(increase("berth_extender_duration_seconds_count", over="1h", match='result="error"')),
            steps=NONE_IS_RIGHT,
        ),
    ),
    rows={
        "Lag of each scorer": (
            Panel(
                title="Mirror",
                about="Time since the scorer's view was last complete. Each kind is confirmed at least every 30 s.",
                unit="s",
                queries={A_PROCESS: age("berth_mirror_complete_timestamp_seconds", *PROCESS)},
            ),
            Panel(
                title="Age of the view, 99th percentile",
                about="The age of the view with which pods were ranked.",
                unit="s",
                queries={A_PROCESS: quantile(0.99, "berth_view_age_seconds", *PROCESS)},
            ),
            Panel(
                title="Held before ranking, 99th percentile",
                about="Time that a pod waits for its turn, or for changes that the view has not received yet.",
                unit="s",
                queries={A_PROCESS: quantile(0.99, "berth_hold_duration_seconds", *PROCESS)},
            ),
            Panel(
                title="Plans of groups, 99th percentile",
                about="Time from the begin of a group's plan to its end, with what other pods took meanwhile.",
                unit="s",
                queries={A_PROCESS: quantile(0.99, "berth_group_plan_duration_seconds", *PROCESS)},
            ),
            Panel(
                title="Pods held",
                about="PENDING messages received and not answered yet; at most 64.",
                unit="short",
                queries={A_PROCESS: gauge("berth_held_pods", *PROCESS)},
            ),
            Panel(
                title="Proposals counted",
                about="The scorer's own and those of other scorers. All scorers that keep up show the same number.",
                unit="short",
                queries={A_PROCESS: gauge("berth_proposals", *PROCESS)},
            ),
            Panel(
                title="Mirror by kind",
                about="Time since each kind was last complete. The largest is the kind that lags.",
                unit="s",
                queries={"{{kind}}": age("berth_mirror_complete_timestamp_seconds", "kind")},
            ),
        ),
        "Ranking": (
            Panel(
                title="Pods ranked",
                about="By scorer. All scorers consume from one stream, so a faster scorer ranks more pods.",
                unit="cps",
                queries={A_PROCESS: rate("scheduler_scheduling_algorithm_duration_seconds_count", *PROCESS)},
            ),
            Panel(
                title="Ranking one pod",
                about="The time to filter and score all nodes with all plugins.",
                unit="s",
                queries=quantiles("scheduler_scheduling_algorithm_duration_seconds"),
            ),
            Panel(
                title="Objects in the view",
                about="The largest number in any process.",
                unit="short",
                queries={"{{type}}": gauge("scheduler_cache_size", "type", how="max")},
            ),
        ),
        "Plugins": (
            Panel(
                title="By extension point, mean per pod",
                about="Extension points run one after another, so their times add up. Bind is the Binding request.",
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
                about="The slowest one percent takes longer than this.",
                unit="s",
                queries={
                    "{{extension_point}}": quantile(
                        0.99, "scheduler_framework_extension_point_duration_seconds", "extension_point"
                    )
                },
            ),
            Panel(
                title="By plugin, mean per pod",
                about="Measured for every eleventh pod, and only for plugins that ran: cached results are not counted.",
                unit="s",
                queries={
                    "{{plugin}} {{extension_point}}": mean(
                        "scheduler_plugin_execution_duration_seconds", "plugin", "extension_point"
                    )
                },
                stacked=True,
            ),
        ),
        "HTTP extenders": (
            Panel(
                title="Calls",
                about="By scorers and the binder. An error of an extender that is not ignorable ends the attempt.",
                unit="reqps",
                queries={
                    "{{extender}} {{verb}} {{result}}": rate(
                        "berth_extender_duration_seconds_count", "extender", "verb", "result"
                    )
                },
            ),
            Panel(
                title="A call, mean",
                about="Includes the wait for a turn, since an extender has a few calls at once.",
                unit="s",
                queries={"{{extender}} {{verb}}": mean("berth_extender_duration_seconds", "extender", "verb")},
            ),
            Panel(
                title="A call, 99th percentile",
                about="Compare it with the extender's httpTimeout, after which a call is an error.",
                unit="s",
                queries={
                    "{{extender}} {{verb}}": quantile(0.99, "berth_extender_duration_seconds", "extender", "verb")
                },
            ),
        ),
        "Shadows": (
            Panel(
                title="Pods compared",
                about="By how the shadows' rankings compare with the live ones; equal: the same node is best.",
                unit="cps",
                queries={"{{result}}": rate("berth_shadow_comparisons_total", "result")},
                stacked=True,
            ),
            Panel(
                title="Points apart, 90th percentile",
                about="By how much a shadow's best node is above the live one, by the shadow's own scores.",
                unit="short",
                queries={"{{profile}}": quantile(0.9, "berth_shadow_points_apart", "profile")},
            ),
            Panel(
                title="Not compared",
                about="Live rankings that shadows skipped, by reason; busy: more came than a shadow ranks.",
                unit="cps",
                queries={"{{reason}}": rate("berth_shadow_skipped_total", "reason")},
                stacked=True,
            ),
            Panel(
                title="Ranking one pod, in a shadow",
                about="The time to filter and score all nodes with all plugins of a shadow's configuration.",
                unit="s",
                queries=quantiles("berth_shadow_ranking_duration_seconds"),
            ),
        ),
    },
)
