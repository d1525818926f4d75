"""From rows to the use of CPU and memory: corrected rates, the newest of several exporters, values left out."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from berth.api.config.nodeload.queries import LoadQuery
from berth.messages.livedata import MeasuredUsage, NodeSample, decode_sample, encode_sample
from berth_metrics_collector.nodenames import NodeNames
from berth_metrics_collector.poller import Reporter, UsageMeasurement
from berth_metrics_collector.prometheus import SampleRow
from berth_metrics_collector.queries import ScrapeSeconds, usage_queries
from berth_metrics_collector.samples import NodeSamples, Target
from berth_metrics_collector.usage import UsageValues, usage_samples
from harness.fakes.recording_meter import RecordingMeter
from harness.worlds.collector_world import node_at, sample_row

NODE = Target(instance="10.0.0.1:9100", job="node")
NOW = 1_700_000_000.0
GIBI = 2.0**30
RANGE = timedelta(seconds=60)
QUERY = LoadQuery(url="http://prometheus:9090", time_range=RANGE)
EVERY_15_SECONDS = {"node": 15.0}


def values(cpu=2.0, memory=GIBI, *, scraped_at=NOW, young=None, target=NODE, **statistics: float) -> UsageValues:
    """Of one exporter: cores and bytes; ``statistics`` of CPU alone."""
    cores = {"average": cpu, **statistics}
    return UsageValues(
        cpu={name: {} if value is None else {target: value} for name, value in cores.items()},
        memory={"average": {} if memory is None else {target: memory}},
        young={} if young is None else {target: young},
        scraped_at={target: scraped_at},
    )


def of_node(found: UsageValues) -> NodeSample | None:
    return usage_samples(found, EVERY_15_SECONDS, {NODE: "a"}, RANGE).samples.get("a")


def test_cores_become_millicores_and_the_time_is_that_of_the_scrape():
    found = of_node(values(2.5, 3 * GIBI, scraped_at=NOW - 7.25, p95=3.0, deviation=0.25))
    assert found.cpu == MeasuredUsage(average=2500, p95=3000, deviation=250)
    assert found.memory == MeasuredUsage(average=3 * GIBI)
    assert found.sampled_at.timestamp() == NOW - 7.25


def test_the_average_of_a_young_series_is_scaled_up_and_its_percentiles_are_not():
    """At 2 cores for 60 of 60 s a rate over 120 s says 1: 1 x 120 / (4 x 15) = 2."""
    found = usage_samples(values(1.0, young=4, p95=2.0), EVERY_15_SECONDS, {NODE: "a"}, timedelta(seconds=120))
    assert found.samples["a"].cpu == MeasuredUsage(average=2000, p95=2000)


@pytest.mark.parametrize(
    ("elapsed", "expected"),
    [
        # Scrapes at 0, 15, 65 and 80 s of a Prometheus that was away between, at 2 cores: a rate of 1.78 over 120 s.
        pytest.param(80.0, 2000, id="a gap: 1.78 x 120 / (80 x 4/3)"),
        pytest.param(44.0, 3560, id="no gap, and the last scrape was asked for before it was counted"),
        pytest.param(300.0, 3560, id="the first of the range is unknown"),
    ],
)
def test_the_average_of_a_young_series_covers_its_missed_scrapes(elapsed, expected):
    given = replace(values(1.78, young=4), young_since={NODE: NOW - elapsed})
    found = usage_samples(given, EVERY_15_SECONDS, {NODE: "a"}, timedelta(seconds=120))
    assert found.samples["a"].cpu.average == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("young", [1, 3])
def test_a_series_that_is_too_young_leaves_the_node_its_last_sample(young):
    assert of_node(values(young=young)) is None


@pytest.mark.parametrize(("over_gaps", "expected"), [({NODE: 3.6}, 3600), ({NODE: -20.0}, None), ({}, None)])
def test_the_average_over_missed_scrapes_is_what_the_counter_has_grown_by(over_gaps, expected):
    """After a reset it is unknown, and the node keeps its last sample; ``rate`` would divide by the whole range."""
    gap = replace(values(1.7, p95=3.5), gapped={NODE: 60.0}, cpu_over_gaps=over_gaps)
    found = of_node(gap)
    assert (found and found.cpu) == (expected and MeasuredUsage(average=expected, p95=3500))


def test_memory_is_known_over_missed_scrapes_without_cpu():
    assert of_node(replace(values(None), gapped={NODE: 60.0})).memory == MeasuredUsage(average=GIBI)


def test_one_resource_may_be_unknown_and_the_other_not():
    assert of_node(values(None)).cpu is None
    assert of_node(values(None)).memory == MeasuredUsage(average=GIBI)
    assert of_node(values(memory=None)).memory is None
    assert of_node(values(None, None)) is None


def test_an_exporter_with_too_few_scrapes_for_a_rate_leaves_the_node_its_last_sample():
    """As after Prometheus was away: memory alone would replace a sample with both."""
    without = replace(values(None), had_cpu={NODE})
    found = usage_samples(without, EVERY_15_SECONDS, {NODE: "a"}, RANGE)
    assert found.samples == {}


@pytest.mark.parametrize("cores", [1e13, 1e300, math.inf, -1.0, math.nan])
def test_an_impossible_amount_is_unknown_and_readers_take_the_rest(cores):
    found = usage_samples(replace(values(cores), had_cpu={NODE}), EVERY_15_SECONDS, {NODE: "a"}, RANGE)
    assert found.samples["a"].cpu is None
    assert decode_sample(encode_sample(found.samples["a"])) == found.samples["a"]
    assert found.unusable == {"a": f"cpu: want 0 to 1e+15 millicores, got {1000 * cores:g}"}


@pytest.mark.parametrize("scraped_at", [NOW * 1000, 1e306, -1.0, math.nan])
def test_an_impossible_time_gives_no_sample(scraped_at):
    found = usage_samples(values(scraped_at=scraped_at), EVERY_15_SECONDS, {NODE: "a"}, RANGE)
    assert found.samples == {}
    assert found.unusable == {"a": f"time of the scrape: want a year of 1970 to 2286, got {scraped_at:g}"}


class PlayedPrometheus:
    """Two exporters; one of them has this memory."""

    memory = "NaN"

    async def query(self, promql: str) -> list[SampleRow]:
        asked = usage_queries(QUERY, {"average"}, ScrapeSeconds(1.0, 1.0))
        rows = {
            asked.scraped_at: (NOW, NOW),
            asked.cpu["average"]: (1, 1),
            asked.memory["average"]: (GIBI, self.memory),
        }.get(promql, ())
        return [sample_row(value, instance=node) for node, value in zip("ab", rows, strict=False)]


async def test_nodes_with_values_that_cannot_be_used_are_one_line_until_they_are_others():
    server, reporter = PlayedPrometheus(), Reporter(QUERY, RecordingMeter())
    measurement = UsageMeasurement(QUERY, {"average"}, server, inventory_rounds=4)
    nodes = NodeNames([node_at("a"), node_at("b")])
    with capture_logs() as logs:
        for memory in ("NaN", "+Inf", "many", str(GIBI), "-1"):
            server.memory = memory
            samples = (await measurement.measure(nodes, reporter)).found.samples
            assert {node for node, sample in samples.items() if sample.memory} == {"a"} | set(
                "b" * (memory == str(GIBI))
            )
    line = "nodes with values that cannot be used"
    assert [(each["event"], each["unusable"], each["reason"]) for each in logs] == [
        (line, ["b"], "memory: want 0 to 1e+15 bytes, got nan"),
        (line, ["b"], "memory: want 0 to 1e+15 bytes, got -1"),
    ]


def test_a_sample_says_what_the_node_has_for_pods():
    has = {"a": {"cpu": 3900.0}}
    found = usage_samples(values(), EVERY_15_SECONDS, {NODE: "a"}, RANGE, has).samples["a"]
    assert (found.cpu.allocatable, found.memory.allocatable) == (3900, None)


def test_an_exporter_of_no_node_has_no_sample():
    assert usage_samples(values(), EVERY_15_SECONDS, {}, RANGE) == NodeSamples()


def merged(*parts: UsageValues) -> UsageValues:
    return UsageValues(
        cpu={"average": {target: value for part in parts for target, value in part.cpu["average"].items()}},
        memory={"average": {}},
        young={target: value for part in parts for target, value in part.young.items()},
        scraped_at={target: value for part in parts for target, value in part.scraped_at.items()},
    )


def replica(name: str) -> Target:
    return Target(instance=NODE.instance, job="node", others=frozenset({("replica", name)}))


@pytest.mark.parametrize("order", [1, -1])
def test_of_two_replicas_what_was_scraped_last_counts_and_both_are_reported(order):
    one = values(1.0, target=replica("a"), scraped_at=NOW - 9)
    two = values(2.0, target=replica("b"), scraped_at=NOW - 1)
    both = merged(*[one, two][::order])
    found = usage_samples(both, EVERY_15_SECONDS, dict.fromkeys(both.targets, "a"), RANGE)
    assert found.samples["a"].cpu.average == 2000
    assert (found.duplicates, found.differing) == (("a",), ("replica",))


def test_the_newest_exporter_with_a_value_counts():
    """One of two replicas has just started."""
    both = merged(values(1.0, target=replica("a"), scraped_at=NOW - 9), values(2.0, target=replica("b"), young=1))
    found = usage_samples(both, EVERY_15_SECONDS, dict.fromkeys(both.targets, "a"), RANGE)
    assert (found.samples["a"].cpu.average, found.duplicates) == (1000, ())
