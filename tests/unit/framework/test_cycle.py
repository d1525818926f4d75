"""The scheduling cycle: the best nodes, or why there is none."""

from __future__ import annotations

import asyncio
import re

import msgspec
import numpy as np
import pytest

from berth.api.node import Taint
from berth.api.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodSpec,
    PodStatus,
    SelectorRequirement,
)
from berth.cluster.nodes import node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import RankOptions, check, rank
from berth.framework.filtering import LEAST_COUNTED
from berth.framework.interface import (
    FilterPlugin,
    Nomination,
    NormalizePlugin,
    PostFilterPlugin,
    PostFilterResult,
    PreFilterExtensions,
    PreFilterResult,
    PreScorePlugin,
    ScorePlugin,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.status import SKIP, SUCCESS, Code, StateKey, Status, Verdicts
from berth.messages.attempts import Candidate, Rejection
from berth.messages.subjects import Attempt, Term, Uid
from harness.builders.objects import a_node, a_pod, first_attempt, pod_requesting
from harness.builders.profiles import default_profile, profile_of


def cluster(*nodes) -> Snapshot:
    snapshot = Snapshot()
    for node in nodes:
        snapshot.set_node(node)
    return snapshot


def ranked(pod: Pod, snapshot: Snapshot, *plugins, best: int = 8):
    profile = profile_of(*plugins) if plugins else default_profile()
    return rank(pod, snapshot, profile, attempt=first_attempt(pod), options=RankOptions(best=best))


@pytest.mark.parametrize(
    ("also", "place", "names"),
    [
        pytest.param("n9", 10, ["n0", "n1", "n9"], id="far from the best"),
        pytest.param("n1", 0, ["n0", "n1"], id="one of the best"),
        pytest.param("cordoned", 0, ["n0", "n1"], id="refused"),
        pytest.param("nowhere", 0, ["n0", "n1"], id="not there"),
    ],
)
def test_a_node_is_named_too_with_its_points_and_its_place_among_all(also, place, names):
    """Ten nodes, the emptiest first: n0 has 10 CPU, n1 9, ... and the pod takes 1."""
    nodes = [a_node(f"n{number}", cpu=str(10 - number)) for number in range(10)]
    snapshot, pod = cluster(*nodes, a_node("cordoned", unschedulable=True)), pod_requesting(cpu="1")
    ranking = rank(
        pod,
        snapshot,
        default_profile(),
        attempt=first_attempt(pod),
        options=RankOptions(best=2, explained=1, also=also),
    )
    assert [each.node for each in ranking.candidates] == names
    assert [each.place for each in ranking.candidates][-1] == place
    scored = {each.node for each in ranking.candidates if each.scores}
    assert scored == {"n0", also} & set(names) | {"n0"}
    plain = rank(pod, snapshot, default_profile(), attempt=first_attempt(pod), options=RankOptions(best=2, explained=1))
    assert [(each.node, each.total, each.loss) for each in ranking.candidates[:2]] == [
        (each.node, each.total, each.loss) for each in plain.candidates
    ]
    every = rank(pod, snapshot, default_profile(), attempt=first_attempt(pod), options=RankOptions(best=99))
    totals = {each.node: (each.total, each.pods) for each in every.candidates}
    assert all((each.total, each.pods) == totals[each.node] for each in ranking.candidates)


def filter_message(ranking) -> str:
    """The message of the filters, without that of DefaultPreemption."""
    return ranking.message.split(" preemption: ")[0]


def nodes_of(ranking) -> list[str]:
    return [candidate.node for candidate in ranking.candidates]


# Feasible nodes


def test_the_emptier_node_comes_first_with_every_plugins_points():
    snapshot = cluster(a_node("busy"), a_node("idle"))
    snapshot.place(pod_requesting("other", cpu="2", memory="4Gi"), "busy")
    ranking = ranked(pod_requesting(cpu="1", memory="2Gi"), snapshot)
    same = {"TaintToleration": 300, "NodeResourcesBalancedAllocation": 75, "ImageLocality": 0}
    assert ranking.candidates == (
        # cpu (4000-1000)*100/4000 = 75, memory (8-2)*100/8 = 75; no taints: 100 x 3; as balanced as before: 50 + 50/2
        # one more like it: cpu (4000-2000)*100/4000 = 50, memory (8-4)*100/8 = 50
        Candidate(node="idle", total=450, scores={**same, "NodeResourcesFit": 75}, pods=0, loss=25.0),
        # cpu (4000-3000)*100/4000 = 25, memory (8-6)*100/8 = 25; one more: 0
        Candidate(node="busy", total=400, scores={**same, "NodeResourcesFit": 25}, pods=1, loss=25.0),
    )
    assert (ranking.evaluated, ranking.feasible) == (2, 2)


def test_a_single_feasible_node_is_not_scored():
    snapshot = cluster(a_node("small", cpu="1"), a_node("large"))
    ranking = ranked(pod_requesting(cpu="2"), snapshot)
    assert ranking.candidates == (Candidate(node="large", total=0, scores={}, pods=0),)


def test_without_score_plugins_every_node_gets_one_point():
    ranking = ranked(pod_requesting(), cluster(a_node("n0"), a_node("n1")), Refusing())
    assert [candidate.total for candidate in ranking.candidates] == [1, 1]


def test_at_most_the_best_are_named():
    # cpu i * 100 / (i + 1) = 0, 50, 66, 75, 80, 83
    snapshot = cluster(*(a_node(f"n{i}", cpu=str(i + 1)) for i in range(6)))
    ranking = ranked(pod_requesting(cpu="1"), snapshot, best=3)
    assert (nodes_of(ranking), ranking.feasible) == (["n5", "n4", "n3"], 6)


def test_a_placed_pod_does_not_count_against_itself():
    snapshot, pod = cluster(a_node("n0", cpu="1")), pod_requesting(cpu="1")
    snapshot.place(pod, "n0")
    assert nodes_of(ranked(pod, snapshot)) == ["n0"]
    assert snapshot.node_of(pod.uid) == "n0"


def test_a_placed_pod_does_not_count_itself_among_the_pods_of_its_node():
    snapshot, pod = cluster(a_node("n0"), a_node("n1")), pod_requesting()
    snapshot.place(pod, "n0")
    assert {candidate.node: candidate.pods for candidate in ranked(pod, snapshot).candidates} == {"n0": 0, "n1": 0}


# Ties


def test_of_equal_nodes_the_one_with_fewer_pods_comes_first():
    snapshot = cluster(*(a_node(f"n{i}", cpu="1000", memory="1000000Ki", pods="1000") for i in range(30)))
    for i in range(30):
        if i != 17:
            snapshot.place(pod_requesting(f"tiny-{i}", cpu="1m", memory="1Ki"), f"n{i}")
    assert nodes_of(ranked(pod_requesting(cpu="1m", memory="1Ki"), snapshot))[0] == "n17"


def test_where_more_pods_are_better_their_number_does_not_decide_ties():
    snapshot = cluster(*(a_node(f"n{i}") for i in range(30)))
    snapshot.place(a_pod("other"), "n17")
    firsts = {nodes_of(ranked(a_pod(uid=f"u{i}"), snapshot, Packing()))[0] for i in range(300)}
    assert "n17" in firsts


@pytest.mark.slow
def test_ties_are_spread_like_chance_and_come_out_the_same_every_time():
    snapshot = cluster(*(a_node(f"n{i}") for i in range(10)))
    firsts = [nodes_of(ranked(a_pod(uid=f"u{i}"), snapshot))[0] for i in range(1000)]
    counts = [firsts.count(f"n{i}") for i in range(10)]
    assert 60 < min(counts) <= max(counts) < 140
    again = rank(a_pod(), snapshot, default_profile(), attempt=Attempt(uid=Uid("u"), term=Term(3), n=1))
    assert nodes_of(again)[:8] == ["n5", "n9", "n2", "n1", "n7", "n4", "n0", "n6"]  # in every process, on every machine


def test_another_attempt_breaks_ties_differently():
    snapshot = cluster(*(a_node(f"n{i}") for i in range(50)))
    attempts = [Attempt(uid=Uid("u"), term=Term(1), n=n) for n in range(1, 6)]
    orders = {tuple(nodes_of(rank(a_pod(), snapshot, default_profile(), attempt=a))) for a in attempts}
    assert len(orders) == 5


# Pods that fit nowhere


def test_a_cluster_without_nodes_has_its_own_message():
    ranking = ranked(pod_requesting(), Snapshot())
    assert (ranking.message, ranking.nodes, ranking.candidates) == ("no nodes available to schedule pods", 0, ())


def test_reasons_are_counted_and_sorted_as_kube_scheduler_does():
    tainted = [Taint(key="dedicated", effect="NoSchedule")]
    snapshot = cluster(
        a_node("t0", taints=tainted),
        a_node("t1", taints=tainted),
        *(a_node(f"full{i}", cpu="1", memory="1Gi") for i in range(10)),
    )
    ranking = ranked(pod_requesting(cpu="2", memory="2Gi"), snapshot)
    assert filter_message(ranking) == (
        "0/12 nodes are available: 10 Insufficient cpu, 10 Insufficient memory, 2 node(s) had untolerated taint(s)."
    )
    assert ranking.rejections == (
        Rejection(
            plugin="NodeResourcesFit",
            reason="Insufficient cpu",
            nodes=10,
            examples=["full0", "full1", "full2"],
            resolvable=False,
        ),
        Rejection(
            plugin="NodeResourcesFit",
            reason="Insufficient memory",
            nodes=10,
            examples=["full0", "full1", "full2"],
            resolvable=False,
        ),
        Rejection(
            plugin="TaintToleration",
            reason="node(s) had untolerated taint(s)",
            nodes=2,
            examples=["t0", "t1"],
            resolvable=False,
        ),
    )
    assert ranking.unschedulable_plugins == ("NodeResourcesFit", "TaintToleration")


def test_a_node_that_would_fit_when_empty_can_be_helped_by_eviction():
    snapshot = cluster(a_node("n0"))
    snapshot.place(pod_requesting("other", cpu="3"), "n0")
    assert [r.resolvable for r in ranked(pod_requesting(cpu="2"), snapshot).rejections] == [True]


def test_the_first_filter_that_rejects_a_node_gives_its_reason():
    snapshot = cluster(a_node("n0", unschedulable=True, taints=[Taint(key="k", effect="NoSchedule")], cpu="0"))
    assert (
        filter_message(ranked(pod_requesting(cpu="1"), snapshot))
        == "0/1 nodes are available: 1 node(s) were unschedulable."
    )


def test_a_node_without_status_is_rejected_with_the_usual_reasons():
    node = msgspec.convert({"metadata": {"name": "bare"}}, type(a_node("n")))
    assert (
        filter_message(ranked(pod_requesting(cpu="1"), cluster(node)))
        == "0/1 nodes are available: 1 Insufficient cpu, 1 Too many pods."
    )


def test_only_nodes_that_the_pod_names_can_be_feasible():
    snapshot = cluster(a_node("n0", cpu="1"), a_node("n1"), a_node("n2"))
    ranking = ranked(asking_for_nodes("n0", cpu="2"), snapshot)
    assert filter_message(ranking) == (
        "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."
    )
    assert ranking.unschedulable_plugins == ("NodeAffinity", "NodeResourcesFit")


def test_a_rejection_by_pre_filter_applies_to_all_nodes():
    terms = [SelectorRequirement(key="metadata.name", operator="In", values=[name]) for name in ("n0", "n1")]
    ranking = ranked(with_terms([NodeSelectorTerm(match_fields=terms)]), cluster(a_node("n0"), a_node("n1")))
    assert filter_message(ranking) == "0/2 nodes are available: pod affinity terms conflict."
    assert [(r.plugin, r.nodes) for r in ranking.rejections] == [("NodeAffinity", 2)]


def test_a_quantity_that_cannot_be_read_is_named_with_its_path():
    ranking = ranked(pod_requesting(cpu="abc"), cluster(a_node("n0")))
    assert ranking.error == (
        "parsing spec.containers[0].resources.requests.cpu: want a quantity such as 500m or 2Gi, got 'abc'"
    )
    assert check(pod_requesting(cpu="abc"), "n0", cluster(a_node("n0")), default_profile()).code is Code.ERROR


# One node


def test_check_returns_the_first_rejection_with_the_plugins_name():
    snapshot = cluster(a_node("n0", cpu="1"))
    assert check(pod_requesting(cpu="2"), "n0", snapshot, default_profile()) == Status(
        Code.UNSCHEDULABLE_AND_UNRESOLVABLE, ("Insufficient cpu",), "NodeResourcesFit"
    )


def test_check_rejects_a_node_that_does_not_exist():
    assert check(pod_requesting(), "gone", Snapshot(), default_profile()) == Status.unresolvable(
        "node 'gone' not found"
    )


def test_check_does_not_count_the_pod_against_itself():
    snapshot, pod = cluster(a_node("n0", cpu="1", pods="1")), pod_requesting(cpu="1")
    snapshot.place(pod, "n0")
    assert check(pod, "n0", snapshot, default_profile()).is_success
    assert not check(pod_requesting("another", cpu="1"), "n0", snapshot, default_profile()).is_success
    assert snapshot.pods_on("n0") == 1


def test_check_rejects_nodes_that_the_pod_does_not_name():
    status = check(asking_for_nodes("n1"), "n0", cluster(a_node("n0"), a_node("n1")), default_profile())
    assert (status.reasons, status.plugin) == (("node(s) didn't satisfy plugin(s) [NodeAffinity]",), "NodeAffinity")


# Nominated pods


@pytest.mark.parametrize(
    ("priority", "free"),
    [
        pytest.param(10, False, id="more important: left free"),
        pytest.param(0, False, id="equally important: left free"),
        pytest.param(-1, True, id="less important: taken"),
    ],
)
def test_a_nominated_pod_counts_by_priority(priority, free):
    snapshot = cluster(a_node("n0", cpu="1"))
    snapshot.nominate(with_priority("nominated", priority, cpu="1"), "n0")
    pod = pod_requesting(cpu="1")
    assert (nodes_of(ranked(pod, snapshot)) == ["n0"]) is free
    assert check(pod, "n0", snapshot, default_profile()).is_success is free
    assert (snapshot.pods_on("n0"), node_info(snapshot, "n0").requested("cpu")) == (0, 0)


def test_a_nominated_pod_does_not_count_against_itself():
    snapshot, pod = cluster(a_node("n0", cpu="1")), pod_requesting(cpu="1")
    snapshot.nominate(pod, "n0")
    assert nodes_of(ranked(pod, snapshot)) == ["n0"]


def test_the_nominated_node_is_tried_first_and_alone():
    snapshot = cluster(*(a_node(f"n{i}") for i in range(200)))
    pod = pod_nominated_to("n7", cpu="1")
    snapshot.nominate(pod, "n7")
    ranking = ranked(pod, snapshot)
    assert (nodes_of(ranking), ranking.nominated_first) == (["n7"], True)
    assert (ranking.feasible, ranking.evaluated, ranking.nodes) == (1, 1, 200)


def test_when_the_nominated_node_does_not_fit_all_nodes_are_tried():
    snapshot = cluster(a_node("full", cpu="1"), a_node("n0"), a_node("n1"))
    ranking = ranked(pod_nominated_to("full", cpu="2"), snapshot)
    assert (sorted(nodes_of(ranking)), ranking.nominated_first) == (["n0", "n1"], False)
    assert (ranking.feasible, ranking.evaluated, ranking.nodes) == (2, 3, 3)


def pod_nominated_to(node, **requests):
    return msgspec.structs.replace(pod_requesting(**requests), status=PodStatus(nominated_node_name=node))


def test_a_nominated_pod_that_is_placed_counts_only_where_it_is():
    snapshot, nominated = cluster(a_node("n0", cpu="1"), a_node("n1")), pod_requesting("nominated", cpu="1")
    snapshot.nominate(nominated, "n0")
    snapshot.place(nominated, "n1")
    assert check(pod_requesting(cpu="1"), "n0", snapshot, default_profile()).is_success


def test_a_nominated_pod_leads_to_the_filters_own_reason():
    snapshot = cluster(a_node("n0", cpu="1"))
    snapshot.nominate(pod_requesting("nominated", cpu="1"), "n0")
    assert filter_message(ranked(pod_requesting(cpu="1"), snapshot)) == "0/1 nodes are available: 1 Insufficient cpu."


class CountingNeighbours(PreFilterExtensions, FilterPlugin):
    """Rejects nodes with pods that were added after its PreFilter."""

    name = "CountingNeighbours"
    ADDED = StateKey[list]("added")

    def pre_filter(self, state, pod, snapshot):
        state.write(self.ADDED, Added())
        return PreFilterResult()

    def add_pod(self, state, pod, added, node):
        state.read(self.ADDED).append((added.metadata.name, node.name, node.pods))
        return SUCCESS

    def remove_pod(self, state, pod, removed, node):
        raise NotImplementedError

    def filter(self, state, pod, node):
        added = state.read(self.ADDED)
        return Status.unschedulable(f"added {added}") if added else SUCCESS


class Added(list):
    def clone(self):
        return Added(self)


def test_add_pod_for_nominated_pods_gets_a_clone_of_the_state():
    snapshot = cluster(a_node("n0"), a_node("n1"))
    snapshot.nominate(pod_requesting("nominated"), "n0")
    profile = profile_of(CountingNeighbours())
    assert check(pod_requesting(), "n0", snapshot, profile).reasons == ("added [('nominated', 'n0', 1)]",)
    assert nodes_of(rank(pod_requesting(), snapshot, profile, attempt=first_attempt(pod_requesting()))) == ["n1"]


def test_of_a_nodes_nominated_pods_no_more_are_tried_than_it_may_have():
    snapshot = cluster(a_node("n0", pods=3), a_node("n1"))
    for number in range(200):
        snapshot.nominate(with_priority(f"idle-{number}", -1), "n0")
    for number in range(200):
        snapshot.nominate(pod_requesting(f"nominated-{number}"), "n0")
    added = [(f"nominated-{number}", "n0", LEAST_COUNTED) for number in range(LEAST_COUNTED)]
    assert check(pod_requesting(), "n0", snapshot, profile_of(CountingNeighbours())).reasons == (f"added {added}",)
    assert check(pod_requesting(), "n0", snapshot, default_profile()).reasons == ("Too many pods",)
    assert nodes_of(ranked(pod_requesting(), snapshot)) == ["n1"]


# No feasible node


class Refusing(FilterPlugin):
    name = "Refusing"

    def __init__(self, *names: str) -> None:
        self._names = names

    def filter(self, state, pod, node):
        return Status.unschedulable("not here") if node.name in self._names else SUCCESS


class MakingRoom(PostFilterPlugin):
    name = "MakingRoom"

    def post_filter(self, state, pod, snapshot, refusals, dry_run):
        names = [snapshot.rows.names[row] for row in refusals.resolvable_rows()]
        why = refusals.status_of(0)
        return PostFilterResult(Nomination(names[0], ("victim",)), f"room on {names} despite {why.reasons[0]}")


def test_post_filter_appends_its_message_and_nominates():
    ranking = ranked(pod_requesting(), cluster(a_node("n0"), a_node("n1")), Refusing("n0", "n1"), MakingRoom())
    assert filter_message(ranking) == "0/2 nodes are available: 2 not here. room on ['n0', 'n1'] despite not here"
    assert ranking.nomination == Nomination("n0", ("victim",))


def test_post_filter_does_not_run_when_a_node_is_feasible():
    ranking = ranked(pod_requesting(), cluster(a_node("n0"), a_node("n1")), Refusing("n0"), MakingRoom())
    assert (nodes_of(ranking), ranking.nomination) == (["n1"], None)


# Plugins that skip, and plugins that fail


class Packing(ScorePlugin):
    name = "Packing"
    packs = True

    def score(self, state, pod, node):
        return 7


class Skipping(PreFilterExtensions, FilterPlugin, PreScorePlugin, ScorePlugin):
    name = "Skipping"

    def pre_filter(self, state, pod, snapshot):
        return PreFilterResult(SKIP)

    def pre_score(self, state, pod, nodes):
        return SKIP

    def add_pod(self, state, pod, added, node):
        raise AssertionError

    remove_pod = filter = score = add_pod


def test_skip_leaves_filter_and_score_out():
    ranking = ranked(pod_requesting(), cluster(a_node("n0"), a_node("n1")), Skipping())
    assert [candidate.scores for candidate in ranking.candidates] == [{}, {}]


def broken(point: str, answer, *bases):
    """A plugin that answers, or raises, at one point."""

    def method(self, *args):
        if isinstance(answer, BaseException):
            raise answer
        return answer

    class Broken(*bases):
        name = "Broken"

        def pre_filter(self, state, pod, snapshot):
            return PreFilterResult()

        def add_pod(self, *args):
            return SUCCESS

        remove_pod = filter = pre_score = add_pod

        def score(self, state, pod, node):
            return 1

        def normalize(self, state, pod, scores, nodes):
            return scores

        def filter_all(self, state, pod, nodes):
            return Verdicts(np.zeros(len(nodes), dtype=np.int32))

        def score_all(self, state, pod, nodes):
            return np.zeros(len(nodes), dtype=np.int64)

        def post_filter(self, *args):
            return PostFilterResult()

    setattr(Broken, point, method)
    return Broken()


BOOM = ValueError("boom")
PLACE = re.compile(r" \(test_cycle\.py:\d+\)$")
"""What an error ends with that a plugin of this file has raised."""


@pytest.mark.parametrize(
    ("plugin", "error"),
    [
        pytest.param(
            broken("pre_filter", BOOM, PreFilterExtensions),
            'running PreFilter plugin "Broken": ValueError: boom',
            id="PreFilter",
        ),
        pytest.param(
            broken("filter", BOOM, FilterPlugin), 'running Filter plugin "Broken": ValueError: boom', id="Filter"
        ),
        pytest.param(
            broken("filter", Status.error("no answer"), FilterPlugin),
            'running "Broken" filter plugin: no answer',
            id="ERROR",
        ),
        pytest.param(
            broken("filter", None, FilterPlugin), 'running Filter plugin "Broken": want Status, got None', id="None"
        ),
        pytest.param(
            broken("filter_all", Verdicts(np.array([5], dtype=np.int32)), VectorFilterPlugin),
            'running Filter plugin "Broken": want 2 codes below 1, got array([5], dtype=int32)',
            id="too few verdicts",
        ),
        pytest.param(
            broken("pre_score", BOOM, PreScorePlugin, ScorePlugin),
            'running PreScore plugin "Broken": ValueError: boom',
            id="PreScore",
        ),
        pytest.param(broken("score", BOOM, ScorePlugin), 'running Score plugin "Broken": ValueError: boom', id="Score"),
        pytest.param(
            broken("score", 1.5, ScorePlugin), 'running Score plugin "Broken": want int, got 1.5', id="half points"
        ),
        pytest.param(
            broken("score_all", np.zeros(2), VectorScorePlugin),
            'running Score plugin "Broken": want 2 whole numbers, got array([0., 0.])',
            id="floats",
        ),
        pytest.param(
            broken("score", 101, ScorePlugin),
            'applying score defaultWeights on Score plugins: plugin "Broken" returns an invalid score 101, '
            "it should in the range of [0, 100] after normalizing",
            id="101",
        ),
        pytest.param(
            broken("score", -1, ScorePlugin),
            'applying score defaultWeights on Score plugins: plugin "Broken" returns an invalid score -1, '
            "it should in the range of [0, 100] after normalizing",
            id="-1",
        ),
        pytest.param(
            broken("score", 10**30, ScorePlugin),
            'running Score plugin "Broken": want whole numbers of 64 bits, got 1000000000000000000000000000000',
            id="beyond int64",
        ),
        pytest.param(
            broken("normalize", BOOM, NormalizePlugin),
            'running NormalizeScore plugin "Broken": ValueError: boom',
            id="Normalize",
        ),
    ],
)
def test_a_failure_of_a_plugin_is_an_error_with_its_name(plugin, error):
    ranking = ranked(pod_requesting(), cluster(a_node("n0"), a_node("n1")), plugin)
    assert (PLACE.sub("", ranking.error), ranking.candidates) == (error, ())


def test_a_post_filter_that_raises_is_an_error_with_its_name():
    plugin = broken("post_filter", BOOM, PostFilterPlugin)
    error = ranked(pod_requesting(), cluster(a_node("n0")), Refusing("n0"), plugin).error
    assert PLACE.sub("", error) == 'running PostFilter plugin "Broken": ValueError: boom'


@pytest.mark.parametrize("way_out", [asyncio.CancelledError(), KeyboardInterrupt()])
def test_exceptions_that_end_the_process_are_not_caught(way_out):
    with pytest.raises(type(way_out)):
        ranked(pod_requesting(), cluster(a_node("n0")), broken("filter", way_out, FilterPlugin))


def test_a_plugin_that_raises_in_check_is_an_error_with_its_name():
    status = check(pod_requesting(), "n0", cluster(a_node("n0")), profile_of(broken("filter", BOOM, FilterPlugin)))
    assert status.code is Code.ERROR
    assert [PLACE.sub("", reason) for reason in status.reasons] == ['running Filter plugin "Broken": ValueError: boom']


def asking_for_nodes(*names: str, **requests: str) -> Pod:
    fields = [SelectorRequirement(key="metadata.name", operator="In", values=list(names))]
    return with_terms([NodeSelectorTerm(match_fields=fields)], **requests)


def with_terms(terms: list[NodeSelectorTerm], **requests: str) -> Pod:
    required = NodeSelector(node_selector_terms=terms)
    affinity = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    return changed_spec(pod_requesting(**requests), affinity=affinity)


def with_priority(name: str, priority: int, **requests: str) -> Pod:
    return changed_spec(pod_requesting(name, **requests), priority=priority)


def changed_spec(pod: Pod, **fields: object) -> Pod:
    spec: PodSpec = msgspec.structs.replace(pod.spec, **fields)
    return msgspec.structs.replace(pod, spec=spec)
