"""What NetworkTraffic knows of nodes' links."""

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
                about="By question; beyond the maximum NetworkTraffic takes a node's bandwidth for unknown.",
                unit="s",
                queries={
                    "{{query}}": gauge("berth_bandwidth_age_seconds", "query", how="min"),
                    "{{query}} maximum": gauge("berth_bandwidth_maximum_age_seconds", "query", how="max"),
                },
            ),
            Panel(
                title="Nodes by state",
                about="known: with a sample; missing: without; double: several exporters; stranger: of no node.",
                unit="short",
                queries={"{{query}} {{state}}": gauge("berth_bandwidth_nodes", "query", "state", how="max")},
            ),
            Panel(
                title="Rounds of questions by result",
                about="What Prometheus made of the collector's questions.",
                unit="cps",
                queries={"{{query}} {{result}}": rate("berth_prometheus_rounds_total", "query", "result")},
            ),
        ),
    },
)
