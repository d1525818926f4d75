"""An important pod on a full cluster: as few less important pods as possible are evicted for it, with Events."""

import asyncio

import pytest

from harness.worlds.cluster_user import ClusterUser, eventually, node_of
from harness.worlds.pipeline import BerthUp

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(180)]

A_WHILE_SECONDS = 2.0
"""A pod that is still there after this time is not evicted."""
AT_ONCE = {"terminationGracePeriodSeconds": 0}
"""There is no kubelet that ends pods. Pods without a grace period are removed as soon as they are deleted."""


async def full(seen: ClusterUser, nodes: int, each: int, **spec: object) -> dict[str, str]:
    """Add nodes for `each` pods and fill them with unimportant pods; return each pod's node."""
    await seen.add_nodes(nodes, cpu=str(each))
    names = await seen.add_pods(nodes * each, "low", cpu="1", spec={**AT_ONCE, **spec})
    return await seen.all_bound(names)


async def add_important(seen: ClusterUser, *, cpu: str = "1", **members: str) -> str:
    """Add a pod of the highest priority; ``members`` are fields of its priority class."""
    priority = await seen.add_priority_class("vip", 100_000, **members)
    (made,) = await seen.add_pods(1, "vip", cpu=cpu, priority_class=priority)
    return made


async def pod_of(seen: ClusterUser, name: str) -> dict:
    return (await seen.pods()).get(name, {})


async def nominated(seen: ClusterUser, name: str) -> str:
    """Wait for the pod's nominated node."""

    async def node() -> str:
        return (await pod_of(seen, name))["status"].get("nominatedNodeName", "")

    return await eventually(node, f"a nominated node for {name}")


async def test_less_important_pods_are_evicted_for_an_important_one(pipeline: BerthUp, cluster_outside: ClusterUser):
    before = await full(cluster_outside, nodes=3, each=2)
    vip = await add_important(cluster_outside, cpu="2")
    node = (await cluster_outside.all_bound([vip]))[vip]
    left = await cluster_outside.placed()
    assert before.keys() - left.keys() == {name for name, where in before.items() if where == node}
    events = await eventually(lambda: events_of(cluster_outside, "Preempted", 2), "an Event for each victim")
    uid = (await pod_of(cluster_outside, vip))["metadata"]["uid"]
    assert {event["regarding"]["name"] for event in events} == before.keys() - left.keys()
    assert {event["note"] for event in events} == {f"Preempted by pod {uid} on node {node}"}


async def events_of(seen: ClusterUser, reason: str, count: int) -> list[dict] | None:
    found = await seen.events(reason)
    return found if len(found) >= count else None


async def test_a_preemptor_waits_for_its_node_while_the_victims_terminate(
    pipeline: BerthUp, cluster_outside: ClusterUser
):
    before = await full(cluster_outside, nodes=2, each=1, terminationGracePeriodSeconds=3600)
    vip = await add_important(cluster_outside)
    node = await nominated(cluster_outside, vip)
    (victim,) = [name for name, where in before.items() if where == node]
    going = await pod_of(cluster_outside, victim)
    assert going["metadata"]["deletionGracePeriodSeconds"] == 3600
    target = {each["type"]: each for each in going["status"]["conditions"]}["DisruptionTarget"]
    assert (target["status"], target["reason"]) == ("True", "PreemptionByScheduler")
    assert target["message"] == "berth: preempting to accommodate a higher priority pod"
    condition = await eventually(lambda: cluster_outside.condition(vip), "a condition")
    assert condition["reason"] == "Unschedulable"
    # A second attempt, which a scorer that is a moment behind brings about, adds why it evicts no more.
    assert condition["message"].startswith("0/2 nodes are available: 2 Insufficient cpu.")
    await asyncio.sleep(A_WHILE_SECONDS)
    pods = await cluster_outside.pods()
    assert [name for name, pod in pods.items() if "deletionTimestamp" in pod["metadata"]] == [victim]
    await cluster_outside.delete_pod(victim)  # as the kubelet does when the pod has ended
    assert (await cluster_outside.all_bound([vip]))[vip] == node


async def test_a_preemptor_whose_node_is_cordoned_gets_another(pipeline: BerthUp, cluster_outside: ClusterUser):
    before = await full(cluster_outside, nodes=2, each=1, terminationGracePeriodSeconds=3600)
    vip = await add_important(cluster_outside)
    cordoned = await nominated(cluster_outside, vip)
    ((victim, other),) = [(name, where) for name, where in before.items() if where != cordoned]
    answer = await cluster_outside.api.patch(f"/api/v1/nodes/{cordoned}", {"spec": {"unschedulable": True}})
    assert answer.code == 200, answer.body

    async def moved() -> bool:
        return (await pod_of(cluster_outside, vip))["status"].get("nominatedNodeName") == other

    await eventually(moved, "the other node to be nominated")
    await cluster_outside.delete_pod(victim)
    assert (await cluster_outside.all_bound([vip]))[vip] == other


async def test_no_other_pod_takes_the_resources_of_the_victims(pipeline: BerthUp, cluster_outside: ClusterUser):
    before = await full(cluster_outside, nodes=1, each=2, terminationGracePeriodSeconds=3600)
    vip = await add_important(cluster_outside, cpu="2")
    await nominated(cluster_outside, vip)
    first, second = before
    await cluster_outside.delete_pod(first)
    await cluster_outside.add_pods(1, "other", cpu="1")
    await eventually(lambda: cluster_outside.condition("other-0"), "the other to be refused")
    await cluster_outside.delete_pod(second)
    await cluster_outside.all_bound([vip])
    assert node_of(await pod_of(cluster_outside, "other-0")) == ""


async def test_a_disruption_budget_is_kept_when_another_node_is_possible(
    pipeline: BerthUp, cluster_outside: ClusterUser
):
    await forbid_disruptions(cluster_outside, app="protected")
    await cluster_outside.add_nodes(3, cpu="1")
    protected = await cluster_outside.add_pods(2, "kept", cpu="1", labels={"app": "protected"}, spec=AT_ONCE)
    await cluster_outside.all_bound([*protected, *await cluster_outside.add_pods(1, "low", cpu="1", spec=AT_ONCE)])
    vip = await add_important(cluster_outside)
    assert (await cluster_outside.all_bound([vip])).keys() == {*protected, vip}


async def forbid_disruptions(seen: ClusterUser, **labels: str) -> None:
    """Add a budget that allows no disruption. No controller updates its status here."""
    spec = {"minAvailable": 1, "selector": {"matchLabels": labels}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "none"}, "spec": spec}
    path = f"/apis/policy/v1/namespaces/{seen.namespace}/poddisruptionbudgets"
    assert (await seen.api.post(path, budget)).code == 201


async def test_a_pod_with_policy_never_waits_and_gives_the_reason(pipeline: BerthUp, cluster_outside: ClusterUser):
    before = await full(cluster_outside, nodes=2, each=1)
    vip = await add_important(cluster_outside, preemptionPolicy="Never")
    condition = await eventually(lambda: cluster_outside.condition(vip), "a condition")
    assert condition["message"] == (
        "0/2 nodes are available: 2 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never."
    )
    await asyncio.sleep(A_WHILE_SECONDS)
    assert await cluster_outside.placed() == before


async def test_several_important_pods_get_a_node_each(pipeline: BerthUp, cluster_outside: ClusterUser):
    before = await full(cluster_outside, nodes=6, each=1)
    priority = await cluster_outside.add_priority_class("vip", 100_000)
    vips = await cluster_outside.add_pods(4, "vip", cpu="1", priority_class=priority)
    placed = await cluster_outside.all_bound(vips)
    assert len({placed[vip] for vip in vips}) == 4
    assert len(before.keys() - placed.keys()) == 4
