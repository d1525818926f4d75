"""PENDING and RANKED of a group, and what readers of pods' messages make of them."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.podgroups import Dialect, GroupKey
from berth.errors import DecodeError
from berth.groups.planner import plan_at_once
from berth.messages.attempts import Pending, Ranked, Rejection
from berth.messages.bundles import Bundle, as_member, bundled
from berth.messages.encoding import UnknownSchemaError, decode, encode
from berth.messages.groupattempts import (
    MOST_GROUP_BYTES,
    GroupPending,
    GroupRanked,
    decode_group,
    group_named,
    subject_name,
    within_bounds,
)
from berth.messages.groups import Alternate, GroupPlan, PlannedMember
from berth.messages.subjects import PodSubject
from harness.builders.groups import a_group, a_question, members, racks
from harness.builders.profiles import default_profile

PODS = members(6, cpu="1")
QUESTION = a_question(PODS, rack="required")
BUNDLE = bundled(PODS, dict.fromkeys((pod.uid for pod in PODS), 3))
PLAN = plan_at_once(QUESTION, racks([0, 0], [1]), default_profile())


def pending(**changes: Any) -> GroupPending:
    values = {"group": QUESTION.group, "bundle": BUNDLE, "need": 6, "attempt": "uid-gang.2.1", "profile": "berth"}
    return GroupPending(**{**values, **changes})


def ranked(**changes: Any) -> GroupRanked:
    values = {"group": QUESTION.group, "bundle": BUNDLE, "need": 6, "attempt": "uid-gang.2.1", "profile": "berth"}
    return GroupRanked(**{**values, "plan": PLAN, **changes})


def test_messages_decode_to_themselves():
    assert decode_group(encode(pending(bound=["u"])), GroupPending) == pending(bound=["u"])
    assert decode_group(encode(ranked(seconds=0.25)), GroupRanked) == ranked(seconds=0.25)
    assert decode_group(encode(pending()), GroupPending).bundle.pods() == [as_member(pod) for pod in PODS]


@pytest.mark.parametrize("kind", [Pending, Ranked])
def test_a_reader_of_pods_leaves_them_to_a_newer_one(kind: Any):
    with pytest.raises(UnknownSchemaError, match="2"):
        decode(encode(pending()), kind)


def test_a_pods_message_is_none_about_a_group():
    with pytest.raises(DecodeError):
        decode_group(encode(Pending(attempt="u.1.1", profile="berth", pod=PODS[0])), GroupPending)


def test_another_schema_is_left_to_a_newer_reader():
    with pytest.raises(UnknownSchemaError, match="want schema 2, got 3"):
        decode_group(encode(pending(schema=3)), GroupPending)


def moved(plan: GroupPlan, **changes: Any) -> GroupPlan:
    first, *others = plan.members
    return msgspec.structs.replace(plan, members=[msgspec.structs.replace(first, **changes), *others])


@pytest.mark.parametrize(
    ("message", "want"),
    [
        (pending(attempt="another.2.1"), "want an attempt of group 'uid-gang', got 'another.2.1'"),
        (pending(bundle=Bundle(classes=[], members=BUNDLE.members)), "want members of 0 classes"),
        (
            pending(group=a_group("a b", uid="uid-gang")),
            "want names of letters, digits, '-', '_' and '.', 253 at most, got 'a b'",
        ),
        (pending(bundle=Bundle(classes=BUNDLE.classes, members=[*BUNDLE.members] * 2)), "want each member once"),
        (pending(group=a_group("gang", namespace="other")), "want members in namespace 'other', got 'default'"),
        (ranked(plan=moved(PLAN, uid="stranger")), "want a plan of members, each once"),
        (ranked(plan=moved(PLAN, uid=PLAN.members[1].uid)), "want a plan of members, each once"),
        (ranked(plan=moved(PLAN, node=99)), "want a plan on 2 nodes for 1 classes"),
        (ranked(plan=moved(PLAN, of_class=7)), "want a plan on 2 nodes for 1 classes"),
        (
            ranked(
                plan=msgspec.structs.replace(
                    PLAN, classes=[msgspec.structs.replace(PLAN.classes[0], alternates=[Alternate(9, 1, 0, 0, 1)])]
                )
            ),
            "want alternates on 2 nodes",
        ),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(message: GroupPending | GroupRanked, want: str):
    with pytest.raises(DecodeError) as error:
        decode_group(encode(message), type(message))
    assert str(error.value).partition(": ")[2] == want


def test_a_thousand_members_fit_into_a_message():
    pods = members(1000, cpu="1")
    bundle = bundled(pods, dict.fromkeys((pod.uid for pod in pods), 1))
    planned = [PlannedMember(pod.uid, 0, number % 100) for number, pod in enumerate(pods)]
    plan = msgspec.structs.replace(PLAN, nodes=[f"node-{n:04}" for n in range(100)], members=planned)
    assert len(encode(ranked(bundle=bundle, plan=plan))) < MOST_GROUP_BYTES / 2


def test_a_ranking_with_long_texts_is_cut_to_what_readers_take():
    rejection = Rejection(plugin="P" * 2000, reason="r" * 2000, nodes=1)
    odd = msgspec.structs.replace(PLAN.classes[0], rejections=[rejection], scores={"S" * 300: 1, "T": 2})
    long = ranked(plan=msgspec.structs.replace(PLAN, message="m" * 9000, note="n" * 9000, classes=[odd]))
    with pytest.raises(DecodeError):
        decode_group(encode(long), GroupRanked)
    read = decode_group(encode(within_bounds(long)), GroupRanked)
    assert read.plan.classes[0].scores == {"T": 2}
    assert read.plan.members == PLAN.members


def test_a_large_ranking_loses_points_then_alternates_and_never_members():
    whole = within_bounds(ranked())
    assert whole == ranked()
    size = len(encode(whole))
    without_points = within_bounds(whole, size - 1)
    without_alternates = within_bounds(whole, len(encode(without_points)) - 1)
    assert [
        (bool(each.plan.classes[0].scores), bool(each.plan.classes[0].alternates))
        for each in (whole, without_points, without_alternates)
    ] == [
        (True, True),
        (False, True),
        (False, False),
    ]
    assert without_alternates.plan.members == PLAN.members


def test_a_ranking_without_alternates_does_not_name_their_nodes():
    alternate = Alternate(len(PLAN.nodes), 1, 0, 0, 1)
    of_class = msgspec.structs.replace(PLAN.classes[0], alternates=[alternate])
    whole = ranked(plan=msgspec.structs.replace(PLAN, nodes=[*PLAN.nodes, "n" * 253], classes=[of_class]))
    assert within_bounds(whole) == whole
    cut = within_bounds(whole, 1).plan
    assert set(cut.nodes) == {whole.plan.nodes[member.node] for member in PLAN.members}
    assert (cut.members, cut.classes[0].alternates) == (PLAN.members, [])


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_subject_names_the_group_of_its_dialect(dialect: Dialect):
    key = GroupKey(dialect, "ml", "train-7.v2")
    subject = str(PodSubject(stage="pending", profile="berth", namespace="ml", pod=subject_name(key)))
    read = PodSubject.parse(subject)
    assert group_named(read.namespace, read.pod) == key
    assert group_named("ml", "train-7.v2") is None


@given(st.data())
def test_no_change_of_a_byte_breaks_the_reader(data: st.DataObject):
    message = bytearray(encode(ranked()))
    for _ in range(data.draw(st.integers(1, 4))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(DecodeError):
        decode_group(bytes(message), GroupRanked)
