"""The detail of a cycle has for every node each plugin's score, or why it was rejected."""

from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import Detail, RankOptions, rank
from berth.plugins.additional.nodelabel import NodeFilterLabel, NodeFilterLabelArgs, NodeScoreLabel, NodeScoreLabelArgs
from berth.plugins.additional.tenantspread import TenantSpread, TenantSpreadArgs
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import profile_of


def detail_of(pod, snapshot, *plugins, weight: int = 1) -> Detail:
    detail, profile = Detail(), profile_of(*plugins, weight=weight)
    asked = rank(pod, snapshot, profile, attempt=first_attempt(pod), options=RankOptions(detail=detail))
    assert asked == rank(pod, snapshot, profile, attempt=first_attempt(pod))
    return detail


def refusals_of(detail: Detail) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {node: (status.plugin, status.reasons) for node, status in detail.node_to_status.items()}


def cluster(**labels: dict[str, str]) -> Snapshot:
    snapshot = Snapshot()
    for name, given in labels.items():
        snapshot.set_node(a_node(name, labels=given))
    return snapshot


def test_every_node_is_in_the_detail():
    snapshot = cluster(
        **{f"n{number}": {"cpu": "true"} for number in range(20)}, other={}, hello={"cpu": "true", "node": "hello"}
    )
    plugins = NodeFilterLabel(NodeFilterLabelArgs()), NodeScoreLabel(NodeScoreLabelArgs())
    detail = detail_of(a_pod(), snapshot, *plugins, weight=3)
    assert refusals_of(detail) == {"other": ("NodeFilterLabel", ("node(s) didn't have label cpu=true",))}
    scores = detail.scores["NodeScoreLabel"]
    assert (len(scores), scores["hello"], scores["n7"]) == (21, 0, 300)  # 100 x weight 3


def test_a_rejection_by_prefilter_is_that_of_every_node():
    detail = detail_of(a_pod(), cluster(a={}, b={}), TenantSpread(TenantSpreadArgs()))
    assert {node: plugin for node, (plugin, _) in refusals_of(detail).items()} == {
        "a": "TenantSpread",
        "b": "TenantSpread",
    }
    assert detail.scores == {}


def test_the_only_feasible_node_is_not_scored():
    snapshot = cluster(a={"cpu": "true"}, b={})
    plugins = NodeFilterLabel(NodeFilterLabelArgs()), NodeScoreLabel(NodeScoreLabelArgs())
    detail = detail_of(a_pod(), snapshot, *plugins)
    assert list(detail.node_to_status) == ["b"]
    assert detail.scores == {}
