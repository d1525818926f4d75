"""The collector on a bus in memory and a server that a test plays: rounds, two collectors, and what is said once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from berth.api.livedata import BandwidthQuery
from berth.process.exits import UsageError
from berth.process.lifecycle import Process
from berth_metrics_collector import service
from berth_metrics_collector.nodenames import ExporterDirectory
from berth_metrics_collector.poller import Poller, Reports
from berth_metrics_collector.prometheus import PrometheusError, SampleRow
from berth_metrics_collector.queries import inventory_of, traffic_of
from berth_metrics_collector.settings import CollectorSettings, collector_settings
from harness.fakes.bus_clock import ManualClock
from harness.fakes.memory_bus import MemoryBus
from harness.fakes.recording_meter import RecordingMeter
from harness.worlds.collector_world import collecting, node_at

QUERY = BandwidthQuery(url="http://played", devices=("eth0",), time_range=timedelta(seconds=60))
TOKEN = QUERY.token
NOW = 1_700_000_000.0


class Played:
    """A Prometheus server of some nodes: rate by node, when they were scraped, every how many seconds."""

    def __init__(self, rates: dict[str, float], *, scraped_at: float = NOW, interval: float = 15.0) -> None:
        self.rates = rates
        self.scraped_at = scraped_at
        self.interval = interval
        self.failure: PrometheusError | None = None
        self.asked: list[str] = []

    async def query(self, promql: str) -> Sequence[SampleRow]:
        self.asked.append(promql)
        if self.failure is not None:
            raise self.failure
        traffic, inventory = traffic_of(QUERY), inventory_of(QUERY)
        if promql == inventory.interval:
            return [SampleRow(metric={"job": "j"}, value=(NOW, str(self.interval)))]
        if promql == inventory.names:
            return [SampleRow(metric={**_labels(node), "nodename": node}, value=(NOW, str(NOW))) for node in self.rates]
        answers = {
            traffic.receive: lambda rate: rate,
            traffic.transmit: lambda rate: rate / 2,
            traffic.count: lambda _: 4,
            traffic.scraped_at: lambda _: self.scraped_at,
            traffic.scraped_before: lambda _: self.scraped_at - 60,
        }
        value = answers.get(promql)
        if value is None:
            return []
        return [SampleRow(metric=_labels(node), value=(NOW, str(value(rate)))) for node, rate in self.rates.items()]

    def close(self) -> None:
        """Nothing to close."""


def _labels(node: str) -> dict[str, str]:
    return {"instance": f"{node}:9100", "job": "j", "device": "eth0"}


@pytest.fixture
def played(monkeypatch):
    server = Played({"a": 80.0, "b": 1.0})
    monkeypatch.setattr(service, "Prometheus", lambda _url: server)
    return server


QUICKLY = timedelta(seconds=0.02)


async def until(condition: Callable[[], bool]) -> None:
    """Poll: what is waited for happens behind a bus."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - the bus has no event for it
            await asyncio.sleep(0.01)


def newer(than):
    return lambda sample: sample is not None and sample.sampled_at > than.sampled_at


async def test_samples_of_all_nodes_are_written_and_followed(played):
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY) as world:
        first = await world.until(lambda sample: sample is not None, "a")
        assert (first.receive, first.transmit, first.sampled_at.timestamp()) == (80.0, 40.0, NOW)
        played.rates["a"], played.scraped_at = 70.0, NOW + 15
        assert (await world.until(newer(first), "a")).receive == 70.0


async def test_a_sample_is_written_once_however_often_it_is_read(played):
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY) as world:
        await world.until(lambda sample: sample is not None, "b")
        before = await world.session.get("bandwidth", f"{TOKEN}.a")
        asked = len(played.asked)
        await until(lambda: len(played.asked) >= asked + 20)
        assert (await world.session.get("bandwidth", f"{TOKEN}.a")).sequence == before.sequence


async def test_two_collectors_side_by_side_write_what_one_would(played):
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY, collectors=2) as world:
        sample = await world.until(lambda sample: sample is not None, "a")
        for step in range(1, 6):
            played.rates["a"], played.scraped_at = 80.0 + step, NOW + 15 * step
            sample = await world.until(newer(sample), "a")
        assert sample.receive == 85.0
        last = await world.session.get("bandwidth", f"{TOKEN}.a")
        assert last.sequence <= 12  # two nodes, six samples each: no write was made twice


async def test_the_sample_of_a_node_that_is_gone_is_removed(played):
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY) as world:
        await world.until(lambda sample: sample is not None, "a")
        await world.remove("a")
        columns = world.snapshot.live.bandwidth(TOKEN)
        await until(lambda: columns.sample("a") is None)
        assert await world.sample("b") is not None


async def test_a_node_that_comes_back_when_the_marker_of_its_sample_has_expired_is_written_again(played):
    clock = ManualClock()
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY, clock=clock) as world:
        await world.until(lambda sample: sample is not None, "a")
        await world.remove("a")
        columns = world.snapshot.live.bandwidth(TOKEN)
        await until(lambda: columns.sample("a") is None)
        clock.advance(timedelta(hours=2))
        played.scraped_at = NOW + 15
        await world.show(node_at("a"))
        await world.until(lambda sample: sample is not None, "a", seconds=5)


async def test_nodes_that_come_after_their_exporters_are_not_kept_waiting_for_the_next_round(played):
    async with collecting(QUERY, interval=timedelta(hours=1)) as world:
        await world.show(node_at("a"))
        await world.until(lambda sample: sample is not None, "a", seconds=5)
        await world.show(node_at("b"))
        await world.until(lambda sample: sample is not None, "b", seconds=5)


async def test_a_collector_that_starts_anew_goes_on_where_the_bucket_stands(played):
    async with collecting(QUERY, node_at("a"), interval=QUICKLY) as world:
        first = await world.until(lambda sample: sample is not None, "a")
        for session in list(world.bus.sessions):
            if session is not world.session:
                world.bus.cut(session)
        played.scraped_at = NOW + 15
        assert await world.until(newer(first), "a")


async def test_without_a_question_it_says_so_once_is_ready_and_stays():
    bus = MemoryBus()
    session = await bus.connect(name="test")
    await session.apply()
    process = Process(name="metrics-collector", metrics=RecordingMeter())
    with capture_logs() as logs:
        task = asyncio.create_task(service.serve(process, bus, [], CollectorSettings()))
        await until(lambda: process.health.is_ready)
        await asyncio.sleep(0.05)
        assert not task.done()
        process.stopping.set()
        await asyncio.wait_for(task, 5)
    assert [line["event"] for line in logs if "nothing to ask" in line["event"]] == [
        "nothing to ask: no profile of the configuration runs NetworkTraffic"
    ]


class Told:
    """Rounds with reports, on a played server."""

    def __init__(self, server: Played, *nodes: str) -> None:
        self.meter = RecordingMeter()
        self.server = server
        self.directory = ExporterDirectory([node_at(node) for node in nodes])
        self._rounds = Poller(QUERY, server, Reports(QUERY, self.meter), inventory_rounds=4)

    async def rounds(self, count: int) -> list[str]:
        """What was said in so many rounds."""
        with capture_logs() as logs:
            for _ in range(count):
                await self._rounds.ask(self.directory)
        return [line["event"] for line in logs]


async def test_five_queries_a_round_and_four_more_now_and_then():
    told = Told(Played({"a": 1.0}), "a")
    await told.rounds(9)
    inventory = inventory_of(QUERY)
    assert len(told.server.asked) == 9 * 5 + 3 * 4
    assert told.server.asked.count(inventory.names) == 3


async def test_a_failure_is_said_once_counted_each_time_and_so_is_its_end():
    told = Told(Played({"a": 1.0}), "a")
    assert await told.rounds(2) == []
    told.server.failure = PrometheusError("not reachable", cause="unreachable")
    assert await told.rounds(3) == ["keeping the last samples, which grow older"]
    told.server.failure = PrometheusError("want JSON", cause="nonsense")
    assert await told.rounds(2) == ["keeping the last samples, which grow older"]
    told.server.failure = None
    assert await told.rounds(2) == ["Prometheus answers again"]
    results = {"ok": 4, "unreachable": 3, "nonsense": 2}
    for result, count in results.items():
        assert told.meter.value("berth_prometheus_rounds_total", query=TOKEN, result=result) == count


async def test_whoever_is_not_recognised_is_said_once_a_change_and_counted():
    told = Told(Played({"a": 1.0, "printer": 1.0}), "a", "lonely")
    assert await told.rounds(3) == ["no sample now of nodes", "exporters that are no node's"]
    for state, number in {"known": 1, "missing": 1, "stranger": 1, "double": 0}.items():
        assert told.meter.value("berth_bandwidth_nodes", query=TOKEN, state=state) == number
    del told.server.rates["printer"]
    told.server.rates["lonely"] = 1.0
    assert await told.rounds(3) == []
    del told.server.rates["lonely"]
    assert await told.rounds(3) == ["no sample now of nodes"]


async def test_a_range_that_is_too_short_for_the_scrape_interval_is_said_once():
    told = Told(Played({"a": 1.0}, interval=30.0), "a")
    assert await told.rounds(6) == ["the range is too short for the scrape interval"]


async def test_a_newcomers_name_is_looked_up_at_once():
    told = Told(Played({"a": 1.0}), "a", "b")
    await told.rounds(1)
    told.server.rates["b"] = 2.0
    await told.rounds(2)
    assert told.server.asked.count(inventory_of(QUERY).names) == 2


def test_the_interval_is_read_from_the_environment():
    assert collector_settings({}).interval == timedelta(seconds=15)
    assert collector_settings({"BERTH_COLLECTOR_INTERVAL": "500ms"}).interval == timedelta(seconds=0.5)
    with pytest.raises(UsageError, match=r"BERTH_COLLECTOR_INTERVAL: want 0\.2s\.\.3600s, got 0s"):
        collector_settings({"BERTH_COLLECTOR_INTERVAL": "0s"})
