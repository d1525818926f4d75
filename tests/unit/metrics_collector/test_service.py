"""The collector on a bus in memory and a fake Prometheus: rounds, two collectors, and log lines on changes only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from berth.api.config.networktraffic import BandwidthQuery
from berth.bus.interface import BusRefusedError, Entry, Session, WrongLastSequenceError
from berth.exits import UsageError
from berth.lifecycle.process import Process
from berth.messages.livedata import NodeSample, encode_sample
from berth.messages.subjects import key
from berth_metrics_collector import samplestore, service
from berth_metrics_collector.nodenames import MirroredNodes
from berth_metrics_collector.poller import Poller, Reporter, TrafficMeasurement
from berth_metrics_collector.prometheus import SampleRow, SourceError
from berth_metrics_collector.queries import ScrapeSeconds, inventory_queries, traffic_queries
from berth_metrics_collector.settings import CollectorSettings, collector_settings
from harness.fakes.bus_clock import ManualClock
from harness.fakes.memory_bus import MemoryBus, MemorySession
from harness.fakes.recording_meter import RecordingMeter
from harness.worlds import collector_world
from harness.worlds.collector_world import collecting, mirrored, node_at, sample_row

pytestmark = pytest.mark.slow  # waits in real time

QUERY = BandwidthQuery(url="http://played", devices=("eth0",), time_range=timedelta(seconds=60))
TOKEN = QUERY.token
NOW = 1_700_000_000.0


class FakePrometheus:
    """A Prometheus with some nodes: rate by node, time of the last scrape, scrape interval in seconds."""

    def __init__(self, rates: dict[str, float], *, interval: float = 15.0) -> None:
        self.rates = rates
        self.scraped_at = NOW
        self.interval = interval
        self.failure: SourceError | None = None
        self.asked: list[str] = []

    async def query(self, promql: str) -> Sequence[SampleRow]:
        self.asked.append(promql)
        if self.failure is not None:
            raise self.failure
        traffic, inventory = (
            traffic_queries(QUERY, ScrapeSeconds(self.interval, self.interval)),
            inventory_queries(QUERY),
        )
        if promql == inventory.interval:
            return [sample_row(self.interval, job="j")]
        if promql == inventory.names:
            return [sample_row(NOW, **_labels(node), nodename=node) for node in self.rates]
        answers = {
            traffic.receive: lambda rate: rate,
            traffic.transmit: lambda rate: rate / 2,
            traffic.scraped_at: lambda _: self.scraped_at,
        }
        value = answers.get(promql)
        if value is None:
            return []
        return [sample_row(value(rate), **_labels(node)) for node, rate in self.rates.items()]

    def close(self) -> None:
        """Nothing to close."""


def _labels(node: str) -> dict[str, str]:
    return {"instance": f"{node}:9100", "job": "j", "device": "eth0"}


@pytest.fixture
def prometheus(monkeypatch):
    server = FakePrometheus({"a": 80.0, "b": 1.0})
    monkeypatch.setattr(collector_world, "Prometheus", lambda _url: server)
    return server


QUICKLY = timedelta(seconds=0.02)


async def until(condition: Callable[[], bool]) -> None:
    """Poll until the condition holds: the bus has no event for it."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - the bus has no event for it
            await asyncio.sleep(0.01)


@pytest.fixture
def without_signs_of_life(monkeypatch):
    """Samples are written again by no test's duration."""
    monkeypatch.setattr(samplestore, "CHECK_SECONDS", 3600)


def newer(than):
    return lambda sample: sample is not None and sample.sampled_at > than.sampled_at


async def test_samples_of_all_nodes_are_written_and_updated(prometheus):
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY) as world:
        first = await world.until(lambda sample: sample is not None, "a")
        assert (first.receive, first.transmit, first.sampled_at.timestamp()) == (80.0, 40.0, NOW)
        prometheus.rates["a"], prometheus.scraped_at = 70.0, NOW + 15
        assert (await world.until(newer(first), "a")).receive == 70.0


def readiness(world) -> str:
    return world.process.health.summary()


async def test_it_is_ready_when_the_nodes_have_their_first_samples(prometheus):
    rates, prometheus.rates = prometheus.rates, {}
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY) as world:
        await until(lambda: readiness(world) == "not ready: waiting for the first samples")
        prometheus.rates = rates
        await until(lambda: readiness(world) == "ok")
        assert [await world.sample(node) is not None for node in rates] == [True, True]


async def test_a_node_without_an_exporter_does_not_keep_it_unready(prometheus):
    async with collecting(QUERY, node_at("a"), node_at("b"), node_at("c"), interval=QUICKLY) as world:
        await until(lambda: readiness(world) == "ok")
        assert await world.sample("c") is None


async def test_a_prometheus_that_is_away_does_not_keep_it_unready(prometheus):
    prometheus.failure = SourceError("nobody there", cause="unreachable")
    async with collecting(QUERY, node_at("a"), interval=QUICKLY) as world:
        await until(lambda: readiness(world) == "ok")


async def test_a_prometheus_without_such_series_does_not_keep_it_unready_for_long(prometheus, monkeypatch):
    monkeypatch.setattr(service, "FIRST_SAMPLES_SECONDS", 0.05)
    prometheus.rates = {}
    async with collecting(QUERY, node_at("a"), interval=QUICKLY) as world:
        await until(lambda: readiness(world) == "ok")


async def test_a_cluster_without_nodes_does_not_keep_it_unready_for_long(prometheus, monkeypatch):
    monkeypatch.setattr(service, "FIRST_NODES_SECONDS", 0.05)
    async with collecting(QUERY, interval=QUICKLY) as world:
        await until(lambda: readiness(world) == "ok")


async def test_a_sample_is_written_once(prometheus, without_signs_of_life):
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY) as world:
        await world.until(lambda sample: sample is not None, "b")
        before = await world.session.get("bandwidth", f"{TOKEN}.a")
        asked = len(prometheus.asked)
        await until(lambda: len(prometheus.asked) >= asked + 20)
        assert (await world.session.get("bandwidth", f"{TOKEN}.a")).sequence == before.sequence


async def test_two_collectors_side_by_side_write_what_one_would(prometheus, without_signs_of_life):
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY, collectors=2) as world:
        sample = await world.until(lambda sample: sample is not None, "a")
        for step in range(1, 6):
            prometheus.rates["a"], prometheus.scraped_at = 80.0 + step, NOW + 15 * step
            sample = await world.until(newer(sample), "a")
        assert sample.receive == 85.0
        last = await world.session.get("bandwidth", f"{TOKEN}.a")
        assert last.sequence <= 12  # two nodes, six samples each: no write was made twice


async def test_what_somebody_else_has_written_ends_before_the_next_scrape(prometheus, monkeypatch):
    """A node that is measured, one that is not, and one that does not exist."""
    monkeypatch.setattr(service, "CHECK_SECONDS", 0.02)
    async with collecting(QUERY, node_at("a"), node_at("c"), interval=timedelta(hours=1)) as world:
        first = await world.until(lambda sample: sample is not None, "a")
        forged = NodeSample(receive=1e9, sampled_at=first.sampled_at + timedelta(seconds=1))
        for node in ("a", "c", "x"):
            await world.session.put("bandwidth", f"{TOKEN}.{node}", encode_sample(forged))
        await world.until(lambda sample: sample == first, "a")
        columns = world.snapshot.live.samples(TOKEN)
        await until(lambda: columns.samples() == {"a": first})
        await world.session.purge("bandwidth", f"{TOKEN}.a")
        await world.until(lambda sample: sample == first, "a")


async def test_a_key_that_the_full_bucket_has_dropped_is_written_again(prometheus, monkeypatch):
    monkeypatch.setattr(service, "CHECK_SECONDS", 0.02)
    async with collecting(QUERY, node_at("a"), interval=timedelta(hours=1)) as world:
        first = await world.until(lambda sample: sample is not None, "a")
        entry = await world.session.get("bandwidth", f"{TOKEN}.a")
        await world.session.delete("KV_bandwidth", entry.sequence)
        await world.until(lambda sample: sample == first, "a")


async def test_the_sample_of_a_deleted_node_is_removed(prometheus):
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY) as world:
        await world.until(lambda sample: sample is not None, "a")
        await world.remove("a")
        columns = world.snapshot.live.samples(TOKEN)
        await until(lambda: columns.sample("a") is None)
        assert await world.sample("b") is not None


async def test_a_node_that_returns_after_its_marker_expired_is_written(prometheus):
    clock = ManualClock()
    async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY, clock=clock) as world:
        await world.until(lambda sample: sample is not None, "a")
        await world.remove("a")
        columns = world.snapshot.live.samples(TOKEN)
        await until(lambda: columns.sample("a") is None)
        clock.advance(timedelta(hours=2))
        prometheus.scraped_at = NOW + 15
        await world.show(node_at("a"))
        await world.until(lambda sample: sample is not None, "a", seconds=5)


async def test_nodes_after_their_exporters_do_not_wait_for_the_next_round(prometheus):
    async with collecting(QUERY, interval=timedelta(hours=1)) as world:
        await world.show(node_at("a"))
        await world.until(lambda sample: sample is not None, "a", seconds=5)
        await world.show(node_at("b"))
        await world.until(lambda sample: sample is not None, "b", seconds=5)


async def test_a_collector_continues_after_a_lost_connection(prometheus):
    async with collecting(QUERY, node_at("a"), interval=QUICKLY) as world:
        first = await world.until(lambda sample: sample is not None, "a")
        for session in list(world.bus.sessions):
            if session is not world.session:
                world.bus.cut(session)
        prometheus.scraped_at = NOW + 15
        assert await world.until(newer(first), "a")


@pytest.mark.parametrize("refused", ["put_soon", "get", "purge"])
async def test_what_nats_refuses_once_is_done_in_the_next_round_on_the_same_session(prometheus, monkeypatch, refused):
    """Read again is a key that another collector has written meanwhile."""
    failures = {refused: [BusRefusedError("refused once")]}
    if refused == "get":
        failures["put_soon"] = [WrongLastSequenceError("another was faster")]
    with capture_logs() as logs:
        async with collecting(QUERY, node_at("a"), node_at("b"), interval=QUICKLY) as world:
            for name, errors in failures.items():
                fail_for_others(monkeypatch, world.session, name, errors)
            prometheus.scraped_at = NOW + 15
            await world.until(lambda sample: sample is not None and sample.sampled_at.timestamp() > NOW, "a", seconds=5)
            await world.remove("a")
            columns = world.snapshot.live.samples(TOKEN)
            await until(lambda: columns.sample("a") is None)
            assert len(world.bus.sessions) == 2  # the test's and the collector's
    reasons = [line["reason"] for line in logs if "reason" in line]
    assert (reasons, failures[refused]) == (["refused once"], [])
    assert not any("another connection" in line["event"] for line in logs)


def fail_for_others(monkeypatch, own: Session, name: str, errors: list[Exception]) -> None:
    """Make calls of all sessions but the own one raise these errors, one each."""
    call = getattr(MemorySession, name)

    async def failing(session, *args, **kwargs):
        if errors and session is not own:
            raise errors.pop()
        return await call(session, *args, **kwargs)

    def failing_soon(session, *args, on_answer, **kwargs):
        if errors and session is not own:
            on_answer(errors.pop())
        else:
            call(session, *args, on_answer=on_answer, **kwargs)

    monkeypatch.setattr(MemorySession, name, failing_soon if name == "put_soon" else failing)


async def test_without_a_query_it_logs_once_and_stays_ready():
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
    assert [line["event"] for line in logs if "no queries" in line["event"]] == [
        "no queries: no profile of the configuration runs a plugin with samples"
    ]


class PollerWorld:
    """A poller with its reporter, on a fake Prometheus."""

    def __init__(self, server: FakePrometheus, *nodes: str) -> None:
        self.meter = RecordingMeter()
        self.server = server
        self.nodes = MirroredNodes()
        for node in nodes:
            self.add(node)
        measurement = TrafficMeasurement(QUERY, server, inventory_rounds=4)
        self._poller = Poller(measurement, Reporter(QUERY, self.meter))

    def add(self, node: str) -> None:
        """Add a node, as the mirror does."""
        data = mirrored(node_at(node))
        self.nodes.apply(Entry(key=key("node", node), data=data, sequence=1, time=datetime.fromtimestamp(NOW, UTC)))

    async def rounds(self, count: int) -> list[str]:
        """The messages logged in this many rounds."""
        with capture_logs() as logs:
            for _ in range(count):
                await self._poller.poll(self.nodes)
        return [line["event"] for line in logs]


async def test_a_round_has_five_queries_and_the_inventory_eight():
    world = PollerWorld(FakePrometheus({"a": 1.0}), "a")
    await world.rounds(9)
    inventory = inventory_queries(QUERY)
    assert len(world.server.asked) == 9 * 5 + 3 * 8
    assert world.server.asked.count(inventory.names) == 3


async def test_a_failure_and_its_end_are_logged_once_and_counted_each_time():
    world = PollerWorld(FakePrometheus({"a": 1.0}), "a")
    assert await world.rounds(2) == []
    world.server.failure = SourceError("not reachable", cause="unreachable")
    assert await world.rounds(3) == ["keeping the last samples, which grow older"]
    world.server.failure = SourceError("want JSON", cause="nonsense")
    assert await world.rounds(2) == ["keeping the last samples, which grow older"]
    world.server.failure = None
    assert await world.rounds(2) == ["samples are measured again"]
    results = {"ok": 4, "unreachable": 3, "nonsense": 2}
    for result, count in results.items():
        assert world.meter.value("berth_sample_rounds_total", query=TOKEN, result=result) == count


async def test_unmatched_exporters_are_logged_once_a_change_and_counted():
    world = PollerWorld(FakePrometheus({"a": 1.0, "printer": 1.0}), "a", "lonely")
    assert await world.rounds(3) == ["nodes without a current sample", "exporters that match no node"]
    for state, number in {"known": 1, "missing": 1, "unmatched": 1, "duplicate": 0}.items():
        assert world.meter.value("berth_sampled_nodes", query=TOKEN, state=state) == number
    del world.server.rates["printer"]
    world.server.rates["lonely"] = 1.0
    assert await world.rounds(3) == []
    del world.server.rates["lonely"]
    assert await world.rounds(3) == ["nodes without a current sample"]


async def test_a_round_during_which_nodes_come_names_no_exporter_without_a_node():
    """At the first start the mirror fills while the collector asks Prometheus."""

    class NodeComes(FakePrometheus):
        async def query(self, promql: str) -> Sequence[SampleRow]:
            if len(self.asked) == 10:
                world.add("b")
            return await super().query(promql)

    world = PollerWorld(NodeComes({"a": 1.0, "b": 1.0, "printer": 1.0}), "a")
    assert await world.rounds(1) == []
    assert await world.rounds(2) == ["exporters that match no node"]


async def test_a_range_too_short_for_the_scrape_interval_is_logged_once():
    world = PollerWorld(FakePrometheus({"a": 1.0}, interval=30.0), "a")
    assert await world.rounds(6) == ["the range is too short for the scrape interval"]


async def test_a_new_exporters_name_is_queried_in_the_next_round():
    world = PollerWorld(FakePrometheus({"a": 1.0}), "a", "b")
    await world.rounds(1)
    world.server.rates["b"] = 2.0
    await world.rounds(2)
    assert world.server.asked.count(inventory_queries(QUERY).names) == 2


def test_the_interval_is_read_from_the_environment():
    assert collector_settings({}).interval == timedelta(seconds=15)
    assert collector_settings({"BERTH_COLLECTOR_INTERVAL": "500ms"}).interval == timedelta(seconds=0.5)
    with pytest.raises(UsageError, match=r"BERTH_COLLECTOR_INTERVAL: want 0\.2s\.\.3600s, got 0s"):
        collector_settings({"BERTH_COLLECTOR_INTERVAL": "0s"})


def test_all_wrong_variables_are_reported_together():
    wrong = {"BERTH_COLLECTOR_INTERVAL": "x", "BERTH_PROMETHEUS_TOKEN_FILE": "", "BERTH_PROMETHEUS_CA_FILE": "/no/file"}
    with pytest.raises(UsageError) as caught:
        collector_settings(wrong)
    assert {line.partition(":")[0] for line in str(caught.value).splitlines()} == set(wrong)


class ScrapingPrometheus(FakePrometheus):
    """Scrapes between two answers: the amount and the time of the scrape grow together."""

    async def query(self, promql: str) -> Sequence[SampleRow]:
        rows = await super().query(promql)
        self.scraped_at += 15
        self.rates = {node: rate + 15 for node, rate in self.rates.items()}
        return rows


async def test_a_sample_claims_no_scrape_that_its_values_lack():
    server = ScrapingPrometheus({"a": NOW})
    measurement = TrafficMeasurement(QUERY, server, inventory_rounds=4)
    mirrored = MirroredNodes()
    mirrored.apply(
        Entry(
            key=key("node", "a"),
            data=collector_world.mirrored(node_at("a")),
            sequence=1,
            time=datetime.fromtimestamp(NOW, UTC),
        )
    )
    found = await measurement.measure(mirrored.names, Reporter(QUERY, RecordingMeter()))
    sample = found.found.samples["a"]
    assert sample.sampled_at.timestamp() <= sample.receive
    asked = traffic_queries(QUERY, ScrapeSeconds(15, 15))
    assert server.asked.index(asked.young) < server.asked.index(asked.receive)
