"""What a ranker answers for a pod of high priority that fits nowhere."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from berth.api.config.nodeload.args import NodeLoadArgs
from berth.api.meta import LabelSelector
from berth.api.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PreferredNodeTerm,
    SelectorRequirement,
)
from berth.bus.interface import Entry
from berth.framework.cycle import Ranking, rank
from berth.framework.interface import ExplainingPlugin, VectorExplainingPlugin, VectorFilterPlugin
from berth.framework.status import SUCCESS, Status, Verdicts
from berth.messages.attempts import DecisionSummary, Outcome, Pending, Ranked, Victim
from berth.messages.encoding import decode, encode
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term
from berth.plugins.nodeload.plugin import NodeLoad
from berth.ranking import ranker
from berth.ranking.ranker import SMALL_CLUSTER, Ranker
from berth.ranking.view import View
from harness.builders.objects import a_container, a_node, a_pod
from harness.builders.profiles import default_profile, profile_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def view() -> View:
    """One node, filled by a pod of low priority."""
    view = View()
    apply(view, "node.n1", a_node("n1", cpu="1"))
    apply(view, "pod.uid-low", low_priority_pod())
    return view


def low_priority_pod(**spec: object) -> Pod:
    return a_pod("low", priority=0, containers=[a_container(cpu="1")], node_name="n1", **spec)


def apply(view: View, key: str, thing: object, sequence: int = 1) -> None:
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing)))
    assert view.apply_mirror([Entry(key=key, data=encode_entry(entry), sequence=sequence, time=NOW)], sequence) == []


def answer(view: View, pod: Pod) -> Ranked:
    one = Ranker(profiles={"berth": default_profile()}, config="c", identity="s-1", best=8)
    return one.answer(Pending(attempt=f"{pod.uid}.1.1", profile="berth", pod=pod), view, 0.0)


@pytest.mark.parametrize(
    ("profile", "beside_others"), [(default_profile(), 16), (profile_of(NodeLoad(NodeLoadArgs())), 32)]
)
def test_more_nodes_are_named_while_another_scorer_proposes(profile, beside_others):
    """Below 512 nodes twice as many as ``best`` in any case, which this cluster is not."""
    view = View()
    for number in range(SMALL_CLUSTER):
        view.snapshot.set_node(a_node(f"n{number}"))
    rankers = [Ranker(profiles={"berth": profile}, config="c", identity=name, best=8) for name in ("s-1", "s-2")]

    def named(ranker: int, pod: str) -> Ranked:
        pending = Pending(attempt=f"uid-{pod}.1.1", profile="berth", pod=a_pod(pod))
        return rankers[ranker].answer(pending, view, 0.0)

    assert [len(named(0, pod).candidates) for pod in ("a", "b")] == [8, 8]  # its own proposals do not count
    other = named(1, "c")
    assert len(other.candidates) == len(named(0, "d").candidates) == beside_others
    for pod in ("a", "b", "d"):
        view.proposals.withdraw(f"uid-{pod}")
    node = other.candidates[0].node
    decision = DecisionSummary(
        attempt=other.attempt, profile="berth", epoch=1, outcome=Outcome.BOUND, uid="uid-c", node=node
    )
    view.proposals.decided(decision, NOW, 0.0)
    assert [len(named(0, pod).candidates) for pod in ("e", "f")] == [8, 8]


def important_pod(**spec: object) -> Pod:
    return a_pod("vip", **{"priority": 100, "containers": [a_container(cpu="1")], **spec})


def test_victims_are_named(view):
    ranked = answer(view, important_pod())
    assert (ranked.candidates, ranked.preemption.node) == ([], "n1")
    assert ranked.preemption.victims == [Victim(uid="uid-low", namespace="default", name="low")]
    assert ranked.message == "0/1 nodes are available: 1 Insufficient cpu."


def test_a_pod_of_equal_priority_preempts_no_pod(view):
    ranked = answer(view, important_pod(priority=0))
    assert (ranked.preemption, ranked.clears_nomination) == (None, True)
    assert ranked.message.endswith("1 No preemption victims found for incoming pod.")


def test_unschedulable_because_of_a_proposal_is_a_conflict(view):
    apply(view, "node.n2", a_node("n2", cpu="1"))
    assert answer(view, a_pod("first", priority=0, containers=[a_container(cpu="1")])).candidates
    assert answer(view, important_pod()).proposals_counted


def test_a_pod_that_a_proposal_keeps_from_preempting_is_a_conflict():
    """The binder may put the other pod elsewhere, and no event tells that."""
    view = View()
    apply(view, "node.n1", a_node("n1", cpu="1"))
    low = a_pod("low", priority=0, containers=[a_container(cpu="500m")], node_name="n1")
    apply(view, f"pod.{low.uid}", low)
    assert answer(view, a_pod("first", priority=200, containers=[a_container(cpu="500m")])).candidates
    ranked = answer(view, important_pod())
    assert (ranked.preemption, ranked.proposals_counted) == (None, True)


def test_a_bound_pod_that_the_mirror_does_not_show_is_a_proposal_still(view):
    """It may be gone, without ever having been mirrored as bound: no event would tell the end of it."""
    apply(view, "node.n2", a_node("n2", cpu="1"))
    first = a_pod("first", priority=0, containers=[a_container(cpu="1")])
    attempt = answer(view, first).attempt
    decision = DecisionSummary(
        attempt=attempt, profile="berth", epoch=1, outcome=Outcome.BOUND, uid=first.uid, node="n2"
    )
    view.proposals.decided(decision, NOW, 0.0)
    assert answer(view, important_pod(priority=0)).proposals_counted


def test_what_rejects_a_pod_where_only_a_proposal_did_so_is_a_blocker(view):
    """The proposal fills the node, and without it another pod's labels are in the way: no event tells its end."""
    apply(view, "node.n2", a_node("n2", cpu="2", labels={"kubernetes.io/hostname": "n2"}))
    apart = Affinity(
        pod_anti_affinity=PodAffinity(
            required_during_scheduling_ignored_during_execution=[
                PodAffinityTerm(
                    topology_key="kubernetes.io/hostname", label_selector=LabelSelector(match_labels={"app": "other"})
                )
            ]
        )
    )
    other = a_pod("other", labels={"app": "other"}, containers=[a_container(cpu="100m")], node_name="n2")
    apply(view, f"pod.{other.uid}", other)
    assert answer(view, a_pod("first", priority=0, containers=[a_container(cpu="1500m")])).candidates
    ranked = answer(view, important_pod(priority=0, affinity=apart))
    assert (ranked.proposals_counted, ranked.blockers) == (False, ["InterPodAffinity", "NodeResourcesFit"])


def test_preemptors_at_the_same_time_get_a_node_each(view):
    for number in (2, 3, 4):
        apply(view, f"node.n{number}", a_node(f"n{number}", cpu="1"))
        other = a_pod(f"low-{number}", priority=0, containers=[a_container(cpu="1")], node_name=f"n{number}")
        apply(view, f"pod.{other.uid}", other)
    vips = [a_pod(f"vip-{number}", priority=100, containers=[a_container(cpu="1")]) for number in range(5)]
    ranked = [answer(view, vip) for vip in vips]
    assert sorted(each.preemption.node for each in ranked[:4]) == ["n1", "n2", "n3", "n4"]
    assert (ranked[4].preemption, ranked[4].proposals_counted) == (None, True)


def test_purge_of_a_nominated_pod_leaves_its_open_proposals_in_the_view(view):
    apply(view, "node.n2", a_node("n2", cpu="1"))
    nominee = important_pod(node_selector=None)
    apply(view, f"pod.{nominee.uid}", nominated(nominee, "n2"))
    assert [each.node for each in answer(view, nominee).candidates] == ["n2"]
    purge(view, f"pod.{nominee.uid}")
    assert view.snapshot.node_of(nominee.uid) == "n2"
    other = a_pod("other", priority=0, containers=[a_container(cpu="1")])
    assert answer(view, other).candidates == []


def test_purge_of_a_nomination_leaves_a_newer_proposal_of_one(view):
    vip = important_pod()
    apply(view, f"pod.{vip.uid}", nominated(vip, "n9"))
    assert answer(view, vip).preemption.node == "n1"
    purge(view, f"pod.{vip.uid}")
    assert [(each.pod.uid, each.node) for each in view.snapshot.nominations()] == [(vip.uid, "n1")]


def nominated(pod: Pod, node: str) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, nominated_node_name=node))


def purge(view: View, key: str) -> None:
    assert view.apply_mirror([Entry(key=key, data=None, sequence=2, time=NOW)], 2) == []


def test_ranked_says_that_the_nominated_node_was_tried_first_and_how_many_there_are(view):
    for name in ("n2", "n3"):
        apply(view, f"node.{name}", a_node(name, cpu="1"))
    first = answer(view, nominated(important_pod(), "n2"))
    assert (first.nominated_first, first.evaluated, first.nodes) == (True, 1, 3)
    anywhere = answer(view, a_pod("other", priority=0, containers=[a_container(cpu="1")]))
    assert (anywhere.nominated_first, anywhere.evaluated, anywhere.nodes) == (False, 3, 3)


def test_ranked_has_the_weights_of_its_points(view):
    apply(view, "node.n2", a_node("n2", cpu="1"))
    ranked = answer(view, a_pod("first", priority=0, containers=[a_container(cpu="1")]))
    assert ranked.weights == default_profile().weights
    assert set(ranked.candidates[0].scores) <= set(ranked.weights)
    assert answer(view, a_pod("large", priority=0, containers=[a_container(cpu="999")])).weights == {}


def test_a_node_that_only_a_proposal_fills_is_named_after_those_with_room(view):
    """The binder may have put that pod elsewhere; of a node that is full otherwise nothing is said."""
    for name in ("n2", "n3"):
        apply(view, f"node.{name}", a_node(name, cpu="1"))
    first, second = (
        answer(view, a_pod(name, priority=0, containers=[a_container(cpu="1")])) for name in ("one", "two")
    )
    assert {each.node for each in first.candidates} == {"n2", "n3"}
    assert [each.node for each in second.candidates] == [first.candidates[1].node, first.candidates[0].node]
    assert len({each.total for each in second.candidates}) == 1
    assert second.feasible == 1


def whole_node_pod(name: str, affinity: NodeAffinity) -> Pod:
    return a_pod(name, priority=0, containers=[a_container(cpu="1")], affinity=Affinity(node_affinity=affinity))


def preferring(points: dict[str, int]) -> NodeAffinity:
    """A preference of so many points for the nodes with each rank."""
    terms = [
        PreferredNodeTerm(weight=weight, preference=NodeSelectorTerm(match_expressions=[is_in("rank", label)]))
        for label, weight in points.items()
    ]
    return NodeAffinity(preferred_during_scheduling_ignored_during_execution=terms)


def only_on(node: str) -> NodeAffinity:
    """As a DaemonSet's pod has it."""
    terms = [NodeSelectorTerm(match_fields=[is_in("metadata.name", node)])]
    return NodeAffinity(required_during_scheduling_ignored_during_execution=NodeSelector(node_selector_terms=terms))


def is_in(key: str, value: str) -> SelectorRequirement:
    return SelectorRequirement(key=key, operator="In", values=[value])


def test_a_node_that_only_a_proposal_fills_keeps_its_distance_in_points(view):
    """n4 and n3 are full by proposals. The only feasible node was not scored."""
    for name, label in (("n2", "c"), ("n3", "b"), ("n4", "a")):
        apply(view, f"node.{name}", a_node(name, cpu="1", labels={"rank": label}))
    points = {"a": 50, "b": 3, "c": 2}
    ranked = [answer(view, whole_node_pod(name, preferring(points))) for name in ("one", "two", "three")]
    assert [each.candidates[0].node for each in ranked] == ["n4", "n3", "n2"]
    best_first = sorted(ranked[2].candidates, key=lambda each: -each.total)
    assert [each.node for each in best_first] == ["n4", "n3", "n2"]


class Talkative(VectorFilterPlugin, ExplainingPlugin):
    """A plugin from elsewhere that has much to say, and of each node something else."""

    name = "T" * 300
    refuses = True
    raises = False

    def filter(self, state, pod, node):
        if self.raises:
            raise RuntimeError("why" * 10_000)
        return Status.unschedulable(f"{node.name} {'why' * 1_000}") if self.refuses else SUCCESS

    def filter_all(self, state, pod, nodes):
        return Verdicts.of(SUCCESS if info is None else self.filter(state, pod, info) for info in nodes.infos())

    def score(self, state, pod, node):
        return 1

    def explain(self, state, pod, node):
        return "why" * 1_000


@pytest.mark.parametrize("parts", [{}, {"refuses": False}, {"raises": True}], ids=["refuses", "explains", "raises"])
def test_what_a_plugin_says_is_cut_to_what_readers_take(parts):
    view, talkative = View(), Talkative()
    for name, value in parts.items():
        setattr(talkative, name, value)
    for number in range(4_200):
        view.snapshot.set_node(a_node(f"n{number}"))
    profiles = {"berth": profile_of(talkative)}
    pending = Pending(attempt="uid-web.1.1", profile="berth", pod=a_pod("web"))
    ranked = Ranker(profiles=profiles, config="c", identity="s" * 300, best=8).answer(pending, view, 0.0)
    assert ranked.candidates or ranked.rejections or ranked.error
    assert decode(encode(ranked), Ranked) == ranked


class Terse(VectorExplainingPlugin):
    """A plugin from elsewhere that has a line for one node only."""

    name = "Terse"

    def score(self, state, pod, node):
        return 1

    def explain(self, state, pod, node):
        return "fits"

    def explain_all(self, state, pod, nodes):
        return ["fits"]


def test_a_plugin_without_a_line_for_each_node_fails_its_pod(view):
    apply(view, "node.n2", a_node("n2"))
    pending = Pending(attempt="uid-web.1.1", profile="berth", pod=a_pod("web"))
    ranked = Ranker(profiles={"berth": profile_of(Terse())}, config="c", identity="s-1", best=8).answer(
        pending, view, 0.0
    )
    assert ranked.error == 'running Explain plugin "Terse": want 2 lines, got 1'


def test_a_reason_to_give_up_is_cut_to_what_readers_take():
    pending = Pending(attempt="uid-web.1.1", profile="berth", pod=a_pod("web"))
    ranked = Ranker(profiles={}, config="c", identity="s-1", best=8).give_up(pending, "why" * 10_000)
    assert decode(encode(ranked), Ranked).error.startswith("whywhy")


def test_a_pod_for_one_node_is_ranked_once(view, monkeypatch):
    """Pods on other nodes can have taken nothing from it."""
    for name in ("n2", "n3"):
        apply(view, f"node.{name}", a_node(name, cpu="1"))
    answer(view, whole_node_pod("one", only_on("n2")))
    rankings = []

    def counted(*args: object, **options: object) -> Ranking:
        rankings.append(rank(*args, **options))
        return rankings[-1]

    monkeypatch.setattr(ranker, "rank", counted)
    assert [each.node for each in answer(view, whole_node_pod("two", only_on("n3"))).candidates] == ["n3"]
    assert len(rankings) == 1
