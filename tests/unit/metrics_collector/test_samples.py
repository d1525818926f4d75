"""From rows to samples: which values count, and how a rate that covers a part of its range is corrected."""

from datetime import timedelta

import pytest

from berth_metrics_collector.prometheus import SampleRow
from berth_metrics_collector.samples import (
    Inventory,
    Target,
    TrafficValues,
    scrape_intervals,
    target_samples,
    values_by_device,
)

RANGE = timedelta(seconds=30)
NODE = Target(instance="10.0.0.1:9100", job="node")
NOW = 1_700_000_000.0


def readings(rate=80e6, *, count=30.0, before=False, device="eth0", transmit=1.0, scraped=NOW) -> TrafficValues:
    key = (NODE, device)
    return TrafficValues(
        receive={} if rate is None else {key: rate},
        transmit={} if transmit is None else {key: transmit},
        count={key: count},
        scraped_at={} if scraped is None else {key: scraped},
        scraped_before={key: NOW - 30} if before else {},
    )


def every_second(**more) -> Inventory:
    return Inventory(interval={"node": 1.0}, **more)


def receive(found) -> float | None:
    [sample] = found
    return sample.bandwidth.receive


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
    found = target_samples(readings(rate, count=count), every_second(), RANGE)
    assert receive(found) == pytest.approx(expected, rel=0.001)
    assert receive(found) == pytest.approx(80e6, rel=0.11)


def test_three_scrapes_are_too_few():
    assert target_samples(readings(6.5e6, count=3, transmit=None), every_second(), RANGE) == []


def test_a_series_that_covers_the_range_with_gaps_needs_no_correction():
    """Unreachable for 20 s of 30: the counter went on, so the rate is right in spite of only 10 scrapes."""
    assert receive(target_samples(readings(80e6, count=10, before=True), every_second(), RANGE)) == 80e6


def test_a_series_that_has_ended_gives_no_sample():
    assert target_samples(readings(53.6e6, count=20, before=True, scraped=None), every_second(), RANGE) == []


def test_a_young_series_needs_the_scrape_interval():
    assert target_samples(readings(40e6, count=15), Inventory(), RANGE) == []


def test_a_sample_has_the_time_of_the_scrape():
    [sample] = target_samples(readings(before=True, scraped=NOW - 7.25), every_second(), RANGE)
    assert sample.bandwidth.sampled_at.timestamp() == NOW - 7.25


def test_one_direction_may_be_unknown_and_the_other_not():
    [sample] = target_samples(readings(before=True, transmit=None), every_second(), RANGE)
    assert (sample.bandwidth.receive, sample.bandwidth.transmit) == (80e6, None)


def several(*devices: tuple[str, float], capacity: dict[str, float] | None = None, flags: dict[str, int] | None = None):
    keys = {name: (NODE, name) for name, _ in devices}
    made = TrafficValues(
        receive={keys[name]: rate for name, rate in devices},
        transmit={},
        count={},
        scraped_at=dict.fromkeys(keys.values(), NOW),
        scraped_before=dict.fromkeys(keys.values(), NOW),
    )
    known = every_second(
        flags={keys[name]: float(flag) for name, flag in (flags or {}).items()},
        speed={keys[name]: speed for name, speed in (capacity or {}).items()},
    )
    return target_samples(made, known, RANGE)


def test_devices_of_one_node_are_added_up_and_their_capacity_too():
    [sample] = several(("eth0", 10.0), ("eth1", 5.0), capacity={"eth0": 100.0, "eth1": 50.0})
    assert (sample.bandwidth.receive, sample.bandwidth.capacity) == (15.0, 150.0)


def test_the_capacity_is_unknown_without_that_of_one_device():
    [sample] = several(("eth0", 10.0), ("eth1", 5.0), capacity={"eth0": 100.0})
    assert sample.bandwidth.capacity is None


def test_a_bond_and_its_slaves_are_counted_once():
    flags = {"bond0": 0x1403, "eth0": 0x1803, "eth1": 0x1803}
    [sample] = several(("bond0", 10.0), ("eth0", 4.0), ("eth1", 6.0), flags=flags, capacity={"bond0": 20.0})
    assert (sample.bandwidth.receive, sample.devices) == (10.0, {"bond0"})
    assert sample.bandwidth.capacity == 20.0
    [alone] = several(("eth0", 4.0), flags={"eth0": 0x1803})
    assert alone.bandwidth.receive == 4.0


def test_invalid_values_are_left_out():
    texts = ["NaN", "+Inf", "-Inf", "-1", "many", "1e400", "12.5"]
    rows = [
        SampleRow(metric={"instance": str(n), "job": "j", "device": "d"}, value=(NOW, t)) for n, t in enumerate(texts)
    ]
    assert list(values_by_device(rows, "node").values()) == [12.5]


def test_intervals_are_by_job_and_zero_is_left_out():
    rows = [SampleRow(metric={"job": "a"}, value=(NOW, "15")), SampleRow(metric={"job": "b"}, value=(NOW, "0"))]
    assert scrape_intervals(rows) == {"a": 15.0}


def test_more_than_any_link_carries_gives_no_sample():
    assert target_samples(readings(1e15, before=True, transmit=None), every_second(), RANGE) == []


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
        count={},
        scraped_at={(NODE, "eth0"): scraped, other: NOW},
        scraped_before={(NODE, "eth0"): NOW, other: NOW},
    )
    [sample] = target_samples(traffic, every_second(), RANGE)
    assert (sample.target, sample.bandwidth.receive) == (other[0], 2.0)
