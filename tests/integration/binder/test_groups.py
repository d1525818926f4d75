"""Groups on a real API server: what is bound of one, also when binders die between two Bindings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from berth.api.pod import Pod
from berth.api.podgroups import GROUP_LABEL, CoschedulingPodGroup, PodGroup, of_coscheduling
from berth.bus.stages import group_ranked_message
from berth.kube.http1 import Response
from berth.kube.writes import get_pod, nominate
from berth.messages.attempts import Decision, Outcome
from berth.messages.bundles import bundled
from berth.messages.groupattempts import GroupRanked
from berth.messages.groups import ClassPlan, GroupPlan, PlannedMember
from berth_binder import apicalls
from berth_binder.cache import fence_epoch
from berth_binder.events import RehearseBinding
from harness.fakes.memory_bus import MemoryBus
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import BinderWorld, binder_world
from harness.worlds.podgroups import define_podgroups, podgroups_path
from harness.worlds.policies import refusing_bindings

pytestmark = pytest.mark.parametrize("cluster", ["real"], indirect=True)  # the simulated one has no custom kinds


class GroupWorld(BinderWorld):
    """With PodGroups of Coscheduling's dialect."""

    async def add_group(self, name: str, minimum: int) -> PodGroup:
        body = {
            "apiVersion": "scheduling.x-k8s.io/v1alpha1",
            "kind": "PodGroup",
            "metadata": {"name": name},
            "spec": {"minMember": minimum},
        }
        answer = await self.cluster.api.post(podgroups_path(self.cluster.api.namespace), body)
        assert answer.code == 201, answer.body
        return of_coscheduling(msgspec.convert(answer.body, CoschedulingPodGroup))

    async def add_members(self, group: PodGroup, count: int, **spec: object) -> list[Pod]:
        container = {"name": "main", "image": "pause", "resources": {"requests": {"cpu": "1"}}}
        for number in range(count):
            answer = await self.cluster.api.add_pod(
                f"{group.name}-{number}", labels={GROUP_LABEL: group.name}, containers=[container], **spec
            )
            assert answer.code == 201, answer.body
        return [await self.pod(f"{group.name}-{number}") for number in range(count)]

    async def rank_group(self, group: PodGroup, pods: list[Pod], *nodes: str, n: int = 1) -> None:
        """Publish RANKED of the group: its pods on these nodes in turn."""
        members = [PlannedMember(pod.uid, 0, place % len(nodes)) for place, pod in enumerate(pods)]
        plan = GroupPlan(
            need=len(pods), nodes=[*nodes], members=members, classes=[ClassPlan(members=len(pods), placed=len(pods))]
        )
        message = GroupRanked(
            attempt=f"{group.uid}.1.{n}",
            profile="berth",
            group=group,
            bundle=bundled(pods, {pod.uid: n for pod in pods}),
            need=len(pods),
            plan=plan,
        )
        staged = group_ranked_message(self.session, message)
        await staged.publish(self.session)

    async def group_decision(self, group: PodGroup, n: int = 1) -> Decision:
        attempt = f"{group.uid}.1.{n}"
        await self.until(lambda: self._finals(attempt))
        return self._finals(attempt)[0]

    async def bound(self, pods: list[Pod]) -> int:
        shown = [await self.pod(pod.metadata.name) for pod in pods]
        return sum(bool(pod.spec.node_name) for pod in shown)


@pytest.fixture
async def world(cluster: Cluster) -> AsyncIterator[GroupWorld]:
    bus = MemoryBus()
    bus.apply()
    async with define_podgroups(cluster.api), binder_world(cluster, bus, GroupWorld) as world:
        yield world


async def test_all_members_are_bound_each_with_a_decision_and_an_event(world: GroupWorld):
    node, group = await world.add_node(), await world.add_group("gang", 4)
    pods = await world.add_members(group, 4)
    await world.leading_binder()
    await world.rank_group(group, pods, node)
    decision = await world.group_decision(group)
    assert (decision.outcome, decision.group.bound) == (Outcome.BOUND, 4)
    assert await world.bound(pods) == 4
    assert {each.pod for each in world.decisions if each.of_group} == {pod.metadata.name for pod in pods}
    await world.nothing_ranked_is_left()
    await world.until(lambda: has_event(world, "gang", "Scheduled"))


async def test_a_binder_that_began_before_pod_groups_were_defined_binds_the_first_group(cluster: Cluster):
    bus = MemoryBus()
    bus.apply()
    async with binder_world(cluster, bus, GroupWorld) as world:
        await world.leading_binder()
        async with define_podgroups(cluster.api):
            node, group = await world.add_node(), await world.add_group("gang", 2)
            pods = await world.add_members(group, 2)
            await world.rank_group(group, pods, node)
            assert (await world.group_decision(group)).outcome is Outcome.BOUND


async def test_a_group_larger_than_the_room_binds_none(world: GroupWorld):
    node, group = await world.add_node(), await world.add_group("gang", 5)
    pods = await world.add_members(group, 5)
    await world.leading_binder()
    await world.rank_group(group, pods, node)
    decision = await world.group_decision(group)
    assert (decision.outcome, decision.reason) == (Outcome.CONFLICT, "no-candidate")
    assert await world.bound(pods) == 0


async def test_a_policy_that_refuses_one_class_binds_none(world: GroupWorld):
    node, group = await world.add_node(), await world.add_group("gang", 3)
    pods = await world.add_members(group, 3)
    async with refusing_bindings(world.cluster.api):
        await world.leading_binder()
        await world.rank_group(group, pods, node)
        decision = await world.group_decision(group)
    assert decision.outcome is Outcome.ERROR
    assert "no Bindings today" in decision.message
    assert await world.bound(pods) == 0


async def test_members_of_a_group_that_lacks_others_keep_no_room_by_their_nominations(world: GroupWorld):
    node, group = await world.add_node(), await world.add_group("gang", 3)
    pods = await world.add_members(group, 2)
    await nominate(world.cluster.client, pods[0], node)
    await world.leading_binder()

    async def is_cleared() -> bool:
        return not (await world.pod("gang-0")).status.nominated_node_name

    await world.until(is_cleared)


@pytest.mark.parametrize("answered", range(4))
async def test_a_binder_that_dies_between_two_bindings_is_followed_by_one_that_ends_whole(world: GroupWorld, answered):
    node, group = await world.add_node(), await world.add_group("gang", 4)
    pods = await world.add_members(group, 4)
    binder = await world.leading_binder()
    with bindings_up_to(answered):
        await world.rank_group(group, pods, node)

        async def are_bound() -> bool:
            return await world.bound(pods) == answered

        await world.until(are_bound)
        await binder.kill()
    await world.leading_binder()
    decision = await world.group_decision(group)
    assert (decision.outcome, decision.epoch) == (Outcome.BOUND, 2)
    assert await world.bound(pods) == 4
    fenced = [fence_epoch(await world.pod(pod.metadata.name)) == 2 for pod in pods]
    assert sum(fenced) == 4 - answered
    await world.nothing_ranked_is_left()


async def has_event(world: GroupWorld, name: str, reason: str) -> bool:
    return any(
        each["reason"] == reason and each["regarding"]["kind"] == "PodGroup" for each in await world.events(name)
    )


@contextmanager
def bindings_up_to(count: int) -> Iterator[None]:
    """So many Bindings are sent; the rest are never, and nothing answers."""
    real, sent = apicalls.bind, 0

    async def some(*given: Any, is_rehearsal: bool = False, **parts: Any) -> Response:
        nonlocal sent
        sent += not is_rehearsal
        if sent > count and not is_rehearsal:
            await asyncio.Event().wait()
        return await real(*given, is_rehearsal=is_rehearsal, **parts)

    with patch.object(apicalls, "bind", some):
        yield


async def test_a_rehearsal_is_answered_as_a_binding_and_binds_nothing(cluster: Cluster):
    assert (await cluster.api.add_pod("one", containers=[{"name": "main", "image": "pause"}])).code == 201
    pod = await get_pod(cluster.client, cluster.api.namespace, "one")
    assert pod is not None
    changed = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid="another"))
    for rehearsed, status in ((pod, 201), (changed, 409)):
        rehearsal = RehearseBinding(pod=rehearsed, node="n1")
        assert (await apicalls.rehearse_binding(cluster.client, rehearsal, timedelta(seconds=10))).status == status
    assert (await get_pod(cluster.client, cluster.api.namespace, "one")) == pod
