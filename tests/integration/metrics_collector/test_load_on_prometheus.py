"""CPU and memory on a real Prometheus that scrapes played exporters: amounts, statistics, and feeds that fail."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from berth.api.config.nodeload.queries import LoadQuery
from harness.servers.child_processes import free_ports
from harness.servers.exporter import Exporter, exporting
from harness.servers.prometheus_server import PrometheusServer
from harness.worlds.cluster_user import eventually
from harness.worlds.collector_world import CollectorWorld, by_prometheus, collecting, node_at

pytestmark = [pytest.mark.requires("prometheus"), pytest.mark.timeout(180)]

RANGE = timedelta(seconds=6)
GIBI = 2.0**30


def exporters(**cores: float) -> dict[str, Exporter]:
    """By node name, with the cores of 4 that are used, and as many GiB of 16."""
    port = free_ports(1)[0]
    return {
        name: Exporter(address=f"127.0.0.{number}", port=port, rate=0, cpu=used, memory=used * GIBI, nodename=name)
        for number, (name, used) in enumerate(cores.items(), start=2)
    }


def node_of(exporter: Exporter):
    return node_at(exporter.nodename, exporter.address)


def query_at(server: PrometheusServer) -> LoadQuery:
    return LoadQuery(url=server.url, time_range=RANGE)


def count(world: CollectorWorld, state: str) -> float:
    return world.process.metrics.value("berth_sampled_nodes", query=world.query.token, state=state)


async def until_count(world: CollectorWorld, seconds: float = 30.0, **states: int) -> None:
    async with asyncio.timeout(seconds):
        while {state: count(world, state) for state in states} != states:  # noqa: ASYNC110 - metrics have no event
            await asyncio.sleep(0.05)


async def test_amounts_agree_within_five_percent_and_two_replicas_count_once(prometheus):
    made = exporters(idle=0.125, busy=3.5)
    prometheus.scrape(*(exporter.instance for exporter in made.values()), replicas=("a", "b"))
    nodes = [node_of(exporter) for exporter in made.values()]
    measure = by_prometheus("p50", "p95", "deviation")
    async with exporting(*made.values()), collecting(query_at(prometheus), *nodes, measure=measure) as world:
        for name in made:
            await world.until(lambda sample: sample is not None, name)

        async def all_agree() -> bool:
            samples = [(await world.sample(name), exporter) for name, exporter in made.items()]
            return all(
                sample.cpu.average == pytest.approx(exporter.cpu * 1000, rel=0.05)
                and sample.cpu.p50 == pytest.approx(exporter.cpu * 1000, rel=0.05)
                and sample.cpu.deviation < 0.05 * exporter.cores * 1000
                and sample.memory.average == sample.memory.p95 == exporter.memory
                and sample.memory.deviation == 0
                for sample, exporter in samples
            )

        await eventually(all_agree, "amounts to agree")  # a scrape that comes late counts for a whole range
        await until_count(world, known=2, fresh=2, missing=0, duplicate=2, unmatched=0)


async def test_memory_that_is_kept_for_huge_pages_is_not_used(prometheus):
    """It is no part of what a node has for pods' memory either."""
    made = exporters(some=2.0, none=2.0, old=2.0)
    made["some"].hugepages, made["none"].hugepages = 12 * GIBI, 0.0
    prometheus.scrape(*(exporter.instance for exporter in made.values()))
    nodes, measure = [node_of(exporter) for exporter in made.values()], by_prometheus("p95")
    async with exporting(*made.values()), collecting(query_at(prometheus), *nodes, measure=measure) as world:
        for name in made:
            sample = await world.until(
                lambda sample: sample is not None and sample.memory is not None, name, seconds=120
            )
            assert sample.memory.average == sample.memory.p95 == 2 * GIBI


async def test_percentiles_follow_a_load_that_comes_and_goes_and_the_average_is_between(prometheus):
    made = exporters(wave=0.5)["wave"]
    prometheus.scrape(made.instance)
    measure = by_prometheus("p50", "p99")
    async with exporting(made), collecting(query_at(prometheus), node_of(made), measure=measure) as world:
        await world.until(lambda sample: sample is not None, "wave")

        async def is_between() -> bool:
            made.cpu, made.memory = 4.0, 8 * GIBI
            await world.until(lambda sample: sample.cpu.p99 > 3800 and sample.memory.p99 > 7.9 * GIBI, "wave")
            made.cpu, made.memory = 0.5, 0.5 * GIBI
            found = await world.until(lambda sample: sample.cpu.p50 < 600 and sample.memory.p50 == 0.5 * GIBI, "wave")
            return found.cpu.p50 < found.cpu.average < found.cpu.p99

        # A sample of a busy machine may be taken when the average has no scrape of the wave any more.
        await eventually(is_between, "a sample with a part of a wave")


async def test_when_the_feed_stops_samples_age_and_come_back_with_it(prometheus):
    made = exporters(idle=0.2, busy=3.0)
    prometheus.scrape(*(exporter.instance for exporter in made.values()))
    nodes = [node_of(exporter) for exporter in made.values()]
    aged = timedelta(seconds=3)
    async with exporting(*made.values()), collecting(query_at(prometheus), *nodes, maximum_age=aged) as world:
        await until_count(world, known=2, fresh=2)
        prometheus.stop()
        await until_count(world, fresh=0)
        last = await world.sample("busy")
        assert last.cpu.average > 2500
        made["busy"].cpu = 1.0
        prometheus.start()
        await world.until(lambda sample: sample.sampled_at - last.sampled_at > aged, "busy", seconds=60)
        await world.until(lambda sample: sample.cpu.average == pytest.approx(1000, rel=0.1), "busy", seconds=60)
        await until_count(world, known=2, fresh=2)


async def test_a_young_node_is_measured_right_while_its_scrapes_have_a_gap(prometheus):
    """By the number of scrapes alone it would use 3.6 cores."""
    made = exporters(old=0.2, new=2.0)
    prometheus.scrape(made["old"].instance)
    query = LoadQuery(url=prometheus.url, time_range=4 * RANGE)
    async with exporting(*made.values()), collecting(query, *map(node_of, made.values())) as world:
        await world.until(lambda sample: sample is not None, "old", seconds=60)
        prometheus.scrape(*(exporter.instance for exporter in made.values()))
        before = await world.until(lambda sample: sample is not None, "new", seconds=30)
        prometheus.stop()
        await asyncio.sleep(RANGE.total_seconds() / 2)
        prometheus.start()
        found = await world.until(lambda sample: sample.sampled_at > before.sampled_at, "new", seconds=30)
        assert found.cpu.average == pytest.approx(2000, rel=0.15)


async def test_when_half_of_the_nodes_lose_theirs_the_others_go_on(prometheus):
    made = exporters(a=1.0, b=1.0, c=3.0, d=3.0)
    lost = [made["c"], made["d"]]
    prometheus.scrape(*(exporter.instance for exporter in made.values()))
    nodes = [node_of(exporter) for exporter in made.values()]
    aged = timedelta(seconds=4)
    async with exporting(*made.values()), collecting(query_at(prometheus), *nodes, maximum_age=aged) as world:
        await until_count(world, known=4, fresh=4)
        for exporter in lost:
            await exporter.stop()
        await until_count(world, known=2, missing=2, fresh=2)
        kept, other = await world.sample("c"), await world.sample("a")
        assert kept.cpu.average > 2500
        await world.until(lambda sample: sample.sampled_at > other.sampled_at, "a")
        assert await world.sample("c") == kept
        for exporter in lost:
            await exporter.start()
        await until_count(world, known=4, missing=0, fresh=4)


async def never_idle(world: CollectorWorld, node: str, *, millicores: float, seconds: float) -> None:
    """For this time, the node has no sample or one of at least so much."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        sample = await world.sample(node)
        assert sample is None or sample.cpu is None or sample.cpu.average >= millicores, sample
        await asyncio.sleep(0.1)


async def test_a_busy_node_never_looks_idle_while_its_exporter_restarts_or_when_it_joins(prometheus):
    made = exporters(idle=0.2, busy=3.6, new=3.8)
    first = [made["idle"], made["busy"]]
    prometheus.scrape(*(exporter.instance for exporter in first))
    nodes = [node_of(exporter) for exporter in first]
    async with exporting(*made.values()), collecting(query_at(prometheus), *nodes) as world:
        await until_count(world, known=2)
        await made["busy"].stop()
        await never_idle(world, "busy", millicores=3000, seconds=RANGE.total_seconds() + 1)
        made["busy"].reboot(nodename="busy", release="6.12.0-9")
        await made["busy"].start()
        await never_idle(world, "busy", millicores=3000, seconds=RANGE.total_seconds())
        await world.show(node_of(made["new"]))
        prometheus.scrape(*(exporter.instance for exporter in made.values()))
        await never_idle(world, "new", millicores=3000, seconds=RANGE.total_seconds())
        young = await world.until(lambda sample: sample is not None, "new", seconds=20)
        assert young.cpu.average == pytest.approx(3800, rel=0.12)


async def test_a_busy_node_does_not_look_idle_after_some_scrapes_have_failed(prometheus):
    """``rate`` then divides what the last scrapes show by the whole range: 1.2 of 3.6 cores."""
    made = exporters(idle=0.2, busy=3.6, other=0.2)
    prometheus.scrape(*(exporter.instance for exporter in made.values()))
    nodes = [node_of(exporter) for exporter in made.values()]
    async with exporting(*made.values()), collecting(query_at(prometheus), *nodes) as world:
        await world.until(lambda sample: sample is not None and sample.cpu.average > 3400, "busy")
        await asyncio.sleep(RANGE.total_seconds())
        await made["busy"].stop()
        await asyncio.sleep(RANGE.total_seconds() / 2)
        await made["busy"].start()
        before = await world.sample("busy")
        await never_idle(world, "busy", millicores=2700, seconds=RANGE.total_seconds() + 2)
        assert (await world.sample("busy")).sampled_at > before.sampled_at + RANGE / 2


async def test_a_busy_node_does_not_look_idle_when_it_reboots_twice(prometheus):
    """Two seconds after the second reboot its counters are above those of a range ago, by 1.5 cores of 3.6."""
    made = exporters(idle=0.2, busy=3.6)
    prometheus.scrape(*(exporter.instance for exporter in made.values()))
    nodes = [node_of(exporter) for exporter in made.values()]
    busy = made["busy"]
    async with exporting(*made.values()), collecting(query_at(prometheus), *nodes) as world:
        await world.until(lambda sample: sample is not None and sample.cpu.average > 3400, "busy")
        busy.reboot(nodename="busy", release="6.1.0-2")
        await never_idle(world, "busy", millicores=2700, seconds=RANGE.total_seconds() / 2)
        await busy.stop()
        busy.reboot(nodename="busy", release="6.1.0-3")
        before = await world.sample("busy")
        await never_idle(world, "busy", millicores=2700, seconds=RANGE.total_seconds() / 3)
        await busy.start()
        await never_idle(world, "busy", millicores=2700, seconds=RANGE.total_seconds())
        await world.until(lambda sample: sample.sampled_at > before.sampled_at, "busy")
