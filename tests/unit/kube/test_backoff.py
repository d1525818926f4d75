"""Pauses after failures."""

import random
from datetime import timedelta

from berth.kube.clock import Backoff

MS = timedelta(milliseconds=1)


def _backoff(chance: float = 1.0) -> Backoff:
    always = random.Random()
    always.uniform = lambda low, high: low + (high - low) * chance
    return Backoff(initial=250 * MS, maximum=1500 * MS, chance=always)


def test_pauses_double_up_to_the_longest():
    backoff = _backoff()
    assert [backoff.failed() for _ in range(5)] == [250 * MS, 500 * MS, 1000 * MS, 1500 * MS, 1500 * MS]


def test_chance_cuts_a_pause_by_a_half_at_most():
    backoff = _backoff(chance=0.0)
    assert [backoff.failed() for _ in range(2)] == [125 * MS, 250 * MS]


def test_success_makes_the_next_failure_a_first_one():
    backoff = _backoff()
    backoff.failed()
    backoff.failed()
    backoff.succeeded()
    assert backoff.failed() == 250 * MS


def test_years_of_failures_do_not_overflow():
    backoff = _backoff()
    backoff.failures = 10_000_000
    assert backoff.failed() == 1500 * MS
