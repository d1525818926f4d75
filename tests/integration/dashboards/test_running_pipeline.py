"""Dashboards, alerts and common kube-scheduler queries on a running pipeline that a real Prometheus scrapes."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from berth.api.podgroups import GROUP_LABEL
from harness.worlds.cluster_user import eventually
from harness.worlds.monitored_pipeline import RULES, SERVICES, Monitored, monitored_pipeline

pytestmark = [
    pytest.mark.requires("nats-server", "prometheus"),
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

DASHBOARDS = Path(__file__).parents[3] / "deploy/compose/grafana/dashboards"
TIMEOUT_SECONDS = 60.0
EACH_GANG = 10  # pods between two gangs
SELECTOR = re.compile(r"\b(?:berth|scheduler)_[a-z_]+(?:\{[^}]*\})?")
OURS = 'job="berth"'
HISTOGRAMS = (
    "scheduler_scheduling_attempt_duration_seconds",
    "scheduler_scheduling_algorithm_duration_seconds",
    "scheduler_pod_scheduling_sli_duration_seconds",
)
KUBE_SCHEDULER = {
    "scheduler_schedule_attempts_total": {"result", "profile"},
    "scheduler_scheduling_attempt_duration_seconds_bucket": {"result", "profile", "le"},
    "scheduler_scheduling_algorithm_duration_seconds_bucket": {"le"},
    "scheduler_pod_scheduling_sli_duration_seconds_bucket": {"attempts", "le"},
    "scheduler_pod_scheduling_attempts_bucket": {"le"},
    "scheduler_framework_extension_point_duration_seconds_bucket": {"extension_point", "status", "profile", "le"},
    "scheduler_plugin_execution_duration_seconds_bucket": {"plugin", "extension_point", "status", "le"},
    "scheduler_pending_pods": {"queue"},
    "scheduler_queue_incoming_pods_total": {"queue", "event"},
    "scheduler_unschedulable_pods": {"plugin", "profile"},
    "scheduler_cache_size": {"type"},
    "scheduler_preemption_attempts_total": set(),
    "scheduler_preemption_victims_bucket": {"le"},
    "rest_client_requests_total": {"code", "method", "host"},
    "rest_client_request_duration_seconds_bucket": {"verb", "host", "le"},
    "leader_election_master_status": {"name"},
    "process_cpu_seconds_total": set(),
    "process_resident_memory_bytes": set(),
    "process_start_time_seconds": set(),
}
"""kube-scheduler's metrics with their labels, as in release 1.36. docs/metrics.md lists those that are left out."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def monitored(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Monitored]:
    """A pipeline under constant load: pods that are bound, one that is too large, and one that is gated."""
    async with monitored_pipeline(tmp_path_factory.mktemp("monitored")) as made, under_load(made):
        yield made


@asynccontextmanager
async def under_load(made: Monitored) -> AsyncIterator[None]:
    """Create pods during the block."""
    task = asyncio.create_task(create_pods(made))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def create_pods(made: Monitored) -> None:
    seen = made.seen
    await seen.create(
        [
            seen.pod("large", cpu="64", spec={"nodeSelector": {}}),
            seen.pod("gated", spec={"nodeSelector": {}, "schedulingGates": [{"name": "later"}]}),
        ]
    )
    path = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{seen.namespace}/podgroups"
    for number in itertools.count():
        if number % EACH_GANG == EACH_GANG - 1:  # not the first, whose plugins are measured
            gang = f"gang-{number}"
            await seen.api.post(path, {"metadata": {"name": gang}, "spec": {"minMember": 2}})
            named = {"labels": {GROUP_LABEL: gang}, "spec": {"nodeSelector": {}}}
            await seen.create([seen.pod(f"{gang}-{each}", cpu="1m", memory="1Mi", **named) for each in range(2)])
        await seen.create([seen.pod(f"web-{number}", cpu="1m", memory="1Mi", spec={"nodeSelector": {}})])
        await asyncio.sleep(0.2)


def panel_queries() -> Iterator[tuple[str, str]]:
    """The place of each query of each panel, and the query as Grafana sends it."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                asked = target["expr"].replace("$__rate_interval", "20s").replace("$job", "berth")
                yield f"{path.name}: {panel['title']} {target['refId']}", asked


def rule_selectors() -> Iterator[tuple[str, str]]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            for selector in SELECTOR.findall(rule["expr"]):
                yield f"{rule['alert']}: {selector}", selector


async def all_answered(monitored: Monitored, queries: dict[str, str]) -> None:
    """Wait until each query returns a row with a number; fail with the queries that never did."""
    left = dict(queries)

    async def answered() -> bool | None:
        for where, expression in list(left.items()):
            if any(math.isfinite(float(row["value"][1])) for row in await monitored.ask(expression)):
                del left[where]
        return not left or None

    try:
        await eventually(answered, "answers", TIMEOUT_SECONDS)
    except (AssertionError, TimeoutError):
        assert left == {}


async def test_every_query_of_every_panel_returns_a_number(monitored):
    queries = dict(panel_queries())
    assert len(queries) > 40
    await all_answered(monitored, queries)


async def test_every_selector_of_every_rule_matches_a_series(monitored):
    selectors = dict(rule_selectors())
    assert {where.partition(":")[0] for where in selectors} == {
        rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]
    }
    await all_answered(monitored, selectors)


async def test_kube_schedulers_metrics_exist_with_its_names_and_labels(monitored):
    await all_answered(monitored, {name: f"{name}{{{OURS}}}" for name in KUBE_SCHEDULER})
    for name, labels in KUBE_SCHEDULER.items():
        rows = await monitored.ask(f"{name}{{{OURS}}}")
        found = {frozenset(row["metric"].keys() - {"__name__", "job", "instance", "service"}) for row in rows}
        assert found == {frozenset(labels)}, name


async def test_label_values_are_kube_schedulers(monitored):
    async def values(metric: str, *labels: str) -> set[tuple[str, ...]]:
        rows = await monitored.ask(f"count by ({', '.join(labels)}) ({metric}{{{OURS}}})")
        return {tuple(row["metric"][label] for label in labels) for row in rows}

    points = {
        ("PostFilter", "Unschedulable"),
        *((point, "Success") for point in ("PreFilter", "Filter", "PreScore", "Score", "Bind")),
    }
    events = {("active", "UnschedulablePodAdd"), ("unschedulable", "ScheduleAttemptFailure")}

    async def all_there() -> bool | None:
        metric = "scheduler_framework_extension_point_duration_seconds_count"
        arrived = await values("scheduler_queue_incoming_pods_total", "queue", "event")
        return (await values(metric, "extension_point", "status") == points and arrived >= events) or None

    await eventually(all_there, "every extension point and a rejected pod", TIMEOUT_SECONDS)
    assert await values("scheduler_schedule_attempts_total", "result") == {("scheduled",), ("unschedulable",)}
    queues = {("active",), ("backoff",), ("unschedulable",), ("gated",)}
    assert await values("scheduler_pending_pods", "queue") == queues
    assert await values("scheduler_cache_size", "type") == {("nodes",), ("pods",), ("assumed_pods",)}
    plugins = await values("scheduler_plugin_execution_duration_seconds_count", "plugin")
    assert {("NetworkTraffic",), ("NodeResourcesFit",), ("TaintToleration",)} <= plugins


async def test_the_metrics_have_the_right_values(monitored):
    async def by(label: str, metric: str) -> dict[str, float]:
        rows = await monitored.ask(f"sum by ({label}) ({metric}{{{OURS}}}) > 0")
        return {row["metric"][label]: float(row["value"][1]) for row in rows}

    async def one_is_refused_and_one_gated() -> bool | None:
        pending = await by("queue", "scheduler_pending_pods")
        waits = pending.get("unschedulable", 0) + pending.get("backoff", 0)
        refused = await by("plugin", "scheduler_unschedulable_pods")
        return (waits, pending.get("gated"), refused) == (1, 1, {"NodeResourcesFit": 1, "SchedulingGates": 1}) or None

    await eventually(one_is_refused_and_one_gated, "one pod to be rejected and one to be gated", TIMEOUT_SECONDS)
    [row] = await monitored.ask(f"max(scheduler_cache_size{{{OURS}, type='nodes'}})")
    assert float(row["value"][1]) == len(monitored.exporters)


async def test_common_kube_scheduler_queries_return_results(monitored):
    """The queries of the kubernetes-mixin's dashboard and recording rules, with berth's scrape job as selector."""
    one = f'{OURS}, instance=~".*"'
    quantile = "histogram_quantile(0.99, sum(rate({}_bucket{{{}}}[20s])) {})"
    queries = [
        f"sum(up{{{OURS}}})",
        *(f"sum(rate({name}_count{{{one}}}[20s])) by (instance)" for name in HISTOGRAMS),
        *(quantile.format(name, one, "by (instance, le)") for name in HISTOGRAMS),
        *(quantile.format(name, OURS, "without (instance, pod)") for name in HISTOGRAMS),
        f'sum(rate(rest_client_requests_total{{{one}, code=~"2.."}}[20s]))',
        *(
            quantile.format("rest_client_request_duration_seconds", f'{one}, verb="{verb}"', "by (verb, url, le)")
            for verb in ("GET", "POST")
        ),
        f"process_resident_memory_bytes{{{one}}}",
        f"rate(process_cpu_seconds_total{{{one}}}[20s])",
    ]
    await all_answered(monitored, {query: query for query in queries})
    [row] = await monitored.ask(f"sum(up{{{OURS}}})")
    assert float(row["value"][1]) == len(SERVICES)


async def test_common_kube_scheduler_alerts_do_not_fire_while_it_runs(monitored):
    await all_answered(monitored, {"up": f"up{{{OURS}}} == 1"})
    assert await monitored.ask(f"absent(up{{{OURS}}} == 1)") == []
    assert await monitored.ask(f"up{{{OURS}}} == 0") == []


async def fires(monitored: Monitored, name: str) -> list[dict[str, str]]:
    async def labels() -> list[dict[str, str]] | None:
        return (await monitored.firing()).get(name)

    return await eventually(labels, f"{name} to fire", TIMEOUT_SECONDS)


async def is_silent(monitored: Monitored, name: str) -> None:
    async def silent() -> bool | None:
        return name not in await monitored.firing() or None

    await eventually(silent, f"{name} to be silent", TIMEOUT_SECONDS)


async def test_no_alert_fires_while_all_is_well(monitored):
    await all_answered(monitored, {"samples": "berth_sample_age_seconds < 5"})
    for name in ("BerthSamplesStale", "BerthBinderNotLeading", "BerthWatcherNotLeading"):
        await is_silent(monitored, name)
    firing = await monitored.firing()
    assert firing.keys() <= {"BerthDeadLetters"}, "it stays for 15 minutes after the test of dead letters"


async def test_an_undecodable_message_fires_dead_letters(monitored):
    assert "BerthDeadLetters" not in await monitored.firing()
    session = await monitored.berth.session("watcher")
    try:
        await session.publish("berth.pending.berth.default.nonsense", b"no JSON")
    finally:
        await session.close()
    [labels] = await fires(monitored, "BerthDeadLetters")
    assert labels["cause"] == "undecodable"


async def test_stopped_exporters_fire_bandwidth_stale_until_they_return(monitored):
    for exporter in monitored.exporters:
        await exporter.stop()
    [labels] = await fires(monitored, "BerthSamplesStale")
    assert labels["query"].startswith("q")
    for exporter in monitored.exporters:
        await exporter.start()
    await is_silent(monitored, "BerthSamplesStale")


async def test_a_stopped_collector_fires_bandwidth_stale(monitored):
    monitored.berth.kill("metrics-collector", signal.SIGSTOP)
    try:
        await fires(monitored, "BerthSamplesStale")
    finally:
        monitored.berth.kill("metrics-collector", signal.SIGCONT)
    await is_silent(monitored, "BerthSamplesStale")


async def test_a_stopped_binder_fires_binder_not_leading_until_it_continues(monitored):
    monitored.berth.kill("binder", signal.SIGSTOP)
    try:
        await fires(monitored, "BerthBinderNotLeading")
    finally:
        monitored.berth.kill("binder", signal.SIGCONT)
    await is_silent(monitored, "BerthBinderNotLeading")
