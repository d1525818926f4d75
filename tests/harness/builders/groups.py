"""Groups for tests: questions of few words, and clusters in racks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from berth.api.meta import LabelSelector
from berth.api.pod import Affinity, Pod, PodAffinity, PodAffinityTerm
from berth.api.podgroups import Dialect, PodGroup, Topology
from berth.cluster.snapshot import Snapshot
from berth.groups.question import GroupQuestion
from berth.messages.groups import GroupPlan
from berth.messages.subjects import Attempt, Term, Uid
from harness.builders.objects import a_node, a_pod

RACK = "rack"


def a_group(name: str = "gang", **form: Any) -> PodGroup:
    wanted = {"dialect": Dialect.COSCHEDULING, "namespace": "default", "uid": f"uid-{name}", **form}
    return PodGroup(name=name, **wanted)


def members(count: int, name: str = "m", **pod: Any) -> list[Pod]:
    """Equal pods but for their names."""
    return [a_pod(f"{name}{number:03d}", **pod) for number in range(count)]


def a_question(
    pods: Sequence[Pod], *, need: int | None = None, bound: Iterable[str] = (), rack: str = "", **form: Any
) -> GroupQuestion:
    """A group of these pods; all are needed unless ``need`` says otherwise. ``rack``: ``required`` or ``preferred``."""
    topology = Topology(key=RACK, required=rack == "required") if rack else None
    group = a_group(minimum=need or len(pods), topology=topology, **form)
    attempt = Attempt(uid=Uid(group.uid), term=Term(1), n=1)
    return GroupQuestion(group=group, attempt=attempt, members=pods, need=need or len(pods), bound=tuple(bound))


def racks(*used: Sequence[int], cpu: int = 4) -> Snapshot:
    """A rack ``r0``, ``r1``, ... for each list, with a node for each number of cpus that are in use there."""
    snapshot = Snapshot()
    for rack, loads in enumerate(used):
        for place, load in enumerate(loads):
            name = f"r{rack}n{place}"
            labels = {RACK: f"r{rack}", "kubernetes.io/hostname": name}
            snapshot.set_node(a_node(name, labels=labels, cpu=str(cpu)))
            if load:
                snapshot.place(a_pod(f"load-{name}", cpu=str(load)), name)
    return snapshot


def together(key: str = RACK, **labels: str) -> Affinity:
    """Required affinity to pods with these labels."""
    term = PodAffinityTerm(topology_key=key, label_selector=LabelSelector(match_labels=labels))
    return Affinity(pod_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[term]))


def apart(**labels: str) -> Affinity:
    """Required anti-affinity by host to pods with these labels."""
    selector = LabelSelector(match_labels=labels)
    term = PodAffinityTerm(topology_key="kubernetes.io/hostname", label_selector=selector)
    return Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[term]))


def nodes_of(plan: GroupPlan) -> dict[str, str]:
    """The node of each member, by uid, in the order in which they were placed."""
    return {member.uid: plan.nodes[member.node] for member in plan.members}
