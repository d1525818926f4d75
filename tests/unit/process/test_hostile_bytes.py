"""Whatever bytes arrive on the bus: a decoder raises DecodeError, and nothing else.

Whoever may publish on one of berth's subjects, or put a fact, writes what he likes.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.api.meta import ObjectMeta
from berth.api.pod import Container, Pod, PodSpec, ResourceRequirements
from berth.bus.consumer import metadata_of
from berth.bus.interface import Entry, StoredMessage
from berth.cluster.buckets import LiveDataReader, MirroredSnapshot
from berth.cluster.snapshot import Snapshot
from berth.decoding import MAX_NESTING, decoding, number
from berth.errors import DecodeError
from berth.leader.session import number_in_control
from berth.messages.attempts import (
    Candidate,
    DeadLetter,
    Decision,
    Outcome,
    Pending,
    Preemption,
    Ranked,
    Rejection,
    Victim,
    attempt_of,
)
from berth.messages.encoding import decode, encode
from berth.messages.livedata import LiveSource, NodeSample, decode_fact, decode_sample
from berth.messages.mirror import MirrorEntry, Watermark, decode_entry, decode_watermark
from berth.messages.subjects import Attempt, PodSubject, Term, parse_key, unescape
from berth.ranking.view import View
from harness.plugins.long_runs import often

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POD = Pod(
    metadata=ObjectMeta(name="web", namespace="default", uid="u", labels={"app": "web"}, resource_version="7"),
    spec=PodSpec(
        node_name="n1",
        priority=1,
        containers=[Container(resources=ResourceRequirements(requests={"cpu": "1"}))],
    ),
)
PREEMPTION = Preemption(node="n1", victims=[Victim(uid="v", namespace="default", name="v")])
REPORT = {
    "attempt": "u.1.1",
    "profile": "berth",
    "asked_at": NOW,
    "candidates": [Candidate(node="n1", total=9, scores={"Fit": 9}, details={"Fit": "so"})],
    "rejections": [Rejection(plugin="Fit", reason="full", nodes=2, examples=["n2"])],
    "blockers": ["Fit"],
    "preemption": PREEMPTION,
}
VALID = [
    encode(Pending(attempt="u.1.1", profile="berth", pod=POD)),
    encode(Ranked(**REPORT, pod=POD)),
    encode(Decision(**REPORT, epoch=1, outcome=Outcome.BOUND, namespace="default", pod="web", uid="u", node="n1")),
    encode(DeadLetter(subject="s", reason="r", service="scorer")),
    encode(MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(POD)), bound_at="2026-01-01T00:00:00Z")),
    encode(Watermark(term=Term(1), resource_version="7")),
    encode(NodeSample(receive=1.0, transmit=2.0, capacity=3.0, sampled_at=NOW)),
]


def _json(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return repr(value).encode(errors="replace")


hostile = st.one_of(
    st.sampled_from(
        [
            b"null",
            b"true",
            b"-1",
            b"1e308",
            b"1e999",
            b"-0.0",
            b"18446744073709551615",
            b"9" * 5_000,
            b'"' + b"9" * 5_000 + b'"',
            b'"u.' + b"1" * 5_000 + b'.1"',
            b'"u.1.' + b"1" * 5_000 + b'"',
            b'"\\ud800"',
            b'"\xff\xfe"',
            b'"\xed\xa0\x80"',
            b'"\\u0000"',
            b"[" * 2_000,
            b"[" * 2_000 + b"]" * 2_000,
            b'{"a":' * 2_000 + b"1" + b"}" * 2_000,
            b'"0001-01-01T00:00:00+14:00"',
            b'"9999-12-31T23:59:59-14:00"',
            b"{}",
            b"[]",
            b'[{"node":"n"}]',
            b'"' + b"x" * 100_000 + b'"',
        ]
    ),
    st.binary(max_size=40),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    ).map(_json),
)


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    """A valid value in which one part was replaced by a hostile one, at any depth."""
    data = draw(st.sampled_from(VALID))

    def walk(value: object, path: tuple[object, ...]) -> list[tuple[object, ...]]:
        inner: list[tuple[object, ...]] = [path]
        if isinstance(value, dict):
            inner += [deeper for key in value for deeper in walk(value[key], (*path, key))]
        elif isinstance(value, list):
            inner += [deeper for index in range(len(value)) for deeper in walk(value[index], (*path, index))]
        return inner

    value = msgspec.json.decode(data)
    path = draw(st.sampled_from(walk(value, ())))
    part = draw(hostile)
    if not path:
        return part
    place = value
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = "@@@"
    return msgspec.json.encode(value).replace(b'"@@@"', part)


anything = spoiled() | hostile | st.binary(max_size=200)
names = st.text(max_size=30) | st.sampled_from(["u." + "1" * 5_000 + ".1", "=FF", "=ED=A0=80", "a" * 10_000, "\ud800"])


def fails_only_as_undecodable(work) -> bool:
    """Whether it succeeded. Any other exception than a DecodeError passes through and fails the test."""
    said = ""
    try:
        work()
    except DecodeError as error:
        said = str(error)
    assert len(said) < 2_000  # it becomes a log line and a dead letter
    return not said


@settings(max_examples=often(40))
@given(anything)
@pytest.mark.parametrize("kind", [Pending, Ranked, Decision, DeadLetter])
def test_messages(kind, data):
    def read() -> None:
        message = decode(data, kind)
        if isinstance(message, Pending | Ranked):
            attempt_of(message)
        encode(message)

    fails_only_as_undecodable(read)


@settings(max_examples=often(40))
@given(anything)
@pytest.mark.parametrize("read", [decode_entry, decode_watermark, decode_sample, decode_fact])
def test_values_of_buckets(read, data):
    fails_only_as_undecodable(lambda: read(data))


@settings(max_examples=often(40))
@given(names)
@pytest.mark.parametrize("read", [Attempt.parse, PodSubject.parse, parse_key, unescape, lambda text: number(text, "x")])
def test_names(read, text):
    fails_only_as_undecodable(lambda: read(text))


@settings(max_examples=often(40))
@given(st.sampled_from(["node", "pod", "namespace", "service", "pv", "watermark", "nokind", ""]), names, anything)
def test_entries_of_the_mirror(kind, name, data):
    mirror = MirroredSnapshot(Snapshot())
    fails_only_as_undecodable(lambda: mirror.apply(f"{kind}.{name}", data))


@settings(max_examples=often(40))
@given(st.sampled_from(["bandwidth", "facts"]), st.sampled_from(["q.n1", "q", "", "q.=FF"]), anything)
def test_live_data(bucket, key, data):
    sources = [LiveSource(bucket="bandwidth", name="q"), LiveSource(bucket="facts", name="q")]
    reader = LiveDataReader(Snapshot().live, sources)
    fails_only_as_undecodable(lambda: reader.apply(bucket, key, data, NOW))


@settings(max_examples=often(40))
@given(anything)
def test_the_scorers_view_says_what_it_cannot_read(data):
    view = View()
    stored = StoredMessage(subject="s", sequence=1, data=data, time=NOW)
    assert isinstance(view.apply_ranked(data, 1, 1.0), str)
    assert all(isinstance(each, str) for each in view.apply_decisions([stored], 1, 1.0))
    entries = [
        Entry(key="pod.u", sequence=1, data=data, time=NOW),
        Entry(key="node.n", sequence=2, data=data, time=NOW),
    ]
    assert all(isinstance(each, str) for each in view.apply_mirror(entries, 2))


@settings(max_examples=often(20))
@given(anything)
def test_control(data):
    entry = Entry(key="term.watcher", sequence=1, data=data, time=NOW)
    fails_only_as_undecodable(lambda: number_in_control(entry, "watcher"))


@settings(max_examples=often(20))
@given(names | st.from_regex(r"\$JS\.ACK\.[a-z]\.[a-z](\.[0-9]{1,40}){3,7}", fullmatch=True))
def test_replies_of_no_consumer(reply):
    found = metadata_of(reply)
    assert found is None or found.time.tzinfo is UTC


def test_facts_are_bounded_in_bytes_and_nesting():
    deep = b"[" * MAX_NESTING + b"]" * MAX_NESTING
    assert bytes(decode_fact(deep)) == deep
    with pytest.raises(DecodeError, match="at most 64 arrays and objects inside each other"):
        decode_fact(b"[" + deep + b"]")
    assert decode_fact(b'["' + b"[" * 1_000 + b'","\\"[' + b"[" * 1_000 + b'"]')
    with pytest.raises(DecodeError, match="at most 65536 bytes, got 65540"):
        decode_fact(b'"' + b"x" * 65_538 + b'"')


def test_any_exception_on_the_way_in_is_the_messages_failure():
    with pytest.raises(DecodeError, match="decoding a fact: Exception"), decoding("a fact"):
        raise Exception  # noqa: TRY002 - of any kind
