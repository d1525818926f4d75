"""Attempts and decision ids: written in one way, read back, and ordered."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.errors import DecodeError
from berth.api.subjects import Attempt, Epoch, Term, Uid, decision_id

uids = st.text(min_size=1, max_size=40).map(Uid)
numbers = st.integers(min_value=0, max_value=10**12)
attempts = st.builds(Attempt, uid=uids, term=numbers.map(Term), n=numbers)


@given(attempts)
def test_an_attempt_comes_back_whole(attempt):
    assert Attempt.parse(str(attempt)) == attempt


@given(attempts, attempts)
def test_distinct_attempts_have_distinct_ids(one, other):
    assert (str(one) == str(other)) == (one == other)


@pytest.mark.parametrize("text", ["", ".", "u", "u.1", ".1.1", "u.1.", "u..1", "u.1.-1", "u.1.x", "u.1.²", "u. 1.1"])
def test_what_is_no_attempt_is_refused(text):
    with pytest.raises(DecodeError, match=r"want <uid>\.<term>\.<n>"):
        Attempt.parse(text)


def test_attempts_are_ordered_by_term_then_number():
    later = [Attempt(uid=Uid("u"), term=Term(term), n=n) for term, n in ((1, 1), (1, 2), (1, 10), (2, 1), (10, 1))]
    assert sorted(later, key=lambda attempt: attempt.order) == later


def test_the_next_attempt_counts_on_in_its_term_and_from_one_in_another():
    attempt = Attempt(uid=Uid("u"), term=Term(1), n=4)
    assert str(attempt.next(Term(1))) == "u.1.5"
    assert str(attempt.next(Term(2))) == "u.2.1"


def test_each_repeat_of_waiting_is_a_message_of_its_own():
    attempt = Attempt(uid=Uid("u"), term=Term(1), n=4)
    ids = [decision_id(attempt, Epoch(7), "waiting", repeat) for repeat in range(3)]
    assert ids == ["u.1.4.7.waiting", "u.1.4.7.waiting.1", "u.1.4.7.waiting.2"]
