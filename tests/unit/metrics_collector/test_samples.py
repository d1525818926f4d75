"""From rows to samples: what counts as known, and what a rate says that does not cover its range."""

from datetime import timedelta

import pytest

from berth_metrics_collector.prometheus import SampleRow
from berth_metrics_collector.samples import Known, Readings, Target, intervals, samples, values

RANGE = timedelta(seconds=30)
NODE = Target(instance="10.0.0.1:9100", job="node")
NOW = 1_700_000_000.0


def readings(rate=80e6, *, count=30.0, before=False, device="eth0", transmit=1.0, scraped=NOW) -> Readings:
    key = (NODE, device)
    return Readings(
        receive={} if rate is None else {key: rate},
        transmit={} if transmit is None else {key: transmit},
        count={key: count},
        scraped_at={} if scraped is None else {key: scraped},
        scraped_before={key: NOW - 30} if before else {},
    )


def every_second(**more) -> Known:
    return Known(interval={"node": 1.0}, **more)


def receive(found) -> float | None:
    [sample] = found
    return sample.bandwidth.receive


@pytest.mark.parametrize(
    ("rate", "count", "expected"),
    [
        # What a real server says of a node at 80 MB/s, range 30 s, a scrape a second (reference figures).
        pytest.param(12.9e6, 5, 77.4e6, id="5 s old: 12.9 x 30/5"),
        pytest.param(39.6e6, 15, 79.2e6, id="15 s old: 39.6 x 30/15"),
        pytest.param(52.0e6, 19, 82.1e6, id="back for 19 s: 52.0 x 30/19"),
        pytest.param(80.0e6, 30, 80.0e6, id="the whole range"),
        pytest.param(80.0e6, 31, 80.0e6, id="never less than the rate itself"),
    ],
)
def test_a_series_that_is_younger_than_the_range_counts_by_the_part_that_it_covers(rate, count, expected):
    found = samples(readings(rate, count=count), every_second(), RANGE)
    assert receive(found) == pytest.approx(expected, rel=0.001)
    assert receive(found) == pytest.approx(80e6, rel=0.11)


def test_three_scrapes_are_too_few_to_be_believed():
    assert samples(readings(6.5e6, count=3, transmit=None), every_second(), RANGE) == []


def test_a_series_that_was_there_a_whole_range_ago_needs_no_correction_whatever_gaps_it_has():
    """Dead for 20 s of 30 and back: the counter went on meanwhile, so the rate is right; 10 scrapes prove nothing."""
    assert receive(samples(readings(80e6, count=10, before=True), every_second(), RANGE)) == 80e6


def test_a_series_that_has_ended_says_nothing_though_its_rate_is_still_there():
    assert samples(readings(53.6e6, count=20, before=True, scraped=None), every_second(), RANGE) == []


def test_a_young_series_waits_for_the_scrape_interval_to_be_known():
    assert samples(readings(40e6, count=15), Known(), RANGE) == []


def test_the_sample_bears_the_time_of_the_scrape():
    [sample] = samples(readings(before=True, scraped=NOW - 7.25), every_second(), RANGE)
    assert sample.bandwidth.sampled_at.timestamp() == NOW - 7.25


def test_one_direction_may_be_unknown_and_the_other_not():
    [sample] = samples(readings(before=True, transmit=None), every_second(), RANGE)
    assert (sample.bandwidth.receive, sample.bandwidth.transmit) == (80e6, None)


def several(*devices: tuple[str, float], capacity: dict[str, float] | None = None, flags: dict[str, int] | None = None):
    keys = {name: (NODE, name) for name, _ in devices}
    made = Readings(
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
    return samples(made, known, RANGE)


def test_devices_of_one_node_are_added_up_and_their_capacity_too():
    [sample] = several(("eth0", 10.0), ("eth1", 5.0), capacity={"eth0": 100.0, "eth1": 50.0})
    assert (sample.bandwidth.receive, sample.bandwidth.capacity) == (15.0, 150.0)


def test_the_capacity_is_unknown_when_one_device_does_not_tell_its_own():
    [sample] = several(("eth0", 10.0), ("eth1", 5.0), capacity={"eth0": 100.0})
    assert sample.bandwidth.capacity is None


def test_a_bond_and_its_slaves_are_counted_once():
    flags = {"bond0": 0x1403, "eth0": 0x1803, "eth1": 0x1803}
    [sample] = several(("bond0", 10.0), ("eth0", 4.0), ("eth1", 6.0), flags=flags, capacity={"bond0": 20.0})
    assert (sample.bandwidth.receive, sample.devices) == (10.0, {"bond0"})
    assert sample.bandwidth.capacity == 20.0
    [alone] = several(("eth0", 4.0), flags={"eth0": 0x1803})
    assert alone.bandwidth.receive == 4.0


def test_what_is_not_finite_or_negative_or_no_number_is_missing():
    texts = ["NaN", "+Inf", "-Inf", "-1", "many", "1e400", "12.5"]
    rows = [
        SampleRow(metric={"instance": str(n), "job": "j", "device": "d"}, value=(NOW, t)) for n, t in enumerate(texts)
    ]
    assert [value for value in values(rows, "node").values()] == [12.5]  # noqa: C416 - reads as what it is


def test_intervals_are_by_job_and_0_is_none():
    rows = [SampleRow(metric={"job": "a"}, value=(NOW, "15")), SampleRow(metric={"job": "b"}, value=(NOW, "0"))]
    assert intervals(rows) == {"a": 15.0}


def test_more_than_any_link_carries_is_nonsense():
    assert samples(readings(1e15, before=True, transmit=None), every_second(), RANGE) == []
