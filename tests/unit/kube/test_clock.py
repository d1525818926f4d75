"""Pauses after failures, and times as the API writes them."""

import random
from datetime import UTC, datetime, timedelta, timezone

import pytest

from berth.clock import Backoff, micro_time, whole_seconds

SECOND = timedelta(seconds=1)


class Chance(random.Random):
    """Always the same part of what is possible."""

    def __init__(self, part: float) -> None:
        super().__init__()
        self.part = part

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.part


def backoff(part: float = 1.0, **how) -> Backoff:
    return Backoff(initial=SECOND / 4, maximum=1.5 * SECOND, chance=Chance(part), **how)


def test_pauses_double_up_to_the_maximum():
    assert [backoff().after(failures) for failures in range(1, 6)] == [0.25, 0.5, 1.0, 1.5, 1.5]


@pytest.mark.parametrize(("ratio", "shortest"), [(0.5, 0.25), (0.2, 0.4), (0, 0.5)])
def test_chance_cuts_a_pause_by_the_ratio_at_most(ratio, shortest):
    assert backoff(part=0.0, jitter_ratio=ratio).after(2) == pytest.approx(shortest)


@pytest.mark.parametrize(("seconds", "pause"), [(0.1, 0.25), (1, 1.0), (60, 1.5)])
def test_retry_after_is_kept_up_to_the_maximum(seconds, pause):
    assert backoff().after(1, timedelta(seconds=seconds)) == pause


def test_years_of_failures_do_not_overflow():
    assert backoff().after(10_000_000) == 1.5


def test_times_are_written_in_utc():
    kathmandu = datetime(2026, 11, 21, 17, 45, 0, 5, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    assert micro_time(kathmandu) == "2026-11-21T12:00:00.000005Z"
    assert whole_seconds(kathmandu) == "2026-11-21T12:00:00Z"
    assert micro_time(datetime(2026, 11, 21, tzinfo=UTC)) == "2026-11-21T00:00:00.000000Z"
