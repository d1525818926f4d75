"""What one cycle costs: CPU microseconds a pod, by what the pod is and how much changed since. Prints JSON.

.venv/bin/python tests/bench/cycle.py [--nodes 5000] [--rounds 200]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
from collections.abc import Callable
from time import process_time_ns
from typing import Any

from msgspec import structs

from berth.api.config.load import default_configuration
from berth.api.identity import Attempt, Term, Uid
from berth.api.meta import LabelSelector, ObjectMeta, OwnerReference
from berth.api.node import Node, NodeStatus
from berth.api.pod import (
    Affinity,
    Container,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    ResourceRequirements,
    TopologySpreadConstraint,
)
from berth.api.workloads import ReplicaSet, SelectorSpec
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.profile import Profile, build_profiles
from berth.plugins.presets import DEFAULT
from berth.plugins.registry import BUILT_IN

ALLOCATABLE = {"cpu": "8", "memory": "32Gi", "ephemeral-storage": "100Gi", "pods": "110"}


def cluster(nodes: int) -> Snapshot:
    """Equal nodes in three zones."""
    snapshot = Snapshot()
    for i in range(nodes):
        labels = {"kubernetes.io/hostname": f"node-{i}", "topology.kubernetes.io/zone": f"zone-{i % 3}"}
        metadata = ObjectMeta(name=f"node-{i}", labels=labels)
        snapshot.set_node(Node(metadata=metadata, status=NodeStatus(allocatable=ALLOCATABLE)))
    return snapshot


def pod(number: int, cpu: str = "100m", *, app: str = "web", **spec: Any) -> Pod:
    """A plain pod; equal cpu is equal class."""
    container = Container(name="main", resources=ResourceRequirements(requests={"cpu": cpu, "memory": "128Mi"}))
    metadata = ObjectMeta(name=f"pod-{number}", namespace="default", uid=f"uid-{number}", labels={"app": app})
    return Pod(metadata=metadata, spec=PodSpec(scheduler_name="berth", containers=[container], **spec))


def spread(number: int) -> Pod:
    """A pod that is to lie evenly over the zones."""
    by_zone = TopologySpreadConstraint(
        max_skew=1,
        topology_key="topology.kubernetes.io/zone",
        when_unsatisfiable="DoNotSchedule",
        label_selector=LabelSelector(match_labels={"app": "spread"}),
    )
    return pod(number, app="spread", topology_spread_constraints=[by_zone])


def apart(number: int) -> Pod:
    """A pod that is to be alone of its kind on its node."""
    by_host = PodAffinityTerm(
        topology_key="kubernetes.io/hostname", label_selector=LabelSelector(match_labels={"app": "apart"})
    )
    anti = PodAffinity(required_during_scheduling_ignored_during_execution=[by_host])
    return pod(number, app="apart", affinity=Affinity(pod_anti_affinity=anti))


def owned(number: int) -> Pod:
    """A plain pod of a replica set: default constraints prefer zones and hosts with fewer of its kind."""
    plain = pod(number, app="owned")
    owner = OwnerReference(kind="ReplicaSet", name="owned", api_version="apps/v1", controller=True)
    return structs.replace(plain, metadata=structs.replace(plain.metadata, owner_references=[owner]))


def attempt(number: int) -> Attempt:
    """The first attempt of a pod."""
    return Attempt(uid=Uid(f"uid-{number}"), term=Term(1), n=1)


def microseconds(rounds: int, work: Callable[[int], object]) -> dict[str, float]:
    """CPU time of each of many runs."""
    spent = []
    for number in range(rounds):
        start = process_time_ns()
        work(number)
        spent.append((process_time_ns() - start) / 1000)
    quantiles = statistics.quantiles(spent, n=100)
    return {"median": round(statistics.median(spent), 1), "p99": round(quantiles[98], 1)}


def measure(nodes: int, rounds: int) -> dict[str, object]:
    """All figures for one number of nodes."""
    profile: Profile = build_profiles(default_configuration(BUILT_IN, DEFAULT), BUILT_IN)["berth"]
    snapshot = cluster(nodes)

    selector = LabelSelector(match_labels={"app": "owned"})
    owner = ReplicaSet(metadata=ObjectMeta(name="owned", namespace="default"), spec=SelectorSpec(selector=selector))
    snapshot.objects(ReplicaSet).set("owned", owner)

    def rank_and_place(number: int, make: Callable[[int], Pod] = pod) -> None:
        waiting = make(number)
        best = rank(waiting, snapshot, profile, attempt=attempt(number)).candidates[0]
        snapshot.place(waiting, best.node)

    for i, make in enumerate((pod, spread, apart, owned), start=1):
        rank_and_place(-i, make)
    return {
        "nodes": nodes,
        "known class, one row changed, placing included": microseconds(rounds, rank_and_place),
        "known class, nothing changed": microseconds(
            rounds, lambda n: rank(pod(10**6 + n), snapshot, profile, attempt=attempt(n))
        ),
        "new class": microseconds(
            rounds, lambda n: rank(pod(2 * 10**6, f"{n + 101}m"), snapshot, profile, attempt=attempt(n))
        ),
        "new class, every node refuses": microseconds(
            rounds, lambda n: rank(pod(2 * 10**6, f"{n + 9}"), snapshot, profile, attempt=attempt(n))
        ),
        "known class, every node refuses": microseconds(
            rounds, lambda n: rank(pod(2 * 10**6, "9"), snapshot, profile, attempt=attempt(n))
        ),
        "check of one node": microseconds(
            rounds, lambda n: check(pod(3 * 10**6 + n), f"node-{n % nodes}", snapshot, profile)
        ),
        "spread over zones, placing included": microseconds(rounds, lambda n: rank_and_place(4 * 10**6 + n, spread)),
        "apart by host, placing included": microseconds(rounds, lambda n: rank_and_place(5 * 10**6 + n, apart)),
        "a replica set's pod, placing included": microseconds(rounds, lambda n: rank_and_place(6 * 10**6 + n, owned)),
        "peak memory of the process, MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000, 50000])
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    json.dump([measure(nodes, options.rounds) for nodes in options.nodes], sys.stdout, indent=2)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
