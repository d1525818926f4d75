"""What one pod can cost the others: each part of its spec is evaluated once, and counted by what it is about."""

from __future__ import annotations

import pytest

from berth.api.meta import LabelSelector, SelectorRequirement
from berth.api.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from berth.api.selectors import AffinityTermKind, PodSelector, compile_affinity_terms
from berth.cluster import columns, pods, topologycounts
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import PodsMatching, PodsWithTerm
from berth.framework.cycle import check, rank
from berth.plugins import matching
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import default_profile

ZONE = "topology.kubernetes.io/zone"


@pytest.fixture
def snapshot() -> Snapshot:
    snapshot = Snapshot()
    for number in range(20):
        snapshot.set_node(a_node(f"n{number}", labels={ZONE: "abc"[number % 3], "number": str(number)}))
    return snapshot


def on_nodes(*expressions: SelectorRequirement, **spec) -> Pod:
    terms = [NodeSelectorTerm(match_expressions=[each]) for each in expressions]
    required = NodeAffinity(required_during_scheduling_ignored_during_execution=NodeSelector(node_selector_terms=terms))
    return a_pod(affinity=Affinity(node_affinity=required), **spec)


def apart_from(*apps: str, namespaces: list[str] | None = None) -> Affinity:
    terms = [
        PodAffinityTerm(
            topology_key=ZONE, label_selector=LabelSelector(match_labels={"app": app}), namespaces=namespaces
        )
        for app in apps
    ]
    return Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=terms))


def spread(number: int) -> TopologySpreadConstraint:
    return TopologySpreadConstraint(
        max_skew=1,
        topology_key=ZONE,
        when_unsatisfiable=("DoNotSchedule", "ScheduleAnyway")[number % 2],
        label_selector=LabelSelector(match_labels={"app": f"app-{number}"}),
    )


def counting(monkeypatch, target, name: str) -> list[object]:
    """The first arguments of every call."""
    calls, function = [], getattr(target, name)

    def counted(*args, **kwargs):
        calls.append(args[0])
        return function(*args, **kwargs)

    monkeypatch.setattr(target, name, counted)
    return calls


def ranked(pod: Pod, snapshot: Snapshot):
    return rank(pod, snapshot, default_profile(), attempt=first_attempt(pod))


def test_a_node_selector_is_evaluated_once_a_class_however_many_constraints_read_it(snapshot, monkeypatch):
    pod = on_nodes(
        *(SelectorRequirement(key="number", operator="In", values=[str(number)]) for number in range(8)),
        topology_spread_constraints=[spread(number) for number in range(4)],
    )
    evaluated = counting(monkeypatch, matching, "term_mask")
    assert len(ranked(pod, snapshot).candidates) > 0
    assert len(evaluated) == 8
    assert ranked(pod, snapshot).candidates
    assert check(pod, "n1", snapshot, default_profile()).is_success
    assert len(evaluated) == 8


def test_only_a_changed_node_is_evaluated_again(snapshot):
    pod = on_nodes(
        SelectorRequirement(key="number", operator="NotIn", values=["3"]), topology_spread_constraints=[spread(0)]
    )
    allowed = matching.EligibleNodes.of(snapshot).allowed(snapshot.class_of(pod))
    assert [row for row in range(20) if not allowed[row]] == [3]
    for name, label in (("n3", "30"), ("n4", "3"), ("n20", "3")):
        snapshot.set_node(a_node(name, labels={"number": label}))
    allowed = matching.EligibleNodes.of(snapshot).allowed(snapshot.class_of(pod))
    assert [row for row in range(21) if not allowed[row]] == [4, 20]


def test_each_label_value_is_parsed_once_for_any_number_of_comparisons(snapshot, monkeypatch):
    parsed = counting(monkeypatch, columns, "whole_number")
    pod = on_nodes(*(SelectorRequirement(key="number", operator="Gt", values=[str(bound)]) for bound in range(15, 40)))
    assert {each.node for each in ranked(pod, snapshot).candidates} == {"n16", "n17", "n18", "n19"}
    assert len(parsed) == 20


def test_the_terms_of_a_pod_are_compiled_once(snapshot, monkeypatch):
    compiled = counting(monkeypatch, pods, "compile_affinity_terms")
    pod, again = (a_pod(name, affinity=apart_from("db", "web")) for name in ("one", "two"))
    for each in (pod, pod, again):
        assert ranked(each, snapshot).candidates
        assert check(each, "n1", snapshot, default_profile()).is_success
    assert len(compiled) == 1


def test_terms_about_one_namespace_are_not_compared_with_pods_of_others(snapshot, monkeypatch):
    for number in range(30):
        noisy = {"name": f"noisy-{number}", "namespace": "noisy"}
        pod = a_pod(
            uid=f"noisy-{number}", metadata=noisy, affinity=apart_from(f"app-{number}"), labels={"n": str(number)}
        )
        assert ranked(pod, snapshot).candidates
        snapshot.place(pod, f"n{number % 20}")
    compared = counting(monkeypatch, PodSelector, "matches")
    quiet = a_pod("quiet", labels={"app": "app-1"}, affinity=apart_from("quiet"))
    assert ranked(quiet, snapshot).candidates
    snapshot.place(quiet, "n0")
    assert {selector.namespaces for selector in compared} == {frozenset({"default"})}


def test_a_term_that_names_another_namespace_counts_there(snapshot):
    apart = a_pod("apart", metadata={"namespace": "noisy"}, affinity=apart_from("web", namespaces=["default", "other"]))
    snapshot.place(apart, "n0")
    web = a_pod("web", labels={"app": "web"})
    assert not {f"n{row}" for row in (0, 3, 6)} & {each.node for each in ranked(web, snapshot).candidates}
    snapshot.remove_pod(apart.uid)
    assert len(ranked(web, snapshot).candidates) == 20


def test_counts_follow_pods_after_a_query_was_dropped_and_made_again(snapshot, monkeypatch):
    monkeypatch.setattr(topologycounts, "_MAX_BYTES", 0)
    snapshot.place(a_pod("web-0", labels={"app": "web"}), "n0")
    for number in range(3 * topologycounts._MIN_QUERIES):
        selector = compile_affinity_terms(apart_from(f"app-{number}"), "default").required_anti_affinity[0].selector
        snapshot.groups.count_pods(PodsMatching((selector,)))
    [web] = compile_affinity_terms(apart_from("web"), "default").required_anti_affinity
    counts = snapshot.groups.count_pods(PodsMatching((web.selector,)))
    assert counts.counts[:2].tolist() == [1, 0]
    snapshot.place(a_pod("web-1", labels={"app": "web", "more": "x"}), "n1")
    snapshot.remove_pod("uid-web-0")
    assert counts.counts[:2].tolist() == [0, 1]
    assert not snapshot.groups.count_pods(PodsWithTerm(AffinityTermKind.REQUIRED_ANTI_AFFINITY, web)).counts.any()


def test_a_hostile_message_with_more_than_a_cycle_can_take_is_an_error_and_evaluates_nothing(snapshot, monkeypatch):
    evaluated = counting(monkeypatch, matching, "term_mask")
    pod = on_nodes(*(SelectorRequirement(key=f"k{number}", operator="Exists") for number in range(1001)))
    ranking = ranked(pod, snapshot)
    assert ranking.error == (
        "the pod has more than a scheduling cycle can take: 1001 node selector expressions (at most 1000)"
    )
    assert (ranking.candidates, evaluated) == ((), [])


def test_the_affinity_of_a_placed_pod_above_the_limits_counts_for_nobody(snapshot):
    snapshot.place(a_pod("huge", affinity=apart_from(*(f"app-{number}" for number in range(257)))), "n0")
    web = a_pod("web", labels={"app": "app-1"})
    assert len(ranked(web, snapshot).candidates) == 20
    snapshot.place(a_pod("large", affinity=apart_from(*(f"app-{number}" for number in range(256)))), "n0")
    assert len(ranked(web, snapshot).candidates) == 13
