"""Subjects, keys, attempts and decision ids: each has one written form, is read back unchanged, and NATS accepts it."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from berth.errors import DecodeError
from berth.messages.subjects import (
    Attempt,
    Epoch,
    PodSubject,
    Term,
    Uid,
    decision_id,
    escape_dotted,
    escape_token,
    key,
    parse_key,
    unescape,
)

KV_KEY = re.compile(r"[-/_=.a-zA-Z0-9]+")
"""What NATS allows in a key, which may also not begin or end with a dot."""

dns_names = st.from_regex(
    r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?){0,5}", fullmatch=True
)
names = st.one_of(
    st.text(max_size=253),
    dns_names,
    st.text(alphabet=" .=*>\t\n/_-aZ9ä%", max_size=40),
    st.text(alphabet="a.", min_size=253, max_size=253),
)
awkward = ["", ".", "..", ".a", "a.", "a..b", "=", "=2E", "a b", "*", ">", "\n", "ä", "a" * 253, "🚢" * 253, "\ud800"]


def with_awkward_names(test):
    for name in awkward:
        test = example(name)(test)
    return test


def is_subject(text: str) -> bool:
    """Whether NATS accepts it as a subject to publish to: tokens that are not empty, no white space, no wildcard."""
    return all(text.split(".")) and not re.search(r"[\s*>]", text) and text.isascii()


@with_awkward_names
@given(names)
def test_a_name_as_one_token_comes_back_whole(name):
    text = escape_token(name)
    assert unescape(text) == name
    assert is_subject(text)
    assert "." not in text


@with_awkward_names
@given(names)
def test_a_name_with_dots_comes_back_whole(name):
    text = escape_dotted(name)
    assert unescape(text) == name
    assert is_subject(text)


@given(names, names)
@example("a.b", "a=2Eb")
@example("", "=")
@example(".", "=2E")
def test_distinct_names_have_distinct_tokens(one, other):
    assert (escape_token(one) == escape_token(other)) == (one == other)
    assert (escape_dotted(one) == escape_dotted(other)) == (one == other)


@given(dns_names)
def test_a_kubernetes_name_is_written_as_it_reads(name):
    assert escape_dotted(name) == name


@given(names, names)
def test_a_key_comes_back_whole_and_buckets_take_it(kind, name):
    text = key(kind, name)
    assert parse_key(text) == (kind, name)
    assert KV_KEY.fullmatch(text)
    assert not text.startswith(".")
    assert not text.endswith(".")


@given(st.sampled_from(["pending", "ranked", "decision"]), names, names, names)
def test_a_pods_subject_comes_back_whole(stage, profile, namespace, pod):
    subject = PodSubject(stage=stage, profile=profile, namespace=namespace, pod=pod)
    assert PodSubject.parse(str(subject)) == subject
    assert is_subject(str(subject))


@given(names, names, names, names, names, names)
def test_two_pods_never_share_a_subject(profile, other_profile, namespace, other_namespace, pod, other_pod):
    one = PodSubject(stage="pending", profile=profile, namespace=namespace, pod=pod)
    other = PodSubject(stage="pending", profile=other_profile, namespace=other_namespace, pod=other_pod)
    assert (str(one) == str(other)) == (one == other)


def test_a_pod_is_followed_by_the_subject_that_reads_like_it():
    subject = PodSubject(stage="ranked", profile="my scheduler", namespace="default", pod="web.0")
    assert str(subject) == "berth.ranked.my=20scheduler.default.web.0"


def test_a_profile_with_dots_is_one_token():
    subject = PodSubject(stage="pending", profile="example.org", namespace="default", pod="web-0")
    assert str(subject) == "berth.pending.example=2Eorg.default.web-0"


@pytest.mark.parametrize("text", ["=", "==", "a=", "=1", "=+1", "=2e", "=G0", "=FF", "a=C3"])
def test_a_wrongly_escaped_name_is_rejected(text):
    if text == "=":
        assert unescape(text) == ""
        return
    with pytest.raises(DecodeError, match=re.escape(repr(text))):
        unescape(text)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "berth",
        "berth.pending",
        "berth.pending.p.ns",
        "berth.lost.p.ns.pod",
        "other.pending.p.ns.pod",
        "berth.pending..ns.pod",
    ],
)
def test_a_malformed_subject_is_rejected(subject):
    with pytest.raises(DecodeError, match="decoding subject"):
        PodSubject.parse(subject)


@pytest.mark.parametrize("text", ["", "node", "node.", ".a"])
def test_a_key_without_kind_or_name_is_rejected(text):
    with pytest.raises(DecodeError, match="decoding key"):
        parse_key(text)


@given(st.text(max_size=60))
def test_no_text_makes_reading_a_name_fail_otherwise(text):
    try:
        name = unescape(text)
    except DecodeError:
        return
    assert isinstance(name, str)


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
def test_a_malformed_attempt_is_rejected(text):
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
