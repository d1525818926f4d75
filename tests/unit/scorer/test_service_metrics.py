"""The metrics of a scorer, on a bus in memory."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import msgspec

from berth.bus.stages import publish_pending
from berth.bus.topology import CLUSTER
from berth.lifecycle.process import Process
from berth.messages.attempts import Pending
from berth.messages.mirror import MirrorEntry, Watermark, encode_entry, encode_watermark, watermark_key
from berth.messages.subjects import Term, key
from berth.profiles.configuration import profiles_of, read_configuration
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth_scorer.core import PLUGINS_EVERY
from berth_scorer.effects import set_gauges
from berth_scorer.service import serve
from harness.builders.objects import a_node, a_pod, pod_requesting
from harness.fakes.jumping_loop import LoopTime
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.recording_meter import RecordingMeter

POINT = "scheduler_framework_extension_point_duration_seconds"
PLUGIN = "scheduler_plugin_execution_duration_seconds"


@asynccontextmanager
async def scoring(*nodes: str):
    """Run a scorer on these nodes; its meter, and a session to publish with."""
    bus = MemoryBus()
    session = await bus.connect(name="test")
    await session.apply()
    for name in nodes:
        entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(a_node(name))))
        await session.put(CLUSTER, key("node", name), encode_entry(entry))
    configuration = read_configuration(None)
    ranker = Ranker(
        profiles=profiles_of(configuration), config=configuration.digest, identity="s1", best=8, explain=None
    )
    process = Process(name="scorer", metrics=RecordingMeter(), clock=LoopTime())
    task = asyncio.create_task(serve(process, bus, ranker))
    try:
        yield process.metrics, session
    finally:
        process.stopping.set()
        await asyncio.wait_for(task, 5)


async def ranked(meter: RecordingMeter, session, *pods) -> None:
    """Publish these pods and wait until they are ranked."""
    before = answered(meter)
    for pod in pods:
        await publish_pending(session, Pending(attempt=f"{pod.uid}.1.1", profile="berth", pod=pod))
    async with asyncio.timeout(10):
        while answered(meter) < before + len(pods):  # noqa: ASYNC110 - the bus has no event for it
            await asyncio.sleep(0.005)


def answered(meter: RecordingMeter) -> float:
    return meter.value("berth_messages_published_total", stream="RANKED")


def times(meter: RecordingMeter, name: str) -> dict[tuple[str, ...], int]:
    """How many values a histogram has, by labels."""
    return {labels[1:]: len(values) for labels, values in meter.observed.items() if labels[0] == name}


async def test_every_ranking_is_observed_in_all_and_by_extension_point():
    async with scoring("a", "b") as (meter, session):
        await ranked(meter, session, *(pod_requesting(f"web-{number}", cpu="1m") for number in range(3)))
    assert times(meter, "scheduler_scheduling_algorithm_duration_seconds") == {(): 3}
    assert times(meter, "berth_hold_duration_seconds") == {(): 3}
    assert meter.value("berth_messages_received_total", stream="PENDING") == 3
    points = dict.fromkeys(("PreFilter", "Filter", "PreScore", "Score"), 3)
    assert times(meter, POINT) == {(point, "Success", "berth"): count for point, count in points.items()}


async def test_plugins_are_timed_for_every_eleventh_pod():
    async with scoring("a", "b") as (meter, session):
        await ranked(meter, session, pod_requesting("first", cpu="1m"))
        first = times(meter, PLUGIN)
        assert ("NodeResourcesFit", "Filter", "Success") in first
        await ranked(
            meter, session, *(pod_requesting(f"web-{number}", cpu="1m") for number in range(PLUGINS_EVERY - 1))
        )
        assert times(meter, PLUGIN) == first
        await ranked(meter, session, pod_requesting("eleventh", cpu="1m"))
        assert times(meter, PLUGIN) != first


async def test_a_pod_that_fits_nowhere_counts_as_a_preemption_attempt():
    async with scoring("a") as (meter, session):
        await ranked(meter, session, pod_requesting("large", cpu="64"), pod_requesting("small", cpu="1m"))
    assert meter.value("scheduler_preemption_attempts_total") == 1
    assert times(meter, POINT)["PostFilter", "Unschedulable", "berth"] == 1


async def test_an_undecodable_message_counts_as_a_dead_letter():
    async with scoring("a") as (meter, session):
        await session.publish("berth.pending.berth.default.odd", b"no JSON")
        await ranked(meter, session, a_pod("web"))
    assert meter.value("berth_dead_letters_total", cause="undecodable") == 1


async def test_completeness_of_each_kind_is_a_time_of_the_bus():
    bus, meter, view = MemoryBus(), RecordingMeter(), View()
    session = await bus.connect(name="test")
    await session.apply()
    await session.put(CLUSTER, watermark_key("node"), encode_watermark(Watermark(term=Term(1), resource_version="7")))
    before = datetime.now(UTC).timestamp()
    async with session.read_bucket(CLUSTER) as reader:
        batch = await anext(reader.batches())
        view.apply_mirror(batch, reader.position)
    set_gauges(meter, view, held=3)
    shown = meter.value("berth_mirror_complete_timestamp_seconds", kind="node")
    assert shown == batch[0].time.timestamp()
    assert abs(shown - before) < 5
    assert meter.value("berth_held_pods") == 3
    assert meter.value("scheduler_cache_size", type="assumed_pods") == meter.value("berth_proposals") == 0
