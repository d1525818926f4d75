"""Live data in the buckets of a real NATS server requeues the pods that it may help."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from berth.api.config.networktraffic import query_of
from berth.messages.attempts import Outcome, Positions
from berth.messages.livedata import NodeSample, encode_sample, utc_time
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
