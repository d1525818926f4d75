"""The placement of many pods: as by a single scheduler, for any number of scorers, also next to another scheduler.

Several scorers rank on views that lag behind each other. Up to ``ELSEWHERE`` of the pods may then be on other nodes
than one scorer would choose, and equal nodes may differ by two pods (docs/design.md, 3.9).
"""

import asyncio
from collections.abc import Iterator

import pytest

from harness.servers.control_plane import ControlPlane
from harness.worlds.audit import audit, successful_bindings
from harness.worlds.cluster_user import ClusterUser, eventually, node_of
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("kubebuilder_assets", "nats-server"), pytest.mark.timeout(180)]

NODES = 60
PODS = 240
ELSEWHERE = 0.03
THEIRS = 15
"""Pods that another scheduler binds at the same time. Each fills one node."""


@pytest.fixture(scope="module", params=[1, 4], ids=["one scorer", "four scorers"])
def scorers(
    request: pytest.FixtureRequest, own_control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BerthUp]:
    """A pipeline with the given number of scorers."""
    folder = tmp_path_factory.mktemp("berth-up")
    kubeconfig = own_control_plane.kubeconfig_path
    with berth_up("--kubeconfig", kubeconfig, "--scorers", request.param, folder=folder) as berth:
        berth.wait_until_ready()
        assert sum(name.startswith("scorer") for name in berth.pids) == request.param
        yield berth


async def test_equal_pods_are_spread_evenly_over_equal_nodes(scorers: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(NODES)
    before = await successful_bindings(cluster_outside)
    async with audit(cluster_outside) as seen:
        await cluster_outside.all_bound(await cluster_outside.add_pods(PODS))
    assert seen.problems == []
    counts = seen.pods_per_node().values()
    too_many = sum(max(0, count - PODS // NODES) for count in counts)
    if one_scorer(scorers):
        assert too_many == 0, sorted(counts)
    assert max(counts) - min(counts) <= 2
    assert too_many <= ELSEWHERE * PODS, sorted(counts)
    assert await successful_bindings(cluster_outside) - before == PODS


def one_scorer(berth: BerthUp) -> bool:
    return sum(name.startswith("scorer") for name in berth.pids) == 1


async def test_a_cluster_is_filled_to_its_capacity_and_no_further(scorers: BerthUp, cluster_outside: ClusterUser):
    await cluster_outside.add_nodes(20, cpu="1")
    async with audit(cluster_outside) as seen:
        await cluster_outside.add_pods(75, cpu="300m")  # 3 fit on a node, so 60 are bound
        await refused(cluster_outside, 15)
    assert seen.problems == []
    assert set(seen.pods_per_node().values()) == {3}


async def refused(seen: ClusterUser, count: int) -> None:
    """Wait until all pods but this number are bound, and the others have a condition."""

    async def settled() -> bool:
        waiting = [pod for pod in (await seen.pods()).values() if not node_of(pod)]
        return len(waiting) == count and all(pod["status"].get("conditions") for pod in waiting)

    await eventually(settled, f"{count} pods to be refused and the others bound")


async def test_pods_bound_by_another_scheduler_stay_and_are_counted(scorers: BerthUp, cluster_outside: ClusterUser):
    nodes = await cluster_outside.add_nodes(40, cpu="1")
    theirs = await cluster_outside.add_pods(THEIRS, "theirs", cpu="1", scheduler="somebody-else")
    taken = dict(zip(theirs, nodes, strict=False))
    async with audit(cluster_outside) as seen:
        adding = asyncio.create_task(cluster_outside.add_pods(60, "ours", cpu="250m"))
        await bind_as_another_scheduler(cluster_outside, taken)
        await cluster_outside.all_bound([*await adding, *theirs])
        too_full = list(seen.problems)  # the other scheduler does not check for free resources
        placed = await cluster_outside.all_bound(await cluster_outside.add_pods(20, "later", cpu="250m"))
    assert seen.problems == too_full
    assert [problem for problem in too_full if "moved" in problem] == []
    assert {name: placed[name] for name in theirs} == taken
    assert {placed[f"later-{number}"] for number in range(20)} & set(taken.values()) == set()


async def bind_as_another_scheduler(seen: ClusterUser, wanted: dict[str, str]) -> None:
    """Bind without checking for free resources."""
    for name, node in wanted.items():
        answer = await seen.bind(name, node)
        assert answer.code == 201, answer.body
