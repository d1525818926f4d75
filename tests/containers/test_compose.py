"""compose.yaml on a real Docker engine: start, scheduling, more scorers under load, a killed scorer, and removal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from berth.sim.cluster import kubeconfig
from harness.servers.compose import ComposeProject, inspected, require_project
from harness.servers.docker_engine import docker
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually

pytestmark = pytest.mark.timeout(1500)  # the image may have to be built first

PODS = 200
MORE_PODS = 600
SECONDS = 120.0
SERVICES = ("watcher", "scorer", "binder", "metrics-collector")


@pytest.fixture
def project() -> Iterator[ComposeProject]:
    require_project()
    project = ComposeProject()
    try:
        yield project
    finally:
        project.down()


@pytest.fixture
def up(project: ComposeProject) -> ComposeProject:
    project.compose("up", "--wait", "--no-build")
    return project


@pytest.fixture
def cluster_file(up: ComposeProject, tmp_path: Path) -> Path:
    """A kubeconfig with the simulated cluster's address on this machine."""
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig(f"http://127.0.0.1:{up.ports['CLUSTER_PORT']}")))
    return path


async def compose(project: ComposeProject, *arguments: str) -> str:
    return await asyncio.to_thread(project.compose, *arguments)


async def scraped(project: ComposeProject) -> dict[str, int]:
    """The number of healthy Prometheus targets of each service."""
    url = f"http://127.0.0.1:{project.ports['PROMETHEUS_PORT']}/api/v1/query"
    query = {"query": 'count by (service) (up{job="berth"} == 1)'}
    async with aiohttp.ClientSession() as session, session.get(url, params=query) as answer:
        result = (await answer.json())["data"]["result"]
    return {row["metric"]["service"]: int(row["value"][1]) for row in result}


async def unscraped_exporters(project: ComposeProject) -> int:
    url = f"http://127.0.0.1:{project.ports['PROMETHEUS_PORT']}/api/v1/query"
    query = {"query": 'count(rate(node_network_receive_bytes_total{job="node-exporter"}[30s]))'}
    async with aiohttp.ClientSession() as session, session.get(url, params=query) as answer:
        result = (await answer.json())["data"]["result"]
    return 100 - (int(result[0]["value"][1]) if result else 0)


async def scaled_and_killed_under_load(project: ComposeProject, pods: ClusterUser) -> None:
    """Create pods while the scorers are scaled from two to four, and one of them is killed."""
    creating = asyncio.create_task(pods.add_pods(MORE_PODS, "more"))
    await compose(project, "up", "--wait", "--no-build", "--no-recreate", "--scale", "scorer=4")
    scorers = await asyncio.to_thread(project.containers, "scorer")
    assert len(scorers) == 4
    more = asyncio.create_task(pods.add_pods(MORE_PODS, "again"))
    await asyncio.to_thread(docker, "kill", scorers[0])
    await pods.all_bound([*await creating, *await more], SECONDS)
    assert len(await asyncio.to_thread(project.containers, "scorer")) == 3


async def test_it_starts_schedules_scales_survives_a_kill_and_is_removed(up, cluster_file):
    async with cluster_user(cluster_file) as pods:
        await pods.add_nodes(20, cpu="32", memory="128Gi")
        await pods.all_bound(await pods.add_pods(PODS, "first"), SECONDS)

        async def all_scraped() -> bool:
            return await scraped(up) == {"watcher": 1, "scorer": 2, "binder": 1, "metrics-collector": 1}

        await eventually(all_scraped, "every service to be scraped", SECONDS)

        async def exporters_scraped() -> bool:
            return await unscraped_exporters(up) <= 0

        await eventually(exporters_scraped, "every exporter to be scraped", SECONDS)
        await scaled_and_killed_under_load(up, pods)
    assert "violation" not in up.compose("logs", "nats").lower()
    volumes = up.volumes()
    assert f"{up.name}_nats" in volumes
    up.down()
    assert up.left(*volumes) == []


async def test_a_second_up_changes_nothing_and_a_restart_continues(up, cluster_file):
    before = _started(up)
    password = up.compose("exec", "-T", "nats", "cat", "/etc/nats/credentials/nats.conf")
    await compose(up, "up", "--wait", "--no-build")
    assert _started(up) == before
    assert up.compose("exec", "-T", "nats", "cat", "/etc/nats/credentials/nats.conf") == password
    _each_password_is_readable_by_one_service(up)
    await _the_console_shows_the_cluster_to_who_has_the_token(up)
    await compose(up, "restart", "simulated-cluster", "nats")
    await compose(up, "up", "--wait", "--no-build")
    async with cluster_user(cluster_file) as pods:
        await pods.add_nodes(5)
        await pods.all_bound(await pods.add_pods(20), SECONDS)


async def _the_console_shows_the_cluster_to_who_has_the_token(up: ComposeProject) -> None:
    url = f"http://127.0.0.1:{up.ports['CONSOLE_PORT']}/api/stream"
    token = (await compose(up, "exec", "-T", "console", "cat", "/run/berth/credentials/console")).strip()
    async with aiohttp.ClientSession() as session:
        async with session.get(url) as refused:
            assert refused.status == 401
        async with session.get(url, headers={"Authorization": f"Bearer {token}"}) as stream:
            frame = json.loads((await stream.content.readline()).removeprefix(b"data: "))
    assert frame["bus"]["connected"]
    assert len(frame["nodes"]) == 100
    assert token not in await compose(up, "logs", "console")


def _started(up: ComposeProject) -> list[str]:
    """The start times of the services' containers."""
    ids = [each for service in SERVICES for each in up.containers(service)]
    return [each["State"]["StartedAt"] for each in inspected(*ids)]


def _each_password_is_readable_by_one_service(up: ComposeProject) -> None:
    """A service can read only its own password, and the kubeconfig only if it needs it."""
    listed = (
        "cd /run/berth && for f in credentials/* kubeconfig/*; do head -c 1 $f >/dev/null 2>&1 && echo $f; done; true"
    )
    assert up.compose("exec", "-T", "scorer", "sh", "-c", listed).split() == ["credentials/scorer"]
    people = ["credentials/console", "credentials/people"]
    assert up.compose("exec", "-T", "console", "sh", "-c", listed).split() == people
    assert up.compose("exec", "-T", "binder", "sh", "-c", listed).split() == [
        "credentials/binder",
        "kubeconfig/kubeconfig",
    ]
