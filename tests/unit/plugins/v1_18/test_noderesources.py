"""Scores of 1.18 by cpu and memory: least and most allocated, balance, limits."""

import pytest

from berth.api.pod import Container, ResourceRequirements
from berth.cluster.snapshot import Snapshot
from berth_plugins_1_18.noderesources import (
    BalancedAllocationV118,
    NodeResourceLimits,
    NodeResourcesLeastAllocated,
    NodeResourcesMostAllocated,
)
from harness.builders.objects import a_container, a_node, a_pod, pod_requesting
from harness.builders.profiles import points

NODE = a_node("n", cpu="4", memory="10000")
DEFAULT_MEMORY = 200 * 1024 * 1024


def of_node(plugin, pod, *placed, node=NODE) -> int:
    snapshot = Snapshot()
    snapshot.set_node(node)
    for other in placed:
        snapshot.place(other, "n")
    return points(plugin(), pod, snapshot)["n"]


def limited(*limits: dict, init: dict | None = None):
    containers = [Container(name=f"c{i}", resources=ResourceRequirements(limits=each)) for i, each in enumerate(limits)]
    before = [Container(name="i", resources=ResourceRequirements(limits=init))] if init else None
    return a_pod(containers=containers, init_containers=before)


@pytest.mark.parametrize(
    ("pod", "placed", "node", "least", "most"),
    [
        # cpu 3000/4000: 25 free, 75 used; memory 5000/10000: 50 and 50; means 37.5 and 62.5
        pytest.param(
            pod_requesting(cpu="1", memory="2000"),
            [pod_requesting("a", cpu="2", memory="3000")],
            NODE,
            37,
            62,
            id="both in part",
        ),
        # cpu 1000/4000: 75 and 25; memory: an explicit request of 0, 0/10000: 100 and 0
        pytest.param(pod_requesting(cpu="1", memory="0"), [], NODE, 87, 12, id="an explicit 0 stays 0"),
        # cpu 100m/4000: 97 (97.5) and 2 (2.5); memory 200 MiB of 400: 50 and 50
        pytest.param(pod_requesting(), [], a_node("n", cpu="4", memory=str(2 * DEFAULT_MEMORY)), 73, 26, id="defaults"),
        # cpu 5000 > 4000: 0 and 0, where MostAllocated gives 100 today; memory 5000/10000: 50 and 50
        pytest.param(
            pod_requesting(cpu="1", memory="2000"),
            [pod_requesting("a", cpu="4", memory="3000")],
            NODE,
            25,
            25,
            id="more than there is",
        ),
        # memory 4000/4000: 0 and 100; cpu 2000/4000: 50 and 50
        pytest.param(pod_requesting(cpu="2", memory="4000"), [], a_node("n", memory="4000"), 25, 75, id="all there is"),
        # memory: none there, 0 in a mean over both, where it is left out today; cpu 2000/4000: 50 and 50
        pytest.param(
            pod_requesting(cpu="2", memory="0"), [], a_node("n", memory="0"), 25, 25, id="a resource that is lacking"
        ),
    ],
)
def test_allocation_is_the_mean_of_cpu_and_memory(pod, placed, node, least, most):
    assert of_node(NodeResourcesLeastAllocated, pod, *placed, node=node) == least
    assert of_node(NodeResourcesMostAllocated, pod, *placed, node=node) == most


def test_a_larger_init_container_counts_and_overhead_is_added():
    # cpu: max(1000 + 500, 2000) + 100 = 2100, 47.5 free; memory: max(1000 + 1000, 500) + 0 = 2000, 80 free
    pod = a_pod(
        containers=[a_container(cpu="1", memory="1000"), a_container(cpu="500m", memory="1000")],
        init_containers=[a_container(cpu="2", memory="500")],
        overhead={"cpu": "100m"},
    )
    assert of_node(NodeResourcesLeastAllocated, pod) == 63


@pytest.mark.parametrize(
    ("pod", "placed", "node", "expected"),
    [
        # cpu 3/4, memory 5000/10000: |.75 - .5| = .25, not halved as today
        pytest.param(
            pod_requesting(cpu="1", memory="2000"), [pod_requesting("a", cpu="2", memory="3000")], NODE, 75, id="uneven"
        ),
        pytest.param(pod_requesting(cpu="1", memory="2500"), [], NODE, 100, id="even"),
        # cpu 4/4: as good as full
        pytest.param(pod_requesting(cpu="4", memory="5000"), [], NODE, 0, id="one used up"),
        pytest.param(pod_requesting(cpu="5", memory="12000"), [], NODE, 0, id="both requests exceed allocatable"),
        pytest.param(
            pod_requesting(cpu="1", memory="0"), [], a_node("n", memory="0"), 0, id="one that is lacking counts as full"
        ),
        # cpu 100m/1000m, memory 200 MiB of 400: |.1 - .5| = .4; a missing request counts with a default
        pytest.param(pod_requesting(), [], a_node("n", cpu="1", memory=str(2 * DEFAULT_MEMORY)), 60, id="defaults"),
        # 1 of 3 and 2 of 3: |1/3 - 2/3| leaves .6666...
        pytest.param(
            pod_requesting(cpu="1", memory="2000"), [], a_node("n", cpu="3", memory="3000"), 66, id="cut, not rounded"
        ),
    ],
)
def test_balance_is_the_difference_of_the_used_fractions(pod, placed, node, expected):
    assert of_node(BalancedAllocationV118, pod, *placed, node=node) == expected


@pytest.mark.parametrize(
    ("pod", "node", "expected"),
    [
        pytest.param(limited({"cpu": "4", "memory": "20000"}), NODE, 1, id="cpu is enough"),
        pytest.param(limited({"cpu": "5", "memory": "10000"}), NODE, 1, id="memory is enough"),
        pytest.param(limited({"cpu": "5", "memory": "10001"}), NODE, 0, id="neither is"),
        pytest.param(limited({"cpu": "2"}, {"cpu": "3"}), NODE, 0, id="containers are added up"),
        pytest.param(limited({"cpu": "2"}, init={"cpu": "5"}), NODE, 0, id="a larger init container counts"),
        pytest.param(limited({"cpu": "2"}, {"cpu": "2"}, init={"cpu": "3"}), NODE, 1, id="a smaller one does not"),
        pytest.param(limited({}), NODE, 0, id="no limit gives nothing"),
        pytest.param(limited({"cpu": "1"}), a_node("n", cpu="0"), 0, id="nor does what the node lacks"),
        pytest.param(limited({"example.com/gpu": "1"}), NODE, 0, id="nor any other resource"),
    ],
)
def test_a_node_that_satisfies_the_limits_scores_1(pod, node, expected):
    assert of_node(NodeResourceLimits, pod, node=node) == expected
