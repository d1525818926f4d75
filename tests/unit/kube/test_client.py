"""The client-side limit on requests."""

import pytest

from berth.kube.client import TokenBucket


class Now:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_burst_goes_through_at_once_and_the_rest_waits_its_turn():
    bucket = TokenBucket(qps=10, burst=3, clock=Now())
    # three at once, then one each 0.1 s
    assert [bucket.reserve() for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])


def test_quiet_time_fills_the_burst_again_but_no_more():
    now = Now()
    bucket = TokenBucket(qps=10, burst=2, clock=now)
    for _ in range(2):
        bucket.reserve()
    now.seconds += 60
    assert [bucket.reserve() for _ in range(3)] == pytest.approx([0, 0, 0.1])


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_limit_that_lets_nothing_through_is_refused(qps: float, burst: int):
    with pytest.raises(ValueError, match="want qps above 0 and burst of at least 1"):
        TokenBucket(qps=qps, burst=burst)
