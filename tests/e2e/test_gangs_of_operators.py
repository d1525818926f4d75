"""docs/examples/gangs/operators on a real API server: groups as operators write them are bound whole or not at all."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from harness.servers.control_plane import ControlPlane, assets_folder, control_plane
from harness.worlds.cluster_user import ClusterUser, cluster_user, condition_of, eventually
from harness.worlds.kubernetes_api import MERGE_PATCH
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.podgroups import DEFINITIONS, GROUP, SERVED, UPSTREAM, in_podgroup, podgroups_path

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(240)]

FOLDER: Final = Path(__file__).parents[2] / "docs/examples/gangs/operators"
GANGS: Final = ("jobset", "kuberay", "lws", "mpi", "trainer")
ZONE: Final = "topology.kubernetes.io/zone"
DEEP: Final = "[" * 3000 + "]" * 3000

Body = dict[str, Any]


@pytest.fixture(scope="module")
def berth_with_groups(
    plane_with_podgroups: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BerthUp]:
    """`berth up` with the example's profiles."""
    kubeconfig, folder = plane_with_podgroups.kubeconfig_path, tmp_path_factory.mktemp("up")
    with berth_up("--kubeconfig", kubeconfig, "--config", FOLDER / "scheduler.yaml", folder=folder) as berth:
        berth.wait_until_ready()
        yield berth


@pytest.fixture
async def user(berth_with_groups: BerthUp, plane_with_podgroups: ControlPlane) -> AsyncIterator[ClusterUser]:
    async with cluster_user(plane_with_podgroups.kubeconfig_path) as seen:
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
        await user.add_pods(1, name, cpu="100m", labels=in_podgroup(name))
    await add_raw_group(user, "honest", f'{{"minMember": 2, "beside": {DEEP}}}')
    honest = await user.add_pods(2, "honest", cpu="1", labels=in_podgroup("honest"))
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


# --- Kubernetes' own PodGroups

BATCHES: Final = (1, 2, 3)
"""Pods that a Job's controller makes at once: twice as many each time, here up to six."""
REPLACES_CLUSTER: Final = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n"


@pytest.fixture(scope="module")
def upstream_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server with Kubernetes' own PodGroups, and `berth up` in place of the cluster's scheduler, too."""
    folder, assets = tmp_path_factory.mktemp("up"), assets_folder()
    assert assets is not None
    config = folder / "scheduler.yaml"
    config.write_text(f"{REPLACES_CLUSTER}- schedulerName: berth\n- schedulerName: default-scheduler\n")
    with (
        control_plane(assets, api_flags=SERVED) as plane,
        berth_up("--kubeconfig", plane.kubeconfig_path, "--config", config, folder=folder) as berth,
    ):
        berth.wait_until_ready()
        yield plane


@pytest.fixture
async def upstream_user(upstream_plane: ControlPlane) -> AsyncIterator[ClusterUser]:
    async with cluster_user(upstream_plane.kubeconfig_path) as seen:
        yield seen


def path_of(user: ClusterUser, made: Body) -> str:
    return f"/apis/{UPSTREAM}/namespaces/{user.namespace}/{made['kind'].lower()}s"


async def add_workload(user: ClusterUser, of: list[Body]) -> Body:
    """Create the Workload and the PodGroup; returns the PodGroup."""
    workload, group = [each for each in of if each["kind"] in {"Workload", "PodGroup"}]
    for each in (workload, group):
        answer = await user.api.post(path_of(user, each), each)
        assert answer.code == 201, answer.body
    return answer.body


async def remove_workload(user: ClusterUser, of: list[Body]) -> None:
    """As KubeRay: the finalizer is taken off, since pods still name the group."""
    workload, group = [each for each in of if each["kind"] in {"Workload", "PodGroup"}]
    path = f"{path_of(user, group)}/{group['metadata']['name']}"
    assert (await user.api.patch(path, {"metadata": {"finalizers": None}}, MERGE_PATCH)).code == 200
    for each in (path, f"{path_of(user, workload)}/{workload['metadata']['name']}"):
        assert (await user.api.delete(each)).code == 200


async def is_scheduled(user: ClusterUser, group: Body) -> bool:
    shown = (await user.api.get(f"{path_of(user, group)}/{group['metadata']['name']}")).body
    conditions = shown.get("status", {}).get("conditions", [])
    return any(each["type"] == "PodGroupScheduled" and each["status"] == "True" for each in conditions)


def resized(of: list[Body], size: int) -> list[Body]:
    """The Workload and the PodGroup of a cluster with so many pods."""
    workload, group = copy.deepcopy([each for each in of if each["kind"] in {"Workload", "PodGroup"}])
    workload["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]["minCount"] = size
    group["spec"]["schedulingPolicy"]["gang"]["minCount"] = size
    return [workload, group]


async def test_a_ray_cluster_that_grows_has_another_podgroup_and_its_pods_stay(upstream_user: ClusterUser):
    user, of = upstream_user, objects("kuberay-workload")
    await user.add_nodes(2, cpu="4")
    group, pods = await add_workload(user, of), [pod for each in of for pod in pods_of(each)]
    names = [pod["metadata"]["name"] for pod in pods]
    await user.create(pods)
    placed = await user.all_bound(names)
    await eventually(lambda: is_scheduled(user, group), "the group's condition")
    await remove_workload(user, of)
    another = await add_workload(user, resized(of, 5))
    assert another["metadata"]["uid"] != group["metadata"]["uid"]
    workers = [of_template(pods[-1], f"ray-small-worker-{word}") for word in ("b7tzq", "p2m9d")]
    await user.create(workers)
    now = await user.all_bound([*names, *(pod["metadata"]["name"] for pod in workers)])
    assert {name: now[name] for name in names} == placed
    await eventually(lambda: is_scheduled(user, another), "the condition of the group that was made anew")


async def test_a_ray_cluster_whose_group_is_made_anew_while_it_waits_is_bound_whole(upstream_user: ClusterUser):
    user, of = upstream_user, objects("kuberay-workload")
    await user.add_nodes(1, cpu="3")
    await add_workload(user, of)
    pods = [pod for each in of for pod in pods_of(each)]
    await user.create(pods)

    async def waits() -> bool:
        return (await user.condition(pods[0]["metadata"]["name"])).get("reason") == "Unschedulable"

    await eventually(waits, "the group to find no room")
    await remove_workload(user, of)
    await add_workload(user, resized(of, 2))

    async def head_and_a_worker() -> bool:
        placed = await user.placed()
        return len(placed) == 2 and pods[0]["metadata"]["name"] in placed

    await eventually(head_and_a_worker, "two of its pods to be bound")
    await user.add_nodes(1, cpu="1")
    await user.all_bound(pod["metadata"]["name"] for pod in pods)


async def test_pods_that_a_job_makes_in_batches_are_bound_together_and_a_failed_one_is_replaced(
    upstream_user: ClusterUser,
):
    user, of = upstream_user, objects("job")
    await user.add_nodes(2, cpu="4")
    group = await add_workload(user, of)
    pods = [as_of_controller(pod, index, group) for each in of for index, pod in enumerate(pods_of(each))]
    names, made = [pod["metadata"]["name"] for pod in pods], 0
    assert len(pods) == sum(BATCHES)
    for batch in BATCHES:
        assert await user.placed() == {}
        await user.create(pods[made : made + batch])
        made += batch
    placed = await user.all_bound(names)
    await user.delete_pod(names[2])
    replacement = as_of_controller(of_template(pods[2], "train-2-x8kzp"), 2, group)
    await user.create([replacement])
    now = await user.all_bound(["train-2-x8kzp"])
    assert {name: node for name, node in now.items() if name in placed}.items() <= placed.items()


def as_of_controller(pod: Body, index: int, group: Body) -> Body:
    """The pod as a Job's controller makes it: with its index, its group, and both as owners."""
    owners = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "7c1f", "controller": True},
        {
            "apiVersion": UPSTREAM,
            "kind": "PodGroup",
            "name": group["metadata"]["name"],
            "uid": group["metadata"]["uid"],
        },
    ]
    labels = {"batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/job-completion-index": str(index)}
    metadata = {**pod["metadata"], "labels": labels, "ownerReferences": owners}
    return {**pod, "metadata": metadata, "spec": {**pod["spec"], **_in_group(group)}}


def _in_group(group: Body) -> Body:
    return {"schedulingGroup": {"podGroupName": group["metadata"]["name"]}}
