"""Evictions for a more important pod, on the real API server and the simulated one, and when requests fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest

from berth.api.pod import Pod
from berth.clock import Backoff
from berth.messages.attempts import Decision, Outcome, Preemption, Victim
from berth_binder.apicalls import evict_pods
from berth_binder.events import EvictPods
from berth_binder.settings import CoreSettings
from berth_sim.faults import Clear, Fail, LoseAnswer, Reject
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import QUICK, BinderWorld, binder_world
from harness.worlds.kubernetes_api import STRATEGIC_PATCH

IMPORTANT = {"priorityClassName": "system-cluster-critical", "priority": 2_000_000_000}
VIEW = {"evaluated": 10**6, "view_age_seconds": 1.0}
"""A view of all nodes, those of other tests included."""
DELETE = {"verb": "delete", "resource": "pods"}
PATIENT = replace(QUICK, core=CoreSettings(backoff=Backoff(initial=timedelta(minutes=1), maximum=timedelta(minutes=1))))
"""A binder that is killed before it retries what failed."""


@pytest.fixture
async def world(cluster: Cluster, nats_bus_under_test: BusUnderTest) -> AsyncIterator[BinderWorld]:
    async with binder_world(cluster, nats_bus_under_test.bus) as world:
        yield world


@pytest.fixture
async def failing(simulated_cluster: Cluster, nats_bus_under_test: BusUnderTest) -> AsyncIterator[BinderWorld]:
    async with binder_world(simulated_cluster, nats_bus_under_test.bus) as world:
        yield world


async def full_node(world: BinderWorld, *names: str, grace: int = 0) -> str:
    """A node that is full of these pods."""
    node = await world.add_node(cpu=str(len(names)))
    for name in names:
        await add(world, name, terminationGracePeriodSeconds=grace)
        assert (await world.cluster.api.bind(name, node)).code == 201
    return node


def only(node: str) -> dict[str, str]:
    """The selector of pods that only fit there: nodes of other tests are free."""
    return {"kubernetes.io/hostname": node}


async def add(world: BinderWorld, name: str, cpu: str = "1", **spec: object) -> Pod:
    container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": cpu}}}
    answer = await world.cluster.api.add_pod(name, containers=[container], **spec)
    assert answer.code == 201, answer.body
    return await world.pod(name)


async def propose(world: BinderWorld, pod: Pod, node: str, *names: str) -> None:
    """Publish RANKED with the proposal to evict these pods from the node."""
    bound = [await world.pod(name) for name in names]
    victims = [Victim(uid=each.uid, namespace=each.metadata.namespace, name=each.metadata.name) for each in bound]
    preemption = Preemption(node=node, victims=victims)
    await world.rank(pod, message="0/1 nodes are available.", preemption=preemption, **VIEW)


async def is_there(world: BinderWorld, name: str) -> bool:
    return (await world.cluster.api.get(f"{world.cluster.api.pods}/{name}")).code == 200


async def nominated_node(world: BinderWorld, name: str) -> str:
    return (await world.pod(name)).status.nominated_node_name


async def preempted(world: BinderWorld, pod: Pod) -> Decision:
    decision = await world.decision(pod)
    assert decision.outcome is Outcome.PREEMPTING
    return decision


async def test_victims_are_deleted_and_the_node_is_nominated(world):
    node = await full_node(world, "low-1", "low-2")
    vip = await add(world, "vip", cpu="2", nodeSelector=only(node), **IMPORTANT)
    await world.leading_binder()
    await propose(world, vip, node, "low-1", "low-2")
    decision = await preempted(world, vip)
    assert (decision.node, {victim.name for victim in decision.preemption.victims}) == (node, {"low-1", "low-2"})
    assert not await is_there(world, "low-1")
    assert not await is_there(world, "low-2")
    assert await nominated_node(world, "vip") == node
    await world.until(lambda: world.events("low-1"))
    (event,) = await world.events("low-1")
    assert (event["reason"], event["note"]) == ("Preempted", f"Preempted by pod {vip.uid} on node {node}")


async def test_victim_with_a_grace_period_has_a_disruption_condition(world):
    node = await full_node(world, "low", grace=3600)
    vip = await add(world, "vip", nodeSelector=only(node), **IMPORTANT)
    await world.leading_binder()
    await propose(world, vip, node, "low")
    await preempted(world, vip)
    victim = await world.pod("low")
    condition = {each.type: each for each in victim.status.conditions or ()}["DisruptionTarget"]
    assert (victim.metadata.deletion_timestamp is not None, condition.reason) == (True, "PreemptionByScheduler")
    assert condition.message == "berth: preempting to accommodate a higher priority pod"


async def test_no_further_victim_is_deleted_once_the_pod_needs_no_node(world):
    node = await full_node(world, "low-1", "low-2")
    vip = await add(world, "vip", cpu="2", nodeSelector=only(node), **IMPORTANT)
    victims = (await world.pod("low-1"), await world.pod("low-2"))
    needed = iter((True, False))
    answer = await evict_pods(
        world.cluster.client, EvictPods(pod=vip, node=node, victims=victims), lambda: next(needed)
    )
    assert (answer.status, answer.message) == (404, "the pod needs no node any more")
    assert not await is_there(world, "low-1")
    (condition,) = [each for each in (await world.pod("low-2")).status.conditions if each.type == "DisruptionTarget"]
    assert (condition.status, condition.message) == ("False", "the eviction is not needed any more")
    assert await nominated_node(world, "vip") == ""


async def test_namesake_of_a_victim_is_not_evicted(world):
    node = await full_node(world, "low")
    vip = await add(world, "vip", nodeSelector=only(node), **IMPORTANT)
    gone = await world.pod("low")
    await world.cluster.api.delete(f"{world.cluster.api.pods}/low", {"gracePeriodSeconds": 0})
    await add(world, "low")
    await world.leading_binder()
    victim = Victim(uid=gone.uid, namespace=gone.metadata.namespace, name="low")
    await world.rank(vip, message="no", preemption=Preemption(node=node, victims=[victim]), **VIEW)
    assert (await world.decision(vip)).outcome is Outcome.CONFLICT
    assert await is_there(world, "low")


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(LoseAnswer(**DELETE, count=2), id="the answer to the deletion is lost"),
        pytest.param(Fail(**DELETE, status=503), id="the deletion fails"),
        pytest.param(Fail(verb="patch", resource="pods/status", status=500), id="the condition cannot be written"),
        pytest.param(LoseAnswer(verb="patch", resource="pods/status"), id="the answer to the condition is lost"),
    ],
)
async def test_failed_requests_are_retried(failing, fault):
    node = await full_node(failing, "low-1", "low-2", grace=3600)
    vip = await add(failing, "vip", cpu="2", nodeSelector=only(node), **IMPORTANT)
    await failing.leading_binder()
    failing.cluster.simulated.faults.inject(fault)
    await propose(failing, vip, node, "low-1", "low-2")
    await preempted(failing, vip)
    victims = [await failing.pod(name) for name in ("low-1", "low-2")]
    assert all(victim.metadata.deletion_timestamp for victim in victims)
    assert await nominated_node(failing, "vip") == node


async def test_missing_right_names_the_rule_to_add(failing):
    node = await full_node(failing, "low")
    vip = await add(failing, "vip", nodeSelector=only(node), **IMPORTANT)
    await failing.leading_binder()
    failing.cluster.simulated.faults.inject(Reject(**DELETE, count=None, user="system:serviceaccount:berth:binder"))
    await propose(failing, vip, node, "low")
    decision = await failing.decision(vip)
    assert decision.outcome is Outcome.ERROR
    assert 'apiGroups: [""], resources: ["pods"], verbs: ["delete"]' in decision.message
    assert await nominated_node(failing, "vip") == ""
    victim = await failing.pod("low")
    assert victim.metadata.deletion_timestamp is None
    condition = {each.type: each for each in victim.status.conditions or ()}["DisruptionTarget"]
    marked = (condition.status, condition.reason, condition.message)
    assert marked == ("False", "EvictionRefused", "the eviction was refused")


async def test_successor_decides_when_killed_after_the_deletion(failing):
    node = await full_node(failing, "low-1", "low-2", grace=3600)
    vip = await add(failing, "vip", cpu="2", nodeSelector=only(node), **IMPORTANT)
    first = await failing.leading_binder(PATIENT)
    failing.cluster.simulated.faults.inject(LoseAnswer(**DELETE, count=None))
    await propose(failing, vip, node, "low-1", "low-2")

    async def one_is_going() -> bool:
        pods = [await failing.pod(name) for name in ("low-1", "low-2")]
        return any(pod.metadata.deletion_timestamp for pod in pods)

    await failing.until(one_is_going)
    assert failing.decisions == []
    await first.kill()
    failing.cluster.simulated.faults.inject(Clear())
    await failing.start_binder()
    decision = await preempted(failing, vip)
    assert (decision.node, {victim.name for victim in decision.preemption.victims}) == (node, {"low-1", "low-2"})
    assert await nominated_node(failing, "vip") == node
    await failing.nothing_ranked_is_left()


async def test_successor_has_the_pod_ranked_when_all_victims_are_deleted(failing):
    node = await full_node(failing, "low")
    vip = await add(failing, "vip", nodeSelector=only(node), **IMPORTANT)
    first = await failing.leading_binder(PATIENT)
    await mark(failing, "low")
    failing.cluster.simulated.faults.inject(Fail(verb="patch", resource="pods/status", count=None))
    await propose(failing, vip, node, "low")

    async def gone() -> bool:
        return not await is_there(failing, "low")

    await failing.until(gone)
    await first.kill()
    failing.cluster.simulated.faults.inject(Clear())
    await failing.start_binder()
    assert (await failing.decision(vip)).outcome is Outcome.CONFLICT
    await failing.rank(vip, node, n=2)
    assert (await failing.decision(vip, n=2)).outcome is Outcome.BOUND


async def mark(world: BinderWorld, name: str) -> None:
    """Mark the pod as being evicted, so that the next write to a pod's status is the nomination."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    path, patch = f"{world.cluster.api.pods}/{name}/status", {"status": {"conditions": [condition]}}
    assert (await world.cluster.api.patch(path, patch, STRATEGIC_PATCH)).code == 200
