"""Renders a dashboard as the JSON that Grafana loads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from panels import Dashboard, Panel, Single

SCHEMA: Final = 39
"""The schema version of Grafana 10.4. Later versions migrate it."""
COLUMNS: Final = 24
WIDTH: Final = 8
HEIGHT: Final = 8
SINGLE_HEIGHT: Final = 4
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
Json = dict[str, Any]


def rendered(dashboard: Dashboard) -> Json:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["berth"],
        "schemaVersion": SCHEMA,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [{"type": "dashboards", "tags": ["berth"], "title": "berth", "asDropdown": False, "keepTime": True}],
        "templating": {"list": [_datasource(), _job()]},
        "panels": list(_panels(dashboard)),
    }


def _datasource() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}


def _job() -> Json:
    """The variable for the scrape jobs of berth's services, found by a metric, since the jobs may have any name."""
    query = "label_values(berth_main_loop_stalls_total, job)"
    return {
        "name": "job",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": "job"},
        "definition": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels(dashboard: Dashboard) -> Iterator[Json]:
    number, y = 1, SINGLE_HEIGHT
    width = COLUMNS // len(dashboard.singles)
    for index, single in enumerate(dashboard.singles):
        yield _single(single, number, _place(index * width, 0, width, SINGLE_HEIGHT))
        number += 1
    for heading, panels in dashboard.rows.items():
        yield {"id": number, "type": "row", "title": heading, "gridPos": _place(0, y, COLUMNS, 1), "panels": []}
        number, y = number + 1, y + 1
        for index, panel in enumerate(panels):
            column = index * WIDTH % COLUMNS
            yield _graph(panel, number, _place(column, y + index * WIDTH // COLUMNS * HEIGHT, WIDTH, HEIGHT))
            number += 1
        y += -(-len(panels) * WIDTH // COLUMNS) * HEIGHT


def _place(x: int, y: int, width: int, height: int) -> Json:
    return {"x": x, "y": y, "w": width, "h": height}


def _single(single: Single, number: int, place: Json) -> Json:
    steps = [
        {"value": None, "color": "text"},
        *({"value": value, "color": each} for value, each in single.steps.items()),
    ]
    reduced = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    return {
        "id": number,
        "type": "stat",
        "title": single.title,
        "description": single.about,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {"unit": single.unit, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": {"reduceOptions": reduced, "colorMode": "value", "graphMode": "area", "textMode": "value"},
        "targets": [_target(0, single.title.lower(), single.query)],
    }


def _graph(panel: Panel, number: int, place: Json) -> Json:
    stacking = {"mode": "normal" if panel.stacked else "none"}
    custom = {"fillOpacity": 20 if panel.stacked else 0, "stacking": stacking, "showPoints": "never"}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}, "legend": {"displayMode": "list"}},
        "targets": [_target(index, *query) for index, query in enumerate(panel.queries.items())],
    }


def _target(index: int, legend: str, expression: str) -> Json:
    reference = chr(ord("A") + index)
    return {"refId": reference, "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
