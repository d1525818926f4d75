"""The collector on a real Prometheus that scrapes exporters of known rates, and the scores of NetworkTraffic."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from berth.api.config.networktraffic import NetworkTrafficArgs, query_of
from berth.framework.cycle import rank
from berth.plugins.networktraffic import NetworkTraffic
from harness.builders.objects import a_pod, first_attempt
from harness.builders.profiles import profile_of
from harness.servers.child_processes import free_ports
from harness.servers.exporter import Exporter, exporting
from harness.servers.prometheus_server import PrometheusServer
from harness.worlds.cluster_user import eventually
from harness.worlds.collector_world import CollectorWorld, collecting, node_at

pytestmark = [pytest.mark.requires("prometheus"), pytest.mark.timeout(180)]

RANGE = timedelta(seconds=5)
MEGA = 1e6


def exporters(**rates: float) -> dict[str, Exporter]:
    """By node name; each has an address of its own, as machines have, and transmits half of what it receives."""
    port = free_ports(1)[0]
    return {
        name: Exporter(address=f"127.0.0.{number}", port=port, rate=rate, transmit=rate / 2, nodename=name)
        for number, (name, rate) in enumerate(rates.items(), start=2)
    }


def args_for(server: PrometheusServer, **more: object) -> NetworkTrafficArgs:
    return NetworkTrafficArgs(url=server.url, devices=["eth0"], range=RANGE, **more)


class NetworkTrafficRanking:
    """Ranks pods with NetworkTraffic alone, on the samples in the bucket."""

    def __init__(self, world: CollectorWorld, args: NetworkTrafficArgs) -> None:
        self._world = world
        self._profile = profile_of(NetworkTraffic(args))
        self._number = 0

    def ranking(self):
        self._number += 1
        self._world.advance_clock()
        pod = a_pod(f"web-{self._number}")
        return rank(pod, self._world.snapshot, self._profile, attempt=first_attempt(pod))

    async def never_best(self, *nodes: str, seconds: float) -> None:
        """For this time, none of these nodes is ranked first."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            candidates = self.ranking().candidates
            assert candidates[0].node not in nodes, candidates
            await asyncio.sleep(0.1)


async def test_rates_agree_within_five_percent_and_the_busy_node_loses(prometheus):
    """Though two replicas scrape each exporter, and some devices repeat bytes of eth0."""
    made = exporters(quiet=1 * MEGA, medium=20 * MEGA, busy=80 * MEGA)
    made["quiet"].repeating = ("eni0123456789a", "eth0.100", "lan", "a-pods")
    prometheus.scrape(*(exporter.instance for exporter in made.values()), replicas=("a", "b"))
    nodes = [node_at(name, exporter.address) for name, exporter in made.items()]
    args = NetworkTrafficArgs(url=prometheus.url, range=RANGE)
    async with exporting(*made.values()), collecting(query_of(args), *nodes) as world:
        for name in made:
            await world.until(lambda sample: sample is not None, name)
        ranking, metrics, token = NetworkTrafficRanking(world, args), world.process.metrics, query_of(args).token

        async def all_agree() -> bool:
            samples = [(await world.sample(name), exporter) for name, exporter in made.items()]
            candidates = ranking.ranking().candidates
            # 100 - 1*100/80 = 99 (1.25 is cut to 1), 100 - 25 = 75, 100 - 100 = 0; measured rates may move each by one
            points = {candidate.node: candidate.total for candidate in candidates}
            return (
                metrics.value("berth_sampled_nodes", query=token, state="duplicate") == len(made)
                and all(sample.receive == pytest.approx(exporter.rate, rel=0.05) for sample, exporter in samples)
                and all(sample.transmit == pytest.approx(exporter.transmit, rel=0.05) for sample, exporter in samples)
                and all(sample.capacity == 125e6 for sample, _ in samples)
                and points == {"quiet": pytest.approx(99, abs=1), "medium": pytest.approx(75, abs=2), "busy": 0}
                and "MB/s receive, sampled" in candidates[0].details["NetworkTraffic"]
            )

        await eventually(all_agree, "rates and points to agree")  # a scrape that comes late counts for a whole range


async def test_a_busy_node_gets_no_pods_while_its_exporter_restarts(prometheus):
    made = exporters(quiet=1 * MEGA, other=2 * MEGA, busy=80 * MEGA, new=90 * MEGA)
    first = [made["quiet"], made["other"], made["busy"]]
    prometheus.scrape(*(exporter.instance for exporter in first))
    args = args_for(prometheus)
    nodes = [node_at(exporter.nodename, exporter.address) for exporter in first]
    async with exporting(*made.values()), collecting(query_of(args), *nodes) as world:
        for exporter in first:
            await world.until(lambda sample: sample is not None, exporter.nodename)
        ranking = NetworkTrafficRanking(world, args)
        await ranking.never_best("busy", seconds=2)
        await made["busy"].stop()
        await ranking.never_best("busy", seconds=RANGE.total_seconds() + 2)  # beyond the range: no row at all any more
        made["busy"].reboot(nodename="renamed-by-somebody", release="6.12.0-9")
        await made["busy"].start()
        await ranking.never_best("busy", seconds=RANGE.total_seconds())
        # The first rates of a young series may be 13 % too low.
        await world.until(
            lambda sample: sample is not None and 75 * MEGA < sample.receive < 85 * MEGA, "busy", seconds=15
        )
        await world.show(node_at("new", made["new"].address))
        prometheus.scrape(*(exporter.instance for exporter in made.values()))
        await ranking.never_best("busy", "new", seconds=RANGE.total_seconds())
        await world.until(
            lambda sample: sample is not None and 84 * MEGA < sample.receive < 96 * MEGA, "new", seconds=15
        )
        await ranking.never_best("busy", "new", seconds=RANGE.total_seconds())


async def test_a_busy_node_does_not_look_quiet_after_some_scrapes_have_failed(prometheus):
    made = exporters(quiet=1 * MEGA, other=2 * MEGA, busy=80 * MEGA)
    prometheus.scrape(*(exporter.instance for exporter in made.values()))
    args = args_for(prometheus)
    nodes = [node_at(name, exporter.address) for name, exporter in made.items()]
    async with exporting(*made.values()), collecting(query_of(args), *nodes) as world:
        await world.until(lambda sample: sample is not None and sample.receive > 75 * MEGA, "busy")
        await asyncio.sleep(RANGE.total_seconds())
        await made["busy"].stop()
        await asyncio.sleep(RANGE.total_seconds() / 2)
        await made["busy"].start()
        before = await world.sample("busy")
        ends = time.monotonic() + RANGE.total_seconds() + 2
        while time.monotonic() < ends:
            found = await world.sample("busy")
            assert found.receive > 60 * MEGA
            await asyncio.sleep(0.1)
        assert found.sampled_at > before.sampled_at + RANGE / 2


async def test_a_young_node_is_measured_right_while_its_scrapes_have_a_gap(prometheus):
    """By the number of scrapes alone it would receive three times as much."""
    made = exporters(old=1 * MEGA, new=80 * MEGA)
    prometheus.scrape(made["old"].instance)
    args = NetworkTrafficArgs(url=prometheus.url, devices=["eth0"], range=4 * RANGE)
    nodes = [node_at(name, exporter.address) for name, exporter in made.items()]
    async with exporting(*made.values()), collecting(query_of(args), *nodes) as world:
        await world.until(lambda sample: sample is not None, "old", seconds=60)
        prometheus.scrape(*(exporter.instance for exporter in made.values()))
        before = await world.until(lambda sample: sample is not None, "new", seconds=30)
        prometheus.stop()
        await asyncio.sleep(RANGE.total_seconds())
        prometheus.start()
        found = await world.until(lambda sample: sample.sampled_at > before.sampled_at, "new", seconds=30)
        assert found.receive == pytest.approx(80 * MEGA, rel=0.15)


async def test_the_last_samples_stay_and_age_when_prometheus_stops(prometheus):
    made = exporters(quiet=1 * MEGA, busy=80 * MEGA)
    prometheus.scrape(*(exporter.instance for exporter in made.values()))
    args = args_for(prometheus)
    nodes = [node_at(name, exporter.address) for name, exporter in made.items()]
    async with exporting(*made.values()), collecting(query_of(args), *nodes) as world:
        for name in made:
            await world.until(lambda sample: sample is not None, name)
        prometheus.stop()
        await asyncio.sleep(3)
        last = await world.sample("busy")
        await asyncio.sleep(2)
        assert await world.sample("busy") == last
        best = NetworkTrafficRanking(world, args).ranking().candidates[0]
        assert best.node == "quiet"
        age = int(best.details["NetworkTraffic"].partition("sampled ")[2].split()[0])
        assert age == pytest.approx((datetime.now(UTC) - last.sampled_at).total_seconds(), abs=2)
        token = query_of(args).token
        assert world.process.metrics.value("berth_sample_rounds_total", query=token, result="unreachable") >= 3
        prometheus.start()
        await world.until(lambda sample: sample is not None and sample.sampled_at > last.sampled_at, "busy", seconds=40)
