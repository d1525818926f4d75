"""Extenders that hang, die or lie, and services that are killed while they are asked: nothing is lost or stuck."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from harness.servers.control_plane import ControlPlane
from harness.servers.extender import Raw, RecordingExtender, recording_extender
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(180)]

GPU = "example.com/gpu"
SECRETS = ("hunter2", "hunter3")
"""The password in the extender's URL, and one in the environment of pods."""


@pytest.fixture(scope="module")
def extender() -> Iterator[RecordingExtender]:
    with recording_extender() as made:
        yield made


@pytest.fixture(scope="module")
def berth(own_control_plane: ControlPlane, extender: RecordingExtender, tmp_path_factory) -> Iterator[BerthUp]:
    folder: Path = tmp_path_factory.mktemp("extenders")
    one = {
        "urlPrefix": f"{extender.url.replace('http://', f'http://berth:{SECRETS[0]}@')}/berth/gpu",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 1,
        "bindVerb": "bind",
        "httpTimeout": "1s",
        "managedResources": [{"name": GPU, "ignoredByScheduler": True}],
    }
    config = folder / "scheduler.json"
    head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
    config.write_text(json.dumps({**head, "extenders": [one]}))
    plane = ("--kubeconfig", own_control_plane.kubeconfig_path)
    with berth_up(*plane, "--config", config, "--scorers", 2, "-v", "6", folder=folder) as made:
        made.wait_until_ready()
        yield made


@pytest.fixture
async def cluster(own_control_plane: ControlPlane, extender: RecordingExtender) -> AsyncIterator[ClusterUser]:
    async with cluster_user(own_control_plane.kubeconfig_path) as seen:
        await seen.add_nodes(3, cpu="8")
        loop = asyncio.get_running_loop()

        def bind(args: dict) -> dict:
            answer = asyncio.run_coroutine_threadsafe(seen.bind(args["PodName"], args["Node"]), loop).result(10)
            return {} if answer.code == 201 else {"Error": f"the API server says {answer.code}"}

        extender.answers["gpu/filter"] = lambda args: {"Nodes": args["Nodes"]}
        extender.answers["gpu/prioritize"] = lambda _: []
        extender.answers["gpu/bind"] = bind
        yield seen


def pod_of_the_extender(seen: ClusterUser, name: str) -> dict:
    wanted = {"requests": {GPU: "1"}, "limits": {GPU: "1"}}
    env = [{"name": "PASSWORD", "value": SECRETS[1]}]
    return seen.pod(name, spec={"containers": [{"name": "c", "image": "i", "resources": wanted, "env": env}]})


async def add(seen: ClusterUser, prefix: str, count: int) -> list[str]:
    names = [f"{prefix}-{number}" for number in range(count)]
    await seen.create(pod_of_the_extender(seen, name) for name in names)
    return names


async def test_other_pods_are_bound_while_it_hangs_and_its_own_when_it_answers(berth, cluster, extender):
    good = extender.answers["gpu/filter"]
    extender.answers["gpu/filter"] = lambda _: Raw(wait=30)
    slow = await add(cluster, "slow", 20)
    quick = await cluster.add_pods(20, "quick", cpu="100m")
    await cluster.all_bound(quick)
    condition = await eventually(lambda: cluster.condition(slow[0]), "an error")
    assert condition["reason"] == "SchedulerError"
    assert condition["message"] == f"calling extender at URL {extender.url}/berth/gpu/filter: no answer within 1 s"
    extender.answers["gpu/filter"] = good
    await cluster.all_bound(slow)


@pytest.mark.parametrize("service", ["scorer-1", "binder"])
@pytest.mark.parametrize("verb", ["filter", "bind"])
async def test_a_service_that_is_killed_while_it_waits_for_it_loses_nothing(berth, cluster, extender, service, verb):
    good, slowly = extender.answers[f"gpu/{verb}"], asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait(args: dict) -> object:
        loop.call_soon_threadsafe(slowly.set)
        return Raw(wait=0.8)  # and then nothing that can be read

    extender.answers[f"gpu/{verb}"] = wait
    names = await add(cluster, "web", 10)
    async with asyncio.timeout(20):
        await slowly.wait()
    berth.kill(service)
    extender.answers[f"gpu/{verb}"] = good
    await cluster.all_bound(names, 60)
    berth.must_run()


async def reported(seen: ClusterUser, pod: str, error: str) -> None:
    """Wait for a condition with this error; a pod ranked before the mirror has the nodes has another first."""

    async def is_there() -> bool:
        condition = await seen.condition(pod)
        return str(condition.get("message", "")).startswith(error)

    await eventually(is_there, error)


async def test_it_is_not_there_and_comes_back(berth, cluster, extender):
    """A connection that is closed without an answer, as of a server that has died."""
    good = extender.answers["gpu/bind"]

    def die(_: dict) -> object:
        raise ConnectionResetError(socket.EAI_FAIL)

    extender.answers["gpu/bind"] = die
    names = await add(cluster, "web", 5)
    await reported(cluster, names[0], f"calling extender at URL {extender.url}/berth/gpu/bind: ")
    extender.answers["gpu/bind"] = good
    await cluster.all_bound(names, 60)


async def test_no_password_is_in_logs_events_or_decisions(berth, cluster, extender):
    good = extender.answers["gpu/filter"]
    extender.answers["gpu/filter"] = lambda _: Raw(200, b"junk")
    names = await add(cluster, "junk", 2)
    await reported(cluster, names[0], f'reading the answer of extender "{extender.url}/berth/gpu": ')
    extender.answers["gpu/filter"] = good
    await cluster.all_bound(names)
    said = berth.said + berth.printed + json.dumps(await cluster.events("FailedScheduling"))
    session = await berth.session()
    try:
        for stream in ("RANKED", "DECISIONS", "dead"):
            said += "".join([each.data.decode() async for each in session.scan(stream, "berth.>")])
    finally:
        await session.close()
    assert extender.url in said
    assert [secret for secret in SECRETS if secret in said] == []
