"""The dashboard of the bandwidth samples that NetworkTraffic scores with."""

from __future__ import annotations

from typing import Final

from panels import Dashboard, Panel, gauge, rate

BANDWIDTH: Final = Dashboard(
    uid="berth-bandwidth",
    title="berth: bandwidth",
    rows={
        "Samples": (
            Panel(
                title="Age of the newest sample",
                about="By query. Beyond the maximum, NetworkTraffic treats a node's bandwidth as unknown.",
                unit="s",
                queries={
                    "{{query}}": gauge("berth_bandwidth_age_seconds", "query", how="min"),
                    "{{query}} maximum": gauge("berth_bandwidth_maximum_age_seconds", "query", how="max"),
                },
            ),
            Panel(
                title="Nodes by state",
                about="known: a sample; missing: no sample; duplicate: several series; unmatched: no node.",
                unit="short",
                queries={"{{query}} {{state}}": gauge("berth_bandwidth_nodes", "query", "state", how="max")},
            ),
            Panel(
                title="Polls of Prometheus by result",
                about="The collector's polls of Prometheus, by query and result.",
                unit="cps",
                queries={"{{query}} {{result}}": rate("berth_prometheus_rounds_total", "query", "result")},
            ),
        ),
    },
)
