"""Flow control of a continuous pull, and the metadata of a delivery."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.bus.consumer import Credit, metadata_of


def test_credit_is_taken_whole_first_and_again_below_half():
    credit = Credit(limit=8)
    assert credit.take() == 8
    for _ in range(3):
        credit.arrive()
    credit.held = 0  # three settled; 5 of 8 are outstanding: more than half
    assert credit.take() == 0
    credit.arrive()
    assert credit.take() == 3  # 8 - 1 held - 4 outstanding


def test_credit_given_back_is_taken_again():
    credit = Credit(limit=8)
    credit.take()
    credit.give_back(8)
    assert credit.take() == 8


@given(st.integers(1, 100), st.lists(st.sampled_from(["arrive", "settle", "take", "give back"]), max_size=300))
def test_credit_is_never_exceeded(limit, steps):
    credit = Credit(limit=limit)
    credit.take()
    for step in steps:
        if step == "arrive" and credit.outstanding:
            credit.arrive()
        elif step == "settle" and credit.held:
            credit.held -= 1
        elif step == "take":
            credit.take()
        elif step == "give back" and credit.outstanding:
            credit.give_back(1)
        assert 0 <= credit.held + credit.outstanding <= limit


@given(st.integers(1, 100), st.integers(0, 100))
def test_unused_credit_is_taken_when_nothing_is_outstanding(limit, held):
    credit = Credit(limit=limit, held=min(held, limit))
    assert credit.take() == limit - credit.held


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.PENDING.scorer.2.10.12.1700000000123456789.5",
        "$JS.ACK._.hash.PENDING.scorer.2.10.12.1700000000123456789.5.x",
    ],
)
def test_an_ack_subject_has_the_metadata(reply):
    found = metadata_of(reply)
    assert (found.delivered, found.stream_sequence, found.consumer_sequence, found.pending) == (2, 10, 12, 5)
    assert found.time.isoformat() == "2023-11-14T22:13:20.123456+00:00"
