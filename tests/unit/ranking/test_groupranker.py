"""What a scorer answers about a group, and how its plan counts in views."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSchedulingGroup
from berth.api.podgroups import GangPolicy, SchedulingPolicy, UpstreamPodGroup, UpstreamSpec
from berth.bus.interface import Entry
from berth.messages.attempts import DecisionSummary, Outcome, Positions
from berth.messages.bundles import bundled
from berth.messages.earmarks import Earmark
from berth.messages.encoding import encode
from berth.messages.groupattempts import GroupPending, GroupRanked
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term
from berth.ranking.groupranker import GroupRanker
from berth.ranking.view import View
from harness.builders.groups import RACK, a_group, members
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PROFILES = {"berth": default_profile()}


def a_view(*nodes: str, cpu: int = 4) -> View:
    view = View()
    for sequence, name in enumerate(nodes, 1):
        labels = {RACK: name[0], "kubernetes.io/hostname": name}
        apply(view, f"node.{name}", a_node(name, cpu=str(cpu), labels=labels), sequence)
    return view


def apply(view: View, key: str, thing: object, sequence: int = 1) -> None:
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing)))
    assert view.apply_mirror([Entry(key=key, data=encode_entry(entry), sequence=sequence, time=NOW)], sequence) == []


def asked(name: str, amount: int, **changes: Any) -> GroupPending:
    pods = members(amount, name, cpu="1")
    values = {
        "attempt": f"uid-{name}.2.1",
        "profile": "berth",
        "group": a_group(name, minimum=amount),
        "bundle": bundled(pods, dict.fromkeys((pod.uid for pod in pods), 4)),
        "need": amount,
    }
    return GroupPending(**{**values, **changes})


def a_ranker() -> GroupRanker:
    ticks = count()
    return GroupRanker(profiles=PROFILES, config="c", identity="scorer-1", clock=lambda: next(ticks) / 4)


def answer(pending: GroupPending, view: View, **options: Any) -> GroupRanked:
    return result_of(a_ranker().answer(pending, view, **options))


def result_of(answering: Iterable[None]) -> GroupRanked:
    iterator = iter(answering)
    while True:
        try:
            next(iterator)
        except StopIteration as end:
            found: GroupRanked = end.value
            return found


def decided(view: View, pod: Pod, outcome: Outcome, node: str = "") -> None:
    decide(view, f"{pod.uid}.2.4", outcome, node)


def decide(view: View, attempt: str, outcome: Outcome, node: str = "", now: float = 0.0) -> None:
    uid = attempt.split(".", maxsplit=1)[0]
    decision = DecisionSummary(attempt=attempt, profile="berth", epoch=1, outcome=outcome, uid=uid, node=node)
    view.proposals.decided(decision, NOW, now)


def nodes_of(view: View) -> dict[str, str]:
    return {each.pod.metadata.name: each.node for each in view.proposals}


def test_a_plan_says_where_it_was_made_and_what_it_took():
    view = a_view("a0", "a1")
    ranked = answer(asked("gang", 8), view)
    assert (ranked.plan.is_found, ranked.need, ranked.scorer, ranked.seconds) == (True, 8, "scorer-1", 0.25)
    assert ranked.positions == Positions(cluster=2)


def test_members_count_as_proposals_so_that_the_next_group_goes_elsewhere():
    view = a_view("a0", "a1", "b0")
    first = answer(asked("one", 8), view)
    second = answer(asked("two", 4), view)
    taken = {first.plan.nodes[member.node] for member in first.plan.members}
    assert len(view.proposals) == 12
    third = answer(asked("three", 1), view)
    assert (second.plan.is_found, third.plan.is_found, third.proposals_counted) == (True, False, True)
    assert len(taken) >= 2


def test_a_peers_plan_counts_in_the_same_way():
    one, other = a_view("a0", "a1"), a_view("a0", "a1")
    ranked = answer(asked("gang", 8), one)
    assert other.apply_ranked(encode(ranked), 7, 0.0) == ""
    assert sorted((each.pod.uid, each.node) for each in other.proposals) == sorted(
        (each.pod.uid, each.node) for each in one.proposals
    )


def test_only_a_peers_plan_counts_as_another_scorers():
    """Else a scorer that is alone would name more nodes for each pod beside its own groups."""
    one, other = a_view("a0", "a1"), a_view("a0", "a1")
    ranked = answer(asked("gang", 8), one)
    assert other.apply_ranked(encode(ranked), 7, 0.0) == ""
    assert [view.proposals.others_propose(ranked.scorer) for view in (one, other)] == [False, False]
    assert [view.proposals.others_propose("scorer-2") for view in (one, other)] == [True, True]


def test_what_no_proposal_keeps_out_is_unschedulable():
    view = a_view("a0")
    apply(view, "pod.uid-full", a_pod("full", cpu="4", node="a0"), 5)
    ranked = answer(asked("gang", 2), view)
    assert (ranked.plan.is_found, ranked.proposals_counted, ranked.behind) == (False, False, False)


def test_a_rejection_on_a_view_that_is_behind_says_so():
    ranked = answer(asked("gang", 9, after=Positions(cluster=99)), a_view("a0"))
    assert (ranked.plan.is_found, ranked.behind) == (False, True)
    assert answer(asked("gang", 4, after=Positions(cluster=99)), a_view("a0")).plan.is_found


def test_a_proposal_ends_with_its_members_decision_and_moves_with_it():
    view = a_view("a0", "a1")
    pods = members(2, "gang", cpu="1")
    answer(asked("gang", 2), view)
    decided(view, pods[0], Outcome.CONFLICT)
    decided(view, pods[1], Outcome.BOUND, "a1")
    assert [(each.pod.uid, each.node) for each in view.proposals] == [(pods[1].uid, "a1")]


@pytest.mark.parametrize("outcome", [each for each in Outcome if each.final])
def test_a_groups_decision_ends_the_proposals_of_members_that_are_not_bound(outcome: Outcome):
    view = a_view("a0", "a1")
    pods = members(3, "gang", cpu="1")
    answer(asked("gang", 3), view)
    answer(asked("other", 1), view)
    decided(view, pods[0], Outcome.BOUND, "a1")
    decide(view, "uid-gang.2.1", outcome)
    assert set(nodes_of(view)) == {"gang000", "other000"}
    view.apply_mirror([], 9)
    view.proposals.mirrored(pods[0].uid)
    assert set(nodes_of(view)) == {"other000"}


def test_a_group_that_waits_keeps_its_room_for_another_life_and_the_room_is_certain():
    view = a_view("a0", "a1")
    answer(asked("gang", 2), view)
    decide(view, "uid-gang.2.1", Outcome.WAITING, now=20.0)
    view.expire(40.0)
    assert set(nodes_of(view)) == {"gang000", "gang001"}
    assert list(view.proposals.uncertain()) == []
    view.expire(50.0)
    assert nodes_of(view) == {}


def test_an_older_attempts_decision_ends_nothing_of_the_next_one():
    view = a_view("a0", "a1")
    answer(asked("gang", 2, attempt="uid-gang.2.2"), view)
    decide(view, "uid-gang.2.1", Outcome.CONFLICT)
    assert set(nodes_of(view)) == {"gang000", "gang001"}


def test_a_groups_decision_may_come_before_its_ranking():
    one, other = a_view("a0", "a1"), a_view("a0", "a1")
    ranked = answer(asked("gang", 2), one)
    decide(other, "uid-gang.2.1", Outcome.CONFLICT)
    other.apply_ranked(encode(ranked), 7, 0.0)
    assert nodes_of(other) == {}
    again = answer(asked("gang", 2, attempt="uid-gang.2.2"), one)
    other.apply_ranked(encode(again), 8, 0.0)
    assert nodes_of(other) == nodes_of(one)


def test_members_without_a_place_take_no_place_among_undecided_proposals():
    view = a_view("a0")
    for name in ("one", "two", "three"):
        assert not answer(asked(name, 1900), view).plan.is_found
    answer(asked("gang", 4), view)
    assert len(view.proposals) == 4


def test_what_is_no_groups_ranking_is_reported():
    view = a_view("a0")
    data = encode(answer(asked("gang", 2), a_view("a0"))).replace(b'"attempt":"uid-gang', b'"attempt":"uid-other')
    assert "want an attempt of group" in view.apply_ranked(data, 7, 0.0)
    assert (view.undecodable, len(view.proposals)) == (1, 0)


def test_the_next_attempt_replaces_all_of_the_former_ones_proposals():
    view = a_view("a0", "a1")
    answer(asked("gang", 8), view)
    again = answer(asked("gang", 8, attempt="uid-gang.2.2"), view)
    assert (again.plan.is_found, len(view.proposals)) == (True, 8)
    apply(view, "pod.uid-full", a_pod("full", cpu="4", node="a0"), 9)
    failed = answer(asked("gang", 8, attempt="uid-gang.2.3"), view)
    assert (failed.plan.is_found, len(view.proposals)) == (False, 0)


def test_a_member_that_the_view_shows_bound_stays_where_it_is():
    view = a_view("a0", "a1")
    apply(view, "pod.uid-gang000", a_pod("gang000", cpu="1", node="a1"), 9)
    for paused in (True, False):
        ranked = answer(asked("gang", 2), view, may_continue=lambda paused=paused: not paused)
        assert ranked.plan.is_found
        assert view.snapshot.node_of("uid-gang000") == "a1"
        assert view.snapshot.pod_count == 2


def test_an_error_is_an_answer_without_a_plan():
    ranked = a_ranker().give_up(asked("gang", 2), "too many")
    assert (ranked.plan.error, ranked.plan.is_found, ranked.need) == ("too many", False, 2)


def test_the_view_may_change_while_a_plan_pauses():
    view = a_view("a0", "a1")
    answering = a_ranker().answer(asked("gang", 8), view, may_continue=lambda: False)
    next(answering)
    assert len(view.proposals) == 0
    apply(view, "pod.uid-late", a_pod("late", cpu="4", node="a0"), 9)
    ranked = result_of(answering)
    assert (ranked.plan.is_found, ranked.positions.cluster) == (True, 2)
    assert view.snapshot.pods_on("a0") == 5


def important(name: str, amount: int, **changes: Any) -> GroupPending:
    pods = members(amount, name, cpu="1", priority=100)
    return asked(name, amount, bundle=bundled(pods, dict.fromkeys((pod.uid for pod in pods), 4)), **changes)


def victims_of(ranked: GroupRanked) -> set[str]:
    assert ranked.preemption is not None
    assert ranked.preemption.node == ""
    return {victim.name for victim in ranked.preemption.victims}


def test_an_important_group_that_does_not_fit_names_the_pods_to_evict():
    view = a_view("a0", "a1")
    for number in range(8):
        apply(view, f"pod.uid-low{number}", a_pod(f"low{number}", cpu="1", node=f"a{number % 2}"), 10 + number)
    ranked = answer(important("gang", 3), view)
    assert (ranked.plan.is_found, len(victims_of(ranked))) == (False, 3)
    assert answer(asked("other", 3), view).preemption is None
    assert view.snapshot.pod_count == 8


def test_a_proposal_is_no_victim_and_a_group_that_goes_as_one_is_named_whole():
    view = a_view("a0", "a1")
    apply(
        view,
        "podgroup.uid-low",
        UpstreamPodGroup(
            metadata=ObjectMeta(name="low", namespace="default", uid="uid-low"),
            spec=UpstreamSpec(
                scheduling_policy=SchedulingPolicy(gang=GangPolicy(min_count=3)), disruption_mode="PodGroup"
            ),
        ),
        10,
    )
    named = {"scheduling_group": PodSchedulingGroup(pod_group_name="low")}
    for number, node in enumerate(("a0", "a0", "a1")):
        apply(view, f"pod.uid-low{number}", a_pod(f"low{number}", cpu="2", node=node, **named), 11 + number)
    assert answer(asked("proposed", 1), view).plan.is_found
    ranked = answer(important("gang", 8), view)
    assert victims_of(ranked) == {"low0", "low1", "low2"}


def test_no_eviction_is_proposed_where_only_proposals_are_in_the_way_or_the_view_is_behind():
    view = a_view("a0")
    answer(asked("proposed", 3), view)
    ranked = answer(important("gang", 4), view)
    assert (ranked.proposals_counted, ranked.preemption) == (True, None)
    full = a_view("a0")
    apply(full, "pod.uid-low", a_pod("low", cpu="4", node="a0"), 10)
    assert answer(important("gang", 4, after=Positions(cluster=99)), full).preemption is None
    assert answer(important("gang", 4), full).preemption is not None


EARMARKED = {
    "dialect": "scheduling.x-k8s.io",
    "namespace": "default",
    "name": "waiting",
    "uid": "uid-waiting",
    "profile": "berth",
    "nodes": ["a1"],
}


def test_a_scorer_keeps_a_fresh_group_off_earmarked_nodes_until_their_earmark_ends():
    view = a_view("a1", "a2")
    apply(view, "earmark.berth", Earmark(**EARMARKED))
    refused = answer(asked("gang", 5), view)
    assert not refused.plan.is_found
    assert {each.plugin for each in refused.plan.classes[0].rejections} == {"GroupEarmark", "NodeResourcesFit"}
    assert view.apply_mirror([Entry(key="earmark.berth", data=None, sequence=9, time=NOW)], 9) == []
    assert answer(asked("gang", 5), view).plan.is_found


def test_the_rest_of_a_begun_group_ignores_earmarks_and_others_that_are_ranked_meanwhile_do_not():
    view = a_view("a1", "a2")
    earmark = Earmark(**EARMARKED)
    apply(view, "earmark.berth", earmark)
    answering = a_ranker().answer(asked("gang", 5, bound=["uid-first"]), view, may_continue=lambda: False)
    next(answering)
    assert view.snapshot.earmarks == {"berth": earmark}
    assert result_of(answering).plan.is_found
    assert view.snapshot.earmarks == {"berth": earmark}
