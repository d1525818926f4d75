"""NodeResourcesBalancedAllocation: the better a pod makes a node's balance, the more points."""

import pytest

from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.status import CycleState
from berth.plugins.noderesources.balancedallocation import (
    BalancedAllocationArgs,
    NodeResourcesBalancedAllocation,
    validate,
)
from berth.plugins.noderesources.scoringstrategy import ResourceWeight
from harness.builders.objects import a_node, pod_requesting

GPU = "example.com/gpu"
NODE = a_node("n", cpu="4", memory="8000", **{GPU: "4"})
CPU_AND_MEMORY = BalancedAllocationArgs()
WITH_GPU = BalancedAllocationArgs(resources=[ResourceWeight(name=name) for name in ("cpu", "memory", GPU)])


def scored(pod, *placed, node=NODE, args=CPU_AND_MEMORY):
    """The node's points, or None when the plugin skips the pod."""
    snapshot, plugin = Snapshot(), NodeResourcesBalancedAllocation(args)
    snapshot.set_node(node)
    for other in placed:
        snapshot.place(other, "n")
    state = CycleState(snapshot.class_of(pod))
    if plugin.pre_score(state, pod, Nodes(snapshot)).is_skip:
        return None
    return int(plugin.score_all(state, pod, Nodes(snapshot))[0])


@pytest.mark.parametrize(
    ("pod", "placed", "points"),
    [
        # cpu 1/4, memory 2000/8000: spread 0 with and without the pod; 50 + (50 + 100 - 100) / 2
        pytest.param(pod_requesting(cpu="1", memory="2000"), [], 75, id="balance as before"),
        # before: 2/4 and 4000/8000, 100; with it 3/4 and 4000/8000: |.75 - .5| / 2 = .125, 87; (50 - 13) / 2 = 18
        pytest.param(pod_requesting(cpu="1"), [pod_requesting("a", cpu="2", memory="4000")], 68, id="a worse balance"),
        # before: 3/4 and 4000/8000, 87; with it 3/4 and 6000/8000, 100; (50 + 13) / 2 = 31
        pytest.param(
            pod_requesting(memory="2000"), [pod_requesting("a", cpu="3", memory="4000")], 81, id="a better balance"
        ),
        # before 100; with it 4/4 and 0: |1 - 0| / 2, balance 50; (50 - 50) / 2 = 0
        pytest.param(pod_requesting(cpu="4"), [], 50, id="the worst"),
        # 8/4 counts as 1, as 4/4 does: before 50, with it 50
        pytest.param(
            pod_requesting(cpu="4"), [pod_requesting("a", cpu="4")], 75, id="more than the node has counts as all of it"
        ),
        pytest.param(pod_requesting(), [pod_requesting("a", cpu="4")], None, id="a pod without requests is not scored"),
        pytest.param(pod_requesting(**{GPU: "1"}), [], None, id="nor one that requests another resource"),
    ],
)
def test_scores_follow_the_change_of_balance(pod, placed, points):
    assert scored(pod, *placed) == points


def test_more_than_two_resources_are_balanced_by_their_standard_deviation():
    # fractions .5, 0, .25: mean .25, deviation sqrt(.125 / 3) = .204, balance 79; (50 + 79 - 100) / 2 = 14
    assert scored(pod_requesting(cpu="2", **{GPU: "1"}), args=WITH_GPU) == 64


def test_an_extended_resource_counts_only_for_pods_that_request_it():
    # cpu and memory alone: |.5 - 0| / 2 = .25, balance 75; (50 + 75 - 100) / 2 = 12
    assert scored(pod_requesting(cpu="2"), pod_requesting("a", **{GPU: "4"}), args=WITH_GPU) == 62


def test_a_resource_that_the_node_lacks_is_left_out():
    assert scored(pod_requesting(cpu="2"), node=a_node("n", cpu="4", memory="0")) == 75


def test_arguments_take_each_resource_once_and_no_weights():
    args = BalancedAllocationArgs(
        resources=[ResourceWeight(name="cpu", weight=2), ResourceWeight(name="cpu"), ResourceWeight(name="pods")]
    )
    assert validate(args, "args") == [
        "args.resources[1].name: want it once, got 'cpu' once more",
        "args.resources[0].weight: want 1, got 2",
        "args.resources[2].name: want cpu, memory, ephemeral-storage or an extended resource, got 'pods'",
    ]
