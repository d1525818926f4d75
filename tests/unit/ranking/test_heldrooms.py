"""Room that the binder holds for a pod that waits: whoever it keeps out is rejected as by a bound pod."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from berth.api.kinds import PLUGIN_KINDS
from berth.api.meta import LabelSelector
from berth.api.pod import (
    Affinity,
    ContainerPort,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from berth.api.volumes import CSISource
from berth.bus.interface import Entry
from berth.messages.attempts import DecisionSummary, Outcome, Pending, Ranked, Victim
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term, key
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from harness.builders.objects import a_container, a_node, a_pod
from harness.builders.profiles import default_profile
from harness.builders.volumes import DRIVER, a_claim, a_csi_node, a_volume, kind_of, pod_with_claims

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOST = "kubernetes.io/hostname"
WEB = LabelSelector(match_labels={"app": "web"})
APART = Affinity(
    pod_anti_affinity=PodAffinity(
        required_during_scheduling_ignored_during_execution=[PodAffinityTerm(topology_key=HOST, label_selector=WEB)]
    )
)
SPREAD = TopologySpreadConstraint(max_skew=1, topology_key=HOST, when_unsatisfiable="DoNotSchedule", label_selector=WEB)


def using_a_disk(name: str, **spec: object) -> Pod:
    return pod_with_claims(name, f"{name}-disk", **spec)


def with_port(name: str, **spec: object) -> Pod:
    container = msgspec.structs.replace(a_container(cpu="1"), ports=[ContainerPort(container_port=80, host_port=80)])
    return a_pod(name, containers=[container], **spec)


CASES = {
    "cpu": (lambda name, **spec: a_pod(name, cpu="3", **spec), "NodeResourcesFit"),
    "number of pods": (lambda name, **spec: a_pod(name, cpu="1m", **spec), "NodeResourcesFit"),
    "host ports": (with_port, "NodePorts"),
    "anti-affinity": (
        lambda name, **spec: a_pod(name, cpu="1m", labels={"app": "web"}, affinity=APART, **spec),
        "InterPodAffinity",
    ),
    "spread": (
        lambda name, **spec: a_pod(name, cpu="1m", labels={"app": "web"}, topology_spread_constraints=[SPREAD], **spec),
        "PodTopologySpread",
    ),
    "volumes of a driver": (using_a_disk, "NodeVolumeLimits"),
}


def apply(view: View, name: str, thing: object) -> None:
    value = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing)))
    assert view.apply_mirror([Entry(key=name, data=encode_entry(value), sequence=1, time=NOW)], 1) == []


def a_view(case: str) -> View:
    """A node with room for one pod of the case, and one that only spread constraints look at."""
    view = View()
    pods = "1" if case == "number of pods" else "110"
    apply(view, "node.n1", a_node("n1", cpu="4", pods=pods, labels={HOST: "n1"}))
    if case == "spread":
        apply(view, "node.n2", a_node("n2", cpu="0", labels={HOST: "n2"}))
    storage = [a_csi_node("n1", disks_example_com=1)]
    for name in ("first", "second"):
        disk = CSISource(driver=DRIVER, volume_handle=f"{name}-pv")
        storage += [a_volume(f"{name}-pv", csi=disk), a_claim(f"{name}-disk", volume=f"{name}-pv")]
    for thing in storage:
        name = PLUGIN_KINDS[kind_of(thing)].key_of(uid=thing.metadata.uid, name=thing.metadata.name)
        apply(view, key(kind_of(thing), name), thing)
    return view


def answer(view: View, pod: Pod, n: int = 1) -> Ranked:
    one = Ranker(profiles={"berth": default_profile()}, config="c", identity="s-1", best=8)
    return one.answer(Pending(attempt=f"{pod.uid}.1.{n}", profile="berth", pod=pod), view, 0.0)


def decide(view: View, pod: Pod, outcome: Outcome, node: str = "n1") -> None:
    decision = DecisionSummary(
        attempt=f"{pod.uid}.1.1", profile="berth", epoch=1, outcome=outcome, uid=pod.uid, node=node
    )
    view.proposals.decided(decision, NOW, 0.0)


@pytest.mark.parametrize("case", CASES)
def test_a_pod_that_waits_keeps_others_out_as_if_it_were_bound(case):
    make, plugin = CASES[case]
    held, bound = a_view(case), a_view(case)
    assert [each.node for each in answer(held, make("first")).candidates] == ["n1"]
    decide(held, make("first"), Outcome.WAITING)
    apply(bound, "pod.uid-first", make("first", node="n1"))
    by_held, by_bound = answer(held, make("second")), answer(bound, make("second"))
    assert not by_held.proposals_counted
    assert plugin in by_held.blockers
    assert (by_held.message, by_held.rejections, by_held.blockers) == (
        by_bound.message,
        by_bound.rejections,
        by_bound.blockers,
    )


@pytest.mark.parametrize("case", CASES)
def test_before_the_wait_and_after_it_the_pod_is_a_conflict(case):
    """A proposal that ends in milliseconds, and a bound pod that may be deleted before the mirror shows it."""
    make, _ = CASES[case]
    view = a_view(case)
    first = make("first")
    answer(view, first)
    assert answer(view, make("second")).proposals_counted
    decide(view, first, Outcome.WAITING)
    decide(view, first, Outcome.BOUND)
    assert answer(view, make("second"), n=2).proposals_counted


@pytest.mark.parametrize("outcome", [Outcome.UNSCHEDULABLE, Outcome.GONE, Outcome.ERROR, Outcome.CONFLICT])
@pytest.mark.parametrize("case", CASES)
def test_the_end_of_the_wait_frees_the_room(case, outcome):
    make, _ = CASES[case]
    view = a_view(case)
    first = make("first")
    answer(view, first)
    decide(view, first, Outcome.WAITING)
    decide(view, first, outcome)
    assert [each.node for each in answer(view, make("second")).candidates] == ["n1"]


def test_beside_a_short_proposal_a_held_room_alone_does_not_decide():
    """Without the proposal the pod fits beside the held room: it is a conflict."""
    view = View()
    apply(view, "node.n1", a_node("n1", cpu="4"))
    answer(view, a_pod("first", cpu="1"))
    decide(view, a_pod("first", cpu="1"), Outcome.WAITING)
    answer(view, a_pod("short", cpu="1"))
    assert answer(view, a_pod("second", cpu="3")).proposals_counted
    assert not answer(view, a_pod("third", cpu="4")).proposals_counted


def test_a_more_important_pod_preempts_one_that_waits():
    view = View()
    apply(view, "node.n1", a_node("n1", cpu="4"))
    low = a_pod("low", cpu="3", priority=0)
    answer(view, low)
    decide(view, low, Outcome.WAITING)
    ranked = answer(view, a_pod("vip", cpu="3", priority=100))
    assert not ranked.proposals_counted
    assert ranked.preemption.victims == [Victim(uid="uid-low", namespace="default", name="low")]
