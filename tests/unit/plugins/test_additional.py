"""The plugins that the articles write, their arithmetic shown."""

import numpy as np
import pytest

from berth.api.config.load import ConfigurationError, load
from berth.api.config.presets import DEFAULT
from berth.api.node import NodeCondition
from berth.api.pod import Pod
from berth.cluster.nodes import node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.equivalencecache import EquivalenceCache
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.scoring import normalize_by_rank
from berth.plugins.additional.freecapacity import FreeCapacity
from berth.plugins.additional.nodelabel import NodeFilterLabel, NodeFilterLabelArgs, NodeScoreLabel, NodeScoreLabelArgs
from berth.plugins.additional.nodeready import NodeReady
from berth.plugins.additional.tenantspread import TenantSpread, TenantSpreadArgs
from berth.plugins.registry import BUILT_IN
from harness.builders.objects import a_node, a_pod, first_attempt, pod_requesting
from harness.builders.profiles import profile_of
from harness.worlds.queueing_hints import may_help


def cluster(*nodes) -> Snapshot:
    snapshot = Snapshot()
    for node in nodes:
        snapshot.set_node(node)
    return snapshot


def ranked(pod: Pod, snapshot: Snapshot, *plugins):
    return rank(pod, snapshot, profile_of(*plugins), attempt=first_attempt(pod))


def points(pod: Pod, snapshot: Snapshot, plugin) -> dict[str, int]:
    ranking = ranked(pod, snapshot, plugin)
    assert ranking.error == ""
    return {candidate.node: candidate.scores[plugin.name] for candidate in ranking.candidates}


def with_condition(name: str, **conditions: str):
    node = a_node(name)
    listed = [NodeCondition(type=kind, status=status) for kind, status in conditions.items()]
    return type(node)(
        metadata=node.metadata,
        spec=node.spec,
        status=type(node.status)(allocatable=node.status.allocatable, conditions=listed),
    )


# NodeScoreLabel


def test_a_node_with_the_label_scores_0_and_all_others_100():
    snapshot = cluster(a_node("a", labels={"node": "hello"}), a_node("b", labels={"node": "other"}), a_node("c"))
    # raw 0, 1, 1; the largest becomes 100: 0*100/1, 1*100/1
    assert points(a_pod(), snapshot, NodeScoreLabel(NodeScoreLabelArgs())) == {"a": 0, "b": 100, "c": 100}


def test_when_every_node_has_the_label_all_score_0():
    snapshot = cluster(a_node("a", labels={"node": "hello"}), a_node("b", labels={"node": "hello"}))
    # raw 0, 0: the largest is 0, so nothing is stretched
    assert points(a_pod(), snapshot, NodeScoreLabel(NodeScoreLabelArgs())) == {"a": 0, "b": 0}


def test_key_and_value_of_the_scored_label_are_arguments():
    snapshot = cluster(a_node("a", labels={"disk": "slow"}), a_node("b", labels={"node": "hello"}))
    assert points(a_pod(), snapshot, NodeScoreLabel(NodeScoreLabelArgs(key="disk", value="slow"))) == {"a": 0, "b": 100}


# NodeFilterLabel


def test_only_labelled_nodes_are_feasible_and_the_reason_names_the_label():
    snapshot = cluster(a_node("a", labels={"cpu": "true"}), a_node("b", labels={"cpu": "false"}), a_node("c"))
    plugin = NodeFilterLabel(NodeFilterLabelArgs())
    assert [candidate.node for candidate in ranked(a_pod(), snapshot, plugin).candidates] == ["a"]
    status = check(a_pod(), "b", snapshot, profile_of(plugin))
    assert (status.plugin, status.reasons) == ("NodeFilterLabel", ("node(s) didn't have label cpu=true",))


def test_without_any_labelled_node_the_message_counts_the_nodes():
    snapshot = cluster(a_node("a"), a_node("b"))
    ranking = ranked(a_pod(), snapshot, NodeFilterLabel(NodeFilterLabelArgs(key="gpu", value="a100")))
    assert ranking.message == "0/2 nodes are available: 2 node(s) didn't have label gpu=a100."
    assert ranking.unschedulable_plugins == ("NodeFilterLabel",)


def test_only_a_node_that_gets_the_label_helps():
    profile = profile_of(NodeFilterLabel(NodeFilterLabelArgs()))
    plain, labelled = a_node("a"), a_node("a", labels={"cpu": "true"})
    update = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_LABEL)
    assert may_help(profile, ["NodeFilterLabel"], update, a_pod(), plain, labelled)
    assert not may_help(profile, ["NodeFilterLabel"], update, a_pod(), labelled, plain)
    assert not may_help(profile, ["NodeFilterLabel"], ClusterEvent(Resource.NODE, Action.ADD), a_pod(), None, plain)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        pytest.param("{key: ''}", "key: want a label key such as disk or example.com/disk, got ''", id="no key"),
        pytest.param("{key: a/b/c}", "key: want a label key such as disk or example.com/disk, got 'a/b/c'", id="key"),
        pytest.param("{value: 'a b'}", "value: want a label value of at most 63", id="value"),
    ],
)
def test_an_invalid_label_is_rejected(args, problem):
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    text = f"{head}profiles: [{{pluginConfig: [{{name: NodeFilterLabel, args: {args}}}]}}]"
    with pytest.raises(ConfigurationError) as caught:
        load(text, known=BUILT_IN, preset=DEFAULT)
    assert caught.value.problems[0].startswith(f"profiles[0].pluginConfig[0].args.{problem}")


# NodeReady


@pytest.mark.parametrize(
    ("conditions", "fits"),
    [
        pytest.param({"Ready": "True"}, True, id="ready"),
        pytest.param({"Ready": "False"}, False, id="not ready"),
        pytest.param({"Ready": "Unknown"}, False, id="unknown"),
        pytest.param({}, True, id="no condition"),
        pytest.param({"DiskPressure": "True"}, True, id="another condition"),
    ],
)
def test_a_node_with_the_condition_must_be_ready(conditions, fits):
    status = check(a_pod(), "a", cluster(with_condition("a", **conditions)), profile_of(NodeReady()))
    assert status.is_success is fits
    assert status.reasons == (() if fits else ("node(s) were not ready",))


def test_a_node_that_becomes_ready_helps():
    profile = profile_of(NodeReady())
    ready, unready = with_condition("a", Ready="True"), with_condition("a", Ready="False")
    update = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_CONDITION)
    assert may_help(profile, ["NodeReady"], update, a_pod(), unready, ready)
    assert not may_help(profile, ["NodeReady"], update, a_pod(), ready, unready)


# FreeCapacity


def test_free_capacity_adds_free_millicores_and_megabytes():
    snapshot = cluster(
        a_node("a", cpu="4", memory="8G"), a_node("b", cpu="8", memory="2G"), a_node("c", cpu="4", memory="8G")
    )
    snapshot.place(pod_requesting("there", cpu="500m", memory="1G"), "a")
    pod = pod_requesting(cpu="1", memory="1G")
    # a: 4000 - 500 - 1000 + (8,000 - 1,000 - 1,000) = 2500 + 6000 = 8500
    # b: 8000 - 1000 + (2,000 - 1,000)               = 7000 + 1000 = 8000
    # c: 4000 - 1000 + (8,000 - 1,000)               = 3000 + 7000 = 10000
    plugin = FreeCapacity()
    state = EquivalenceCache.of(snapshot, profile_of(plugin)).results_of(pod).state
    raw = {name: plugin.score(state, pod, node_info(snapshot, name)) for name in "abc"}
    assert raw == {"a": 8500, "b": 8000, "c": 10000}
    # by place: 10000, 8500, 8000
    assert points(pod, snapshot, plugin) == {"c": 100, "a": 99, "b": 98}


def test_a_millicore_or_a_megabyte_more_wins_however_large_the_nodes_are():
    snapshot = cluster(
        a_node("a", cpu="64", memory="512G"), a_node("b", cpu="64001m", memory="512G"), a_node("c", memory="512001M")
    )
    # a: 64000 + 512000; b: 64001 + 512000; c: 4000 + 512001. In proportion, a and b would both be 100.
    assert points(a_pod(), snapshot, FreeCapacity()) == {"b": 100, "a": 99, "c": 98}


@pytest.mark.parametrize(
    ("raw", "normalized"),
    [
        pytest.param([5, 5, 5], [100, 100, 100], id="all equal"),
        pytest.param([1, 900, 30], [98, 100, 99], id="distances do not count"),
        pytest.param([-4, 0, -4], [99, 100, 99], id="below 0"),
        pytest.param(list(range(150)), [max(0, 100 - (149 - n)) for n in range(150)], id="more than there are points"),
        pytest.param([], [], id="none"),
    ],
)
def test_scores_by_rank_keep_the_order_of_the_best(raw, normalized):
    assert normalize_by_rank(np.array(raw, dtype=np.int64)).tolist() == normalized


# TenantSpread


def of(tenant: str, name: str = "new", **more: object) -> Pod:
    return a_pod(name, labels={"tenant": tenant} if tenant else None, **more)


def test_the_node_with_the_fewest_pods_of_the_tenant_is_best():
    snapshot = cluster(a_node("a"), a_node("b"), a_node("c"))
    for number, (tenant, node) in enumerate([("x", "a"), ("x", "a"), ("x", "b"), ("y", "c"), ("y", "c"), ("", "c")]):
        snapshot.place(of(tenant, f"p{number}"), node)
    # pods of x: a 2, b 1, c 0; of y: 0, 0, 2
    assert points(of("x"), snapshot, TenantSpread(TenantSpreadArgs())) == {"c": 100, "b": 99, "a": 98}
    assert points(of("y"), snapshot, TenantSpread(TenantSpreadArgs())) == {"a": 100, "b": 100, "c": 99}


def test_counts_decrease_when_pods_are_deleted():
    snapshot = cluster(a_node("a"), a_node("b"))
    snapshot.place(of("x", "p0"), "a")
    assert points(of("x"), snapshot, TenantSpread(TenantSpreadArgs())) == {"b": 100, "a": 99}
    snapshot.remove_pod("uid-p0")
    assert points(of("x"), snapshot, TenantSpread(TenantSpreadArgs())) == {"a": 100, "b": 100}


def test_a_pod_that_is_being_deleted_and_the_pod_itself_do_not_count():
    snapshot = cluster(a_node("a"), a_node("b"))
    going = of("x", "going")
    metadata = type(going.metadata)(
        name="going",
        namespace="default",
        uid="uid-going",
        labels={"tenant": "x"},
        deletion_timestamp="2026-01-01T00:00:00Z",
    )
    snapshot.place(Pod(metadata=metadata, spec=going.spec), "a")
    snapshot.place(of("x", "itself"), "b")
    assert points(of("x", "itself"), snapshot, TenantSpread(TenantSpreadArgs())) == {"a": 100, "b": 100}


def test_a_pod_without_a_tenant_is_unschedulable():
    ranking = ranked(of(""), cluster(a_node("a"), a_node("b")), TenantSpread(TenantSpreadArgs()))
    sentence = "pod has no label tenant, which names the tenant it belongs to"
    assert ranking.message == f"0/2 nodes are available: {sentence}."
    assert ranking.unschedulable_plugins == ("TenantSpread",)


def test_only_its_own_label_helps_a_pod_without_a_tenant():
    profile = profile_of(TenantSpread(TenantSpreadArgs()))
    labelled = ClusterEvent(Resource.POD, Action.UPDATE_POD_LABEL)
    assert may_help(profile, ["TenantSpread"], labelled, of(""), of(""), of("x"))
    assert not may_help(profile, ["TenantSpread"], labelled, of(""), of("", "other"), of("x", "other"))
    assert not may_help(profile, ["TenantSpread"], ClusterEvent(Resource.NODE, Action.ADD), of(""), None, a_node("a"))


def test_candidates_carry_the_number_of_the_tenants_pods():
    snapshot = cluster(a_node("a"), a_node("b"))
    for number, (tenant, node) in enumerate([("x", "a"), ("y", "a"), ("y", "a"), ("y", "b")]):
        snapshot.place(of(tenant, f"p{number}"), node)
    ranking = ranked(of("x"), snapshot, TenantSpread(TenantSpreadArgs()))
    assert {candidate.node: candidate.pods for candidate in ranking.candidates} == {"a": 1, "b": 0}
