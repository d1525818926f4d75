"""Messages: what is written is read back; invalid bytes and unknown schemas are rejected."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.devices import AllocationResult
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec
from berth.api.podgroups import Dialect, GroupKey
from berth.errors import DecodeError
from berth.messages.attempts import (
    AttemptReport,
    Candidate,
    DeadLetter,
    Decision,
    DecisionSummary,
    Outcome,
    Pending,
    Positions,
    Preemption,
    Ranked,
    RankedSummary,
    Received,
    Rejection,
    Victim,
    attempt_of,
)
from berth.messages.bounds import within_bounds
from berth.messages.encoding import SCHEMA, UnknownSchemaError, decode, encode
from berth.messages.groupattempts import subject_name
from berth.messages.mirror import (
    MirrorEntry,
    Watermark,
    decode_entry,
    decode_watermark,
    encode_entry,
    encode_watermark,
    watermark_key,
)
from berth.messages.subjects import Term
from fuzz.ordinary import ranked as an_ordinary_ranking

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
counts = st.integers(min_value=0, max_value=10**15 - 1)
pods = st.builds(
    Pod,
    metadata=st.builds(
        ObjectMeta, name=words, namespace=words, uid=words, labels=st.none() | st.dictionaries(words, words)
    ),
    spec=st.builds(PodSpec, node_name=words, priority=st.none() | st.integers(-(2**31), 2**31 - 1)),
)
positions = st.builds(Positions, cluster=counts, decisions=counts, bandwidth=counts, facts=counts)
received = st.builds(Received, ranked=counts, pending=counts, expired=st.lists(words))
candidates = st.lists(
    st.builds(Candidate, node=words, total=counts, scores=st.dictionaries(words, counts), pods=counts)
)
examples = st.lists(words, max_size=16)
rejections = st.lists(st.builds(Rejection, plugin=words, reason=words, nodes=counts, examples=examples))
messages = st.one_of(
    st.builds(Pending, config=words, attempt=words, profile=words, pod=pods, after=positions),
    st.builds(
        Ranked,
        attempt=words,
        profile=words,
        pod=pods,
        received=received,
        candidates=candidates,
        weights=st.dictionaries(words, counts),
        rejections=rejections,
        error=words,
        nodes=st.none() | counts,
        nominated_first=st.booleans(),
    ),
    st.builds(
        Decision,
        attempt=words,
        epoch=counts,
        outcome=st.sampled_from(Outcome),
        profile=words,
        namespace=words,
        pod=words,
        uid=words,
        candidates=candidates,
        resource_versions=st.dictionaries(words, words),
    ),
    st.builds(DeadLetter, subject=words, reason=words, service=words, payload=words),
)


@given(messages)
def test_what_is_written_is_read_back(message):
    assert decode(encode(message), type(message)) == message


@given(messages)
def test_a_summary_has_what_the_whole_message_says(message):
    """Services read the summary of what people read in full: what it has must be the same."""
    summary = {Ranked: RankedSummary, Decision: DecisionSummary}.get(type(message))
    if summary is None:
        return
    found = decode(encode(message), summary)
    for name in set(summary.__struct_fields__) - {"candidates"}:
        assert getattr(found, name) == getattr(message, name), name
    if summary is RankedSummary:
        assert [each.node for each in found.candidates] == [each.node for each in message.candidates]


def test_pending_of_a_ranking_has_all_that_the_ranking_repeats():
    behind, ranked = Positions(cluster=7), decode(msgspec.json.encode(an_ordinary_ranking("web")), Ranked)
    both = {*Pending.__struct_fields__} & {*Ranked.__struct_fields__} - {"schema", "error"}
    repeated = {name: getattr(ranked, name) for name in both}
    assert ranked.pending(after=behind) == Pending(**repeated, after=behind)


@pytest.mark.parametrize(("summary", "whole"), [(RankedSummary, Ranked), (DecisionSummary, Decision)])
def test_a_summary_bounds_what_the_whole_message_bounds(summary, whole):
    of_whole = {field.name: field.type for field in msgspec.structs.fields(whole)}
    for field in msgspec.structs.fields(summary):
        assert field.name == "candidates" or field.type == of_whole[field.name], field.name


def ranked_of(name="web", namespace="default", uid="u-1", profile="berth"):
    pod = Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=uid))
    return Ranked(attempt=f"{uid}.1.1", profile=profile, pod=pod)


@pytest.mark.parametrize("name", ["web-0", "a.b", "A_b", "x" * 253, "0"])
def test_names_that_objects_have_are_taken(name):
    assert attempt_of(ranked_of(name=name, namespace=name, uid=name)).uid == name


@pytest.mark.parametrize("field", ["name", "namespace", "uid"])
@pytest.mark.parametrize(
    "text",
    [
        "x" * 254,
        "",
        "a b",
        "a/b",
        "a?b",
        "..",
        "a%2Fb",
        "a\r\nX: y",
        "a\n",
        "\U0001f600",
        "default/services?watch=true&x=",
    ],
)
def test_names_that_no_object_has_are_refused(field, text):
    """They would become subjects, headers and paths at the API server."""
    with pytest.raises(DecodeError):
        attempt_of(ranked_of(**{field: text}))


def test_a_profile_whose_subject_would_be_too_long_is_refused():
    assert attempt_of(ranked_of(profile="é" * 126))
    with pytest.raises(DecodeError, match="253 bytes"):
        attempt_of(ranked_of(profile="é" * 127))


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (Ranked, "asked_at"),
        (Decision, "asked_at"),
        (Decision, "ranked_at"),
        (DecisionSummary, "asked_at"),
        (DecisionSummary, "ranked_at"),
    ],
)
def test_a_time_without_a_zone_is_refused(kind, field):
    parts = {"attempt": "u.1.1", "profile": "p", "pod": {"metadata": {}} if kind is Ranked else "web"}
    parts |= {"epoch": 1, "outcome": "bound", "namespace": "default", "uid": "u"}
    time = "2026-01-01T00:00:00"
    assert getattr(decode(json.dumps({**parts, field: f"{time}Z"}).encode(), kind), field).tzinfo
    with pytest.raises(DecodeError):
        decode(json.dumps({**parts, field: time}).encode(), kind)


RANKED = Ranked(attempt="u.1.1", profile="p", pod=Pod(metadata=ObjectMeta(name="web")))
DECISION = Decision(
    attempt="u.1.1", profile="p", epoch=1, outcome=Outcome.ERROR, namespace="default", pod="web", uid="u"
)
LONG = "x" * 254
LONGER = "x" * (1024 + 1)
LONGEST = "x" * (8192 + 1)


def explained(**parts: object) -> list[Candidate]:
    return [Candidate(node="n", total=1, **parts)]


def rejected(**parts: object) -> list[Rejection]:
    return [Rejection(**{"plugin": "Fit", "reason": "why", "nodes": 1, **parts})]


def evicting(count: int, **parts: str) -> Preemption:
    victim = Victim(**{"uid": "v", "namespace": "default", "name": "low", **parts})
    return Preemption(node="n", victims=[victim] * count)


REPORTED = [
    {"attempt": "x" * 294},
    {"profile": LONG},
    {"config": LONG},
    {"scorer": LONG},
    {"message": LONGEST},
    {"blockers": [LONG]},
    {"blockers": ["Fit"] * 257},
    {"rejections": rejected() * 4097},
    {"rejections": rejected(plugin=LONGER)},
    {"rejections": rejected(reason=LONGER)},
    {"rejections": rejected(examples=[LONG])},
    {"rejections": rejected(examples=["n"] * 17)},
    {"candidates": explained() * 257},
    {"candidates": [Candidate(node=LONG, total=1)]},
    {"candidates": explained(scores={LONG: 1})},
    {"candidates": explained(scores={f"p{number}": 1 for number in range(257)})},
    {"candidates": explained(details={LONG: "why"})},
    {"candidates": explained(details={"Fit": LONGER})},
    {"candidates": explained(details={f"p{number}": "why" for number in range(257)})},
    {"preemption": Preemption(node=LONG)},
    {"preemption": evicting(4097)},
    {"preemption": evicting(1, name=LONG)},
    {"devices": {LONG: AllocationResult()}},
    {"devices": {f"uid-{number}": AllocationResult() for number in range(129)}},
]


@pytest.mark.parametrize("parts", [*REPORTED, {"error": LONGEST}, {"received": Received(expired=[LONG])}], ids=" ".join)
def test_text_and_lists_of_a_ranking_are_bounded(parts):
    with pytest.raises(DecodeError, match="length"):
        decode(encode(msgspec.structs.replace(RANKED, **parts)), Ranked)


@pytest.mark.parametrize(
    "parts",
    [
        *REPORTED,
        {"namespace": LONG},
        {"pod": f"~~{LONG}"},
        {"uid": LONG},
        {"node": LONG},
        {"reason": LONG},
        {"resource_versions": {LONG: "1"}},
        {"resource_versions": {"pod": LONG}},
        {"resource_versions": {f"kind-{number}": "1" for number in range(257)}},
    ],
    ids=" ".join,
)
def test_text_and_lists_of_a_decision_are_bounded(parts):
    with pytest.raises(DecodeError, match="length"):
        decode(encode(msgspec.structs.replace(DECISION, **parts)), Decision)


def test_the_decision_on_a_group_with_the_longest_name_is_read():
    decision = msgspec.structs.replace(DECISION, pod=subject_name(GroupKey(Dialect.UPSTREAM, "default", LONG[1:])))
    assert decode(encode(decision), Decision) == decision


@pytest.mark.parametrize("number", [-(2**63), -1, 2**53, 2**63 - 1])
@pytest.mark.parametrize(
    "parts",
    [
        lambda number: {"failures": number},
        lambda number: {"evaluated": number},
        lambda number: {"feasible": number},
        lambda number: {"nodes": number},
        lambda number: {"preemption": Preemption(node="n", violations=number)},
        lambda number: {"rejections": [Rejection(plugin="Fit", reason="full", nodes=number)]},
        lambda number: {"candidates": [Candidate(node="n", total=1, pods=number)]},
        lambda number: {"candidates": [Candidate(node="n", total=1, place=number)]},
    ],
)
@pytest.mark.parametrize("message", [RANKED, DECISION], ids=["ranking", "decision"])
def test_numbers_of_pods_nodes_and_attempts_are_bounded(message, parts, number):
    with pytest.raises(DecodeError, match=r"Expected `int`"):
        decode(encode(msgspec.structs.replace(message, **parts(number))), type(message))


@pytest.mark.parametrize("report", [RANKED, DECISION], ids=["ranking", "decision"])
def test_what_plugins_say_is_cut_to_what_readers_take(report):
    given = msgspec.structs.replace(
        report,
        scorer=LONG,
        message=LONGEST,
        blockers=[LONG] * 300,
        rejections=rejected(plugin=LONGER, reason=LONGER) * 5_000,
        preemption=evicting(5_000),
        candidates=explained(scores={LONG: 1, "Fit": 2}, details={LONG: "why", "Fit": LONGER}),
        weights={LONG: 1, "Fit": 2},
        **({"error": LONGEST} if isinstance(report, Ranked) else {"reason": LONG}),
    )
    bounded = within_bounds(given)
    assert decode(encode(bounded), type(report)) == bounded == within_bounds(bounded)
    assert (bounded.message, bounded.rejections[0].reason) == ("x" * 8189 + "...", "x" * 1021 + "...")
    assert (len(bounded.blockers), len(bounded.rejections), bounded.preemption) == (256, 4096, None)
    assert bounded.candidates == explained(scores={"Fit": 2}, details={"Fit": "x" * 1021 + "..."})
    assert bounded.weights == {"Fit": 2}


@given(messages)
def test_what_readers_take_is_not_cut(message):
    if isinstance(message, AttemptReport):
        assert within_bounds(message) == message


@given(messages)
def test_the_schema_is_always_written(message):
    assert json.loads(encode(message))["schema"] == SCHEMA


def test_a_message_reads_as_json():
    message = Pending(attempt="u.1.1", profile="berth", pod=Pod(metadata=ObjectMeta(name="web-0", uid="u")))
    assert json.loads(encode(message)) == {
        "schema": 1,
        "attempt": "u.1.1",
        "profile": "berth",
        "pod": {"metadata": {"name": "web-0", "uid": "u"}},
    }


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"schema":7,"attempt":"u.1.1","profile":"p","pod":{}}', id="of the present shape"),
        pytest.param(b'{"schema":7,"pods":[]}', id="of another shape"),
        pytest.param(b'{"schema":0,"attempt":"u.1.1","profile":"p","pod":{}}', id="a schema that never was"),
    ],
)
def test_another_schema_is_an_unknown_schema(data):
    with pytest.raises(UnknownSchemaError, match=r"want schema 1, got [07]"):
        decode(data, Pending)


def test_fields_of_a_newer_version_are_ignored():
    data = b'{"schema":1,"attempt":"u.1.1","profile":"p","pod":{"metadata":{}},"new":1}'
    assert decode(data, Pending).attempt == "u.1.1"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{",
        b"{}",
        b"1" * 1000,
        b'{"schema":"1"}',
        b'{"schema":1,"attempt":3}',
        b'{"schema":1,"attempt":"\xff","profile":"p","pod":{"metadata":{}}}',
        b'{"schema":1,"new":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(11),
)
def test_invalid_bytes_are_rejected(data):
    with pytest.raises(DecodeError) as caught:
        decode(data, Pending)
    assert not isinstance(caught.value, UnknownSchemaError)


@given(st.binary(max_size=200))
def test_no_bytes_make_reading_fail_otherwise(data):
    for read in (lambda: decode(data, Pending), lambda: decode_entry(data), lambda: decode_watermark(data)):
        with pytest.raises(DecodeError):
            read()


@given(counts, words, st.none() | words)
def test_a_mirrored_object_is_read_back(term, name, bound_at):
    entry = MirrorEntry(term=Term(term), object=msgspec.Raw(msgspec.json.encode({"name": name})), bound_at=bound_at)
    read = decode_entry(encode_entry(entry))
    assert (read.term, read.bound_at, read.schema) == (term, bound_at, SCHEMA)
    assert msgspec.json.decode(read.object) == {"name": name}


def test_a_mirrored_object_reads_as_json():
    entry = MirrorEntry(term=Term(3), object=msgspec.Raw(b'{"a":1}'))
    assert json.loads(encode_entry(entry)) == {"schema": 1, "term": 3, "object": {"a": 1}}


@given(counts, words)
def test_a_watermark_is_read_back(term, version):
    watermark = Watermark(term=Term(term), resource_version=version)
    assert decode_watermark(encode_watermark(watermark)) == watermark


def test_the_key_of_a_watermark_has_its_kind():
    assert watermark_key("pod") == "watermark.pod"


def test_a_mirrored_value_of_a_newer_schema_is_an_unknown_schema():
    with pytest.raises(UnknownSchemaError, match="got 9"):
        decode_entry(b'{"schema":9,"term":1,"object":{}}')
