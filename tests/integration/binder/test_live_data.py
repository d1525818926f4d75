"""The binder with a filter that reads live data: it uses the newest sample, not the scorer's."""

from datetime import UTC, datetime

import pytest

from berth.api.config.load import load
from berth.api.config.networktraffic import query_of
from berth.api.config.presets import DEFAULT
from berth.messages.attempts import Outcome, Reason
from berth.messages.livedata import NodeSample, encode_sample
from berth.messages.subjects import key
from berth.plugins.registry import BUILT_IN
from harness.plugins.fixtures_bus import BusUnderTest
from harness.plugins.fixtures_kube import Cluster
from harness.worlds.binder_world import binder_world

CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: NetworkTraffic}]}}
  pluginConfig: [{name: NetworkTraffic, args: {url: "http://p:9090", saturationPercent: 90, podBandwidth: "0"}}]
"""


@pytest.fixture
async def world(cluster: Cluster, nats_bus_under_test: BusUnderTest):
    async with binder_world(cluster, nats_bus_under_test.bus) as world:
        world.configuration = load(CONFIG, known=BUILT_IN, preset=DEFAULT)
        yield world


async def put(world, node: str, receive: float) -> None:
    [profile] = world.configuration.profiles
    token = query_of(profile.args["NetworkTraffic"]).token
    sample = NodeSample(receive=receive, capacity=100.0, sampled_at=datetime.now(UTC))
    await world.session.put("bandwidth", key(token, node), encode_sample(sample))


async def test_node_whose_link_has_filled_meanwhile_is_skipped(world):
    full, room = await world.add_node(), await world.add_node()
    await put(world, full, 95.0)
    await put(world, room, 10.0)
    pod = await world.add_pod("web")
    await world.leading_binder()
    await world.rank(pod, full, room)
    decision = await world.decision(pod)
    assert (decision.outcome, decision.node) == (Outcome.BOUND, room)


async def test_sample_published_during_the_leadership_counts(world):
    node = await world.add_node()
    await put(world, node, 95.0)
    pod = await world.add_pod("web")
    await world.leading_binder()
    await world.rank(pod, node)
    decision = await world.decision(pod)
    assert (decision.outcome, decision.reason) == (Outcome.CONFLICT, Reason.NO_CANDIDATE)
    assert decision.rejections[0].reason == "node(s) had a saturated network link"
    await put(world, node, 10.0)
    for n in range(2, 30):  # ranked again, as the watcher has it done, until the sample has been read
        await world.rank(pod, node, n=n)
        if (await world.decision(pod, n)).outcome is Outcome.BOUND:
            return
    pytest.fail("the new sample was never looked at")
