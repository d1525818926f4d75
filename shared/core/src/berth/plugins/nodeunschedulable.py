"""NodeUnschedulable: no new pods on a cordoned node, except pods that tolerate it. As in kube-scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from berth.api.config.types import Point
from berth.api.node import UNSCHEDULABLE_TAINT, Node, is_tolerated
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo, Nodes, RejectedNodes
from berth.cluster.pods import Trait
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, nothing
from berth.framework.interface import EnqueueExtensions, Reads, RemedyPlugin, RemedySentence, VectorFilterPlugin
from berth.framework.status import SUCCESS, CycleState, Status, Verdicts
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "NodeUnschedulable"
UNSCHEDULABLE_NODE: Final = Status.unresolvable("node(s) were unschedulable")


class NodeUnschedulable(VectorFilterPlugin, RemedyPlugin, EnqueueExtensions):
    name: ClassVar[str] = NAME
    reads = Reads.NODE
    only_for = Trait.CORDONED_NODE

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        if not node.unschedulable or is_tolerated(UNSCHEDULABLE_TAINT, state.pod_class.tolerations):
            return SUCCESS
        return UNSCHEDULABLE_NODE

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        if is_tolerated(UNSCHEDULABLE_TAINT, state.pod_class.tolerations):
            return Verdicts.all_fit(len(nodes))
        return Verdicts.refusing(nodes.unschedulable, UNSCHEDULABLE_NODE)

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        return [RemedySentence(about="cordoned", after="are cordoned")]

    def events(self) -> Sequence[EventHint]:
        return (
            EventHint(
                ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_TAINT), _is_schedulable_now, key=nothing
            ),
            EventHint(ClusterEvent(Resource.POD, Action.UPDATE_POD_TOLERATIONS), _tolerates_now, key=nothing),
        )


def _is_schedulable_now(_: Pod, old: object, new: object) -> bool:
    was = isinstance(old, Node) and not old.spec.unschedulable
    return isinstance(new, Node) and not new.spec.unschedulable and not was


def _tolerates_now(pod: Pod, _: object, new: object) -> bool:
    return isinstance(new, Pod) and new.uid == pod.uid and is_tolerated(UNSCHEDULABLE_TAINT, new.spec.tolerations or ())


FACTORY: Final = PluginFactory(name=NAME, points=(Point.FILTER,), build=no_args(NodeUnschedulable))
