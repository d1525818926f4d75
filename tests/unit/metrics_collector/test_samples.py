"""From rows to samples: which values count, and how a rate that covers a part of its range is corrected."""

import random
from dataclasses import replace
from datetime import timedelta

import pytest

from berth.api.config.networktraffic import BandwidthQuery
from berth.messages.livedata import NodeSample, decode_sample, encode_sample
from berth_metrics_collector.devices import DeviceFacts
from berth_metrics_collector.samples import (
    Inventory,
    NodeSamples,
    Target,
    TrafficValues,
    node_samples,
    scrape_intervals,
    values_by_device,
)
from harness.worlds.collector_world import sample_row

QUERY = BandwidthQuery(url="http://p", devices=(".*",), time_range=timedelta(seconds=30))
NODE = Target(instance="10.0.0.1:9100", job="node")
NOW = 1_700_000_000.0


def samples(traffic: TrafficValues, inventory: Inventory, capacity: float | None = None) -> NodeSamples:
    """Every exporter is one of the node ``a``."""
    capacities = {} if capacity is None else {"a": capacity}
    return node_samples(traffic, inventory, dict.fromkeys(traffic.targets, "a"), capacities, QUERY)


def sample(traffic: TrafficValues, inventory: Inventory) -> NodeSample | None:
    return samples(traffic, inventory).samples.get("a")


def readings(rate=80e6, *, count=30.0, before=False, transmit=1.0, scraped=NOW) -> TrafficValues:
    key = (NODE, "eth0")
    return TrafficValues(
        receive={} if rate is None else {key: rate},
        transmit={} if transmit is None else {key: transmit},
        young={} if before else {key: count},
        scraped_at={} if scraped is None else {key: scraped},
    )


def every_second(**more) -> Inventory:
    return Inventory(interval={"node": 1.0}, **more)


def receive(found: NodeSample | None) -> float | None:
    assert found is not None
    return found.receive


@pytest.mark.parametrize(
    ("rate", "count", "expected"),
    [
        # What a real server returns for a node at 80 MB/s, range 30 s, a scrape a second (reference figures).
        pytest.param(12.9e6, 5, 77.4e6, id="5 s old: 12.9 x 30/5"),
        pytest.param(39.6e6, 15, 79.2e6, id="15 s old: 39.6 x 30/15"),
        pytest.param(52.0e6, 19, 82.1e6, id="back for 19 s: 52.0 x 30/19"),
        pytest.param(80.0e6, 30, 80.0e6, id="the whole range"),
        pytest.param(80.0e6, 31, 80.0e6, id="never less than the rate itself"),
    ],
)
def test_a_series_younger_than_the_range_is_scaled_up(rate, count, expected):
    found = sample(readings(rate, count=count), every_second())
    assert receive(found) == pytest.approx(expected, rel=0.001)
    assert receive(found) == pytest.approx(80e6, rel=0.11)


def test_a_young_series_covers_its_missed_scrapes():
    """10 of 20 scrapes have failed: 80 MB/s grow for 19 s, with both ends 21.1 s, of 30: 56.3."""
    given = replace(readings(56.3e6, count=10), young_since={(NODE, "eth0"): NOW - 19})
    assert receive(sample(given, every_second())) == pytest.approx(80e6, rel=0.01)


def test_three_scrapes_are_too_few():
    assert sample(readings(6.5e6, count=3, transmit=None), every_second()) is None


@pytest.mark.parametrize(("over_gaps", "expected"), [(80e6, 80e6), (-1.0, None), (None, None)])
def test_over_missed_scrapes_the_rate_is_what_the_counter_has_grown_by(over_gaps, expected):
    """Unreachable for 20 s of 30: ``rate`` may divide what 10 s show by 30. After a reset it is unknown."""
    key = (NODE, "eth0")
    grown = {} if over_gaps is None else {key: over_gaps}
    given = replace(readings(27e6, before=True), gapped={key: 30.0}, receive_over_gaps=grown)
    found = sample(given, every_second())
    assert (found and found.receive) == expected


def test_a_series_that_covers_the_range_needs_no_correction():
    assert receive(sample(readings(80e6, before=True), every_second())) == 80e6


def test_a_series_that_has_ended_gives_no_sample():
    assert sample(readings(53.6e6, before=True, scraped=None), every_second()) is None


def test_a_young_series_needs_the_scrape_interval():
    assert sample(readings(40e6, count=15), Inventory()) is None


def test_a_sample_has_the_time_of_the_scrape():
    found = sample(readings(before=True, scraped=NOW - 7.25), every_second())
    assert found.sampled_at.timestamp() == NOW - 7.25


def test_one_direction_may_be_unknown_and_the_other_not():
    found = sample(readings(before=True, transmit=None), every_second())
    assert (found.receive, found.transmit) == (80e6, None)


def several(*devices: tuple[str, float], capacity: dict[str, float] | None = None, flags: dict[str, int] | None = None):
    keys = {name: (NODE, name) for name, _ in devices}
    made = TrafficValues(
        receive={keys[name]: rate for name, rate in devices},
        transmit={},
        young={},
        scraped_at=dict.fromkeys(keys.values(), NOW),
    )
    known = every_second(
        facts={NODE: {name: DeviceFacts(flags=flag) for name, flag in (flags or {}).items()}},
        speed={keys[name]: speed for name, speed in (capacity or {}).items()},
    )
    return sample(made, known)


def test_devices_of_one_node_are_added_up_and_their_capacity_too():
    found = several(("eth0", 10.0), ("eth1", 5.0), capacity={"eth0": 100.0, "eth1": 50.0})
    assert (found.receive, found.capacity) == (15.0, 150.0)


def test_the_capacity_is_unknown_without_that_of_one_device():
    assert several(("eth0", 10.0), ("eth1", 5.0), capacity={"eth0": 100.0}).capacity is None


def test_a_bond_and_its_slaves_are_counted_once():
    flags = {"bond0": 0x1403, "eth0": 0x1803, "eth1": 0x1803}
    found = several(("bond0", 10.0), ("eth0", 4.0), ("eth1", 6.0), flags=flags, capacity={"bond0": 20.0})
    assert (found.receive, found.capacity) == (10.0, 20.0)
    assert several(("eth0", 4.0), flags={"eth0": 0x1803}).receive == 4.0


def series(*made: tuple[Target, str, float, float, bool]) -> TrafficValues:
    """Series of exporter, device, rate, seconds since the scrape, and whether they are as old as the range."""
    keys = {(target, device): (rate, NOW - ago, is_old) for target, device, rate, ago, is_old in made}
    return TrafficValues(
        receive={key: rate for key, (rate, _, _) in keys.items()},
        transmit={},
        young={key: 1.0 for key, (_, _, is_old) in keys.items() if not is_old},
        scraped_at={key: at for key, (_, at, _) in keys.items()},
    )


def test_a_device_without_a_rate_yet_leaves_only_itself_out():
    """A pod's new interface, or a card that was added: the node's sample stays as new as its other devices."""
    found = sample(series((NODE, "eth0", 10.0, 1, True), (NODE, "eth1", 7.0, 1, False)), every_second())
    assert (found.receive, found.sampled_at.timestamp()) == (10.0, NOW - 1)


def test_a_device_that_has_ended_without_a_marker_makes_no_sample_older():
    found = sample(series((NODE, "eth0", 10.0, 1, True), (NODE, "eth1", 7.0, 90, True)), every_second())
    assert (found.receive, found.sampled_at.timestamp()) == (10.0, NOW - 1)


def replica(name: str, **labels: str) -> Target:
    return Target(instance=NODE.instance, job="node", others=frozenset({"prometheus_replica": name, **labels}.items()))


@pytest.mark.parametrize("order", [1, -1])
def test_series_that_differ_in_a_label_count_once_the_newest(order):
    made = [(replica("a"), "eth0", 5.0, 9, True), (replica("b"), "eth0", 7.0, 1, True)][::order]
    found = samples(series(*made), every_second())
    assert (found.samples["a"].receive, found.samples["a"].sampled_at.timestamp()) == (7.0, NOW - 1)
    assert (found.duplicates, found.differing) == (("a",), ("prometheus_replica",))


def test_the_newest_series_with_a_rate_counts():
    """One of two replicas has just started: its series are too young."""
    made = [(replica("a"), "eth0", 5.0, 9, True), (replica("b"), "eth0", 7.0, 1, False)]
    found = samples(series(*made), every_second())
    assert (found.samples["a"].receive, found.duplicates) == (5.0, ())


@pytest.mark.parametrize("ages", [(1, 9), (9, 1), (5, 5)])
@pytest.mark.parametrize("seed", range(10))
def test_of_exporters_that_disagree_about_a_device_every_round_and_collector_believes_the_same(seed, ages):
    """One says that eth1 is a bond's member, and the other, the last by its labels, that it is a card."""
    targets = (replica(f"{seed}-a"), replica(f"{seed}-b"))
    known = {
        target: {"eth1": DeviceFacts(flags=flags)} for target, flags in zip(targets, (0x1803, 0x1003), strict=True)
    }
    made = [
        (target, device, rate, ago, True)
        for target, ago in zip(targets, ages, strict=True)
        for device, rate in (("eth0", 5.0), ("eth1", 7.0))
    ]
    random.Random(seed).shuffle(made)
    assert samples(series(*made), every_second(facts=known)).samples["a"].receive == 12.0


@pytest.mark.parametrize("order", [1, -1])
def test_of_equally_new_series_that_differ_in_the_nodes_label_the_same_one_counts(order):
    labelled = Target(instance=NODE.instance, job="node", label="a")
    made = [(NODE, "eth0", 5.0, 1, True), (labelled, "eth0", 7.0, 1, True)][::order]
    assert samples(series(*made), every_second()).samples["a"].receive == 7.0


def test_two_jobs_that_scrape_one_exporter_count_once_by_device():
    other = Target(instance=NODE.instance, job="other")
    made = [(NODE, "eth0", 5.0, 9, True), (NODE, "eth1", 2.0, 9, True), (other, "eth0", 7.0, 1, True)]
    found = samples(series(*made), every_second())
    assert (found.samples["a"].receive, found.duplicates, found.differing) == (9.0, ("a",), ("job",))


def test_exporters_with_different_devices_are_added_up():
    other = Target(instance="10.0.0.1:9101", job="other")
    made = series((NODE, "eth0", 5.0, 9, True), (other, "eth1", 7.0, 0, True))
    found = samples(made, every_second(speed={(NODE, "eth0"): 10.0, (other, "eth1"): 20.0}))
    assert found.samples["a"].receive == 12.0
    assert found.samples["a"].capacity == 30.0
    assert found.samples["a"].sampled_at.timestamp() == NOW - 9
    assert found.duplicates == ()


@pytest.mark.parametrize("seed", range(100))
def test_however_often_a_node_is_scraped_its_bytes_count_once(seed):
    """Any number of replicas, clusters' labels and jobs on the same devices, in any order."""
    rng = random.Random(seed)
    devices = {f"eth{number}": rng.uniform(1, 1e9) for number in range(rng.randint(1, 4))}
    targets = [
        Target(
            instance=rng.choice([NODE.instance, "node-1:9100"]),
            job=rng.choice("ab"),
            others=frozenset({"replica": str(number), "cluster": rng.choice("xy")}.items()),
        )
        for number in range(rng.randint(1, 5))
    ]
    made = [(target, device, rate, rng.randint(0, 9), True) for target in targets for device, rate in devices.items()]
    scraped = {target: rng.randint(0, 9) for target in targets}
    made = [(target, device, rate, scraped[target], True) for target, device, rate, _, _ in made]
    rng.shuffle(made)
    found = samples(series(*made), every_second())
    assert found.samples["a"].receive == pytest.approx(sum(devices.values()))
    assert found.samples["a"].sampled_at.timestamp() == NOW - min(scraped.values())
    assert found.duplicates == (("a",) if len(targets) > 1 else ())


@pytest.mark.parametrize(
    ("announced", "reported"),
    [
        pytest.param(None, (2e15,), id="of one card"),
        pytest.param(None, (6e14, 6e14), id="of two together"),
        pytest.param(1.25e16, (5.0,), id="annotated"),
    ],
)
def test_a_capacity_that_readers_refuse_is_unknown_and_the_rates_stay(announced, reported):
    names = [f"eth{number}" for number in range(len(reported))]
    made = series(*((NODE, name, 1.0, 0, True) for name in names))
    speed = {(NODE, name): capacity for name, capacity in zip(names, reported, strict=True)}
    found = samples(made, every_second(speed=speed), announced).samples["a"]
    assert decode_sample(encode_sample(found)) == found
    assert (found.receive, found.capacity) == (float(len(reported)), None)


def test_an_announced_link_capacity_takes_precedence():
    made = series((NODE, "eth0", 1.0, 0, True))
    assert samples(made, every_second(speed={(NODE, "eth0"): 5.0}), 1.25e9).samples["a"].capacity == 1.25e9


def test_invalid_values_are_left_out():
    texts = ["NaN", "+Inf", "-Inf", "-1", "many", "1e400", "12.5"]
    rows = [sample_row(text, instance=str(number), job="j", device="d") for number, text in enumerate(texts)]
    assert list(values_by_device(rows, "node").values()) == [12.5]


def test_intervals_are_by_job_and_zero_is_left_out():
    rows = [sample_row(15, job="a"), sample_row(0, job="b")]
    assert scrape_intervals(rows) == {"a": 15.0}


def test_more_than_any_link_carries_gives_no_sample():
    assert sample(readings(1e15, before=True, transmit=None), every_second()) is None


@pytest.mark.parametrize(
    "scraped",
    [
        pytest.param(NOW * 1000, id="milliseconds"),
        pytest.param(1e15, id="beyond the calendar"),
        pytest.param(1e306, id="beyond a clock"),
    ],
)
def test_a_node_whose_scrape_has_an_impossible_time_has_no_sample_and_others_have(scraped):
    other = (Target(instance="10.0.0.2:9100", job="node"), "eth0")
    traffic = TrafficValues(
        receive={(NODE, "eth0"): 1.0, other: 2.0},
        transmit={},
        young={},
        scraped_at={(NODE, "eth0"): scraped, other: NOW},
    )
    found = node_samples(traffic, every_second(), {NODE: "a", other[0]: "b"}, {}, QUERY).samples
    assert {node: one.receive for node, one in found.items()} == {"b": 2.0}
