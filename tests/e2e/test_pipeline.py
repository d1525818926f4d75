"""The whole pipeline on a real API server: pods are bound, and a pod that waits has the reason in its condition."""

import asyncio
import json
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from harness.worlds.audit import successful_bindings
from harness.worlds.cluster_user import ClusterUser, eventually, node_of
from harness.worlds.pipeline import BerthUp

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(180)]

A_WHILE_SECONDS = 2.0
"""Several times as long as a pod takes; a pod that is not bound by then is ignored by the pipeline."""


async def test_every_pod_has_a_scheduled_event_and_a_true_condition(pipeline: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(5)
    pods = await cluster_outside.add_pods(20)
    placed = await cluster_outside.all_bound(pods)

    async def all_events() -> list[dict] | None:
        events = await cluster_outside.events("Scheduled")
        return events if len(events) >= len(pods) else None

    events = await eventually(all_events, "an Event for each pod")
    notes = {event["regarding"]["name"]: event["note"] for event in events}
    assert notes == {
        name: f"Successfully assigned {cluster_outside.namespace}/{name} to {placed[name]}" for name in pods
    }
    assert {event["reportingController"] for event in events} == {"berth"}
    conditions = [await cluster_outside.condition(name) for name in pods]
    assert {condition["status"] for condition in conditions} == {"True"}


async def test_an_unschedulable_pod_gets_a_reason_and_is_bound_to_a_new_node(
    pipeline: BerthUp, cluster_outside: ClusterUser
):
    await cluster_outside.add_nodes(3, cpu="1")
    await cluster_outside.add_pods(1, "large", cpu="2")

    async def of_all_nodes() -> dict | None:
        condition = await cluster_outside.condition("large-0")
        return condition if condition and "3 Insufficient cpu" in condition["message"] else None

    async def event_with(note: str) -> dict | None:
        events = await cluster_outside.events("FailedScheduling")
        return next((event for event in events if event["note"] == note), None)

    condition = await eventually(of_all_nodes, "a condition that counts all nodes")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert "nodes are available: " in condition["message"]
    event = await eventually(partial(event_with, condition["message"]), "the same in an Event")
    assert (event["type"], event["regarding"]["name"]) == ("Warning", "large-0")
    (roomy,) = await cluster_outside.add_nodes(1, cpu="4")
    assert await cluster_outside.all_bound(["large-0"]) == {"large-0": roomy}


async def test_a_pod_of_another_scheduler_is_ignored(pipeline: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(2)
    await cluster_outside.add_pods(3, "theirs", scheduler="default-scheduler")
    await cluster_outside.all_bound(await cluster_outside.add_pods(10, "ours"))
    await asyncio.sleep(A_WHILE_SECONDS)
    theirs = [pod for name, pod in (await cluster_outside.pods()).items() if name.startswith("theirs")]
    assert [node_of(pod) for pod in theirs] == ["", "", ""]
    assert [pod["status"].get("conditions") for pod in theirs] == [None, None, None]


async def test_pods_that_another_scheduler_has_bound_are_counted(pipeline: BerthUp, cluster_outside: ClusterUser):
    free, taken = await cluster_outside.add_nodes(2, cpu="2")
    await cluster_outside.add_pods(1, "theirs", cpu="2", scheduler="somebody-else")
    assert (await cluster_outside.bind("theirs-0", taken)).code == 201
    await cluster_outside.add_pods(4, "ours", cpu="1")

    async def two_bound() -> bool:
        return len(await cluster_outside.placed()) >= 3

    await eventually(two_bound, "two pods on the free node")
    await eventually(lambda: cluster_outside.events("FailedScheduling"), "the others to be refused")
    placed = await cluster_outside.placed()
    assert placed.pop("theirs-0") == taken
    assert list(placed.values()) == [free, free]


async def test_a_resize_counts_until_it_is_carried_out_and_its_end_wakes_who_waits(
    pipeline: BerthUp, cluster_outside: ClusterUser
):
    (node,) = await cluster_outside.add_nodes(1, cpu="4")
    await cluster_outside.add_pods(1, "shrinks", cpu="1", scheduler="somebody-else")
    assert (await cluster_outside.bind("shrinks-0", node)).code == 201
    await report_actual(cluster_outside, "shrinks-0", cpu="3")
    await cluster_outside.add_pods(1, "ours", cpu="2")
    await eventually(lambda: cluster_outside.events("FailedScheduling"), "the pod to be refused")
    assert "1 Insufficient cpu" in (await cluster_outside.condition("ours-0"))["message"]
    await report_actual(cluster_outside, "shrinks-0", cpu="1")
    await cluster_outside.all_bound(["ours-0"])


async def report_actual(seen: ClusterUser, name: str, **requests: str) -> None:
    """Report the resources with which the pod's container runs, as its kubelet does."""
    pod = (await seen.pods())[name]
    status = {
        "name": pod["spec"]["containers"][0]["name"],
        "image": "pause",
        "imageID": "",
        "ready": True,
        "restartCount": 0,
        "allocatedResources": pod["spec"]["containers"][0]["resources"]["requests"],
        "resources": {"requests": requests},
    }
    answer = await seen.api.patch(f"{seen.api.pods}/{name}/status", {"status": {"containerStatuses": [status]}})
    assert answer.code == 200, answer.body


ODD_AMOUNTS = ("0", "1n", "0.1m", "100m", "1.5", "3Mi", "0.5Gi", "1E3", "7E", "7Ei", "9E", "9007199254740993")
ODD_AMOUNTS += tuple(str(whole + off) for whole in (2**46, 2**53, 2**60, 2**63 - 2) for off in (-1, 0, 1))
RESOURCES = ("cpu", "memory", "ephemeral-storage")


def odd_amounts(chance: random.Random) -> dict[str, str]:
    return {name: chance.choice(ODD_AMOUNTS) for name in RESOURCES if chance.random() < 0.8}


async def until_mirrored(berth: BerthUp, nodes: list[dict]) -> None:
    """Wait until the mirror has what is allocatable on each node: a pod that comes then is ranked with all of it."""
    missing = {f"node.{node['metadata']['name']}": node["status"]["allocatable"] for node in nodes}
    session = await berth.session()
    try:
        async with session.read_bucket("cluster") as mirror:
            async for batch in mirror.batches():
                for entry in batch:
                    thing = json.loads(entry.data or b"{}").get("object", {})
                    if entry.key in missing and thing.get("status", {}).get("allocatable") == missing[entry.key]:
                        del missing[entry.key]
                if not missing:
                    return
    finally:
        await session.close()


@pytest.mark.parametrize("seed", range(3))
async def test_odd_amounts_are_placed_as_simulate_places_them(
    pipeline: BerthUp, cluster_outside: ClusterUser, tmp_path: Path, seed: int
):
    chance = random.Random(seed)
    for _ in range(6):
        (name,) = await cluster_outside.add_nodes(1)
        amounts = {"pods": "110", **odd_amounts(chance)}
        await cluster_outside.report_status(name, {"capacity": amounts, "allocatable": amounts})
    nodes = [(await cluster_outside.api.get(f"/api/v1/nodes/{name}")).body for name in cluster_outside.nodes]
    await until_mirrored(pipeline, nodes)
    for number in range(12):
        container = {"name": "main", "image": "pause", "resources": {"requests": odd_amounts(chance)}}
        (pod,) = await cluster_outside.add_pods(1, f"odd-{number}", spec={"containers": [container]})
        await eventually(partial(cluster_outside.condition, pod), f"{pod} to be bound or refused")
    pods = await cluster_outside.pods()
    placed = {f"{cluster_outside.namespace}/{name}": node_of(pod) or None for name, pod in pods.items()}

    of_kind = {"apiVersion": "v1", "kind": "Pod"}  # lists leave them out
    waiting = [{**of_kind, **pod, "status": {}, "spec": {**pod["spec"], "nodeName": ""}} for pod in pods.values()]
    waiting.sort(key=lambda pod: int(pod["metadata"]["name"].split("-")[1]))
    for file, objects in (("nodes", nodes), ("pods", waiting)):
        (tmp_path / file).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    command = [sys.executable, "-m", "berth_cli", "simulate", "-o", "json"]
    command += ["--cluster", str(tmp_path / "nodes"), "--pods", str(tmp_path / "pods")]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    simulated = {line["pod"]: line["bound"] for line in map(json.loads, done.stdout.splitlines())}

    assert simulated == placed
    assert 0 < sum(node is not None for node in placed.values()) < len(placed)


async def test_a_gated_pod_is_bound_when_its_gates_are_removed(pipeline: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(1)
    await cluster_outside.add_pods(1, "gated", spec={"schedulingGates": [{"name": "example.com/quota"}]})
    await cluster_outside.all_bound(await cluster_outside.add_pods(3, "free"))
    condition = await eventually(lambda: cluster_outside.condition("gated-0"), "a condition on the gated pod")
    assert condition["reason"] == "SchedulingGated"
    await asyncio.sleep(A_WHILE_SECONDS)
    assert "gated-0" not in await cluster_outside.placed()
    await cluster_outside.ungate("gated-0")
    await cluster_outside.all_bound(["gated-0"])


async def test_pods_deleted_while_they_wait_block_no_others(pipeline: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(2, cpu="1")
    await cluster_outside.add_pods(5, "doomed", cpu="2")
    await eventually(lambda: cluster_outside.condition("doomed-0"), "the pods to be refused")
    await asyncio.gather(*(cluster_outside.delete_pod(f"doomed-{number}") for number in range(5)))
    await cluster_outside.add_nodes(1, cpu="10")
    placed = await cluster_outside.all_bound(await cluster_outside.add_pods(10, "web", cpu="1"))
    assert placed.keys() == {f"web-{number}" for number in range(10)}


async def test_a_pod_with_the_name_of_a_deleted_pod_is_bound(pipeline: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(2)
    before = await successful_bindings(cluster_outside)
    for _ in range(3):
        await cluster_outside.all_bound(await cluster_outside.add_pods(1, "again"))
        await cluster_outside.delete_pod("again-0")
    assert await successful_bindings(cluster_outside) - before == 3


async def test_node_selector_taint_and_cordon_are_respected(pipeline: BerthUp, cluster_outside: ClusterUser):
    taint = {"key": "dedicated", "value": "db", "effect": "NoSchedule"}
    (tainted,) = await cluster_outside.add_nodes(1, taints=[taint])
    (cordoned,) = await cluster_outside.add_nodes(1, unschedulable=True)
    (disk,) = await cluster_outside.add_nodes(1, labels={"disk": "ssd"})
    plain = await cluster_outside.add_nodes(2)
    tolerates = {"tolerations": [{"key": "dedicated", "operator": "Exists"}], "nodeName": ""}
    wants_disk = {"nodeSelector": {"disk": "ssd"}}
    names = [
        *await cluster_outside.add_pods(12, "plain"),
        *await cluster_outside.add_pods(8, "tolerant", spec=tolerates),
        *await cluster_outside.add_pods(3, "disk", spec=wants_disk),
    ]
    placed = await cluster_outside.all_bound(names)
    assert {placed[name] for name in names if name.startswith("disk")} == {disk}
    assert {placed[name] for name in names if name.startswith("plain")} <= {disk, *plain}
    assert tainted in {placed[name] for name in names if name.startswith("tolerant")}
    assert cordoned not in placed.values()


async def test_a_deleted_node_gets_no_more_pods(pipeline: BerthUp, cluster_outside: ClusterUser):
    kept, going = await cluster_outside.add_nodes(2)
    await cluster_outside.all_bound(await cluster_outside.add_pods(4, "early"))
    assert (await cluster_outside.api.delete(f"/api/v1/nodes/{going}")).code == 200
    placed = await cluster_outside.all_bound(await cluster_outside.add_pods(6, "late"))
    assert {placed[f"late-{number}"] for number in range(6)} == {kept}


async def test_pods_with_dots_in_the_name_and_with_long_names_are_bound(
    pipeline: BerthUp, cluster_outside: ClusterUser
):
    await cluster_outside.add_nodes(1)
    names = ["web.0.a-b.c", "x" * 253, f"{'y' * 60}.{'z' * 60}"]
    await cluster_outside.create(cluster_outside.pod(name) for name in names)
    await cluster_outside.all_bound(names)
