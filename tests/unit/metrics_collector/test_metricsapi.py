"""From answers of metrics.k8s.io to samples: statistics over what was seen, and values that count as unknown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from berth.api.config.nodeload.queries import Statistic
from berth.api.meta import ObjectMeta
from berth.messages.livedata import MeasuredUsage, NodeSample
from berth_metrics_collector.metricsapi import NodeMetrics, SeenUsage

T0 = datetime(2026, 1, 1, tzinfo=UTC)
MEBI = 2**20
ALL: frozenset[Statistic] = frozenset({"average", "deviation", "p50", "p90", "p95", "p99"})


def measured(seconds: float, cpu: str = "1", memory: str = "1Gi", name: str = "a") -> NodeMetrics:
    usage = {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount}
    return NodeMetrics(metadata=ObjectMeta(name=name), timestamp=T0 + timedelta(seconds=seconds), usage=usage)


def seen(*items: NodeMetrics, statistics: frozenset[Statistic] = ALL, seconds: float = 60) -> NodeSample | None:
    """The sample after these answers with one node each."""
    usage = SeenUsage(timedelta(seconds=seconds), statistics)
    samples: dict[str, NodeSample] = {}
    for item in items:
        samples = usage.samples([item])
    return samples.get("a")


def test_one_answer_is_a_sample_at_its_own_time():
    found = seen(measured(7, "156340285n", "2048Mi"), statistics=frozenset({"average"}))
    assert found.cpu == MeasuredUsage(average=pytest.approx(156.340285))
    assert found.memory == MeasuredUsage(average=2048 * MEBI)
    assert found.sampled_at == T0 + timedelta(seconds=7)


def test_statistics_are_those_of_the_range():
    """Of 1, 2, 3, 4, 10 cores: mean 4, deviation sqrt((9 + 4 + 1 + 0 + 36) / 5) = 3.16."""
    found = seen(*(measured(number * 10, cpu) for number, cpu in enumerate("1234")), measured(40, "10"))
    assert (found.cpu.average, found.cpu.p50) == (4000, 3000)
    assert found.cpu.deviation == pytest.approx(3162.28, abs=0.01)
    # p90: place 0.9 x 4 = 3.6, so 4 + 0.6 x (10 - 4); p95: 3.8; p99: 3.96
    assert found.cpu.p90 == pytest.approx(7600)
    assert found.cpu.p95 == pytest.approx(8800)
    assert found.cpu.p99 == pytest.approx(9760)


def test_a_value_that_is_asked_for_twice_counts_once():
    assert seen(measured(0, "1"), measured(15, "3"), measured(15, "3"), measured(15, "3")).cpu.average == 2000


def test_what_is_older_than_the_range_is_forgotten():
    assert seen(measured(0, "9"), measured(59.9, "1")).cpu.average == 5000
    assert seen(measured(0, "9"), measured(60, "1")).cpu.average == 1000


def test_after_a_clock_was_set_back_the_values_begin_anew():
    found = seen(measured(3600, "9"), measured(0, "1"), measured(15, "3"))
    assert (found.cpu.average, found.sampled_at) == (2000, T0 + timedelta(seconds=15))


@pytest.mark.parametrize("cpu", ["", "many", "-1", "1e40"])
def test_an_amount_that_cannot_be_is_unknown_and_the_other_is_not(cpu):
    found = seen(measured(0, cpu))
    assert (found.cpu, found.memory.average) == (None, 1024 * MEBI)


def test_without_a_time_or_any_amount_there_is_no_sample():
    assert seen(NodeMetrics(metadata=ObjectMeta(name="a"), usage={"cpu": "1"})) is None
    assert seen(measured(0, "", "")) is None


def test_a_sample_says_what_the_node_has_for_pods():
    usage = SeenUsage(timedelta(seconds=60), frozenset({"average"}))
    found = usage.samples([measured(0)], {"a": {"memory": 5.0}})["a"]
    assert (found.cpu.allocatable, found.memory.allocatable) == (None, 5)
