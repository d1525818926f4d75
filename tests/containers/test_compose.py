"""compose.yaml on a real Docker engine: start, scheduling, more scorers under load, a killed scorer, and removal."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from berth.bus.topology import DECISIONS
from berth.messages.attempts import Decision
from berth_cli.recording.file import read_recording
from berth_cli.recording.history import decoded
from berth_sim.cluster import kubeconfig
from harness.servers.compose import ROOT, ComposeProject, inspected, require_project
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
    project = ComposeProject(told={"COMPOSE_PROFILES": "simulated,recorder"})
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
        await _the_first_pod_is_explained_with_traffic(up, pods)
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


async def test_a_second_up_changes_nothing_and_a_restart_continues(up, cluster_file, tmp_path):
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
        await _a_person_asks(up, pods, tmp_path)
        await _the_recorder_keeps_over_a_restart_and_a_kill(up, pods, tmp_path)


WHY: Final = """
. deploy/compose/people.sh
.venv/bin/berth why {namespace}/web-0
.venv/bin/berth record --for 2s -o {folder}/own.berth
.venv/bin/berth replay {folder}/own.berth --pod {namespace}/fits-nowhere-0
"""
THROUGH_A_PIPE: Final = """
docker compose exec -T console berth record --for 2s -o - >{folder}/piped.berth
docker compose exec -T console berth replay - --pod {namespace}/fits-nowhere-0 <{folder}/piped.berth
docker compose run --rm -T -v ./docs/recordings/packing.yaml:/other.yaml \\
    berth replay - --config /other.yaml <{folder}/piped.berth
"""


async def _a_person_asks(up: ComposeProject, pods: ClusterUser, folder: Path) -> None:
    """As docs/compose.md says, on this machine and in a container."""
    (name,) = await pods.add_pods(1, "fits-nowhere", cpu="1000")
    told = {"namespace": pods.namespace, "folder": folder}

    async def is_decided() -> bool:
        done = await asyncio.to_thread(
            up.shell, f"docker compose exec -T console berth why {pods.namespace}/{name} -o json"
        )
        return done.returncode == 0 and json.loads(done.stdout)["outcome"] == "unschedulable"

    await eventually(is_decided, "a Decision on the pod that fits nowhere", SECONDS)
    try:
        for script in (WHY, THROUGH_A_PIPE):
            done = await asyncio.to_thread(up.shell, script.format(**told))
            assert done.returncode == 0, (script, done)
            assert f"{pods.namespace}/{name} waits, no node is possible: " in done.stdout.decode()
        assert b"no Decision" not in done.stderr
    finally:
        for written in ("people.password", "services.yaml"):
            (ROOT / written).unlink(missing_ok=True)
    recording = read_recording(folder / "own.berth")
    assert recording.header.config == read_recording(folder / "piped.berth").header.config
    assert (folder / "piped.berth").stat().st_uid == os.getuid()


async def _the_first_pod_is_explained_with_traffic(up: ComposeProject, pods: ClusterUser) -> None:
    """Right after `up --wait` every node has a sample, scorers have names, and no kube-scheduler is warned of."""
    await pods.create([pods.pod("at-once", spec={"nodeSelector": {}})])  # on the nodes that compose has
    await pods.all_bound(["at-once"], SECONDS)
    done = await asyncio.to_thread(up.shell, f"deploy/compose/berth why {pods.namespace}/at-once")
    told = done.stdout.decode()
    assert re.search(r"attempt 1 by scorer-\d\n", told), told
    assert ("MB/s" in told, "unknown" in told) == (True, False), told
    top = await compose(up, "exec", "-T", "console", "berth", "top", "--once")
    assert {"scorer-1", "scorer-2", "watcher-1", "binder-1"} <= set(top.split()), top
    assert "kube-scheduler" not in await compose(up, "logs", "watcher")


async def _the_recorder_keeps_over_a_restart_and_a_kill(up: ComposeProject, pods: ClusterUser, folder: Path) -> None:
    """What was decided before each is in the folder, and what is decided afterwards."""
    command = "docker compose exec -T recorder berth record --from {} -o -"

    async def decided(kept: str = "/var/lib/berth/recordings") -> set[str]:
        done = await asyncio.to_thread(up.shell, command.format(kept))
        assert done.returncode == 0, done
        (folder / "kept.berth").write_bytes(done.stdout)
        recording = read_recording(folder / "kept.berth")
        assert not recording.is_cut
        return {decision.pod for _, decision in decoded(recording, DECISIONS, Decision)}

    assert "web-0" in await decided()
    await compose(up, "restart", "recorder")
    await pods.all_bound(await pods.add_pods(1, "restarted"), SECONDS)

    async def is_kept(pod: str) -> bool:
        return pod in await decided()

    await eventually(partial(is_kept, "restarted-0"), "a Decision in the folder", SECONDS)
    (container,) = await asyncio.to_thread(up.containers, "recorder")
    await asyncio.to_thread(docker, "kill", container)
    await compose(up, "up", "--wait", "--no-build", "recorder")
    await pods.all_bound(await pods.add_pods(1, "killed"), SECONDS)
    await eventually(partial(is_kept, "killed-0"), "a Decision in the folder", SECONDS)
    copy = "cd /var/lib/berth/recordings; mkdir before; ls | grep 'berth$' | head -n -1 | xargs cp -t before"
    await compose(up, "exec", "-T", "recorder", "sh", "-c", copy)
    assert "restarted-0" in await decided("/var/lib/berth/recordings/before")


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
