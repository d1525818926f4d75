"""A group in the core: all that it needs is bound, or nothing (docs/protocol.md, 5)."""

from __future__ import annotations

from typing import ClassVar

import msgspec
import pytest

from berth.api.pod import Pod
from berth.api.podgroups import GROUP_LABEL, Members
from berth.framework.interface import Permission, PermitPlugin, ReservePlugin
from berth.framework.status import SUCCESS, Code, CycleState, Status
from berth.groups.evictions import GroupEvictions
from berth.kube.listwatch import Current, Deleted, Upserted
from berth.messages.attempts import Outcome, Preemption, Reason
from berth.messages.bundles import Bundle
from berth.messages.groupattempts import GroupRanked
from berth.messages.groups import GroupPlan, PlannedMember
from berth_binder.attempts import groupexamination
from berth_binder.attempts.pods import REPORTED_FAILURES
from berth_binder.cache import PODS
from berth_binder.decisions.groupverdict import verdict_after_binding
from berth_binder.decisions.preemption import eviction_plans
from berth_binder.events import (
    Ack,
    BindingAnswer,
    CountTry,
    EvictPods,
    PostBinding,
    PublishDecision,
    RecordEvent,
    RecordGroup,
    RehearsalAnswer,
    RehearseBinding,
    TryCounted,
)
from berth_binder.settings import CoreSettings
from harness.builders.groups import a_group
from harness.builders.objects import a_pod
from harness.worlds.binder_bench import (
    BACKOFF,
    at_version,
    gated,
    labelled,
    make_node,
    make_pod,
    on_node,
    posts,
    ranked,
    reads,
)
from harness.worlds.group_bench import LABELS, GroupBench


@pytest.fixture
def bench() -> GroupBench:
    return GroupBench()


def outcome(bench: GroupBench) -> tuple[str, str]:
    (decision,) = bench.of_group
    return str(decision.outcome), decision.reason


def outcome_of_last(bench: GroupBench) -> str:
    return str(bench.of_group[-1].outcome)


# --- bound


def test_all_members_are_posted_after_one_of_each_class_was_rehearsed(bench):
    group, pods = bench.show_group(4), bench.show_members(4)
    effects = bench.take_group(bench.plan(group, pods))
    kinds = [type(each) for each in effects if isinstance(each, RehearseBinding | PostBinding)]
    assert kinds == [RehearseBinding, *[PostBinding] * 4]
    assert bench.decisions == []
    assert {uid for uid, each in bench.cache.assumed_pods.items() if not each.is_bound} == {pod.uid for pod in pods}


def test_each_member_has_its_decision_before_the_group_has_one_and_the_message_is_acknowledged(bench):
    group, pods = bench.show_group(4), bench.show_members(4)
    done = bench.bind_all(bench.take_group(bench.plan(group, pods)))
    assert bench.of_members == [(f"m{n}", "bound") for n in range(1, 5)]
    assert [each.attempt for each in bench.decisions[:4]] == [f"uid-m{n}.1.1" for n in range(1, 5)]
    assert {each.of_group for each in bench.decisions[:4]} == {"uid-gang.1.1"}
    decision = bench.decisions[4]
    assert (decision.outcome, decision.uid, decision.pod, decision.attempt, decision.plan_seconds) == (
        "bound",
        "uid-gang",
        "~gang",
        "uid-gang.1.1",
        0.25,
    )
    assert (decision.group.need, decision.group.bound, decision.group.missing) == (4, 4, [])
    assert [type(each) for each in done[-3:]] == [PublishDecision, Ack, RecordGroup]
    assert bench.acked == [1]
    assert [*bench.core.held()] == []


def test_the_group_is_decided_once_the_decision_of_its_last_member_is_stored(bench):
    group, pods = bench.show_group(2), bench.show_members(2)
    posted = bench.take_group(bench.plan(group, pods))
    answers = [BindingAnswer(uid=each.pod.uid, status=201) for each in posted if isinstance(each, PostBinding)]
    first, last = (each for each in bench.core.handle(answers, bench.now) if isinstance(each, PublishDecision))
    bench.run([first])
    assert bench.of_group == []
    bench.run([last])
    assert outcome(bench) == ("bound", "")


def test_members_of_two_classes_are_rehearsed_once_each(bench):
    group = bench.show_group(4)
    pods = [*bench.show_members(2), *(bench.show(make_pod(f"w{n}", cpu="2", labels=LABELS)) for n in (1, 2))]
    effects = bench.take_group(bench.plan(group, pods))
    assert len([each for each in effects if isinstance(each, RehearseBinding)]) == 2
    assert len(posts(effects)) == 4


def test_a_group_takes_three_quarters_of_the_requests_and_a_pod_goes_on():
    bench = GroupBench(cpu="8", settings=CoreSettings(max_in_flight=8, backoff=BACKOFF))
    group, pods = bench.show_group(12), bench.show_members(12)
    effects = bench.take_group(bench.plan(group, pods))
    assert len(posts(effects)) == 6
    urgent = bench.show(make_pod("urgent"))
    assert [name for name, *_ in posts(bench.take(ranked(urgent, "n1", "n2", "n3")))] == ["urgent"]
    bench.bind_all(effects)
    assert outcome(bench) == ("bound", "")


def test_a_member_that_lost_its_node_goes_to_another_of_its_class(bench):
    group, pods = bench.show_group(5), bench.show_members(5)
    message = bench.plan(group, pods)
    taken = message.plan.nodes[message.plan.members[0].node]
    bench.show(on_node(make_pod("other", cpu="2"), taken))
    bench.bind_all(bench.take_group(message))
    assert outcome(bench) == ("bound", "")


# --- nothing


def test_one_member_without_a_node_and_nothing_is_sent(bench):
    group, pods = bench.show_group(12), bench.show_members(12)
    message = bench.plan(group, pods)
    bench.show(on_node(make_pod("other", cpu="2"), "n1"))
    effects = bench.take_group(message)
    assert not any(isinstance(each, RehearseBinding | PostBinding) for each in effects)
    assert outcome(bench) == ("conflict", Reason.NO_CANDIDATE)
    assert bench.of_members == []
    assert not bench.cache.assumed_pods
    assert bench.acked == [1]


@pytest.mark.parametrize(
    ("status", "expected"), [(403, ("error", "403")), (422, ("error", "422")), (409, ("conflict", "changed"))]
)
def test_a_rehearsal_that_is_refused_binds_nobody(bench, status, expected):
    bench.agrees = False
    group, pods = bench.show_group(4), bench.show_members(4)
    bench.take_group(bench.plan(group, pods))
    effects = bench.handle(RehearsalAnswer(uid=pods[0].uid, status=status, message="policy says no"))
    assert posts(effects) == []
    assert outcome(bench) == expected
    assert "policy says no" in bench.of_group[0].message
    assert not bench.cache.assumed_pods


def test_a_rehearsal_without_an_answer_is_repeated(bench):
    bench.agrees = False
    group, pods = bench.show_group(4), bench.show_members(4)
    bench.take_group(bench.plan(group, pods))
    assert bench.handle(RehearsalAnswer(uid=pods[0].uid, status=0)) == []
    again = bench.wait(2.0)
    assert [type(each) for each in again if isinstance(each, RehearseBinding)] == [RehearseBinding]
    bench.bind_all(bench.handle(RehearsalAnswer(uid=pods[0].uid, status=201)))
    assert outcome(bench) == ("bound", "")


def test_a_rehearsal_that_fails_again_and_again_is_said_on_the_podgroup_and_the_pod(bench):
    bench.agrees = False
    group, pods = bench.show_group(4), bench.show_members(4)
    effects = bench.take_group(bench.plan(group, pods))
    for _ in range(REPORTED_FAILURES):
        assert not [each for each in effects if isinstance(each, RecordGroup)]
        effects = bench.handle(RehearsalAnswer(uid=pods[0].uid, status=500, message="failed calling webhook"))
        effects += bench.wait(10.0)
    (of_group,) = [each for each in effects if isinstance(each, RecordGroup)]
    (of_pod,) = [each for each in effects if isinstance(each, RecordEvent)]
    said = "the API server answered 500: failed calling webhook"
    assert (of_group.decision.message, of_group.pods) == (f"m1: {said}", ())
    assert (of_pod.pod.metadata.name, of_pod.decision.message) == ("m1", said)
    assert bench.of_group[-1].message == f"m1: {said}"
    bench.bind_all(bench.handle(RehearsalAnswer(uid=pods[0].uid, status=201)))
    assert outcome_of_last(bench) == "bound"


def test_a_member_that_changes_before_the_first_binding_stops_all(bench):
    bench.agrees = False
    group, pods = bench.show_group(4), bench.show_members(4)
    bench.take_group(bench.plan(group, pods))
    bench.delete(pods[2], 30)
    assert posts(bench.handle(RehearsalAnswer(uid=pods[0].uid, status=201))) == []
    assert outcome(bench) == ("conflict", "changed")
    assert not bench.cache.assumed_pods


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda bench, pods: bench.show_group(4, version=6), "changed"),
        (lambda bench, pods: bench.show(gated(at_version(pods[2], 30))), "changed"),
        (lambda bench, pods: bench.delete_group(), "changed"),
        (lambda bench, pods: bench.show_group(2, version=6), ""),
        (lambda bench, pods: (bench.show_group(2, version=6), bench.delete(pods[2], 30)), ""),
    ],
    ids=["minimum raised", "member gated", "PodGroup deleted", "minimum lowered", "lowered, and a member less"],
)
def test_what_changes_during_the_rehearsal_counts_before_the_first_binding(bench, change, expected):
    bench.agrees = False
    group, pods = bench.show_group(3), bench.show_members(3)
    bench.take_group(bench.plan(group, pods))
    change(bench, pods)
    effects = bench.handle(RehearsalAnswer(uid=pods[0].uid, status=201))
    if expected:
        assert posts(effects) == []
        assert outcome(bench) == ("conflict", expected)
        assert not bench.cache.assumed_pods
    else:
        bench.bind_all(effects)
        assert outcome(bench) == ("bound", "")


def test_a_node_that_is_gone_before_the_first_binding_stops_all(bench):
    bench.agrees = False
    group, pods = bench.show_group(9), bench.show_members(9)
    bench.take_group(bench.plan(group, pods))
    bench.remove_node("n2")
    assert posts(bench.handle(RehearsalAnswer(uid=pods[0].uid, status=201))) == []
    assert outcome(bench) == ("conflict", "changed")
    assert not bench.cache.assumed_pods


def test_the_binders_own_minimum_counts(bench):
    group, pods = bench.show_group(2), bench.show_members(2)
    message = bench.plan(group, pods)
    bench.show_group(3, version=6)
    bench.take_group(message)
    assert outcome(bench) == ("conflict", "changed")
    assert bench.of_group[0].message == "2 members are as they were planned, and 3 are needed together"


def test_members_that_have_changed_count_for_nothing(bench):
    group, pods = bench.show_group(4), bench.show_members(4)
    message = bench.plan(group, pods)
    bench.show(labelled(pods[0], 20))
    bench.take_group(message)
    assert outcome(bench) == ("conflict", "changed")


def test_a_podgroup_that_was_deleted_or_remade_is_not_bound(bench):
    group, pods = bench.show_group(2), bench.show_members(2)
    bench.delete_group()
    bench.take_group(bench.plan(group, pods))
    assert outcome(bench) == ("conflict", "changed")
    bench.show_group(2, uid="another", version=100)
    bench.take_group(bench.plan(group, pods, n=2))
    assert bench.of_group[1].outcome is Outcome.CONFLICT


def test_min_resources_beyond_what_is_free_bind_nobody(bench):
    group, pods = bench.show_group(2, min_resources={"cpu": "40"}), bench.show_members(2)
    plan = bench.plan(msgspec.structs.replace(group, min_resources={}), pods)
    bench.take_group(plan)
    assert outcome(bench) == ("conflict", Reason.NO_CANDIDATE)
    assert not bench.cache.assumed_pods


def test_min_resources_that_bound_members_have_need_not_be_free(bench):
    group, pods = bench.show_group(4, min_resources={"cpu": "12"}), bench.show_members(4)
    for pod in pods[:2]:
        bench.show(on_node(pod, "n1"))
    bench.bind_all(bench.take_group(bench.plan(group, pods[2:])))
    assert outcome(bench) == ("bound", "")


def test_the_scorers_reasons_are_passed_on_with_a_condition_for_every_member(bench):
    group, pods = bench.show_group(13), bench.show_members(13)
    message = bench.plan(group, pods)
    effects = bench.take_group(message)
    decision = bench.of_group[0]
    assert (decision.outcome, decision.message) == ("unschedulable", message.plan.message)
    assert decision.blockers == ["NodeResourcesFit"]
    assert (decision.group.classes[0].members, decision.group.classes[0].placed) == (13, 12)
    (record,) = (each for each in effects if isinstance(each, RecordGroup))
    assert {pod.uid for pod in record.pods} == {pod.uid for pod in pods}


def test_a_group_of_which_no_member_was_tried_waits_for_nodes(bench):
    group, pods = bench.show_group(3), bench.show_members(3)
    bench.take_group(bench.plan(group, pods, plan=GroupPlan(need=3, message="no node has the label rack")))
    decision = bench.of_group[0]
    assert (decision.outcome, decision.reason) == ("unschedulable", "no-nodes")


def test_members_of_a_group_that_no_message_holds_get_a_condition_too(bench):
    group, pods = bench.show_group(3), bench.show_members(3)
    error = GroupPlan(need=3, error="the group has too many kinds of pods")
    without = msgspec.structs.replace(bench.plan(group, pods, plan=error), bundle=Bundle(classes=[], members=[]))
    effects = bench.take_group(without)
    assert bench.of_group[0].outcome == "error"
    (record,) = (each for each in effects if isinstance(each, RecordGroup))
    assert {pod.uid for pod in record.pods} == {pod.uid for pod in pods}


# --- the watch


def test_members_and_podgroup_that_the_watch_has_not_shown_are_awaited(bench):
    seer = GroupBench()
    group, pods = seer.show_group(3, version=30), seer.show_members(3, version=40)
    message = seer.plan(group, pods)
    for pod in pods:
        bench.show(pod)
    assert bench.take_group(message) == []
    bench.show_group(3, version=30)
    effects = bench.tell_of_shown()
    assert len(posts(effects)) == 3


def test_members_that_the_watch_has_not_shown_get_the_reason_why_their_group_waits(bench):
    seer = GroupBench()
    group, pods = seer.show_group(13), seer.show_members(13, version=40)
    bench.show_group(13)
    assert bench.take_group(seer.plan(group, pods)) == []
    for pod in pods:
        bench.show(pod)
    (record,) = (each for each in bench.tell_of_shown() if isinstance(each, RecordGroup))
    assert (record.decision.outcome, len(record.pods)) == ("unschedulable", 13)


def test_what_the_watch_does_not_show_within_a_second_is_a_conflict(bench):
    seer = GroupBench()
    group, pods = seer.show_group(3), seer.show_members(3, version=40)
    bench.show_group(3)
    message = seer.plan(group, pods)
    assert bench.take_group(message) == []
    bench.observe(Current(kind=PODS, resource_version="39"))
    bench.wait(1.1)
    assert outcome(bench) == ("conflict", "changed")


def test_a_binder_that_lacks_many_members_is_behind(bench):
    seer = GroupBench(cpu="64")
    group, pods = seer.show_group(40), seer.show_members(40, version=40)
    bench.show_group(40)
    bench.take_group(seer.plan(group, pods))
    assert outcome(bench) == ("conflict", "behind")


# --- single rankings


def test_a_member_alone_is_a_conflict_while_its_group_needs_it(bench):
    bench.show_group(3)
    pods = bench.show_members(3)
    assert posts(bench.take(ranked(pods[0], "n1"))) == []
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == ("conflict", "changed")


def test_a_pod_whose_podgroup_is_not_there_is_a_conflict(bench):
    pods = bench.show_members(1)
    bench.take(ranked(pods[0], "n1"))
    assert bench.outcomes == ["conflict"]


def test_a_pod_beyond_the_minimum_is_an_ordinary_one(bench):
    bench.show_group(2)
    pods = bench.show_members(3)
    for pod in pods[:2]:
        bench.show(on_node(pod, "n1"))
    assert posts(bench.take(ranked(pods[2], "n1"))) == [("m3", "n1", "10")]


def test_a_pod_beyond_the_minimum_is_bound_in_the_rack_of_its_group_whatever_a_message_names(bench):
    for node, rack in (("n1", "r1"), ("n2", "r1"), ("n3", "r2")):
        bench.observe(Upserted(kind="node", object=make_node(node, version=2, labels={"rack": rack})))
    bench.show_group(2, topology="rack")
    for number in (1, 2):
        bench.show(on_node(make_pod(f"m{number}", labels=LABELS), "n1"))
    further = bench.show(make_pod("m3", labels=LABELS))
    assert posts(bench.take(ranked(further, "n3"))) == []
    (decision,) = bench.decisions
    assert (decision.outcome, decision.reason) == ("conflict", Reason.NO_CANDIDATE)
    assert [each.reason for each in decision.rejections] == ["node(s) outside rack r1 where the pod's group runs"]
    assert [node for _, node, *_ in posts(bench.take(ranked(further, "n3", "n2", n=2)))] == ["n2"]


def test_a_pod_that_joins_a_group_while_its_binding_is_under_way_is_not_bound_alone(bench):
    alone = bench.show(make_pod("m3"))
    bench.take(ranked(alone, "n1"))
    bench.show_group(3)
    bench.show_members(2)
    joined = bench.show(at_version(make_pod("m3", labels=LABELS), 30))
    bench.take(ranked(joined, "n1", n=2))
    bench.answer(alone, 409)
    effects = bench.reading(joined, joined)
    assert posts(effects) == []
    assert bench.outcomes == ["conflict"]


def test_a_pod_whose_own_binding_is_under_way_is_no_member_of_a_groups_plan(bench):
    alone, joined = bench.show(make_pod("m3")), at_version(make_pod("m3", labels=LABELS), 30)
    group, pods = bench.show_group(3), bench.show_members(2)
    message = bench.plan(group, [*pods, joined])
    bench.take(ranked(alone, "n1"))
    bench.show(joined)
    bench.take_group(message)
    assert outcome(bench) == ("conflict", "changed")


def test_a_ranking_of_a_member_alone_does_not_change_its_group(bench):
    group, pods = bench.show_group(2), bench.show_members(2)
    effects = bench.take_group(bench.plan(group, pods))
    bench.take(ranked(pods[0], "n3", n=9))
    bench.bind_all(effects)
    assert ("m1", "bound") in bench.of_members
    assert sorted(bench.acked) == [1, 2]
    assert [*bench.core.held()] == []


# --- after the first Binding


def test_a_member_that_the_api_server_refuses_after_the_first_leaves_a_rest(bench):
    group, pods = bench.show_group(3), bench.show_members(3)
    effects = bench.take_group(bench.plan(group, pods))
    for post in [each for each in effects if isinstance(each, PostBinding)][:2]:
        bench.show(on_node(post.pod, post.node))
        bench.answer(post.pod, 201)
    bench.answer(pods[2], 403, message="policy says no")
    assert bench.of_members == [("m1", "bound"), ("m2", "bound"), ("m3", "error")]
    assert outcome(bench) == ("conflict", "begun")
    assert bench.of_group[0].message == "2 of 3 members are bound, 1 more is needed"
    assert bench.of_group[0].group.missing == ["m3"]
    assert not [each for each in bench.cache.assumed_pods.values() if not each.is_bound]


@pytest.mark.parametrize(
    ("minimum", "expected", "message"),
    [
        (2, ("bound", ""), ""),
        (3, ("conflict", "begun"), "2 of 3 members are bound, 1 more is needed"),
        (4, ("conflict", "begun"), "2 of 4 members are bound, 2 more are needed"),
    ],
    ids=["lowered", "as planned", "raised"],
)
def test_a_minimum_that_changes_between_bindings_is_the_one_that_counts(bench, minimum, expected, message):
    group, pods = bench.show_group(3), bench.show_members(3)
    bench.take_group(bench.plan(group, pods))
    for pod in pods[:2]:
        bench.show(on_node(pod, "n1"))
        bench.answer(pod, 201)
    bench.show(make_pod("m4", labels=LABELS))
    bench.show_group(minimum, version=6)
    bench.answer(pods[2], 403, message="policy says no")
    assert outcome(bench) == expected
    assert bench.of_group[0].message == message


def test_only_groups_that_this_epoch_has_begun_and_not_seen_whole_are_noted(bench):
    group, pods = bench.show_group(3), bench.show_members(3)
    effects = bench.take_group(bench.plan(group, pods))
    for post in [each for each in effects if isinstance(each, PostBinding)][:2]:
        bench.show(on_node(post.pod, post.node))
        bench.answer(post.pod, 201)
    bench.answer(pods[2], 403, message="policy says no")
    assert (*bench.core.begun_groups(),) == (group.uid,)
    bench.bind_all(bench.take_group(bench.plan(group, pods[2:], need=1, n=2)))
    assert outcome_of_last(bench) == "bound"
    assert not bench.core.begun_groups()


def remade(bench: GroupBench) -> None:
    bench.show_group(3, uid="another", version=9)


def has_lost_its_minimum(bench: GroupBench) -> None:
    bench.show_group(2, version=6)
    assert not bench.core.begun_groups()
    bench.show_group(3, version=7)


@pytest.mark.parametrize("happens", [GroupBench.delete_group, remade, has_lost_its_minimum])
def test_a_begun_group_is_forgotten_once_it_is_gone_or_was_whole_without_a_further_attempt(bench, happens):
    group, pods = bench.show_group(3), bench.show_members(3)
    for post in [each for each in bench.take_group(bench.plan(group, pods)) if isinstance(each, PostBinding)][:2]:
        bench.show(on_node(post.pod, post.node))
        bench.answer(post.pod, 201)
    bench.answer(pods[2], 403, message="policy says no")
    assert (*bench.core.begun_groups(),) == (group.uid,)
    happens(bench)
    assert not bench.core.begun_groups()
    assert not bench.core._groups._begun


def test_a_group_that_a_former_epoch_has_begun_is_not_noted(bench):
    group, pods = bench.show_group(3), bench.show_members(3)
    bench.show(on_node(pods[0], "n1"))
    bench.take_group(bench.plan(group, pods[1:], need=2))
    bench.show(on_node(pods[1], "n1"))
    bench.answer(pods[1], 201)
    bench.answer(pods[2], 403, message="policy says no")
    assert outcome(bench) == ("conflict", "begun")
    assert not bench.core.begun_groups()


def test_a_member_that_dies_after_the_first_is_none_any_more(bench):
    group, pods = bench.show_group(3), bench.show_members(3)
    bench.take_group(bench.plan(group, pods))
    for pod in pods[:2]:
        bench.show(on_node(pod, "n1"))
        bench.answer(pod, 201)
    bench.delete(pods[2], 50)
    bench.answer(pods[2], 404)
    assert outcome(bench) == ("bound", "")


def test_the_rest_of_a_begun_group_is_what_its_minimum_lacks(bench):
    group, pods = bench.show_group(3), bench.show_members(3)
    bench.show(on_node(pods[0], "n1"))
    rest = pods[1:]
    bench.bind_all(bench.take_group(bench.plan(group, rest, need=2)))
    assert bench.of_group[0].group.need == 2
    assert outcome(bench) == ("bound", "")


def test_of_two_groups_the_second_is_begun_when_all_bindings_of_the_first_are_sent():
    bench = GroupBench(settings=CoreSettings(max_in_flight=4, backoff=BACKOFF))
    first, pods = bench.show_group(9), bench.show_members(9)
    second = bench.show_group(2, name="other")
    others = [bench.show(make_pod(f"o{number}", cpu="100m", labels={GROUP_LABEL: "other"})) for number in (1, 2)]
    effects = [*bench.take_group(bench.plan(first, pods)), *bench.take_group(bench.plan(second, others))]
    sent = [name for name, *_ in posts([*effects, *bench.bind_all(effects)])]
    assert sent == [*(f"m{number}" for number in range(1, 10)), "o1", "o2"]


def test_a_podgroup_that_is_deleted_between_bindings_begins_no_more():
    bench = GroupBench(settings=CoreSettings(max_in_flight=4, backoff=BACKOFF))
    group, pods = bench.show_group(6), bench.show_members(6)
    effects = bench.take_group(bench.plan(group, pods))
    assert len(posts(effects)) == 3
    bench.delete_group()
    assert posts(bench.bind_all(effects)) == []
    assert [name for name, what in bench.of_members if what == "bound"] == ["m1", "m2", "m3"]
    assert bench.of_group[0].outcome is Outcome.CONFLICT
    assert not [each for each in bench.cache.assumed_pods.values() if not each.is_bound]


def test_a_409_where_only_metadata_changed_is_tried_again(bench):
    group, pods = bench.show_group(2), bench.show_members(2)
    bench.take_group(bench.plan(group, pods))
    bench.answer(pods[0], 409)
    again = bench.reading(pods[0], at_version(pods[0], 77))
    assert [(name, version) for name, _, version in posts(again)] == [("m1", "77")]


def test_a_gated_member_ends_alone(bench):
    group, pods = bench.show_group(2), bench.show_members(3)
    bench.take_group(bench.plan(group, pods))
    for pod in pods[:2]:
        bench.show(on_node(pod, "n1"))
        bench.answer(pod, 201)
    bench.answer(pods[2], 409)
    bench.reading(pods[2], gated(at_version(pods[2], 77)))
    assert outcome(bench) == ("bound", "")
    assert bench.of_members == [("m1", "bound"), ("m2", "bound")]


# --- messages


def test_a_later_message_of_the_group_is_settled_with_the_earlier_one(bench):
    group, pods = bench.show_group(2), bench.show_members(2)
    effects = bench.take_group(bench.plan(group, pods))
    assert bench.take_group(bench.plan(group, pods, n=2)) == []
    bench.bind_all(effects)
    assert bench.of_group[0].attempt == "uid-gang.1.2"
    assert sorted(bench.acked) == [1, 2]


def test_a_later_message_with_other_members_replaces_one_that_awaits_the_watch(bench):
    seer = GroupBench()
    group, pods = seer.show_group(2), seer.show_members(2, version=40)
    replaced = seer.show(make_pod("m3", labels=LABELS, version=41))
    assert bench.take_group(seer.plan(group, pods)) == []
    assert bench.take_group(seer.plan(group, [pods[1], replaced], n=2)) == []
    for pod in (pods[1], replaced):
        bench.show(pod)
    bench.show_group(2)
    effects = bench.tell_of_shown()
    assert [name for name, *_ in posts(effects)] == ["m2", "m3"]
    bench.bind_all(effects)
    assert [each.attempt for each in bench.decisions] == ["uid-m2.1.2", "uid-m3.1.2", "uid-gang.1.2"]


def test_a_redelivered_message_is_only_acknowledged(bench):
    group, pods = bench.show_group(2), bench.show_members(2)
    message = bench.plan(group, pods)
    bench.bind_all(bench.take_group(message))
    assert [type(each) for each in bench.deliver_group(message, 1)] == [Ack]


def test_members_whose_bindings_were_answered_keep_their_room_before_the_watch_shows_them(bench):
    group, pods = bench.show_group(3), bench.show_members(4)
    message, later = bench.plan(group, pods), bench.plan(group, pods, n=2)
    for post in posts(bench.take_group(message)):
        bench.answer(bench.cache.pod(f"uid-{post[0]}"), 201)
    nodes = {uid: (each.node, each.is_bound) for uid, each in bench.cache.assumed_pods.items()}
    bench.decisions.clear()
    # Its message is written before the watch shows the Bindings, as after one that the binder held for long.
    effects = bench.take_group(moved(later, by=1))
    assert [each for each in effects if isinstance(each, RehearseBinding | PostBinding)] == []
    assert {uid: (each.node, each.is_bound) for uid, each in bench.cache.assumed_pods.items()} == nodes
    assert sorted((each.attempt, each.node) for each in bench.decisions if each.of_group) == sorted(
        (f"{uid}.1.2", node) for uid, (node, _) in nodes.items()
    )
    assert outcome_of_last(bench) == "bound"


def moved(message: GroupRanked, *, by: int) -> GroupRanked:
    """The plan with each member on another of its nodes."""
    plan = message.plan
    members = [msgspec.structs.replace(each, node=(each.node + by) % len(plan.nodes)) for each in plan.members]
    return msgspec.structs.replace(message, plan=msgspec.structs.replace(plan, members=members))


def test_a_second_group_is_checked_after_the_first(bench):
    group, pods = bench.show_group(6), bench.show_members(6, cpu="2")
    first = bench.plan(group, pods)
    bench.bind_all(bench.take_group(first))
    late = bench.show(make_pod("late", cpu="1"))
    assert posts(bench.take(ranked(late, "n1"))) == []
    assert bench.outcomes[-1] == "conflict"


# --- takeover


@pytest.mark.parametrize("answered", range(5))
def test_a_binder_killed_after_any_number_of_bindings_is_followed_by_one_that_binds_the_rest(bench, answered):
    group, pods = bench.show_group(4), bench.show_members(4)
    message = bench.plan(group, pods)
    effects = bench.take_group(message)
    for post in [each for each in effects if isinstance(each, PostBinding)][:answered]:
        bench.show(on_node(post.pod, post.node))
    bench.succeed()
    bench.decisions.clear()
    again = bench.deliver_group(message, 1)
    assert len(posts(again)) == 4 - answered
    bench.bind_all(again)
    assert sorted(bench.of_members) == [(f"m{n}", "bound") for n in range(1, 5)]
    assert outcome(bench) == ("bound", "")


def test_a_group_counts_once_as_a_suspect(bench):
    group, pods = bench.show_group(2), bench.show_members(2)
    effects = bench.take_group(bench.plan(group, pods), is_suspect=True)
    assert [each.uid for each in effects if isinstance(each, CountTry)] == [group.uid]
    assert posts(effects) == []
    assert len(posts(bench.handle(TryCounted(uid=group.uid, tries=1)))) == 2


def test_a_group_that_was_counted_before_goes_on_alone(bench):
    group, pods = bench.show_group(2), bench.show_members(2)
    bench.take_group(bench.plan(group, pods), is_suspect=True)
    other = bench.show(make_pod("other"))
    effects = bench.handle(TryCounted(uid=group.uid, tries=2))
    assert len(posts(effects)) == 2
    assert posts(bench.take(ranked(other, "n1"))) == []
    assert ("other", "n1", "10") in posts(bench.bind_all(effects))


def test_a_group_that_has_ended_three_binders_is_given_up(bench):
    group, pods = bench.show_group(2), bench.show_members(2)
    bench.take_group(bench.plan(group, pods), is_suspect=True)
    bench.handle(TryCounted(uid=group.uid, tries=4))
    assert outcome(bench) == ("error", "tries")


# --- the stop


def test_after_the_stop_no_group_is_begun_and_a_begun_one_goes_on():
    bench = GroupBench(settings=CoreSettings(max_in_flight=4, backoff=BACKOFF), agrees=False)
    group, pods = bench.show_group(6), bench.show_members(6)
    bench.take_group(bench.plan(group, pods))
    bench.core.close()
    assert posts(bench.handle(RehearsalAnswer(uid=pods[0].uid, status=201))) == []
    begun = GroupBench(settings=CoreSettings(max_in_flight=4, backoff=BACKOFF), agrees=False)
    group, pods = begun.show_group(6), begun.show_members(6)
    behind = [begun.show(make_pod(name, labels={GROUP_LABEL: "behind"})) for name in ("b1", "b2")]
    begun.take_group(begun.plan(group, pods))
    begun.take_group(begun.plan(begun.show_group(2, name="behind"), behind))
    effects = begun.handle(RehearsalAnswer(uid=pods[0].uid, status=201))
    effects += begun.handle(RehearsalAnswer(uid=behind[0].uid, status=201))  # ready, and behind the first one
    begun.core.close()
    assert begun.core.is_posting_group
    begun.bind_all(effects)
    assert outcome(begun) == ("bound", "")
    assert not begun.core.is_posting_group
    assert not {"b1", "b2"} & {each.pod for each in begun.decisions}


# --- evictions


def low(bench: GroupBench) -> None:
    for number in range(1, 13):
        pod = make_pod(f"low{number}", spec={"priority": 1})
        bench.show(on_node(pod, f"n{(number - 1) // 4 + 1}"))


def test_what_makes_room_for_all_is_evicted_and_members_are_nominated(bench):
    low(bench)
    group, pods = bench.show_group(5), bench.show_members(5, spec={"priority": 9})
    message = bench.plan(group, pods, preemption=bench.proposed(group, pods, priority=9))
    effects = bench.take_group(message)
    requests = [each for each in effects if isinstance(each, EvictPods)]
    assert sum(len(each.victims) for each in requests) == 5
    assert {each.pod.uid for each in requests} == {pod.uid for pod in pods}
    assert len([*bench.cache.snapshot.nominations()]) == 5
    assert {len(each.victims) for each in requests} == {1}
    for request in requests:
        bench.evicted(request.pod, request.node)
    assert outcome(bench) == ("preempting", "")
    assert len(bench.of_group[0].preemption.victims) == 5


def test_all_members_are_read_before_the_first_eviction(bench):
    bench.reads_preemptors = False
    low(bench)
    group, pods = bench.show_group(5), bench.show_members(5, spec={"priority": 9})
    effects = bench.take_group(bench.plan(group, pods, preemption=bench.proposed(group, pods, priority=9)))
    assert sorted(reads(effects)) == [pod.metadata.name for pod in pods]
    *others, last = pods
    for pod in others:
        effects += bench.reading(pod, pod)
    assert reads(bench.reading(last, None, 503)) == []
    assert reads(bench.wait(60)) == [last.metadata.name]
    assert not any(isinstance(each, EvictPods) for each in effects)
    evicting = [each for each in bench.reading(last, last) if isinstance(each, EvictPods)]
    assert sum(len(each.victims) for each in evicting) == 5


def test_evictions_are_searched_once_when_all_members_are_read(bench, monkeypatch):
    searches, search = [], groupexamination.plan_evictions

    def counted(*question, **more):
        searches.append(question)
        return search(*question, **more)

    monkeypatch.setattr(groupexamination, "plan_evictions", counted)
    low(bench)
    group, pods = bench.show_group(5), bench.show_members(5, spec={"priority": 9})
    effects = bench.take_group(bench.plan(group, pods, preemption=bench.proposed(group, pods, priority=9)))
    assert any(isinstance(each, EvictPods) for each in effects)
    assert len(searches) == 1


def test_victims_on_a_node_are_shared_by_its_members_and_the_first_one_has_those_elsewhere(bench):
    low(bench)
    members = [PlannedMember(uid, 0, node) for uid, node in (("a", 1), ("b", 0), ("c", 1))]
    victims = tuple(make_pod(f"low{number}") for number in (1, 5, 6, 7, 9))
    found = GroupEvictions(plan=GroupPlan(need=3, nodes=["n1", "n2"], members=members), victims=victims)
    plans = eviction_plans(found, {uid: make_pod(uid) for uid in "abc"}, bench.cache.snapshot, Preemption(node=""))
    of_member = {each.pod.metadata.name: [pod.metadata.name for pod in each.victims] for each in plans}
    assert of_member == {"a": ["low5", "low7", "low9"], "b": ["low1"], "c": ["low6"]}


@pytest.mark.parametrize(
    "shown", [None, gated(make_pod("m3", labels=LABELS, spec={"priority": 9}))], ids=["gone", "gated"]
)
def test_nothing_is_evicted_for_a_group_of_which_the_api_server_has_a_member_no_more(bench, shown):
    bench.reads_preemptors = False
    low(bench)
    group, pods = bench.show_group(5), bench.show_members(5, spec={"priority": 9})
    effects = bench.take_group(bench.plan(group, pods, preemption=bench.proposed(group, pods, priority=9)))
    for pod in pods:
        effects += bench.reading(pod, shown if pod.metadata.name == "m3" else pod)
    assert not any(isinstance(each, EvictPods) for each in effects)
    assert outcome(bench) == ("conflict", Reason.CHANGED)
    assert [*bench.core.held()] == []
    assert not [*bench.cache.snapshot.nominations()]


def test_nothing_is_evicted_for_a_group_that_does_not_fit_with_it(bench):
    low(bench)
    group, pods = bench.show_group(13), bench.show_members(13, spec={"priority": 9})
    few = bench.proposed(group, pods[:5], priority=9)
    effects = bench.take_group(bench.plan(group, pods, preemption=few))
    assert not any(isinstance(each, EvictPods) for each in effects)
    assert outcome(bench) == ("conflict", Reason.VICTIMS)


def test_nothing_is_evicted_that_is_as_important_as_the_binders_own_members(bench):
    low(bench)
    group, pods = bench.show_group(5), bench.show_members(5, spec={"priority": 1})
    bench.take_group(bench.plan(group, pods, preemption=bench.proposed(group, pods, priority=9)))
    assert outcome(bench) == ("conflict", "victims")


def test_nothing_is_evicted_where_others_would_have_to_go_by_now(bench):
    low(bench)
    group, pods = bench.show_group(5), bench.show_members(5, spec={"priority": 9})
    message = bench.plan(group, pods, preemption=bench.proposed(group, pods, priority=9))
    bench.delete(make_pod("low1"), 60)
    effects = bench.take_group(message)
    assert not any(isinstance(each, EvictPods) for each in effects)
    assert outcome(bench) == ("conflict", Reason.VICTIMS)


def test_a_begun_group_is_examined_before_other_messages_after_a_takeover(bench):
    group, pods = bench.show_group(3), bench.show_members(3, cpu="3")
    bench.show(on_node(pods[0], "n1"))
    message = bench.plan(group, pods[1:], need=2)
    rival = bench.show(make_pod("rival", cpu="3"))
    bench.core.examine_first(frozenset({7}), bench.now)
    assert bench.deliver(ranked(rival, "n2", "n3"), 3) == []
    assert bench.core.due() == bench.now + 1.0
    effects = bench.deliver_group(message, 7)
    assert [name for name, *_ in posts(effects)] == ["m2", "m3"]
    assert bench.outcomes == ["conflict"]


def test_other_messages_wait_only_a_moment_for_a_begun_group(bench):
    rival = bench.show(make_pod("rival"))
    bench.core.examine_first(frozenset({7}), bench.now)
    assert bench.deliver(ranked(rival, "n2"), 3) == []
    assert len(posts(bench.wait(1.0))) == 1


# --- waits


class Slow(ReservePlugin, PermitPlugin):
    """Permits the members that the test names; the others wait for 30 s at most."""

    name: ClassVar[str] = "Slow"

    def __init__(self) -> None:
        self.permitted: set[str] = set()
        self.full: set[str] = set()
        self.reserved: list[str] = []

    def reserve(self, state: CycleState, pod: Pod, node: str) -> Status:
        if node in self.full:
            return Status.unschedulable("nothing left here")
        self.reserved.append(pod.metadata.name)
        return SUCCESS

    def unreserve(self, state: CycleState, pod: Pod, node: str) -> None:
        if pod.metadata.name in self.reserved:
            self.reserved.remove(pod.metadata.name)

    def permit(self, state: CycleState, pod: Pod, node: str) -> Permission:
        is_permitted = pod.metadata.name in self.permitted
        return Permission() if is_permitted else Permission(Status(Code.WAIT, ("not yet",)), 30.0)


@pytest.fixture
def slow(bench) -> Slow:
    """The only Reserve and Permit plugin of the bench's profile."""
    plugin = Slow()
    profile = bench.profiles["berth"]
    profile.reserves = profile.permits = (plugin,)
    return plugin


def test_a_group_waits_for_its_slowest_member_with_one_message(bench, slow):
    slow.permitted = {"m1", "m2"}
    group, pods = bench.show_group(3), bench.show_members(3)
    assert posts(bench.take_group(bench.plan(group, pods))) == []
    assert [(each.outcome, each.message) for each in bench.decisions] == [
        ("waiting", "m3: waiting for Slow: not yet"),
    ]
    slow.permitted.add("m3")
    effects = bench.wait(2.0)
    assert len(posts(effects)) == 3
    bench.bind_all(effects)
    assert [each.outcome for each in bench.of_group] == ["waiting", "bound"]


def test_only_so_many_groups_wait(bench, slow, monkeypatch):
    monkeypatch.setattr("berth_binder.attempts.groups.MOST_WAITING", 1)
    group, pods = bench.show_group(2), bench.show_members(2)
    bench.take_group(bench.plan(group, pods))
    other = bench.show_group(2, name="other")
    others = [bench.show(make_pod(f"o{number}", labels={GROUP_LABEL: "other"})) for number in (1, 2)]
    bench.take_group(bench.plan(other, others))
    decision = bench.decisions[-1]
    assert (decision.pod, decision.outcome, decision.message) == (
        "~other",
        "conflict",
        "1 groups wait for volumes or permissions already",
    )
    assert bench.cache.assumed_pods.keys() == {pod.uid for pod in pods}


def test_all_are_undone_when_one_has_waited_too_long(bench, slow):
    slow.permitted = {"m1", "m2"}
    group, pods = bench.show_group(3), bench.show_members(3)
    bench.take_group(bench.plan(group, pods))
    for _ in range(16):
        bench.wait(2.0)
    assert [each.outcome for each in bench.of_group][-1] == "unschedulable"
    assert bench.of_group[-1].message == 'm3: rejected: "Slow" gave no permission in time'
    assert slow.reserved == []
    assert not bench.cache.assumed_pods
    assert bench.acked == [1]


def test_a_waiting_group_says_so_every_ten_seconds(bench, slow):
    group, pods = bench.show_group(2), bench.show_members(2)
    bench.take_group(bench.plan(group, pods))
    for _ in range(12):
        bench.wait(1.0)
    assert [each.repeat for each in bench.of_group] == [0, 1]
    assert bench.of_members == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda bench, _: bench.delete_group(), id="PodGroup deleted"),
        pytest.param(lambda bench, _: bench.show_group(3, uid="another", version=90), id="PodGroup remade"),
        pytest.param(lambda bench, _: bench.show_group(4, version=90), id="minimum raised"),
        pytest.param(lambda bench, pods: bench.observe(Deleted(kind="pod", object=pods[0])), id="member deleted"),
    ],
)
def test_a_waiting_group_that_cannot_be_bound_any_more_gives_up_its_room(bench, slow, change):
    slow.permitted = {"m1", "m2"}
    group, pods = bench.show_group(3), bench.show_members(3)
    bench.take_group(bench.plan(group, pods))
    change(bench, pods)
    for _ in range(11):
        bench.wait(1.0)
    assert [(each.outcome, each.reason) for each in bench.of_group][1:] == [("conflict", Reason.CHANGED)]
    assert not bench.cache.assumed_pods


def test_a_more_important_pod_gets_the_room_of_a_waiting_group(bench, slow):
    slow.permitted = {f"m{number}" for number in range(1, 12)} | {"vip"}
    group, pods = bench.show_group(12), bench.show_members(12)
    bench.take_group(bench.plan(group, pods))
    vip = bench.show(make_pod("vip", cpu="4", spec={"priority": 9}))
    bench.take(ranked(vip, preemption=Preemption(node="n1")))
    assert bench.of_group[-1].outcome == "unschedulable"
    assert bench.of_group[-1].message.endswith("preempted by default/vip while it waited")
    assert not bench.cache.assumed_pods


def test_a_member_that_cannot_reserve_on_its_node_takes_another(bench, slow):
    slow.permitted = {"m1", "m2", "m3"}
    group, pods = bench.show_group(3), bench.show_members(3)
    message = bench.plan(group, pods)
    slow.full = {message.plan.nodes[message.plan.members[0].node]}
    effects = bench.take_group(message)
    assert len(posts(effects)) == 3
    assert not slow.full.intersection(node for _, node, _ in posts(effects))


def test_nothing_stays_reserved_where_all_cannot_reserve(bench, slow):
    slow.full = {"n1", "n2"}
    group, pods = bench.show_group(5), bench.show_members(5)
    bench.take_group(bench.plan(group, pods))
    assert outcome(bench) == ("conflict", Reason.NO_CANDIDATE)
    assert slow.reserved == []
    assert not bench.cache.assumed_pods


@pytest.mark.parametrize(("bound", "outcome"), [(0, Outcome.CONFLICT), (1, Outcome.BOUND)])
def test_a_group_whose_minimum_was_bound_before_is_no_success_of_a_watcher_that_is_behind(bound, outcome):
    there = Members(bound=[a_pod("one", node="a"), a_pod("two", node="a")])
    assert verdict_after_binding(bound, there, a_group(minimum=2), []).outcome is outcome
