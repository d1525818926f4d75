"""From answers of metrics.k8s.io to samples: statistics over what was seen, and values that count as unknown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from structlog.testing import capture_logs

from berth.api.config.nodeload.queries import LoadQuery, Statistic
from berth.kube.client import Response
from berth.messages.livedata import MeasuredUsage, NodeSample
from berth_metrics_collector.metricsapi import MetricsApiMeasurement, ReadUsage, SeenUsage, read_usage
from berth_metrics_collector.nodenames import NodeNames
from berth_metrics_collector.poller import Reporter
from berth_metrics_collector.prometheus import SourceError
from harness.fakes.recording_meter import RecordingMeter
from harness.worlds.collector_world import node_at

T0 = datetime(2026, 1, 1, tzinfo=UTC)
MEBI = 2**20
ALL: frozenset[Statistic] = frozenset({"average", "deviation", "p50", "p90", "p95", "p99"})


def item(seconds: float = 0, cpu: str = "1", memory: str = "1Gi", name: str = "a", **changed: object) -> dict:
    usage = {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount}
    timestamp = (T0 + timedelta(seconds=seconds)).isoformat()
    return {"metadata": {"name": name}, "timestamp": timestamp, "window": "0s", "usage": usage, **changed}


def read(*items: dict) -> ReadUsage:
    return read_usage(msgspec.json.encode({"items": items}))


def seen(*items: dict, statistics: frozenset[Statistic] = ALL, seconds: float = 60) -> NodeSample | None:
    """The sample after these answers with one node each."""
    usage = SeenUsage(timedelta(seconds=seconds), statistics)
    samples: dict[str, NodeSample] = {}
    for each in items:
        samples = usage.samples(read(each).values, {"a": {}})
    return samples.get("a")


def test_one_answer_is_a_sample_at_its_own_time():
    found = seen(item(7, "156340285n", "2048Mi"), statistics=frozenset({"average"}))
    assert found.cpu == MeasuredUsage(average=pytest.approx(156.340285))
    assert found.memory == MeasuredUsage(average=2048 * MEBI)
    assert found.sampled_at == T0 + timedelta(seconds=7)


def test_statistics_are_those_of_the_range():
    """Of 1, 2, 3, 4, 10 cores: mean 4, deviation sqrt((9 + 4 + 1 + 0 + 36) / 5) = 3.16."""
    found = seen(*(item(number * 10, cpu) for number, cpu in enumerate("1234")), item(40, "10"))
    assert (found.cpu.average, found.cpu.p50) == (4000, 3000)
    assert found.cpu.deviation == pytest.approx(3162.28, abs=0.01)
    # p90: place 0.9 x 4 = 3.6, so 4 + 0.6 x (10 - 4); p95: 3.8; p99: 3.96
    assert found.cpu.p90 == pytest.approx(7600)
    assert found.cpu.p95 == pytest.approx(8800)
    assert found.cpu.p99 == pytest.approx(9760)


def test_a_value_that_is_asked_for_twice_counts_once():
    assert seen(item(0, "1"), item(15, "3"), item(15, "3"), item(15, "3")).cpu.average == 2000


def test_what_is_older_than_the_range_is_forgotten():
    assert seen(item(0, "9"), item(59.9, "1")).cpu.average == 5000
    assert seen(item(0, "9"), item(60, "1")).cpu.average == 1000


def test_a_late_answer_is_dropped_alone():
    """Of two replicas of metrics-server one is behind: the mean is of 1, 3 and 5 cores."""
    found = seen(item(0, "1"), item(30, "3"), item(15, "9"), item(45, "5"), item(30, "9"))
    assert (found.cpu.average, found.sampled_at) == (3000, T0 + timedelta(seconds=45))
    assert seen(item(60, "1"), item(0, "9")).cpu.average == 1000


def test_after_a_clock_was_set_back_by_more_than_the_range_the_values_begin_anew():
    found = seen(item(3600, "9"), item(0, "1"), item(15, "3"))
    assert (found.cpu.average, found.sampled_at) == (2000, T0 + timedelta(seconds=15))


@pytest.mark.parametrize("cpu", ["", "many", "-1", "1e40", "NaN"])
def test_an_amount_that_cannot_be_is_unknown_and_the_other_is_not(cpu):
    found = seen(item(0, cpu))
    assert (found.cpu, found.memory.average) == (None, 1024 * MEBI)
    assert read(item(0, cpu)).unusable["a"].startswith("decoding usage: cpu")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"timestamp": "0001-01-01T00:00:00+14:00"}, "timestamp: want a year of 1970 to 2286"),
        ({"timestamp": "0001-01-01T00:00:00Z"}, "timestamp: want a year of 1970 to 2286"),
        ({"timestamp": "9999-12-31T23:59:59-14:00"}, "timestamp: want a year of 1970 to 2286"),
        ({"timestamp": "2026-01-01T00:00:00"}, "timestamp: Expected `datetime` with a timezone component"),
        ({"timestamp": "now"}, "timestamp: Invalid RFC3339 encoded datetime"),
        ({"timestamp": None}, "timestamp: Expected `datetime`, got `null`"),
        ({"usage": None}, "usage: Expected `object`, got `null`"),
        ({"usage": {"cpu": 5}}, "usage: Expected `str`, got `int`"),
        ({"usage": {}}, "usage: cpu is missing"),
    ],
)
def test_an_item_that_cannot_be_used_costs_only_its_own_node(changed, reason):
    found = read(item(name="a"), item(name="b", **changed), item(name="c"))
    assert found.values.keys() == {"a", "c"}
    assert found.unusable.keys() == {"b"}
    assert reason in found.unusable["b"]


def test_of_two_items_of_one_node_the_newer_counts():
    assert (
        read(item(15, "2"), item(0, "1")).values
        == read(item(0, "1"), item(15, "2")).values
        == read(item(15, "2")).values
    )


@pytest.mark.parametrize("answer", [b"", b"{}", b'{"items": null}', b'{"items": [{"metadata": {}}]}', b"[" * 5000])
def test_an_answer_that_is_no_list_of_named_items_is_nonsense(answer):
    with pytest.raises(SourceError) as caught:
        read_usage(answer)
    assert caught.value.cause == "nonsense"


def test_a_sample_says_what_the_node_has_for_pods():
    usage = SeenUsage(timedelta(seconds=60), frozenset({"average"}))
    found = usage.samples(read(item(0)).values, {"a": {"memory": 5.0}})["a"]
    assert (found.cpu.allocatable, found.memory.allocatable) == (None, 5)


def test_a_node_that_one_answer_leaves_out_keeps_what_was_seen_of_it():
    usage = SeenUsage(timedelta(seconds=60), frozenset({"average"}))
    usage.samples(read(item(0, "9")).values, {"a": {}})
    assert usage.samples({}, {"a": {}}) == {}
    assert usage.samples(read(item(30, "1")).values, {"a": {}})["a"].cpu.average == 5000


def test_of_a_long_range_values_are_kept_at_sixty_points_and_the_last():
    values = [item(5 * number, "9" if number % 2 else "1") for number in range(5)]
    assert seen(*values, seconds=600).cpu.average == 1000  # of 0, 10 and 20 s
    assert seen(*values[:-1], seconds=600).cpu.average == 11_000 / 3  # of 0, 10 and 15 s
    assert seen(*values, seconds=60).cpu.average == 21_000 / 5


def test_a_deleted_node_is_forgotten():
    usage = SeenUsage(timedelta(seconds=60), frozenset({"average"}))
    usage.samples(read(item(0, "9")).values, {"a": {}})
    assert usage.samples(read(item(15, "9")).values, {}) == {}
    assert usage.samples(read(item(30, "1")).values, {"a": {}})["a"].cpu.average == 1000


class PlayedApi:
    """Answers with these items."""

    def __init__(self, *items: dict, status: int = 200) -> None:
        self.items = items
        self.status = status

    async def request(self, _method: str, _path: str) -> Response:
        return Response(status=self.status, body=msgspec.json.encode({"items": self.items}))


async def test_values_that_cannot_be_used_are_one_line_until_they_are_others():
    api, query = (
        PlayedApi(item(name="a"), item(name="b", timestamp="0001-01-01T00:00:00+14:00")),
        LoadQuery(time_range=timedelta(minutes=5)),
    )
    measurement = MetricsApiMeasurement(query, {"average"}, api)
    nodes, reporter = NodeNames([node_at("a"), node_at("b")]), Reporter(query, RecordingMeter())
    with capture_logs() as logs:
        for _ in range(2):
            found = await measurement.measure(nodes, reporter)
        assert (found.found.samples.keys(), found.missing, found.unmatched) == ({"a"}, ("b",), ())
        api.items = (item(name="b", cpu="-1"), item(name="c", usage=None))
        found = await measurement.measure(nodes, reporter)
    assert (found.found.samples.keys(), found.missing, found.unmatched) == ({"b"}, ("a",), ("c",))
    assert [(line["event"], line["unusable"], line["reason"]) for line in logs] == [
        (
            "nodes with values that cannot be used",
            ["b"],
            "decoding timestamp: want a year of 1970 to 2286, got 0001-01-01T00:00:00+14:00",
        ),
        ("nodes with values that cannot be used", ["b", "c"], "decoding usage: cpu: want 0 to a petabyte, got -1"),
    ]


async def test_without_a_metrics_server_the_reason_asks_for_one():
    query = LoadQuery(time_range=timedelta(minutes=5))
    with pytest.raises(SourceError, match="is metrics-server installed") as caught:
        await MetricsApiMeasurement(query, {"average"}, PlayedApi(status=404)).measure(
            NodeNames([]), Reporter(query, RecordingMeter())
        )
    assert caught.value.cause == "unavailable"
