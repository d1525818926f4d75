"""What one more pod like the ranked one costs on each of the best nodes, and which pods count."""

from __future__ import annotations

import pytest

from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import RankOptions, rank
from berth.framework.interface import NormalizePlugin, Reads, ScorePlugin
from berth.framework.scoring import counted_pods_of, default_normalize
from berth.messages.attempts import Candidate
from berth.plugins.additional.tenantspread import TenantSpread, TenantSpreadArgs
from berth.plugins.noderesources.fit import NodeResourcesFit, NodeResourcesFitArgs
from berth.plugins.noderesources.scoringstrategy import ResourceWeight, ScoringStrategy
from harness.builders.objects import a_node, a_pod, first_attempt, pod_requesting
from harness.builders.profiles import default_profile, profile_of


class ByPods(ScorePlugin):
    """90 points for an empty node, 10 less for each pod; knows nothing of columns."""

    name = "ByPods"

    def score(self, state, pod, node):
        return 90 - 10 * len(node.placed())


class ByPodsOnRow(ByPods):
    """The same, row-local: its answers are kept for the class."""

    name = "ByPodsOnRow"
    reads = Reads.PODS


class Normalized(ByPods, NormalizePlugin):
    """In proportion to the best."""

    name = "Normalized"

    def normalize(self, state, pod, scores, nodes):
        return default_normalize(scores)


class ByName(ScorePlugin):
    name = "ByName"
    depends_on_pods = False

    def score(self, state, pod, node):
        return len(node.name)

    def score_with_another(self, state, pod, nodes):
        raise AssertionError


def cluster(**pods: int) -> Snapshot:
    """Nodes by name, with so many pods of the tenant red."""
    snapshot = Snapshot()
    for node, number in pods.items():
        snapshot.set_node(a_node(node))
        for each in range(number):
            snapshot.place(red(f"{node}-{each}"), node)
    return snapshot


def red(name: str = "new"):
    return a_pod(name, labels={"tenant": "red"})


def losses(snapshot: Snapshot, *plugins: ScorePlugin, weight: int = 1, pod=None) -> dict[str, float]:
    pod = pod or red()
    ranking = rank(pod, snapshot, profile_of(*plugins, weight=weight), attempt=first_attempt(pod))
    assert not ranking.error
    return {candidate.node: candidate.loss for candidate in ranking.candidates}


@pytest.mark.parametrize("plugin", [ByPods(), ByPodsOnRow()], ids=["anything", "row-local"])
def test_scalar_scores_are_taken_with_one_more_pod_on_the_node(plugin):
    assert losses(cluster(a=0, b=3), plugin, weight=2) == {"a": 20, "b": 20}


def losses_by_fit(cpu: str, *, of: str, count: int) -> list[float]:
    """NodeResourcesFit by cpu alone, on equal empty nodes."""
    snapshot, pod = Snapshot(), pod_requesting("new", cpu=cpu, memory="1Mi")
    for number in range(count):
        snapshot.set_node(a_node(f"n{number}", cpu=of, memory="16Gi"))
    strategy = ScoringStrategy(resources=(ResourceWeight(name="cpu", weight=1),))
    fit = NodeResourcesFit(NodeResourcesFitArgs(scoring_strategy=strategy))
    return list(losses(snapshot, fit, pod=pod).values())


@pytest.mark.parametrize("count", [2, 12], ids=["few nodes", "many"])
@pytest.mark.parametrize(
    ("cpu", "of", "expected"),
    [
        pytest.param("100m", "4", (97 - 87) / 4, id="a small pod: over four more"),
        pytest.param("900m", "3800m", (76 - 5) / 3, id="three more fit"),
        pytest.param("1400m", "4", 65 - 30, id="one more fits"),
        # above what the node has the points are 0, which says nothing of one pod
        pytest.param("3", "4", 25 - 0, id="none fits: one that does not"),
    ],
)
def test_cost_is_the_mean_of_as_many_more_pods_as_fit_at_most_four(count, cpu, of, expected):
    assert losses_by_fit(cpu, of=of, count=count) == [pytest.approx(expected, abs=0.0005)] * count


def test_score_that_no_pod_can_change_is_not_taken_again():
    assert losses(cluster(a=0, bb=3), ByName()) == {"a": 0, "bb": 0}


@pytest.mark.parametrize(
    ("pods", "weight", "expected"),
    [
        # 90 of 90 is 100, 60 of 90 is 66; 80 lies between: 66 + 34 x 20/30 = 88.667
        # 50 lies below the scores of the ranking: normalized again 100 x 50 // 90 = 55
        pytest.param({"a": 0, "b": 3}, 1, {"a": 11.333, "b": 11}, id="one inside, one beyond"),
        # all equal at 100; with 80 in addition: 100 x 80 // 90 = 88
        pytest.param({"a": 0, "b": 0}, 3, {"a": 36, "b": 36}, id="all equal"),
    ],
)
def test_points_are_normalized_as_in_the_ranking(pods, weight, expected):
    assert losses(cluster(**pods), Normalized(), weight=weight) == expected


def test_rank_is_not_lost_by_the_first_newcomer_where_others_have_many_more():
    # ranks: none 100, 4 pods 99, 5 pods 98; one pod is a quarter of the way to 4; 6 pods would be 97
    found = losses(cluster(a=0, b=4, c=5), TenantSpread(TenantSpreadArgs()), weight=101)
    assert found == {"a": 25.25, "b": 101, "c": 101}


def test_pods_move_no_points_where_they_do_not_count():
    pod = a_pod("new", labels={"tenant": "blue"})
    # no pod of blue anywhere: every node has 0 of them, and one is a rank more
    assert losses(cluster(a=2, b=0), TenantSpread(TenantSpreadArgs()), pod=pod) == {"a": 1, "b": 1}


def test_rows_that_changed_are_scored_again():
    snapshot, profile = cluster(a=0, b=0, c=0), default_profile()
    for number in range(12):
        pod = pod_requesting(f"p{number}", cpu="300m", memory="1Gi")
        kept = rank(pod, snapshot, profile, attempt=first_attempt(pod)).candidates
        assert kept == rank(pod, snapshot, default_profile(), attempt=first_attempt(pod)).candidates
        snapshot.place(pod, kept[0].node)


def test_only_the_first_candidates_are_explained():
    pod = red()
    ranking = rank(
        pod, cluster(a=0, b=1, c=2), profile_of(ByPods()), attempt=first_attempt(pod), options=RankOptions(explained=1)
    )
    assert ranking.candidates == (
        Candidate(node="a", total=90, scores={"ByPods": 90}, pods=0, loss=10),
        Candidate(node="b", total=80, pods=1, loss=10),
        Candidate(node="c", total=70, pods=2, loss=10),
    )


def test_neither_the_pod_itself_nor_nominated_pods_count():
    snapshot, pod = cluster(a=2), red()
    snapshot.place(pod, "a")
    snapshot.nominate(red("vip"), "a")
    assert counted_pods_of(pod, ["gone", "a", "gone"], snapshot, default_profile()) == [0, 2, 0]
