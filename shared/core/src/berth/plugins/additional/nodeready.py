"""NodeReady: rejects nodes that are not ready, for clusters without the node controller's taints.

Filter: the condition Ready must be True; a node without that condition counts as ready, as in the article. Opt-in:
kube-scheduler leaves this to the taints ``node.kubernetes.io/not-ready`` and ``unreachable``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from berth.api.config.types import Point
from berth.api.node import Node, is_ready
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo, Nodes
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, nothing
from berth.framework.interface import EnqueueExtensions, Reads, VectorFilterPlugin
from berth.framework.status import SUCCESS, CycleState, Status, Verdicts
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "NodeReady"
NOT_READY: Final = Status.unresolvable("node(s) were not ready")


class NodeReady(VectorFilterPlugin, EnqueueExtensions):
    """Rejects nodes that are not ready."""

    name: ClassVar[str] = NAME
    reads = Reads.NODE

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS if is_ready(node.node) else NOT_READY

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        return Verdicts.refusing(~nodes.ready, NOT_READY)

    def events(self) -> Sequence[EventHint]:
        changes = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_CONDITION)
        return (EventHint(changes, _is_ready_now, key=nothing),)


def _is_ready_now(_: Pod, old: object, new: object) -> bool:
    was = isinstance(old, Node) and is_ready(old)
    return isinstance(new, Node) and is_ready(new) and not was


FACTORY: Final = PluginFactory(name=NAME, points=(Point.FILTER,), build=no_args(NodeReady))
