"""Live data in the buckets of a real NATS server: it requeues the pods that it may help, and has failures of pods."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from berth.api.config.networktraffic import query_of
from berth.bus.interface import Session
from berth.messages.attempts import Outcome, Positions
from berth.messages.livedata import POD_FAILURES, FailuresOnNode, NodeSample, decode_failures, encode_sample, utc_time
from berth.messages.subjects import key
from berth.profiles.configuration import read_configuration
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.watcher_service import WatcherWorld, watcher_world

CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: NetworkTraffic}]}}
  pluginConfig: [{name: NetworkTraffic, args: {ip: "127.0.0.1:9090", saturationPercent: 90}}]
"""


@pytest.fixture
async def world(
    simulated_cluster: Cluster, nats_bus_under_test: BusUnderTest, tmp_path: Path
) -> AsyncIterator[WatcherWorld]:
    async with watcher_world(simulated_cluster, nats_bus_under_test.bus) as world:
        world.config = tmp_path / "scheduler.yaml"
        world.config.write_text(CONFIGURATION)
        yield world


async def test_sample_of_a_free_link_requeues_a_pod_that_saturated_links_rejected(world):
    everything = Positions(cluster=1 << 40)
    world.decision_fields = {"blockers": ["NetworkTraffic"], "positions": everything}
    world.answer = lambda pending: Outcome.UNSCHEDULABLE if pending.attempt.endswith(".1") else Outcome.BOUND
    await world.leading_watcher()
    await world.add_pod("web")
    await world.until(lambda: len(world.attempts) == 1)

    query = query_of(read_configuration(world.config).profiles[0].args["NetworkTraffic"]).token
    sample = NodeSample(receive=10.0, capacity=100.0, sampled_at=utc_time(1.7e9))
    session = await world.session()
    await session.put("bandwidth", key(query, "n1"), encode_sample(sample))

    await world.until(world.all_bound)
    assert [attempt.rsplit(".", 1)[1] for attempt in world.attempts] == ["1", "2"]
    await session.close()


FAILURES = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: NodeFailures}]}}
"""


async def test_failures_of_pods_are_facts_that_outlive_the_pods_and_their_watcher(world):
    world.config.write_text(FAILURES)
    await world.add_node("n1")
    watcher = await world.leading_watcher()
    await fails(world, "first", owner="web")
    session = await world.session()
    await world.until(lambda: known(session, "web"))

    gone = await world.cluster.api.delete(f"{world.cluster.api.pods}/first", {"gracePeriodSeconds": 0})
    assert gone.code == 200, gone.body
    await watcher.kill()
    await world.leading_watcher()
    await fails(world, "second", owner="other")
    await world.until(lambda: known(session, "other"))
    assert (await fact(session)).workloads.keys() == {"web", "other"}
    await session.close()


async def fails(world: WatcherWorld, name: str, *, owner: str) -> None:
    """A pod of this controller is refused by the kubelet of n1."""
    api = world.cluster.api
    await world.add_pod(name, nodeName="n1")
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
    answer = await api.patch(f"{api.pods}/{name}", {"metadata": {"ownerReferences": [reference]}})
    assert answer.code == 200, answer.body
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "startTime": now}
    answer = await api.patch(f"{api.pods}/{name}/status", {"status": status})
    assert answer.code == 200, answer.body


async def fact(session: Session) -> FailuresOnNode | None:
    entry = await session.get("facts", key(POD_FAILURES.name, "n1"))
    return None if entry is None or entry.data is None else decode_failures(entry.data)


async def known(session: Session, workload: str) -> bool:
    found = await fact(session)
    return found is not None and workload in found.workloads
