"""percentageOfNodesToScore: how many feasible nodes are scored; every node is scored in turn."""

import numpy as np
import pytest

from berth.api.config.load import load
from berth.api.config.presets import DEFAULT
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import RankOptions, rank
from berth.framework.profile import NodeSearch, build_profiles, nodes_to_find
from berth.plugins.registry import BUILT_IN
from harness.builders.objects import a_node, first_attempt, pod_requesting

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"


@pytest.mark.parametrize(
    ("count", "percentage", "wanted"),
    [
        pytest.param(5000, 0, 5000, id="0 is every node"),
        pytest.param(5000, 100, 5000, id="100 is every node"),
        pytest.param(99, 10, 99, id="of fewer than 100 every one"),
        pytest.param(100, 10, 100, id="100 at least"),
        pytest.param(999, 10, 100, id="99.9 are too few"),
        pytest.param(1019, 10, 101, id="101.9 are 101"),
        pytest.param(6000, 5, 300, id="5 % of 6,000"),
    ],
)
def test_how_many_feasible_nodes_end_the_search(count, percentage, wanted):
    assert nodes_to_find(count, percentage) == wanted


def found(search: NodeSearch, feasible: str, wanted: int) -> tuple[list[int], int]:
    """``feasible``: for each row Yes, no, or a blank without a node."""
    mask = np.array([letter == "Y" for letter in feasible])
    exists = np.array([letter != " " for letter in feasible])
    result = search.find(mask, exists, wanted)
    return result.rows.tolist(), result.evaluated


def test_each_search_begins_where_the_last_one_ended():
    search = NodeSearch()
    assert found(search, "YnYYY", 2) == ([0, 2], 3)
    assert found(search, "YnYYY", 2) == ([3, 4], 2)
    assert found(search, "YnYYY", 3) == ([0, 2, 3], 4)
    assert found(search, "YnYYY", 2) == ([0, 4], 2)


def test_rows_without_a_node_are_not_counted():
    search = NodeSearch(next_row=3)
    assert found(search, "YY YnY", 2) == ([3, 5], 3)
    assert found(search, "YY  nY", 2) == ([0, 1], 2)
    assert found(search, " Y YnY", 1) == ([3], 1)


def test_a_search_of_all_nodes_does_not_move_the_beginning():
    search = NodeSearch(next_row=2)
    assert found(search, "YnnYn", 2) == ([0, 3], 5)
    assert search.next_row == 2


def test_a_beginning_beyond_the_last_row_is_the_first_row():
    assert found(NodeSearch(next_row=9), "YYY", 1) == ([0], 1)


def test_all_profiles_share_where_the_search_begins():
    body = "percentageOfNodesToScore: 50\nprofiles: [{schedulerName: a}, {schedulerName: b}]"
    profiles = build_profiles(load(HEAD + body, known=BUILT_IN, preset=DEFAULT), BUILT_IN)
    snapshot = Snapshot()
    for n in range(200):
        snapshot.set_node(a_node(f"n{n:03}"))
    rankings = [
        rank(pod, snapshot, profiles[name], attempt=first_attempt(pod), options=RankOptions(best=200))
        for name, pod in (("a", pod_requesting("one")), ("b", pod_requesting("two")), ("a", pod_requesting("three")))
    ]
    halves = [{candidate.node for candidate in ranking.candidates} for ranking in rankings]
    assert [(ranking.feasible, ranking.evaluated, ranking.nodes) for ranking in rankings] == [(100, 100, 200)] * 3
    assert halves[0] == {f"n{n:03}" for n in range(100)}
    assert halves[1] == {f"n{n:03}" for n in range(100, 200)}
    assert halves[2] == halves[0]


def test_a_pod_without_feasible_node_is_filtered_on_all():
    (profile,) = build_profiles(
        load(HEAD + "percentageOfNodesToScore: 10", known=BUILT_IN, preset=DEFAULT), BUILT_IN
    ).values()
    snapshot = Snapshot()
    for n in range(300):
        snapshot.set_node(a_node(f"n{n}"))
    pod = pod_requesting(cpu="100")
    ranking = rank(pod, snapshot, profile, attempt=first_attempt(pod))
    assert ranking.evaluated == 300
    assert ranking.message.startswith("0/300 nodes are available: 300 Insufficient cpu")
