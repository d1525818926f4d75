"""A start of berth on a cluster that NATS does not know: the only free nodes are the last ones of the mirror.

Whoever ranks on a part of the nodes evicts a pod although a node is free, or says that a pod fits nowhere.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from berth_sim.nodes import node_manifest, pod_manifest
from faults.judge import Judge, judging
from harness.servers.control_plane import ControlPlane
from harness.servers.nats_server import nats_server
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.etcd_filling import EtcdFilling
from harness.worlds.pipeline import berth_up

PODS = 10
"""Of each kind, at each start."""
LONGEST_SECONDS = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What happened at one start."""

    nodes: int
    seconds: float
    """Until every pod was bound, from the start of the program."""
    evicted: list[str]
    rejected: list[str]
    """Notes of the Events that call a pod unschedulable."""

    def __str__(self) -> str:
        wrong = f"{len(self.evicted)} evictions, {len(self.rejected)} Events that say unschedulable"
        return f"{self.nodes} nodes: all bound after {self.seconds:.1f} s, {wrong}"


async def starts_on_late_nodes(plane: ControlPlane, folder: Path, *, nodes: int) -> list[Start]:
    """Start on a new store, then once more after as many nodes again have come while berth was away.

    The control plane must store JSON (`faults.world.API_FLAGS`).
    """
    found = []
    with nats_server() as nats:
        async with judging(plane.etcd_url) as judge, cluster_user(plane.kubeconfig_path, cleans_up=False) as user:
            priority_class = await user.add_priority_class("important", 1_000_000)
            filling = EtcdFilling(plane, user)
            for number in (1, 2):
                await _fill(filling, user, f"{number}", nodes)
                await user.create(_pods(user, f"{number}", priority_class))
                await eventually(lambda: _all_wait(judge), "the judge to see every pod", LONGEST_SECONDS)
                began = time.monotonic()
                with berth_up("--kubeconfig", plane.kubeconfig_path, "--nats", nats.address, folder=folder):
                    await eventually(lambda: _none_waits(judge), "every pod to be bound", LONGEST_SECONDS)
                    found.append(
                        Start(
                            nodes=len(judge.nodes),
                            seconds=time.monotonic() - began,
                            evicted=[pod.name for pod in judge.evicted.values()],
                            rejected=[event["note"] for event in await user.events("FailedScheduling")],
                        )
                    )
    return found


async def _fill(filling: EtcdFilling, user: ClusterUser, start: str, nodes: int) -> None:
    """Full nodes, then free ones whose names come last."""
    await filling.add(node_manifest(f"a{start}-{number:05}", cpu="1") for number in range(nodes))
    await filling.add(
        pod_manifest(f"low-{start}-{number:05}", namespace=user.namespace, cpu="1", node=f"a{start}-{number:05}")
        for number in range(nodes)
    )
    await filling.add(node_manifest(f"z{start}-{number:05}", cpu="4") for number in range(2 * PODS))


def _pods(user: ClusterUser, start: str, priority_class: str) -> list[dict]:
    """Pods that fit free nodes only, and important ones that would fit any other in the place of the pod there."""
    large = [pod_manifest(f"large-{start}-{n}", namespace=user.namespace, cpu="3") for n in range(PODS)]
    important = [
        pod_manifest(f"important-{start}-{n}", namespace=user.namespace, cpu="1", priority_class=priority_class)
        for n in range(PODS)
    ]
    return [*large, *important]


async def _all_wait(judge: Judge) -> bool:
    return len(judge.waiting()) == 2 * PODS


async def _none_waits(judge: Judge) -> bool:
    return not judge.waiting()
