"""What a user of a real cluster sees of the whole pipeline: pods get nodes, and who waits is told why."""

import asyncio

import pytest

from harness.worlds.audit import successful_bindings
from harness.worlds.cluster_user import ClusterUser, eventually, node_of
from harness.worlds.pipeline import BerthUp

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(180)]

A_WHILE_SECONDS = 2.0
"""What a pipeline would have taken hold of by then, it leaves alone: several times the way of a pod."""


async def test_every_pod_has_a_scheduled_event_and_a_true_condition(pipeline: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(5)
    pods = await cluster_outside.add_pods(20)
    placed = await cluster_outside.all_bound(pods)

    async def told() -> list[dict] | None:
        events = await cluster_outside.events("Scheduled")
        return events if len(events) >= len(pods) else None

    events = await eventually(told, "an Event for each pod")
    said = {event["regarding"]["name"]: event["note"] for event in events}
    assert said == {
        name: f"Successfully assigned {cluster_outside.namespace}/{name} to {placed[name]}" for name in pods
    }
    assert {event["reportingController"] for event in events} == {"berth"}
    conditions = [await cluster_outside.condition(name) for name in pods]
    assert {condition["status"] for condition in conditions} == {"True"}


async def test_pod_that_fits_nowhere_is_told_why_and_bound_when_a_node_comes(
    pipeline: BerthUp, cluster_outside: ClusterUser
):
    await cluster_outside.add_nodes(3, cpu="1")
    await cluster_outside.add_pods(1, "large", cpu="2")
    await eventually(lambda: cluster_outside.condition("large-0"), "a condition")

    async def told() -> list[dict]:
        return await cluster_outside.events("FailedScheduling")

    (event,) = await eventually(told, "an Event")
    condition = await cluster_outside.condition("large-0")
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    assert condition["message"] == event["note"]
    assert "nodes are available: " in event["note"]
    assert "3 Insufficient cpu" in event["note"]
    assert (event["type"], event["regarding"]["name"]) == ("Warning", "large-0")
    (roomy,) = await cluster_outside.add_nodes(1, cpu="4")
    assert await cluster_outside.all_bound(["large-0"]) == {"large-0": roomy}


async def test_pod_of_another_scheduler_is_left_alone(pipeline: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(2)
    await cluster_outside.add_pods(3, "theirs", scheduler="default-scheduler")
    await cluster_outside.all_bound(await cluster_outside.add_pods(10, "ours"))
    await asyncio.sleep(A_WHILE_SECONDS)
    theirs = [pod for name, pod in (await cluster_outside.pods()).items() if name.startswith("theirs")]
    assert [node_of(pod) for pod in theirs] == ["", "", ""]
    assert [pod["status"].get("conditions") for pod in theirs] == [None, None, None]


async def test_room_that_somebody_else_has_taken_is_counted(pipeline: BerthUp, cluster_outside: ClusterUser):
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


async def test_gated_pod_enters_when_its_gates_are_gone(pipeline: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(1)
    await cluster_outside.add_pods(1, "gated", spec={"schedulingGates": [{"name": "example.com/quota"}]})
    await cluster_outside.all_bound(await cluster_outside.add_pods(3, "free"))
    await asyncio.sleep(A_WHILE_SECONDS)
    assert "gated-0" not in await cluster_outside.placed()
    assert (await cluster_outside.condition("gated-0"))["reason"] == "SchedulingGated"
    await cluster_outside.ungate("gated-0")
    await cluster_outside.all_bound(["gated-0"])


async def test_pod_deleted_while_it_waits_is_in_nobodys_way(pipeline: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(2, cpu="1")
    await cluster_outside.add_pods(5, "doomed", cpu="2")
    await eventually(lambda: cluster_outside.condition("doomed-0"), "the pods to be refused")
    await asyncio.gather(*(cluster_outside.delete_pod(f"doomed-{number}") for number in range(5)))
    await cluster_outside.add_nodes(1, cpu="10")
    placed = await cluster_outside.all_bound(await cluster_outside.add_pods(10, "web", cpu="1"))
    assert placed.keys() == {f"web-{number}" for number in range(10)}


async def test_namesake_of_a_deleted_pod_is_bound_too(pipeline: BerthUp, cluster_outside: ClusterUser):
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


async def test_node_that_goes_gets_no_more_pods(pipeline: BerthUp, cluster_outside: ClusterUser):
    kept, going = await cluster_outside.add_nodes(2)
    await cluster_outside.all_bound(await cluster_outside.add_pods(4, "early"))
    assert (await cluster_outside.api.delete(f"/api/v1/nodes/{going}")).code == 200
    placed = await cluster_outside.all_bound(await cluster_outside.add_pods(6, "late"))
    assert {placed[f"late-{number}"] for number in range(6)} == {kept}


async def test_pod_of_a_deep_name_and_a_long_one_are_bound(pipeline: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(1)
    names = ["web.0.a-b.c", "x" * 253, f"{'y' * 60}.{'z' * 60}"]
    await cluster_outside.create(cluster_outside.pod(name) for name in names)
    await cluster_outside.all_bound(names)
