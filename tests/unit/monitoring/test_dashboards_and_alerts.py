"""The files that Grafana and Prometheus load: dashboards, provisioning, alerts, and the alerts' runbooks.

Grafana does not run here. These tests check what it requires of a file.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from berth.observability.metrics import METRICS

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "deploy/compose/grafana"
RULES = ROOT / "deploy/compose/prometheus/rules/berth.yml"
ALERT_TESTS = ROOT / "tests/data/prometheus/alerts.test.yml"
UNITS = {"s", "cps", "reqps", "short", "none", "percentunit", "bytes"}
"""The Grafana unit ids that berth's dashboards use."""
FOREIGN = {"process_cpu_seconds_total", "process_resident_memory_bytes"}
ALERTS = {
    "BerthQueueGrowing",
    "BerthBinderNotLeading",
    "BerthWatcherNotLeading",
    "BerthSamplesStale",
    "BerthSamplesMissing",
    "BerthDeadLetters",
    "BerthForeignBindings",
    "BerthDeviceConflicts",
    "BerthGroupPartial",
    "BerthConflictsHigh",
    "BerthConfigurationMismatch",
    "BerthPodsStalled",
    "BerthBinderStuck",
    "BerthWatcherStuck",
    "BerthMirrorStale",
    "BerthStoreFull",
}
METRIC = re.compile(r"\b(?:berth|scheduler|rest_client|leader_election|process)_[a-z_]+\b")

dashboards = [
    pytest.param(json.loads(path.read_text()), id=path.stem) for path in sorted((GRAFANA / "dashboards").glob("*.json"))
]


def graphs(dashboard: dict) -> list[dict]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def alerts() -> Iterator[dict]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from group["rules"]


def metrics_of(expression: str) -> set[str]:
    """The metric names in a query, without the suffixes of a histogram's series."""
    found = METRIC.findall(re.sub(r"by \([^)]*\)", "", expression))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


# Dashboards


def test_there_are_three_dashboards_each_in_a_file_of_its_uid():
    found = {path.stem: json.loads(path.read_text())["uid"] for path in (GRAFANA / "dashboards").glob("*.json")}
    assert found == {uid: uid for uid in ("berth", "berth-scorers", "berth-bandwidth")}


@pytest.mark.slow
def test_the_files_are_what_the_generator_writes(tmp_path):
    subprocess.run([sys.executable, GRAFANA / "generate", tmp_path], check=True)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written == {path.name: path.read_text() for path in (GRAFANA / "dashboards").iterdir()}, (
        "run python deploy/compose/grafana/generate"
    )


@pytest.mark.parametrize("dashboard", dashboards)
def test_a_dashboard_has_variables_for_datasource_and_job(dashboard):
    assert dashboard["schemaVersion"] >= 36
    assert dashboard["title"]
    datasource, job = dashboard["templating"]["list"]
    assert (datasource["name"], datasource["type"], datasource["query"]) == ("datasource", "datasource", "prometheus")
    assert (job["name"], job["type"], job["datasource"]["uid"]) == ("job", "query", "${datasource}")
    assert metrics_of(job["definition"]) <= METRICS.keys()


@pytest.mark.parametrize("dashboard", dashboards)
def test_every_panel_has_a_description_a_unit_and_the_chosen_datasource(dashboard):
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    titles = [panel["title"] for panel in graphs(dashboard)]
    assert len(set(titles)) == len(titles)
    for panel in graphs(dashboard):
        assert panel["title"]
        assert panel["description"].endswith((".", "`."))
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)


@pytest.mark.parametrize("dashboard", dashboards)
def test_a_dashboard_begins_with_a_row_of_single_numbers(dashboard):
    singles = [panel for panel in dashboard["panels"] if panel["type"] == "stat"]
    assert dashboard["panels"][: len(singles)] == singles
    assert {panel["gridPos"]["y"] for panel in singles} == {0}
    assert sum(panel["gridPos"]["w"] for panel in singles) == 24
    for panel in singles:
        assert len(panel["targets"]) == 1
        steps = [step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]]
        assert steps[0] is None
        assert steps[1:] == sorted(steps[1:])


@pytest.mark.parametrize("dashboard", dashboards)
def test_every_query_uses_existing_metrics_of_berths_jobs_only(dashboard):
    for panel in graphs(dashboard):
        for target in panel["targets"]:
            expression = target["expr"]
            names = metrics_of(expression)
            assert names
            assert names <= METRICS.keys() | FOREIGN, panel["title"]
            assert expression.count('job=~"$job"') == len(METRIC.findall(re.sub(r"by \([^)]*\)", "", expression)))
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = {label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")}
            assert labels <= grouped, "a legend can only use labels that the query keeps"


def test_everything_whose_duration_is_measured_is_on_a_dashboard():
    panels = [
        panel for path in (GRAFANA / "dashboards").glob("*.json") for panel in graphs(json.loads(path.read_text()))
    ]
    shown = {name for panel in panels for target in panel["targets"] for name in metrics_of(target["expr"])}
    assert {name for name, metric in METRICS.items() if metric.kind == "histogram"} - shown == set()


@pytest.mark.parametrize("dashboard", dashboards)
def test_no_panels_overlap(dashboard):
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


def test_grafana_is_provisioned_with_dashboards_and_datasource():
    [provider] = yaml.safe_load((GRAFANA / "provisioning/dashboards/berth.yaml").read_text())["providers"]
    [source] = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert (provider["type"], source["type"], source["isDefault"]) == ("file", "prometheus", True)
    volumes = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["grafana"]["volumes"]
    folder = provider["options"]["path"]
    assert any(_mounts(volume, "deploy/compose/grafana", folder) for volume in volumes)


def _mounts(volume: str, source: str, folder: str) -> bool:
    """Whether a volume mounts the folder of dashboards at the provider's path."""
    given, target = volume.removeprefix("./").split(":")[:2]
    return given.startswith(source) and folder == f"{target}{(source + '/dashboards').removeprefix(given)}"


# Alerts


def test_the_alerts_are_the_expected_ones():
    assert {alert["alert"] for alert in alerts()} == ALERTS


@pytest.mark.parametrize("alert", [pytest.param(alert, id=alert["alert"]) for alert in alerts()])
def test_an_alert_uses_existing_metrics_and_links_to_its_runbook(alert):
    assert metrics_of(alert["expr"]) <= METRICS.keys()
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert alert["annotations"]["summary"].endswith(".")
    link = alert["annotations"]["runbook_url"].removeprefix("{{ $externalLabels.berth_repository }}")
    page = (ROOT / link).read_text()
    assert link == f"docs/runbooks/{alert['alert']}.md"
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert page.startswith(f"# {alert['alert']}\n")
    assert headings == ["What it means", "What it does to pods", "Where to look", "What to do"]


def test_every_runbook_has_an_alert():
    assert {path.stem for path in (ROOT / "docs/runbooks").glob("*.md")} == ALERTS


@pytest.mark.slow
@pytest.mark.requires("prometheus")
def test_each_alert_fires_only_when_it_should():
    done = subprocess.run(["promtool", "test", "rules", ALERT_TESTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    cases = [case for test in yaml.safe_load(ALERT_TESTS.read_text())["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == ALERTS
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == ALERTS


# Documentation


def test_every_metric_is_documented_with_its_labels():
    page = (ROOT / "docs/metrics.md").read_text().partition("\n## Alerts\n")[0]
    rows = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(\w+)` \| \w+ \| ([^|]*) \|", page, re.MULTILINE)
    }
    assert rows == {name: set(metric.labels) for name, metric in METRICS.items()}


def test_the_runbooks_name_existing_commands():
    known = {"why", "trace", "top", "groups", "dead", "bus apply", "config check", "config show", "simulate"}
    for page in (ROOT / "docs/runbooks").glob("*.md"):
        for command in re.findall(r"^berth (.*)$", page.read_text(), re.MULTILINE):
            assert any(command.startswith(name) for name in known), f"{page.name}: berth {command}"
