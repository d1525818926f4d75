"""The vector form of every built-in plugin says of each node what its scalar form says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.pod import TopologySpreadConstraint
from berth.cluster.nodes import Nodes
from berth.framework.interface import PreScorePlugin, VectorFilterPlugin, VectorScorePlugin
from berth.framework.state import CycleState
from berth.plugins.balancedallocation import BalancedAllocationArgs, NodeResourcesBalancedAllocation
from berth.plugins.freecapacity import FreeCapacity
from berth.plugins.imagelocality import ImageLocality
from berth.plugins.interpodaffinity import InterPodAffinity, InterPodAffinityArgs
from berth.plugins.nodeaffinity import NodeAffinity, NodeAffinityArgs
from berth.plugins.nodefilterlabel import NodeFilterLabel, NodeFilterLabelArgs
from berth.plugins.nodename import NodeName
from berth.plugins.nodeports import NodePorts
from berth.plugins.nodeready import NodeReady
from berth.plugins.noderesourcesargs import (
    NodeResourcesFitArgs,
    ResourceWeight,
    ScoringStrategy,
    Shape,
    ShapePoint,
)
from berth.plugins.noderesourcesfit import NodeResourcesFit
from berth.plugins.nodescorelabel import NodeScoreLabel, NodeScoreLabelArgs
from berth.plugins.nodeunschedulable import NodeUnschedulable
from berth.plugins.podtopologyspread import PodTopologySpread, PodTopologySpreadArgs
from berth.plugins.registry import BUILT_IN
from berth.plugins.tainttoleration import TaintToleration
from berth.plugins.tenantspread import TenantSpread, TenantSpreadArgs
from harness.random_clusters import NODE_NAMES, node_affinities, pods, snapshots

RESOURCES = [
    ResourceWeight(name="cpu", weight=3),
    ResourceWeight(name="memory", weight=2),
    ResourceWeight(name="example.com/gpu", weight=5),
    ResourceWeight(name="ephemeral-storage", weight=1),
]
ONCE_EACH = [ResourceWeight(name=resource.name) for resource in RESOURCES]
DEFAULTS = PodTopologySpreadArgs(
    defaulting_type="List",
    default_constraints=[
        TopologySpreadConstraint(max_skew=1, topology_key=key, when_unsatisfiable=action)
        for key in ("zone", "disk")
        for action in ("DoNotSchedule", "ScheduleAnyway")
    ],
)
SHAPE = Shape(shape=[ShapePoint(utilization=u, score=s) for u, s in [(0, 10), (30, 0), (70, 7), (100, 3)]])


def fit(kind: str, **args: object) -> NodeResourcesFit:
    strategy = ScoringStrategy(type=kind, resources=RESOURCES, requested_to_capacity_ratio=SHAPE)
    return NodeResourcesFit(NodeResourcesFitArgs(scoring_strategy=strategy, **args))


PLUGINS = [
    pytest.param(NodeUnschedulable(), id="NodeUnschedulable"),
    pytest.param(NodeName(), id="NodeName"),
    pytest.param(TaintToleration(), id="TaintToleration"),
    pytest.param(NodeAffinity(NodeAffinityArgs()), id="NodeAffinity"),
    pytest.param(fit("LeastAllocated"), id="LeastAllocated"),
    pytest.param(fit("MostAllocated", ignored_resources=["example.com/gpu"]), id="MostAllocated"),
    pytest.param(
        fit("RequestedToCapacityRatio", ignored_resource_groups=["example.com"]), id="RequestedToCapacityRatio"
    ),
    pytest.param(NodeResourcesBalancedAllocation(BalancedAllocationArgs()), id="BalancedAllocation"),
    pytest.param(
        NodeResourcesBalancedAllocation(BalancedAllocationArgs(resources=ONCE_EACH)),
        id="BalancedAllocation of four",
    ),
    pytest.param(ImageLocality(), id="ImageLocality"),
    pytest.param(InterPodAffinity(InterPodAffinityArgs(hard_pod_affinity_weight=50)), id="InterPodAffinity"),
    pytest.param(PodTopologySpread(PodTopologySpreadArgs()), id="PodTopologySpread"),
    pytest.param(PodTopologySpread(DEFAULTS), id="PodTopologySpread by a list"),
    pytest.param(NodePorts(), id="NodePorts"),
    pytest.param(NodeReady(), id="NodeReady"),
    pytest.param(NodeScoreLabel(NodeScoreLabelArgs(key="disk", value="a")), id="NodeScoreLabel"),
    pytest.param(NodeFilterLabel(NodeFilterLabelArgs(key="zone", value="b")), id="NodeFilterLabel"),
    pytest.param(FreeCapacity(), id="FreeCapacity"),
    pytest.param(TenantSpread(TenantSpreadArgs(key="tier")), id="TenantSpread"),
]
some_rows = st.none() | st.lists(st.sampled_from(NODE_NAMES), unique=True)


@pytest.mark.parametrize("plugin", PLUGINS)
@given(snapshot=snapshots(), pod=pods, names=some_rows)
def test_vector_form_equals_scalar_form(plugin, snapshot, pod, names):
    agree(plugin, snapshot, pod, names)


@given(snapshot=snapshots(), pod=pods, names=some_rows, added=node_affinities)
def test_vector_form_equals_scalar_form_with_added_affinity(snapshot, pod, names, added):
    agree(NodeAffinity(NodeAffinityArgs(added_affinity=added)), snapshot, pod, names)


def test_every_vector_plugin_is_compared_but_the_one_that_needs_live_data():
    factories = [factory for factory in BUILT_IN.values() if factory.name != "NetworkTraffic"]
    built = [factory.build(factory.args_type() if factory.args_type else None) for factory in factories]
    vector = {plugin.name for plugin in built if isinstance(plugin, VectorFilterPlugin | VectorScorePlugin)}
    assert vector == {param.values[0].name for param in PLUGINS}


def agree(plugin, snapshot, pod, names):
    state = CycleState(snapshot.class_of(pod))
    skipped = hasattr(plugin, "pre_filter") and plugin.pre_filter(state, pod, snapshot).status.is_skip
    nodes = view(snapshot, names)
    infos = list(nodes.infos())
    if isinstance(plugin, VectorFilterPlugin) and not skipped:
        verdicts = plugin.filter_all(state, pod, nodes)
        for info, code in zip(infos, verdicts.codes.tolist(), strict=True):
            assert info is None or verdicts.statuses[code] == plugin.filter(state, pod, info)
    unscored = isinstance(plugin, PreScorePlugin) and plugin.pre_score(state, pod, nodes).is_skip
    if isinstance(plugin, VectorScorePlugin) and not unscored:
        for info, points in zip(infos, plugin.score_all(state, pod, nodes).tolist(), strict=True):
            assert info is None or points == plugin.score(state, pod, info)


def view(snapshot, names) -> Nodes:
    if names is None:
        return Nodes(snapshot)
    rows = [row for name in names if (row := snapshot.rows.of(name)) is not None]
    return Nodes(snapshot, np.array(rows, dtype=np.intp))
