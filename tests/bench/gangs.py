"""Groups for drains, by Kubernetes' own PodGroups, and nodes in racks."""

from __future__ import annotations

from typing import Any

from bench.claims import for_each
from berth_sim.nodes import ZONES
from harness.worlds.cluster_user import ClusterUser
from harness.worlds.podgroups import UPSTREAM

RACK_LABEL = "example.com/rack"
NODES_PER_RACK = 100


async def add_racks(cluster: ClusterUser, nodes: int) -> None:
    """Equal nodes, each rack in one of three zones."""
    for number, first in enumerate(range(0, nodes, NODES_PER_RACK)):
        count = min(NODES_PER_RACK, nodes - first)
        labels = {RACK_LABEL: f"rack-{number}"}
        await cluster.add_nodes(count, zone=ZONES[number % len(ZONES)], labels=labels)


def group_of(pod: str, members: int) -> str:
    """The group of a pod whose name ends with its number."""
    return f"gang-{int(pod.rpartition('-')[2]) // members}"


def spec_in_group(group: str) -> dict[str, Any]:
    return {"schedulingGroup": {"podGroupName": group}}


async def add_groups(seen: ClusterUser, pods: int, members: int, *, in_one_rack: bool) -> None:
    """The PodGroups of so many pods; the last one has what is left."""

    async def add(first: int) -> None:
        spec: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": min(members, pods - first)}}}
        if in_one_rack:
            spec["schedulingConstraints"] = {"topology": [{"key": RACK_LABEL}]}
        name = group_of(f"web-{first}", members)
        answer = await seen.api.post(_path(seen), {"metadata": {"name": name}, "spec": spec})
        assert answer.code == 201, answer.body

    await for_each(range(0, pods, members), add)


async def remove_groups(seen: ClusterUser) -> None:
    """They would wait while the next scheduler is measured. The controller that lets go of them does not run."""

    async def remove(name: str) -> None:
        await seen.api.patch(f"{_path(seen)}/{name}", {"metadata": {"finalizers": None}})
        await seen.api.delete(f"{_path(seen)}/{name}")

    await for_each((await seen.api.get(_path(seen))).names, remove)


def _path(seen: ClusterUser) -> str:
    return f"/apis/{UPSTREAM}/namespaces/{seen.namespace}/podgroups"
