"""The watcher on a real NATS server, against the real API server and the simulated one."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest

from berth.api.pod import Pod
from berth.bus.stages import publish_ranked
from berth.messages.attempts import Outcome, Ranked
from berth.messages.mirror import decode_entry
from berth.settings.settings import Numbers
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.watcher_service import WatcherWorld, watcher_world


@pytest.fixture
async def world(cluster: Cluster, nats_bus_under_test: BusUnderTest) -> AsyncIterator[WatcherWorld]:
    await delete_all_pods(cluster)
    async with watcher_world(cluster, nats_bus_under_test.bus) as world:
        if cluster.simulated is None and (await cluster.api.get("/api/v1/nodes/n1")).code == 404:
            await world.add_node("n1")
        yield world


async def delete_all_pods(cluster: Cluster) -> None:
    """Other tests have left pods on the real API server, and a watcher schedules the pods of every namespace."""
    listed = await cluster.api.get("/api/v1/pods")
    for pod in listed.body["items"]:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        await cluster.api.delete(path, {"gracePeriodSeconds": 0})


async def mirrored(world: WatcherWorld, kind: str) -> dict[str, dict]:
    """What the mirror holds of a kind, by key."""
    session = await world.session()
    async with session.read_bucket("cluster", filters=(f"{kind}.>",)) as following:
        async for batch in following.batches():
            found = {entry.key: entry for entry in batch}
            if following.caught_up.is_set():
                break
    await session.close()
    return {
        key: msgspec.json.decode(decode_entry(entry.data).object)
        for key, entry in found.items()
        if entry.data is not None
    }


async def test_every_pending_pod_is_published_once_and_bound(world):
    await world.leading_watcher()

    names = await world.add_pods("web", 100)
    await world.until(world.all_bound)

    attempts = set(world.attempts)  # on a busy machine one is delivered again before it is acknowledged
    assert set(world.names) == set(names)
    assert len(attempts) == len(names)
    assert all(attempt.endswith(".1") for attempt in attempts)


async def test_mirror_follows_nodes_and_bound_pods(world):
    await world.leading_watcher()
    await world.add_pods("web", 3)
    await world.until(world.all_bound)

    async def all_three() -> bool:
        return [pod["spec"]["nodeName"] for pod in (await mirrored(world, "pod")).values()] == ["n1"] * 3

    await world.until(all_three)

    async def its_node_and_namespace() -> bool:
        namespace = f"namespace.{world.cluster.api.namespace}"
        return "node.n1" in await mirrored(world, "node") and namespace in await mirrored(world, "namespace")

    await world.until(its_node_and_namespace)
    assert (await world.cluster.api.delete(f"{world.cluster.api.pods}/web-0", {"gracePeriodSeconds": 0})).code == 200

    async def two_left() -> bool:
        return len(await mirrored(world, "pod")) == 2

    await world.until(two_left)


async def test_standby_goes_on_where_the_leader_stopped(world):
    first = await world.leading_watcher()
    second = await world.start_watcher()
    await world.until(lambda: second.process.health.is_ready)
    assert not second.leads

    await world.add_pods("before", 20)
    await first.stop()
    await world.add_pods("after", 20)
    await world.until(world.all_bound)

    assert second.leads
    assert len(set(world.names)) == len(set(world.attempts)) == 40  # one may be delivered again on a busy machine


async def test_killed_watcher_loses_no_pod(world):
    first = await world.leading_watcher()
    adding = asyncio.create_task(world.add_pods("web", 100))
    await world.until(lambda: len(world.names) > 20)

    await first.kill()
    await adding
    await world.leading_watcher()
    await world.until(world.all_bound)

    assert set(world.names) == {f"web-{number}" for number in range(100)}


async def test_lost_attempts_are_published_again(world):
    world.answer = lambda pending: None if pending.attempt.endswith(".1") else Outcome.BOUND
    await world.leading_watcher(numbers=Numbers(silent_attempt=timedelta(seconds=1)))

    await world.add_pods("web", 5)
    await world.until(world.all_bound)

    pods, numbers = zip(*(attempt.rsplit(".", 1) for attempt in world.attempts), strict=True)
    assert len(set(pods)) == 5
    assert Counter(numbers)["1"] >= 5 <= Counter(numbers)["2"]  # on a busy machine one may come once more


async def test_attempt_of_a_term_that_no_watcher_had_ends_no_leadership(world):
    await world.add_pods("web", 1)
    answer = await world.cluster.api.get(f"{world.cluster.api.pods}/web-0")
    pod = msgspec.convert(answer.body, Pod, strict=False)
    session = await world.session()
    await publish_ranked(session, Ranked(attempt=f"{pod.uid}.{10**18}.1", profile="berth", pod=pod, scorer="s"))
    await session.close()
    watcher = await world.leading_watcher(numbers=Numbers(silent_attempt=timedelta(seconds=1)))
    await world.add_pods("later", 3)
    await world.until(lambda: len({name for name in world.names if name.startswith("later")}) == 3)
    assert watcher.leads


async def test_pods_of_others_are_ignored_and_gated_pods_wait(world):
    await world.leading_watcher()
    await world.add_pod("other", schedulerName="somebody-else")
    await world.add_pod("gated", schedulingGates=[{"name": "example.com/quota"}])
    await world.add_pods("web", 3)
    await world.until(lambda: len(world.names) == 3)

    patch = {"spec": {"schedulingGates": None}}
    path = f"{world.cluster.api.pods}/gated"
    assert (await world.cluster.api.patch(path, patch)).code == 200
    await world.until(lambda: "gated" in world.names)

    assert "other" not in world.names
