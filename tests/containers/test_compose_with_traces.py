"""compose.yaml with its profile `traces`: the trace of a pod, with spans of all services, in a real Jaeger."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from berth_sim.cluster import kubeconfig
from harness.servers.compose import TRACES, ComposeProject, require_project
from harness.worlds.cluster_user import cluster_user, eventually

pytestmark = pytest.mark.timeout(1500)  # the image may have to be built first

SECONDS = 120.0
OF_SERVICE = {
    "berth-watcher": {"schedule", "enqueue"},
    "berth-scorer": {"rank", "PreFilter", "Filter"},
    "berth-binder": {"check", "PostBinding"},
}


@pytest.fixture
def up() -> Iterator[ComposeProject]:
    require_project(TRACES)
    project = ComposeProject(told={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://jaeger:4318"})
    try:
        project.compose("--profile", "simulated", "--profile", TRACES, "up", "--wait", "--no-build")
        yield project
    finally:
        project.down()


async def traces(project: ComposeProject) -> list[dict[str, Any]]:
    """The traces of pods that Jaeger has."""
    url = f"http://127.0.0.1:{project.ports['JAEGER_PORT']}/api/traces"
    asked = {"service": "berth-watcher", "operation": "schedule"}
    async with aiohttp.ClientSession() as session, session.get(url, params=asked) as answer:
        return (await answer.json())["data"] or []


def spans_by_service(trace: dict[str, Any]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for span in trace["spans"]:
        found.setdefault(trace["processes"][span["processID"]]["serviceName"], set()).add(span["operationName"])
    return found


async def test_jaeger_has_one_trace_of_a_pod_with_spans_of_every_service(up, tmp_path: Path):
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{up.ports['CLUSTER_PORT']}")))
    async with cluster_user(path) as pods:
        await pods.add_nodes(3)
        await pods.all_bound(await pods.add_pods(1), SECONDS)

    async def is_whole() -> bool:
        found = [spans_by_service(trace) for trace in await traces(up)]
        return len(found) == 1 and all(found[0].get(service, set()) >= OF_SERVICE[service] for service in OF_SERVICE)

    await eventually(is_whole, "the pod's trace to have the spans of every service", SECONDS)
