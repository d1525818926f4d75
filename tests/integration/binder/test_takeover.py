"""The takeover, step by step: after it no POST of a former epoch can land, and the watch has shown what they did."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import pytest

from berth.api.devices import FINALIZER, ResourceClaim
from berth.api.pod import Pod, is_marked_for_preemption
from berth.api.podgroups import of_coscheduling
from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings
from berth.bus.stages import group_ranked_message
from berth.kube.client import KubeClient
from berth.kube.http1 import Response
from berth.kube.informers import Informers
from berth.kube.listwatch import Upserted
from berth.leader.clients import cluster_informers
from berth.leader.onecluster import claim_cluster, read_cluster_id
from berth.leader.session import LeaderSession
from berth.lifecycle.process import Process
from berth.messages.attempts import Outcome, Preemption, Victim
from berth.messages.bundles import bundled
from berth.messages.groupattempts import GroupRanked
from berth.messages.groups import GroupPlan
from berth_binder import apicalls
from berth_binder.cache import Cache, fence_epoch
from berth_binder.service import observe
from berth_binder.takeover import FENCED_KEY, TakenOver, Takeover
from berth_sim.faults import Clear, CutWatches, Delay, Fail
from harness.fakes.recording_meter import RecordingMeter
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.servers.nats_server import NatsServer
from harness.worlds.binder_world import BinderWorld, binder_world
from harness.worlds.group_bench import KIND, LABELS, a_podgroup


@dataclass
class Epoch:
    """A leadership with a number only."""

    number: int
    follows_settled: bool = False
    confirmed: int = 0

    async def confirm(self) -> None:
        self.confirmed += 1


@pytest.fixture
async def world(simulated_cluster: Cluster, nats_bus_under_test: BusUnderTest) -> AsyncIterator[BinderWorld]:
    async with binder_world(simulated_cluster, nats_bus_under_test.bus) as world:
        yield world


@pytest.fixture
async def informers(world: BinderWorld) -> AsyncIterator[Informers]:
    cache = Cache(schedulers=["berth"])
    informers = cluster_informers(
        world.cluster.client, partial(observe, cache), Process(name="binder", metrics=RecordingMeter())
    )
    informers.cache = cache
    task = asyncio.create_task(informers.run())
    await informers.listed()
    yield informers
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def takeover(world: BinderWorld, informers: Informers, epoch: int, *, follows_settled: bool = False) -> Takeover:
    return Takeover(
        session=world.session,
        leadership=Epoch(epoch, follows_settled=follows_settled),
        client=world.cluster.client,
        cache=informers.cache,
        informers=informers,
        schedulers=["berth"],
    )


async def epochs(world: BinderWorld, *pods: Pod) -> list[int]:
    return [fence_epoch(await world.pod(pod.metadata.name)) for pod in pods]


async def test_first_epoch_fences_ranked_pods_and_creates_its_consumer(world, informers):
    ranked, pending = await world.add_pod("ranked"), await world.add_pod("pending")
    await world.rank(ranked, "n1")
    assert await takeover(world, informers, 1).run() == TakenOver(consumer="binder-1", left=1, stored=1)
    assert await epochs(world, ranked, pending) == [1, 0]
    assert await world.session.consumers("RANKED") == ["binder-1"]
    assert (await world.session.get("control", FENCED_KEY)).data == b"1"


async def test_later_epoch_on_a_new_store_fences_every_unbound_pod(world, informers):
    pods = [await world.add_pod(f"p{number}") for number in range(3)]
    theirs = await world.cluster.api.add_pod("theirs", schedulerName="other")
    assert theirs.code == 201
    await takeover(world, informers, 2).run()
    assert await epochs(world, *pods) == [2, 2, 2]
    assert fence_epoch(await world.pod("theirs")) == 0


async def test_later_epoch_on_the_same_store_fences_ranked_pods_again(world, informers):
    ranked, pending = await world.add_pod("ranked"), await world.add_pod("pending")
    await world.rank(ranked, "n1")
    await takeover(world, informers, 1).run()
    await takeover(world, informers, 2).run()
    assert await epochs(world, ranked, pending) == [2, 0]


async def test_pods_of_messages_that_this_binder_does_not_take_are_fenced(world, informers):
    """A former leader of another version may have."""
    pods = [await world.add_pod(f"p{number}") for number in range(3)]
    for pod in pods:
        await world.rank(pod, error="x" * 10_000)
    await takeover(world, informers, 1).run()
    assert await epochs(world, *pods) == [1, 1, 1]


async def test_nothing_is_fenced_after_a_leader_that_left_nothing_under_way(world, informers):
    pods = [await world.add_pod(f"p{number}") for number in range(3)]
    for pod in pods:
        await world.rank(pod, "n1")
    await world.until(lambda: informers.cache.pod_count == 3)
    taken_over = await takeover(world, informers, 2, follows_settled=True).run()
    assert taken_over == TakenOver(consumer="binder-2", left=0, stored=3)
    assert sorted(await epochs(world, *pods)) == [0, 0, 2], "one, so that the watch has a version to reach"


@pytest.mark.parametrize("follows_settled", [True, False])
@pytest.mark.parametrize(("minimum", "first"), [(2, {2}), (1, set())])
async def test_begun_groups_that_need_members_are_known_after_every_leader(
    world, informers, monkeypatch, follows_settled, minimum, first
):
    """They are examined first, or others take the room of their rest, also by a message that has come meanwhile."""
    podgroup = a_podgroup(minimum, namespace=world.cluster.api.namespace)
    group = of_coscheduling(podgroup)
    pods = [await world.add_pod(name, labels=LABELS) for name in ("done", "rest")]
    await world.cluster.api.bind("done", "n1")
    informers.cache.observe(Upserted(kind=KIND, object=podgroup))
    await world.until(lambda: informers.cache.members_of(group.key).is_begun)
    bundle, create = bundled(pods[1:], {pods[1].uid: 1}), world.session.create_consumer

    async def publish(attempt: str) -> None:
        plan = GroupPlan(need=1)
        message = GroupRanked(attempt=attempt, profile="berth", group=group, bundle=bundle, need=1, plan=plan)
        await group_ranked_message(world.session, message).publish(world.session)

    async def create_late(stream: str, consumer: str) -> None:
        await publish("uid-gang.1.2")
        await create(stream, consumer)

    await publish("uid-gang.1.1")
    monkeypatch.setattr(world.session, "create_consumer", create_late)
    taken_over = await takeover(world, informers, 2, follows_settled=follows_settled).run()
    assert taken_over.begun == first


async def test_what_a_leader_left_that_did_not_stop_cleanly_is_known_by_its_last_message(world, informers):
    pods = [await world.add_pod(f"p{number}") for number in range(3)]
    await takeover(world, informers, 1).run()
    for pod in pods:
        await world.rank(pod, "n1")
    assert await takeover(world, informers, 2).run() == TakenOver(consumer="binder-2", left=3, stored=3)


async def test_fence_is_a_change_though_somebody_has_written_the_epoch_before(world, informers):
    pod = await world.add_pod("web")
    fence = {"status": {"conditions": [{"type": "berth/fence", "status": "True", "reason": "Fence", "message": "3"}]}}
    path = f"{world.cluster.api.pods}/web/status"
    await world.cluster.api.patch(path, fence, "application/strategic-merge-patch+json")
    before = await world.pod("web")
    await world.rank(before, "n1")
    await takeover(world, informers, 3).run()
    after = await world.pod("web")
    assert int(after.metadata.resource_version) > int(before.metadata.resource_version)
    assert pod.uid == after.uid


async def test_only_consumers_of_lower_epochs_are_deleted(world, informers):
    await world.session.create_consumer("RANKED", "binder-9")
    work = asyncio.create_task(takeover(world, informers, 5).run())
    await asyncio.sleep(0.5)
    assert await world.session.consumers("RANKED") == ["binder-9"]
    assert not work.done()
    await world.session.delete_consumer("RANKED", "binder-9")
    assert await asyncio.wait_for(work, 30) == TakenOver(consumer="binder-5", left=0, stored=0)


async def test_consumer_that_a_former_leader_recreates_is_deleted_again(world, informers, monkeypatch):
    pod = await world.add_pod("web")
    create, tries = world.session.create_consumer, []

    async def create_late(stream: str, consumer: str) -> None:
        tries.append(consumer)
        if len(tries) == 1:
            await world.rank(pod, "n1")
            await create(stream, "binder-3")
        await create(stream, consumer)

    monkeypatch.setattr(world.session, "create_consumer", create_late)
    await takeover(world, informers, 4).run()
    assert await world.session.consumers("RANKED") == ["binder-4"]
    assert await epochs(world, pod) == [4]


async def test_consumer_is_created_once_the_watch_has_shown_the_fence(world, informers):
    pod = await world.add_pod("web")
    await world.rank(pod, "n1")
    await world.until(lambda: informers.cache.pod(pod.uid) is not None)
    faults = world.cluster.simulated.faults
    faults.inject(Delay(verb="watch", resource="pods", seconds=60), CutWatches(resource="pods"))
    await asyncio.sleep(0.1)
    work = asyncio.create_task(takeover(world, informers, 1).run())
    await world.until(lambda: _is_fenced(world, pod))
    await asyncio.sleep(0.3)
    assert await world.session.consumers("RANKED") == []
    informers._running["pod"].cancel()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def _is_fenced(world: BinderWorld, pod: Pod) -> bool:
    return await epochs(world, pod) == [1]


async def test_own_open_bindings_are_fenced_and_forgotten(world, informers):
    pod = await world.add_pod("web")
    cache = informers.cache
    await world.until(lambda: cache.pod(pod.uid) is not None)
    cache.assume(pod, "n1")
    await world.session.put("control", FENCED_KEY, b"1")
    await takeover(world, informers, 2).run()
    assert await epochs(world, pod) == [2]
    assert not cache.assumed_pods


async def test_fence_is_patched_until_the_api_answers(world, informers):
    pod = await world.add_pod("web")
    await world.rank(pod, "n1")
    world.cluster.simulated.faults.inject(Fail(verb="patch", resource="pods/status", status=503, count=2))
    await takeover(world, informers, 1).run()
    assert await epochs(world, pod) == [1]


@pytest.mark.parametrize("name", ["web/binding", "web?dryRun=All", "a b", ""])
async def test_no_request_is_made_for_a_name_that_can_be_no_objects(world, informers, monkeypatch, name):
    """Anybody who may write to RANKED may have written it; the other message's pod is fenced."""
    asked, pod = [], await world.add_pod("web")
    original = apicalls.fence

    async def fence(client: KubeClient, pod: Pod, epoch: int) -> Response:
        asked.append(pod.metadata.name)
        return await original(client, pod, epoch)

    monkeypatch.setattr("berth_binder.takeover.fence", fence)
    metadata = {"name": name, "namespace": "default", "uid": "forged", "resourceVersion": "9" * 19}
    forged = {"schema": 1, "pod": {"metadata": metadata, "spec": {"schedulerName": "berth"}}}
    await world.session.publish("berth.ranked.berth.default.forged", json.dumps(forged).encode())
    await world.rank(pod, "n1")
    await takeover(world, informers, 1).run()
    assert asked == ["web"]


async def test_fence_of_a_higher_epoch_is_a_reason_to_ask(world, informers):
    pod = await world.add_pod("web")
    fence = {"status": {"conditions": [{"type": "berth/fence", "status": "True", "message": "50"}]}}
    path = f"{world.cluster.api.pods}/web/status"
    await world.cluster.api.patch(path, fence, "application/strategic-merge-patch+json")
    await world.until(lambda: informers.cache.highest_fence == 50)
    await world.rank(pod, "n1")
    taking = takeover(world, informers, 3)
    await taking.run()
    assert taking.leadership.confirmed == 1
    assert await epochs(world, pod) == [3]


async def test_delayed_post_of_a_former_leader_never_lands(world):
    node = await world.add_node(cpu="1")
    pod, other = await world.add_pod("web"), await world.add_pod("other")
    await (await world.leading_binder()).kill()
    await world.rank(pod, node)
    world.cluster.simulated.faults.inject(Delay(verb="create", resource="pods/binding", seconds=4.0))
    versions = {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version}
    asleep = asyncio.create_task(world.cluster.api.bind("web", "elsewhere", **versions))
    await asyncio.sleep(0.1)
    await world.leading_binder()
    assert (await world.decision(pod)).outcome is Outcome.BOUND
    await world.rank(other, node)
    assert (await world.decision(other)).outcome is Outcome.CONFLICT
    assert (await asleep).code == 409
    assert (await world.pod("web")).spec.node_name == node


async def test_leader_that_cannot_renew_starts_no_post(world):
    node = await world.add_node()
    pod = await world.add_pod("web")
    times = {"lease_duration": timedelta(seconds=4), "renew_deadline": timedelta(seconds=1)}
    await world.start_binder(**times)
    await world.until(world._has_consumer)
    faults = world.cluster.simulated.faults
    faults.inject(Fail(verb="update", resource="leases", count=None), Fail(verb="patch", resource="leases", count=None))
    await asyncio.sleep(1.2)
    await world.rank(pod, node)
    await asyncio.sleep(0.5)
    assert (await world.pod("web")).spec.node_name == ""
    faults.inject(Clear())
    decision = await world.decision(pod)
    assert (decision.outcome, decision.epoch) == (Outcome.BOUND, 2)


async def test_leadership_is_checked_right_before_each_post(world, monkeypatch):
    node, pod = await world.add_node(), await world.add_pod("web")
    await world.leading_binder()
    with monkeypatch.context() as paused:
        paused.setattr(LeaderSession, "expired", lambda leadership: True)
        await world.rank(pod, node)
        await world.until(lambda: _has_given_up(world))
        assert (await world.pod("web")).spec.node_name == ""
    decision = await world.decision(pod)
    assert (decision.outcome, decision.epoch > 1) == (Outcome.BOUND, True)


async def test_leadership_is_checked_between_mark_and_delete_of_a_victim(world, monkeypatch):
    node, low = await world.add_node(cpu="1"), await world.add_pod("low")
    assert (await world.cluster.api.bind("low", node)).code == 201
    vip = await world.add_pod("vip", priorityClassName="system-cluster-critical", priority=2_000_000_000)
    await world.leading_binder()
    with monkeypatch.context() as paused:
        original = apicalls.mark_victim

        async def mark_victim(*arguments, **parts):
            answer = await original(*arguments, **parts)
            paused.setattr(LeaderSession, "expired", lambda leadership: True)
            return answer

        paused.setattr(apicalls, "mark_victim", mark_victim)
        victim = Victim(uid=low.uid, namespace=low.metadata.namespace, name="low")
        view = {"evaluated": 10**6, "view_age_seconds": 1.0}
        await world.rank(vip, preemption=Preemption(node=node, victims=[victim]), **view)
        await world.until(lambda: _has_given_up(world))
        assert is_marked_for_preemption(await world.pod("low"))
    assert (await world.decision(vip)).outcome is Outcome.PREEMPTING


async def _has_given_up(world: BinderWorld) -> bool:
    path = f"/apis/coordination.k8s.io/v1/namespaces/berth/leases/{world.lease}-binder"
    return not (await world.cluster.api.get(path)).body["spec"].get("holderIdentity")


async def test_new_store_is_a_new_epoch_that_fences_every_unbound_pod(simulated_cluster, own_nats_server: NatsServer):
    bus = NatsBus(BusSettings(servers=(own_nats_server.address,)))
    await _prepare(bus, simulated_cluster)
    async with binder_world(simulated_cluster, bus) as world:
        node, pod = await world.add_node(), await world.add_pod("web")
        await world.leading_binder()
        own_nats_server.kill()
        own_nats_server.lose_store()
        own_nats_server.start()
        await _prepare(bus, simulated_cluster)
        world.session = await bus.connect(name="test")
        await world.until(world._has_consumer)
        assert await epochs(world, pod) == [2]
        await world.rank(await world.pod("web"), node)
        await world.until(lambda: _is_bound(world, node))
        await world.session.close()


async def _is_bound(world: BinderWorld, node: str) -> bool:
    return (await world.pod("web")).spec.node_name == node


async def _prepare(bus: NatsBus, cluster: Cluster) -> None:
    """Create what a watcher creates on an empty NATS."""
    session = await bus.connect(name="watcher")
    await session.apply()
    await claim_cluster(session, await read_cluster_id(cluster.client))
    await session.close()


CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"


async def add_claim(
    world: BinderWorld, name: str, *users: Pod, devices: bool = False, finalizers: bool = False
) -> None:
    """A claim with or without devices; with them it is reserved for these pods."""
    path = CLAIMS.format(world.cluster.api.namespace)
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    metadata = {"name": name, "finalizers": [FINALIZER] if finalizers else []}
    assert (
        await world.cluster.api.post(path, {"metadata": metadata, "spec": {"devices": {"requests": [request]}}})
    ).code == 201
    if devices:
        result = {"request": "r", "driver": "d", "pool": "p", "device": name}
        reserved = [{"resource": "pods", "name": pod.metadata.name, "uid": pod.uid} for pod in users]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}
        assert (await world.cluster.api.patch(f"{path}/{name}/status", {"status": status})).code == 200


async def fenced_claims(world: BinderWorld) -> list[str]:
    items = (await world.cluster.api.get(CLAIMS.format(world.cluster.api.namespace))).body["items"]
    return sorted(item["metadata"]["name"] for item in items if "annotations" in item["metadata"])


async def test_claims_are_fenced_that_a_late_write_could_give_devices_or_take_them_from(world, informers):
    """Whatever RANKED says: a hostile scorer may have replaced the message of a pod that is gone by now."""
    node = await world.add_node()
    bound, waiting = await world.add_pod("bound"), await world.add_pod("waiting")
    assert (await world.cluster.api.bind("bound", node)).code == 201
    await add_claim(world, "new")
    await add_claim(world, "begun", finalizers=True)
    for name, users in (("used", [bound]), ("written", [waiting]), ("shared", [bound, waiting]), ("idle", [])):
        await add_claim(world, name, *users, devices=True, finalizers=True)
    await takeover(world, informers, 1).run()
    assert await fenced_claims(world) == ["begun", "shared", "written"]


async def test_no_claim_is_fenced_after_a_leader_that_left_nothing_under_way(world, informers):
    await add_claim(world, "free", finalizers=True)
    await takeover(world, informers, 2, follows_settled=True).run()
    assert await fenced_claims(world) == []
    claims = informers.cache.snapshot.objects(ResourceClaim)
    assert [claim.metadata.name for claim in claims] == ["free"], "its watch is current"
