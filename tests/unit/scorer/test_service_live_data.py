"""A scorer whose profile runs NetworkTraffic ranks by the samples that it reads."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from berth.api.config.load import load
from berth.api.config.networktraffic import query_of
from berth.api.config.presets import DEFAULT
from berth.bus.stages import publish_pending
from berth.framework.profile import build_profiles
from berth.lifecycle.process import Process
from berth.messages.attempts import Pending, Positions, Ranked
from berth.messages.encoding import decode
from berth.messages.livedata import NodeSample, encode_sample
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term, key
from berth.plugins.registry import BUILT_IN
from berth.ranking.ranker import Ranker
from berth_scorer.service import serve
from harness.builders.objects import a_node, a_pod
from harness.fakes.jumping_loop import LoopTime
from harness.fakes.recording_meter import RecordingMeter

pytestmark = pytest.mark.slow  # waits in real time

CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {score: {disabled: [{name: "*"}], enabled: [{name: NetworkTraffic}]}}
  pluginConfig: [{name: NetworkTraffic, args: {url: "http://p:9090", podBandwidth: 8M}}]
"""


@asynccontextmanager
async def scoring(bus):
    configuration = load(CONFIG, known=BUILT_IN, preset=DEFAULT)
    [profile] = configuration.profiles
    ranker = Ranker(
        profiles=build_profiles(configuration, BUILT_IN), config=configuration.digest, identity="s1", best=8
    )
    process = Process(name="scorer", metrics=RecordingMeter(), clock=LoopTime())
    task = asyncio.create_task(serve(process, bus, ranker))
    async with asyncio.timeout(5):
        while not process.health.is_ready:  # noqa: ASYNC110 - the bus has no event for it
            await asyncio.sleep(0.01)
    try:
        yield query_of(profile.args["NetworkTraffic"]).token
    finally:
        process.stopping.set()
        await asyncio.wait_for(task, 5)


async def put(session, token, node, receive, *, ago=0.0):
    sampled_at = datetime.now(UTC) - timedelta(seconds=ago)
    return await session.put(
        "bandwidth", key(token, node), encode_sample(NodeSample(receive=receive, sampled_at=sampled_at))
    )


async def put_object(session, kind, name, thing, **more):
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing)), **more)
    await session.put("cluster", key(kind, name), encode_entry(entry))


async def ranking(session, name, *, after=0):
    """The ranking of one more pod, on a view that has read the bucket up to a position."""
    wanted = Positions(bandwidth=after)
    await publish_pending(session, Pending(attempt=f"uid-{name}.1.1", profile="berth", pod=a_pod(name), after=wanted))
    async with asyncio.timeout(5):
        while True:
            async for stored in session.scan("RANKED", "berth.ranked.>"):
                message = decode(stored.data, Ranked)
                if message.attempt.startswith(f"uid-{name}."):
                    return message
            await asyncio.sleep(0.01)


async def test_samples_from_before_and_after_the_start_decide(bus, session):
    for name in ("a", "b"):
        await put_object(session, "node", name, a_node(name))
    async with scoring(bus) as token:
        await put(session, token, "a", 80e6, ago=30)
        position = await put(session, token, "b", 20e6)
        message = await ranking(session, "web", after=position)
        assert {c.node: c.total for c in message.candidates} == {"b": 75, "a": 0}  # 100 - 20*100/80
        assert message.positions.bandwidth == position
        [detail] = [c.details["NetworkTraffic"] for c in message.candidates if c.node == "a"]
        assert re.fullmatch(r"80 MB/s receive, sampled (29|3\d) s ago", detail)  # by the newest message's time
    async with scoring(bus):  # started again: the bucket is read to its end before the first pod
        again = await ranking(session, "other")
        assert again.candidates[0].node == "b"
        assert "1 MB/s estimated for 1 pod placed lately" in again.candidates[0].details["NetworkTraffic"]


async def test_mirrored_pods_count_from_their_time_of_binding(bus, session):
    await put_object(session, "node", "a", a_node("a"))
    await put_object(session, "node", "b", a_node("b"))
    now = datetime.now(UTC)
    for name, ago in (("new", 0), ("half", 150), ("old", 3600)):
        bound_at = (now - timedelta(seconds=ago)).isoformat()
        await put_object(session, "pod", f"uid-{name}", a_pod(name, node_name="a"), bound_at=bound_at)
    await put_object(session, "pod", "uid-unknown", a_pod("unknown", node_name="a"))
    async with scoring(bus) as token:
        for node in ("a", "b"):
            position = await put(session, token, node, 0.0)
        message = await ranking(session, "web", after=position)
        [detail] = [c.details["NetworkTraffic"] for c in message.candidates if c.node == "a"]
    # range 5 min, 8 Mbit/s = 1 MB/s: the new one whole, half of the one that is 150 s old, none of the others
    assert "MB/s estimated for 2 pods" in detail
    assert 1.4 < float(detail.partition("ago, ")[2].split()[0]) <= 1.5
