"""How a shadow's ranking of a pod is compared with the live one."""

from __future__ import annotations

import msgspec
import pytest

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.meta import NAME_CHARACTERS
from berth.framework.status import SUCCESS, Code, Status
from berth.messages.attempts import Candidate, DecisionSummary, Outcome, Preemption, Ranked, Rejection, Victim
from berth.messages.bundles import bundled
from berth.messages.encoding import decode, encode
from berth.messages.groupattempts import GroupRanked
from berth.messages.groups import ClassPlan, GroupPlan, PlannedMember
from berth.messages.shadow import (
    SHOWN_CANDIDATES,
    SHOWN_REJECTIONS,
    TEXT_CHARACTERS,
    ShadowComparison,
    ShadowResult,
    SkipReason,
)
from berth.ranking import comparison
from berth.ranking.comparison import (
    MOST_PLUGINS,
    AwaitedDecisions,
    ShadowCounts,
    compare,
    compare_plans,
    refusing_plugins,
    skip_reason,
)
from harness.builders.groups import a_group, members
from harness.builders.objects import a_pod, first_attempt
from harness.builders.profiles import default_profile

POD = a_pod("web-0")
FULL = Status(code=Code.UNSCHEDULABLE, plugin="NodeResourcesFit", reasons=("Insufficient cpu",))
SECONDS = comparison.UNDECIDED_SECONDS


def a_ranking(*candidates: tuple[str, int], **fields: object) -> Ranked:
    named = [Candidate(node=node, total=total) for node, total in candidates]
    given = {"attempt": str(first_attempt(POD)), "profile": "berth", "pod": POD, "candidates": named}
    return Ranked(**{**given, **fields})


def a_decision(outcome: Outcome = Outcome.BOUND, node: str = "a") -> DecisionSummary:
    attempt = str(first_attempt(POD))
    return DecisionSummary(attempt=attempt, profile="berth", epoch=1, outcome=outcome, uid=POD.uid, node=node)


def compared(live: Ranked, own: Ranked, rejection: Status | None = None) -> ShadowComparison:
    return compare(live, own, shadow="packed", rejection=rejection)


@pytest.mark.parametrize(
    ("live", "own", "result"),
    [
        pytest.param(a_ranking(("a", 9), ("b", 8)), a_ranking(("a", 3), ("c", 2)), "equal", id="the same node is best"),
        pytest.param(a_ranking(("a", 9), ("b", 8)), a_ranking(("b", 9), ("a", 8)), "node", id="another node is best"),
        pytest.param(a_ranking(("a", 9)), a_ranking(), "refused", id="only live finds one"),
        pytest.param(a_ranking(), a_ranking(("a", 9)), "feasible", id="only the shadow finds one"),
        pytest.param(a_ranking(), a_ranking(), "equal", id="neither finds one"),
        pytest.param(
            a_ranking(preemption=Preemption(node="a")),
            a_ranking(preemption=Preemption(node="a")),
            "equal",
            id="both would evict on one node",
        ),
        pytest.param(
            a_ranking(preemption=Preemption(node="a")),
            a_ranking(preemption=Preemption(node="b")),
            "preemption",
            id="they would evict on two nodes",
        ),
        pytest.param(a_ranking(preemption=Preemption(node="a")), a_ranking(), "preemption", id="only live would evict"),
        pytest.param(a_ranking(("a", 9)), a_ranking(error="it fails"), "error", id="the shadow fails"),
    ],
)
def test_the_result_is_about_the_best_node(live: Ranked, own: Ranked, result: str):
    assert compared(live, own).result == result


@pytest.mark.parametrize(
    ("own", "apart", "place"),
    [
        pytest.param([("a", 90), ("b", 80)], 0, 1, id="the best node itself"),
        pytest.param([("b", 90), ("c", 85), ("a", 70)], 20, 3, id="two nodes have more points"),  # 90 - 70
        pytest.param([("b", 90), ("a", 90)], 0, 1, id="equal points in another order"),
        pytest.param([("b", 90), ("c", 85)], None, None, id="the shadow has not scored it"),
    ],
)
def test_the_distance_is_that_of_the_live_node_by_the_shadows_scores(own, apart, place):
    found = compared(a_ranking(("a", 5)), a_ranking(*own))
    assert (found.points_apart, found.place) == (apart, place)


def test_a_node_far_from_the_best_has_the_place_that_the_cycle_counted():
    far = Candidate(node="a", total=10, place=612)
    own = a_ranking(candidates=[Candidate(node="b", total=90), far])
    found = compared(a_ranking(("a", 5)), own)
    assert (found.points_apart, found.place) == (80, 612)


def test_a_refused_live_node_is_counted_for_the_plugin_that_refuses_it():
    live = a_ranking(("a", 9))
    found = compared(live, a_ranking(("b", 9)), FULL)
    assert (found.result, found.refused_by, found.reason) == ("node", "NodeResourcesFit", "Insufficient cpu")
    assert list(refusing_plugins(found, live)) == [("shadow", "NodeResourcesFit")]
    assert list(refusing_plugins(compared(live, a_ranking(("b", 9)), SUCCESS), live)) == []


def test_what_only_the_shadow_places_is_counted_for_the_live_plugins():
    live = a_ranking(blockers=["InterPodAffinity", "TaintToleration"])
    found = compared(live, a_ranking(("b", 9)))
    assert list(refusing_plugins(found, live)) == [("live", "InterPodAffinity"), ("live", "TaintToleration")]


def test_a_plugins_name_that_is_too_long_is_cut():
    live = a_ranking(blockers=["x" * 10_000])
    ((_, plugin),) = refusing_plugins(compared(live, a_ranking(("b", 9))), live)
    assert len(plugin) == NAME_CHARACTERS


def test_a_person_sees_the_first_nodes_of_each_and_the_best_one_of_the_other():
    live = a_ranking(*((f"n{number}", 100 - number) for number in range(30)))
    own = a_ranking(("n29", 9), *((f"x{number}", 5) for number in range(20)), ("n0", 1))
    found = compared(live, own)
    assert [each.node for each in found.live.candidates] == [*(f"n{number}" for number in range(8)), "n29"]
    assert (found.live.candidates[-1].place, found.own.candidates[-1].place) == (30, 22)
    assert found.own.candidates[-1].node == "n0"
    assert len(found.own.candidates) == SHOWN_CANDIDATES + 1


def test_what_is_broadcast_can_be_read_again_and_says_where():
    found = compared(a_ranking(("a", 9)), a_ranking(message="x" * 5000, rejections=[a_rejection()] * 100), FULL)
    again = decode(encode(found), ShadowComparison)
    assert again == found
    assert found.subject == "berth.shadow.packed.berth.default.web-0"
    assert len(found.own.message) == TEXT_CHARACTERS + 3
    assert len(found.own.rejections) == SHOWN_REJECTIONS


def a_rejection() -> Rejection:
    return Rejection(plugin="NodeResourcesFit", reason="Insufficient cpu", nodes=3)


@pytest.mark.parametrize(
    ("live", "reason"),
    [
        pytest.param(a_ranking(("a", 9)), None, id="it is compared"),
        pytest.param(a_ranking(error="a plugin failed"), SkipReason.LIVE, id="the live ranking failed"),
        pytest.param(a_ranking(behind=True), SkipReason.LIVE, id="the live view was behind"),
    ],
)
def test_a_live_ranking_that_says_nothing_about_the_configuration_is_not_compared(live, reason):
    assert skip_reason(live, default_profile()) is reason


def test_a_profile_that_the_shadow_lacks_is_not_compared():
    assert skip_reason(a_ranking(("a", 9)), None) is SkipReason.PROFILE


@pytest.mark.parametrize(
    ("verb", "reason"),
    [("filter_verb", SkipReason.EXTENDERS), ("prioritize_verb", SkipReason.EXTENDERS), ("preempt_verb", None)],
)
def test_a_ranking_is_not_compared_if_its_scorer_asked_extenders(verb, reason):
    """About evictions the binder asks them."""
    profile = default_profile()
    profile.extenders = (ExtenderConfiguration(url_prefix="", name="", **{verb: "verb"}),)
    assert skip_reason(a_ranking(("a", 9)), profile) is reason


def test_a_comparison_gets_its_final_decision_once():
    awaited = AwaitedDecisions()
    awaited.add(compared(a_ranking(("a", 9)), a_ranking(("b", 9))), 0.0)
    assert awaited.decided(a_decision(Outcome.WAITING)) is None
    found = awaited.decided(a_decision())
    assert found is not None
    assert (found.outcome, found.node) == (Outcome.BOUND, "a")
    assert awaited.decided(a_decision()) is None


def test_a_decision_that_never_comes_is_given_up():
    awaited = AwaitedDecisions()
    awaited.add(compared(a_ranking(("a", 9)), a_ranking(("b", 9))), 10.0)
    assert awaited.expire(10.0 + SECONDS - 0.1) == 0
    assert awaited.expire(10.0 + SECONDS) == 1
    assert len(awaited) == 0


def test_comparisons_without_a_decision_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(comparison, "MOST_UNDECIDED", 3)
    awaited, one = AwaitedDecisions(), compared(a_ranking(("a", 9)), a_ranking(("b", 9)))
    dropped = [awaited.add(msgspec.structs.replace(one, attempt=f"u.1.{n}"), 0.0) for n in range(5)]
    assert (dropped, len(awaited)) == ([0, 0, 0, 1, 1], 3)


def test_figures_are_those_of_all_comparisons():
    counts = ShadowCounts()
    live = a_ranking(("a", 5))
    for own in (a_ranking(("a", 9)), a_ranking(("b", 90), ("a", 70)), a_ranking(("b", 90), ("a", 85)), a_ranking()):
        counts.count(compared(live, own))
    counts.skipped[SkipReason.BUSY] += 2
    figures = counts.figures("packed")
    assert (figures.name, figures.compared, figures.skipped) == ("packed", 4, {"busy": 2})
    assert figures.results == {ShadowResult.EQUAL: 1, ShadowResult.NODE: 2, ShadowResult.REFUSED: 1}
    assert figures.points_apart == 12.5  # (20 + 5) / 2, of the pods with another node


def test_names_of_plugins_that_are_invented_do_not_fill_the_counts():
    counts = ShadowCounts()
    named = [counts.count_refusal("live", f"Evil{number}") for number in range(MOST_PLUGINS + 10)]
    assert named.count(True) == len(counts.figures("x").placed_against) == MOST_PLUGINS
    assert counts.count_refusal("live", "Evil0")


# --- groups

MEMBERS = [*members(2, "head", cpu="2"), *members(2, "worker", cpu="1")]


def a_plan(*nodes: str, domain: str = "", **fields: object) -> GroupRanked:
    """The members on these nodes, in order; none: no plan."""
    names = sorted(set(nodes))
    planned = [
        PlannedMember(uid=pod.uid, of_class=0, node=names.index(node))
        for pod, node in zip(MEMBERS, nodes, strict=bool(nodes))
    ]
    full = ClassPlan(members=4, rejections=[Rejection(plugin="NodeResourcesFit", reason="Insufficient cpu", nodes=3)])
    plan = GroupPlan(
        need=4,
        nodes=names,
        members=planned,
        classes=[ClassPlan(members=4, placed=4) if nodes else full],
        topology_key="rack" if domain else "",
        domain=domain,
        message="" if nodes else "0 of 4 have a place",
    )
    given = {
        "attempt": "uid-gang.1.1",
        "profile": "berth",
        "group": a_group(minimum=4),
        "bundle": bundled(MEMBERS, dict.fromkeys((pod.uid for pod in MEMBERS), 1)),
        "need": 4,
        "plan": plan,
    }
    return GroupRanked(**{**given, **fields})


NO_PLAN = a_plan()
EVICTS = a_plan(preemption=Preemption(node="", victims=[Victim(uid="u", namespace="default", name="low")]))
BROKEN = a_plan(plan=GroupPlan(need=4, error="a plugin failed"))


@pytest.mark.parametrize(
    ("live", "own", "result", "elsewhere"),
    [
        pytest.param(a_plan("a", "b", "c", "d"), a_plan("b", "a", "d", "c"), "equal", 0, id="equal pods change places"),
        pytest.param(a_plan("a", "b", "c", "d"), a_plan("c", "b", "a", "d"), "node", 2, id="a head and a worker do"),
        pytest.param(a_plan("a", "b", "c", "d"), a_plan("a", "b", "c", "e"), "node", 1, id="one elsewhere"),
        pytest.param(a_plan("a", "b", "c", "d"), NO_PLAN, "refused", None, id="only the live one finds a plan"),
        pytest.param(NO_PLAN, a_plan("a", "b", "c", "d"), "feasible", None, id="only the shadow does"),
        pytest.param(NO_PLAN, NO_PLAN, "equal", None, id="neither does"),
        pytest.param(NO_PLAN, EVICTS, "preemption", None, id="only the shadow would evict"),
        pytest.param(NO_PLAN, BROKEN, "error", None, id="the shadow fails"),
    ],
)
def test_of_a_group_its_members_on_other_nodes_count(live, own, result, elsewhere):
    found = compare_plans(live, own, shadow="packed")
    assert (found.result, found.elsewhere) == (result, elsewhere)
    assert (found.namespace, found.pod, found.uid) == ("default", "~gang", "uid-gang")
    assert decode(encode(found), ShadowComparison) == found


def test_a_person_reads_of_a_group_where_its_members_are_or_why_they_are_nowhere():
    racks = [a_plan("a", "a", "b", "b", domain=name) for name in ("r1", "r2")]
    found = compare_plans(*racks, shadow="packed")
    assert [found.live.message, found.own.message] == ["4 members on 2 nodes, rack r1", "4 members on 2 nodes, rack r2"]
    found = compare_plans(racks[0], EVICTS, shadow="packed")
    assert found.own.message == "0 of 4 have a place; evictions would make room"
    assert (found.refused_by, found.reason) == ("NodeResourcesFit", "Insufficient cpu")
    assert [*refusing_plugins(found, racks[0])] == [("shadow", "NodeResourcesFit")]
    found = compare_plans(NO_PLAN, racks[0], shadow="packed")
    assert [*refusing_plugins(found, NO_PLAN)] == [("live", "NodeResourcesFit")]


@pytest.mark.parametrize(
    ("live", "reason"), [(BROKEN, SkipReason.LIVE), (a_plan(behind=True), SkipReason.LIVE), (a_plan(), None)]
)
def test_a_live_plan_that_says_nothing_about_the_configuration_is_not_compared(live, reason):
    assert skip_reason(live, default_profile()) == reason
    assert skip_reason(live, None) is SkipReason.PROFILE
