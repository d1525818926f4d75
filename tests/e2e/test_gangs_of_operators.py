"""docs/examples/gangs/operators on a real API server: groups as operators write them are bound whole or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, cluster_user, condition_of, eventually
from harness.worlds.kubernetes_api import MERGE_PATCH
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.podgroups import DEFINITIONS, GROUP, define_podgroups_for_good, podgroups_path

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(240)]

FOLDER: Final = Path(__file__).parents[2] / "docs/examples/gangs/operators"
GANGS: Final = ("jobset", "kuberay", "lws", "mpi", "trainer")
ZONE: Final = "topology.kubernetes.io/zone"
LABEL: Final = f"{GROUP}/pod-group"
DEEP: Final = "[" * 3000 + "]" * 3000

Body = dict[str, Any]


@pytest.fixture(scope="module")
def berth_with_groups(own_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BerthUp]:
    """`berth up` with the example's profiles, on an API server that has the definition of PodGroups."""
    kubeconfig, folder = own_control_plane.kubeconfig_path, tmp_path_factory.mktemp("up")
    asyncio.run(define_groups(kubeconfig))
    with berth_up("--kubeconfig", kubeconfig, "--config", FOLDER / "scheduler.yaml", folder=folder) as berth:
        berth.wait_until_ready()
        yield berth


async def define_groups(kubeconfig: Path) -> None:
    async with cluster_user(kubeconfig) as seen:
        await define_podgroups_for_good(seen.api)


@pytest.fixture
async def user(berth_with_groups: BerthUp, own_control_plane: ControlPlane) -> AsyncIterator[ClusterUser]:
    async with cluster_user(own_control_plane.kubeconfig_path) as seen:
        yield seen


def objects(name: str) -> list[Body]:
    return list(yaml.safe_load_all((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def pods_of(made: Body) -> list[Body]:
    """The pods that the controllers of a kind make, or the pod itself."""
    name, spec = made["metadata"]["name"], made.get("spec", {})
    match made["kind"]:
        case "Pod":
            return [made]
        case "Job":
            return [of_template(spec["template"], f"{name}-{place}") for place in range(spec.get("parallelism", 1))]
        case "JobSet":
            jobs = [
                {**each["template"], "kind": "Job", "metadata": {"name": f"{name}-{each['name']}-{place}"}}
                for each in spec["replicatedJobs"]
                for place in range(each["replicas"])
            ]
            return [pod for job in jobs for pod in pods_of(job)]
        case "LeaderWorkerSet":
            template = spec["leaderWorkerTemplate"]
            return [
                of_template(template["leaderTemplate" if place == 0 else "workerTemplate"], f"{name}-{replica}-{place}")
                for replica in range(spec["replicas"])
                for place in range(template["size"])
            ]
    return []


def of_template(template: Body, name: str) -> Body:
    return {"kind": "Pod", **template, "metadata": {**template.get("metadata", {}), "name": name}}


async def add_group(user: ClusterUser, of: list[Body]) -> Body:
    [group] = [each for each in of if each["kind"] == "PodGroup"]
    assert (await user.api.post(podgroups_path(user.namespace), group)).code == 201
    return group


@pytest.mark.parametrize("name", GANGS)
async def test_a_gang_is_bound_whole_once_its_last_pod_exists(user: ClusterUser, name: str):
    for zone in ("a", "b"):
        await user.add_nodes(2, cpu="4", zone=zone)
    of = objects(name)
    group, pods = await add_group(user, of), [pod for each in of for pod in pods_of(each)]
    assert len(pods) == group["spec"]["minMember"]
    await user.create(pods[:-1])
    [single] = await user.add_pods(1, "single", cpu="100m")
    await user.all_bound([single])
    assert set(await user.placed()) == {single}
    await user.delete_pod(single)
    await user.create(pods[-1:])
    placed = await user.all_bound(pod["metadata"]["name"] for pod in pods)
    if "annotations" in group["metadata"]:
        nodes = [(await user.api.get(f"/api/v1/nodes/{node}")).body for node in set(placed.values())]
        assert len({node["metadata"]["labels"][ZONE] for node in nodes}) == 1


async def test_a_driver_waits_until_its_executors_have_room_and_they_follow(user: ClusterUser):
    await user.add_nodes(1, cpu="4")
    of = objects("spark")
    await add_group(user, of)
    driver, *executors = [pod for each in of for pod in pods_of(each)]
    await user.create([driver])

    async def why() -> Body | None:
        condition = await user.condition("pi-driver")
        return condition if condition.get("status") == "False" else None

    waits = await eventually(why, "the driver to wait")
    assert waits["reason"] == "Unschedulable"
    assert "minResources" in waits["message"]
    await user.add_nodes(1, cpu="4")
    await user.all_bound(["pi-driver"])
    await user.create(executors)
    await user.all_bound(pod["metadata"]["name"] for pod in executors)


async def test_a_podgroup_that_cannot_be_read_is_explained_and_keeps_no_other_group_waiting(user: ClusterUser):
    await without_schema(user)
    await user.add_nodes(1, cpu="8")
    odd = {
        "text": '{"minMember": "many"}',
        "huge": '{"minMember": 9223372036854775807}',
        "digits": f'{{"minMember": 1{"0" * 300}}}',
        "nul": '{"minMember": "\\u0000"}',
        "list": "[]",
        "deep": f'{{"minMember": {DEEP}}}',
    }
    for name, spec in odd.items():
        await add_raw_group(user, name, spec)
        await user.add_pods(1, name, cpu="100m", labels={LABEL: name})
    await add_raw_group(user, "honest", f'{{"minMember": 2, "beside": {DEEP}}}')
    honest = await user.add_pods(2, "honest", cpu="1", labels={LABEL: "honest"})
    await user.all_bound(honest)

    async def messages() -> dict[str, str] | None:
        pods = await user.pods()
        said = {name: condition_of(pods[f"{name}-0"]).get("message", "") for name in odd}
        return said if all(said.values()) else None

    said = await eventually(messages, "each pod to say why it waits")
    assert {name for name, text in said.items() if not text.startswith("the PodGroup cannot be read: ")} == set()

    async def on_groups() -> set[str] | None:
        events = (await user.api.get(user.api.new_events)).body["items"]
        told = {each["regarding"]["name"] for each in events if each["regarding"]["kind"] == "PodGroup"}
        return told if told >= odd.keys() else None

    await eventually(on_groups, "an Event on each group")
    assert set(await user.placed()) == set(honest)


async def without_schema(user: ClusterUser) -> None:
    """The definition takes anything from now on, as some that people write themselves."""
    path = f"{DEFINITIONS}/podgroups.{GROUP}"
    [version] = (await user.api.get(path)).body["spec"]["versions"]
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    changed = {**version, "schema": {"openAPIV3Schema": anything}, "additionalPrinterColumns": []}
    assert (await user.api.patch(path, {"spec": {"versions": [changed]}}, MERGE_PATCH)).code == 200


async def add_raw_group(user: ClusterUser, name: str, spec: str) -> None:
    text = f'{{"apiVersion":"{GROUP}/v1alpha1","kind":"PodGroup","metadata":{{"name":"{name}"}},"spec":{spec}}}'

    async def is_made() -> bool:
        return await user.api.post_text(podgroups_path(user.namespace), text) in {201, 409}

    await eventually(is_made, f"PodGroup {name} to be accepted")
