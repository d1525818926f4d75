"""What watchers answer on NATS, and the drain that every leading watcher reads, on both clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from berth.bus.interface import Session
from berth.bus.topology import CLUSTER, CONTROL, DRAIN_KEY, bucket_stream
from berth.messages.attempts import Outcome, Positions
from berth.messages.encoding import encode
from berth.messages.queue import POD, QUEUE, RETRY, PodRequest, QueueAnswer, decode_queue_answer
from berth.messages.subjects import service_subject
from berth_cli.options import NotFoundError, PodName
from berth_cli.pods.finding import ask_the_cluster
from berth_cli.pods.unplaced import ask_the_watcher
from berth_cli.pods.waiting import NoLeaderError, leading_watcher, queued_pod, read_queue
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.watcher_service import RunningWatcher, WatcherWorld, watcher_world

WATCHER = "berth-watcher"


@pytest.fixture
async def world(cluster: Cluster, nats_bus_under_test: BusUnderTest) -> AsyncIterator[WatcherWorld]:
    for pod in (await cluster.api.get("/api/v1/pods")).body["items"]:
        meta = pod["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        await cluster.api.delete(path, {"gracePeriodSeconds": 0})
    async with watcher_world(cluster, nats_bus_under_test.bus) as world:
        if (await cluster.api.get("/api/v1/nodes/n1")).code == 404:
            await world.add_node("n1")
        yield world


@pytest.fixture
async def person(world: WatcherWorld) -> AsyncIterator[Session]:
    await world.leading_watcher()
    session = await world.session()
    yield session
    await session.close()


async def asked(session: Session, watcher: RunningWatcher, endpoint: str, data: bytes) -> QueueAnswer:
    subject = service_subject(WATCHER, watcher.process.identity, endpoint, for_admins=endpoint == RETRY)
    return decode_queue_answer(await session.ask(subject, data))


async def rejected(world: WatcherWorld, session: Session, name: str, outcome: Outcome) -> PodName:
    """A pod that waits because of its Decision."""
    world.answer = lambda pending: outcome if pending.pod.metadata.name == name else Outcome.BOUND
    stored = await session.state(bucket_stream(CLUSTER))
    read = Positions(cluster=stored.last_sequence)  # with the node, so that no event counts as missed
    world.decision_fields = {"blockers": ["NodeResourcesFit"], "message": "no room", "positions": read}
    await world.add_pod(name)
    pod = PodName(namespace=world.cluster.api.namespace, name=name)

    async def waits() -> bool:
        detail = (await queued_pod(session, pod)).detail
        return detail is not None and detail.outcome == outcome

    await world.until(waits)
    return pod


async def test_list_has_the_pods_that_wait_with_what_they_wait_for(world, person):
    pod = await rejected(world, person, "big", Outcome.UNSCHEDULABLE)
    answer, complete = await read_queue(person, queue="", namespace=pod.namespace, limit=10)
    (line,) = answer.pods
    assert (complete, line.name, line.queue, line.plugins) == (True, "big", "unschedulable", ["NodeResourcesFit"])
    assert answer.queues["unschedulable"] == 1
    detail = (await queued_pod(person, pod)).detail
    assert detail is not None
    assert "NodeAdd" in detail.helping[0].events
    assert detail.object is not None
    assert (detail.object.uid, detail.object.metadata.name) == (line.uid, "big")
    assert (await read_queue(person, queue="gated", namespace="", limit=10))[0].pods == []


async def test_pod_that_a_person_has_tried_again_is_published_at_once(world, person):
    pod = await rejected(world, person, "big", Outcome.UNSCHEDULABLE)
    world.answer = lambda _: Outcome.BOUND
    request = encode(PodRequest(namespace=pod.namespace, name=pod.name))
    assert (await asked(person, world.watchers[0], RETRY, request)).retried
    await world.until(world.all_bound)


async def test_nothing_is_retried_that_does_not_wait(world, person):
    answer = await asked(person, world.watchers[0], RETRY, encode(PodRequest(namespace="default", name="nobody")))
    assert (answer.retried, answer.detail) == (False, None)


async def test_a_request_that_cannot_be_read_is_answered_with_the_reason(world, person):
    answer = await asked(person, world.watchers[0], QUEUE, b'{"start": "first"}')
    assert answer.error.startswith("decoding a request for the queue")
    answer = await asked(person, world.watchers[0], POD, b"\xff")
    assert answer.error.startswith("decoding a request for a pod")


async def test_a_standby_says_that_it_does_not_lead_and_is_not_asked(world, person):
    standby = await world.start_watcher()
    await world.until(lambda: standby.process.health.is_ready)
    assert "does not lead" in (await asked(person, standby, QUEUE, b"")).error
    assert (await leading_watcher(person)).identity == world.watchers[0].process.identity


async def test_without_a_leader_nobody_is_asked(world, person):
    await world.watchers[0].stop()
    with pytest.raises(NoLeaderError, match="no watcher leads"):
        await read_queue(person, queue="", namespace="", limit=10)


async def test_a_drain_outlives_the_leader_and_ends_when_it_is_stopped(world, person):
    await person.put(CONTROL, DRAIN_KEY, b"{}")

    async def draining() -> bool:
        return (await leading_watcher(person)).statistics.draining

    await world.until(draining)
    await world.add_pod("one")
    await world.watchers[0].stop()
    await world.leading_watcher()
    await world.add_pod("two")

    async def both_wait() -> bool:
        return (await read_queue(person, queue="active", namespace="", limit=10))[0].queues.get("active") == 2

    await world.until(both_wait)
    assert world.names == []
    await person.purge(CONTROL, DRAIN_KEY)
    await world.until(world.all_bound)
    assert sorted(set(world.names)) == ["one", "two"]


async def test_a_pod_that_no_watcher_has_is_read_from_the_cluster(world, person, monkeypatch, tmp_path):
    api = world.cluster.api
    containers = [{"name": "main", "image": "pause"}]
    body = {
        "metadata": {"name": "forgotten"},
        "spec": {"schedulerName": "default-scheduler", "containers": containers},
    }
    assert (await api.post(api.pods, body)).code == 201
    pod = PodName(namespace=api.namespace, name="forgotten")
    nothing = NotFoundError("there is no Decision")
    assert await ask_the_watcher(person, pod) is None
    sentence = "is not berth's: its schedulerName is 'default-scheduler', and berth schedules those with berth"
    kubeconfig = world.cluster.kubeconfig_path
    assert (await ask_the_cluster(person, pod, kubeconfig, {"berth"}, nothing)).sentence == sentence
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    assert (await ask_the_cluster(person, pod, None, {"berth"}, nothing)).sentence == sentence
    missing = PodName(namespace=api.namespace, name="nobody")
    with pytest.raises(NotFoundError, match=r"^there is no Decision; the API server has no such pod$"):
        await ask_the_cluster(person, missing, None, set(), nothing)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NotFoundError, match="no cluster was asked"):
        await ask_the_cluster(person, pod, None, set(), nothing)
