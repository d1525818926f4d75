"""NodePorts: the pod's host ports must be free on the node. As kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.cluster.columns import HostPort, host_ports
from berth.cluster.nodes import NodeInfo, Nodes, RejectedNodes
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, ValueIndex, Values
from berth.framework.interface import (
    EnqueueExtensions,
    PreFilterPlugin,
    PreFilterResult,
    Reads,
    RemedyPlugin,
    RemedySentence,
    VectorFilterPlugin,
)
from berth.framework.status import SKIP, SUCCESS, CycleState, Status, Verdicts
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "NodePorts"
TAKEN: Final = Status.unschedulable("node(s) didn't have free ports for the requested pod ports")


class NodePorts(PreFilterPlugin, VectorFilterPlugin, RemedyPlugin, EnqueueExtensions):
    name: ClassVar[str] = NAME
    reads = Reads.PODS
    only_for = Trait.HOST_PORTS

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        return PreFilterResult(SUCCESS if state.pod_class.host_ports else SKIP)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS if node.snapshot.host_ports.are_free(state.pod_class.host_ports, node.row) else TAKEN

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        snapshot = nodes.snapshot
        taken = snapshot.host_ports.taken_mask(state.pod_class.host_ports, nodes.rows, snapshot.size)
        return Verdicts.refusing(taken, TAKEN)

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        """One sentence per port of other pods, with the pod on the first node."""
        snapshot, rows = nodes.snapshot, nodes.rows
        for port in dict.fromkeys(state.pod_class.host_ports):
            taken = snapshot.host_ports.taken_mask((port,), rows, snapshot.size)
            if taken.any():
                text, holder = f"{port.port}/{port.protocol}", _holder(port, int(rows[taken][0]), snapshot)
                before = f"asks for host port {text}, which others have{holder} on"
                yield RemedySentence(about=text, nodes=taken, before=before)

    def events(self) -> Sequence[EventHint]:
        return (
            EventHint(ClusterEvent(Resource.POD, Action.DELETE), _frees_a_port, key=_ports, index=_index),
            EventHint(ClusterEvent(Resource.NODE, Action.ADD)),
            EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE), _frees_a_port, key=_ports, index=_index),
        )


def _holder(port: HostPort, row: int, snapshot: Snapshot) -> str:
    for placed in snapshot.placed_on_row(row):
        if any(port.conflicts(other) for other in placed.pod_class.host_ports):
            return f", such as {placed.pod.metadata.namespace}/{placed.pod.metadata.name},"
    return ""


def _frees_a_port(pod: Pod, old: object, _: object) -> bool:
    if not isinstance(old, Pod):
        return True
    wanted, freed = host_ports(pod.spec), host_ports(old.spec) if old.spec.node_name else ()
    return any(port.conflicts(other) for port in wanted for other in freed)


def _ports(pod: Pod) -> tuple[HostPort, ...]:
    return host_ports(pod.spec)


def _index() -> ValueIndex:
    return ValueIndex(_numbers, lambda old, _: _numbers(old) if isinstance(old, Pod) else None)


def _numbers(pod: Pod) -> Values:
    return {port.port for port in host_ports(pod.spec)}


FACTORY: Final = PluginFactory(name=NAME, points=(Point.PRE_FILTER, Point.FILTER), build=no_args(NodePorts))
