"""The dashboard of the samples that NetworkTraffic and plugins by measured load score with."""

from __future__ import annotations

from typing import Final

from panels import GREEN, NONE_IS_RIGHT, RED, YELLOW, Dashboard, Panel, Single, gauge, increase, or_none, rate

KNOWN: Final = 'state="known"'

BANDWIDTH: Final = Dashboard(
    uid="berth-bandwidth",
    title="berth: bandwidth and load",
    singles=(
        Single(
            title="Nodes measured",
            about="Nodes with a sample, of the query with the fewest.",
            unit="short",
            query=f"min({gauge('berth_sampled_nodes', 'query', how='max', match=KNOWN)})",
            steps={0: RED, 1: GREEN},
        ),
        Single(
            title="Nodes without a sample",
            about="Of the query with the most. Plugins treat their traffic or load as unknown.",
            unit="short",
            query=gauge("berth_sampled_nodes", how="max", match='state="missing"'),
            steps=NONE_IS_RIGHT,
        ),
        Single(
            title="Age of the samples",
            about="Age of the newest sample, of the query with the oldest.",
            unit="s",
            query=f"max({gauge('berth_sample_age_seconds', 'query', how='min')})",
            steps={0: GREEN, 60: YELLOW, 300: RED},
        ),
        Single(
            title="Failed polls in an hour",
            about="Polls that brought no samples.",
            unit="short",
            query=or_none(increase("berth_sample_rounds_total", over="1h", match='result!="ok"')),
            steps=NONE_IS_RIGHT,
        ),
    ),
    rows={
        "Samples": (
            Panel(
                title="Age of the newest sample",
                about="By query. Beyond the maximum, plugins treat a node's traffic or load as unknown.",
                unit="s",
                queries={
                    "{{query}}": gauge("berth_sample_age_seconds", "query", how="min"),
                    "{{query}} maximum": gauge("berth_sample_maximum_age_seconds", "query", how="max"),
                },
            ),
            Panel(
                title="Nodes by state",
                about="fresh: a sample in use; known: new; missing: none; duplicate: several; unmatched: no node.",
                unit="short",
                queries={"{{query}} {{state}}": gauge("berth_sampled_nodes", "query", "state", how="max")},
            ),
            Panel(
                title="Polls by result",
                about="The collector's polls of Prometheus or metrics.k8s.io, by query and result.",
                unit="cps",
                queries={"{{query}} {{result}}": rate("berth_sample_rounds_total", "query", "result")},
            ),
        ),
    },
)
