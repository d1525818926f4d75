"""The binder on a real NATS server, against the real API server and the simulated one."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import structs

from berth.messages.attempts import Outcome, Reason
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import QUICK, BinderWorld, binder_world


@pytest.fixture
async def world(cluster: Cluster, nats_bus_under_test: BusUnderTest) -> AsyncIterator[BinderWorld]:
    async with binder_world(cluster, nats_bus_under_test.bus) as world:
        yield world


async def test_ranked_pod_is_bound_recorded_and_acknowledged(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    await world.leading_binder()
    await world.rank(pod, node)
    decision = await world.decision(pod)
    assert (decision.outcome, decision.node) == (Outcome.BOUND, node)
    assert (await world.pod("web")).spec.node_name == node
    await world.nothing_ranked_is_left()
    await world.until(lambda: world.events("web"))
    (event,) = await world.events("web")
    assert (event["reason"], event["type"]) == ("Scheduled", "Normal")
    assert event["note"] == f"Successfully assigned {world.cluster.api.namespace}/web to {node}"
    assert event["reportingController"] == "berth"


async def test_unschedulable_pod_has_a_condition_and_one_event_series(world):
    pod = await world.add_pod("web")
    await world.leading_binder()
    for n in (1, 2, 3):
        await world.rank(pod, n=n, message="0/1 nodes are available: 1 Insufficient cpu.")
        assert (await world.decision(pod, n)).outcome is Outcome.UNSCHEDULABLE

    async def counted() -> bool:
        found = await world.events("web")
        return bool(found) and (found[0].get("series") or {}).get("count") == 3

    await world.until(counted)
    (event,) = await world.events("web")
    assert (event["reason"], event["action"]) == ("FailedScheduling", "Scheduling")
    conditions = {each.type: each for each in (await world.pod("web")).status.conditions or ()}
    assert conditions["PodScheduled"].reason == "Unschedulable"
    assert conditions["PodScheduled"].message == "0/1 nodes are available: 1 Insufficient cpu."


async def test_bindings_of_others_are_counted_and_the_binders_own_are_not(world):
    node, pods = await world.add_node(), [await world.add_pod(name) for name in ("own", "theirs")]
    binder = await world.leading_binder()
    values, counted = binder.process.metrics.values, ("berth_foreign_bindings_total", "berth")
    await world.until(lambda: counted in values)
    await world.rank(pods[0], node)
    assert (await world.decision(pods[0])).outcome is Outcome.BOUND
    assert (await world.cluster.api.bind("theirs", node)).code == 201
    await world.until(lambda: values[counted])
    await binder.stop()
    second = await world.leading_binder()
    await world.until(lambda: counted in second.process.metrics.values)
    assert (values[counted], second.process.metrics.values[counted]) == (1, 0)


async def test_pod_bound_by_another_client_is_gone_and_counts(world):
    node, other = await world.add_node(), await world.add_node()
    pod = await world.add_pod("web")
    await world.leading_binder()
    assert (await world.cluster.api.bind("web", other)).code == 201
    await world.rank(pod, node)
    assert (await world.decision(pod)).outcome is Outcome.GONE
    assert (await world.pod("web")).spec.node_name == other


async def test_pod_written_meanwhile_is_bound(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    await world.leading_binder()
    path = f"{world.cluster.api.pods}/web/status"
    patch = {"status": {"conditions": [{"type": "example.com/odd", "status": "True"}]}}
    answer, _ = await asyncio.gather(
        world.cluster.api.patch(path, patch, "application/strategic-merge-patch+json"), world.rank(pod, node)
    )
    assert answer.code == 200
    assert (await world.decision(pod)).outcome is Outcome.BOUND


async def test_pod_is_bound_as_soon_as_the_watch_shows_it_as_it_was_ranked(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    binder = await world.leading_binder(replace(QUICK, core=replace(QUICK.core, unseen_wait=timedelta(minutes=1))))
    newer = str(int(pod.metadata.resource_version) + 40)  # above what a bookmark may have shown
    labelled = structs.replace(pod.metadata, labels={"tier": "web"}, resource_version=newer)
    await world.rank(structs.replace(pod, metadata=labelled), node)
    await world.until(lambda: binder.process.metrics.values.get(("berth_messages_received_total", "RANKED")))
    path = f"{world.cluster.api.pods}/web"
    await world.cluster.api.patch(path, {"metadata": {"labels": {"tier": "web"}}}, "application/merge-patch+json")
    assert (await world.decision(pod)).outcome is Outcome.BOUND


async def test_no_node_is_overcommitted(world):
    node, other = await world.add_node(cpu="2"), await world.add_node(cpu="2")
    pods = [await world.add_pod(f"p{number}") for number in range(6)]
    await world.leading_binder()
    for pod in pods:
        await world.rank(pod, node, other)
    outcomes = [(await world.decision(pod)) for pod in pods]
    assert sorted(decision.outcome for decision in outcomes) == [Outcome.BOUND] * 4 + [Outcome.CONFLICT] * 2
    assert sorted(decision.node for decision in outcomes if decision.node) == sorted([node, node, other, other])
    assert {decision.reason for decision in outcomes if not decision.node} == {Reason.NO_CANDIDATE}


async def test_new_epoch_fences_ranked_pods_before_it_binds(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    await (await world.leading_binder()).kill()
    await world.rank(pod, node)
    await world.leading_binder()
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    conditions = {each.type: each.message for each in (await world.pod("web")).status.conditions or ()}
    assert conditions["berth/fence"] == str((await world.decision(pod)).epoch)
    stale = await world.cluster.api.bind("web", node, uid=pod.uid, resourceVersion=pod.metadata.resource_version)
    assert stale.code == 409


async def test_second_binder_continues_where_the_first_stopped(world):
    node = await world.add_node()
    first = await world.leading_binder()
    pods = [await world.add_pod(f"p{number}", cpu="10m") for number in range(40)]
    for pod in pods[:20]:
        await world.rank(pod, node)
    await first.kill()
    for pod in pods[20:]:
        await world.rank(pod, node)
    await world.start_binder()
    for pod in pods:
        await world.until(
            lambda pod=pod: any(decision.uid == pod.uid and decision.outcome == "bound" for decision in world.decisions)
        )
    await world.nothing_ranked_is_left()
    epochs = {decision.epoch for decision in world.decisions}
    assert len(epochs) <= 2
    (consumer,) = await world.session.consumers("RANKED")
    assert consumer == f"binder-{max(epochs)}"


async def test_stopping_finishes_requests_and_releases_the_lease(world):
    node = await world.add_node()
    pods = [await world.add_pod(f"p{number}", cpu="10m") for number in range(10)]
    binder = await world.leading_binder()
    for pod in pods:
        await world.rank(pod, node)
    await binder.stop()
    bound = {pod.uid for pod in [await world.pod(pod.metadata.name) for pod in pods] if pod.spec.node_name}
    await world.until(lambda: {decision.uid for decision in world.decisions if decision.outcome == "bound"} == bound)
    lease = await world.cluster.api.get(f"/apis/coordination.k8s.io/v1/namespaces/berth/leases/{world.lease}-binder")
    assert lease.body["spec"].get("holderIdentity", "") == ""
