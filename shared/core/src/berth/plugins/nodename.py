"""NodeName: a pod with ``spec.nodeName`` goes to that node only. As kube-scheduler's plugin of that name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from berth.api.config.types import Point
from berth.api.node import Node
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.pods import Trait
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, ValueIndex
from berth.framework.interface import EnqueueExtensions, Reads, VectorFilterPlugin
from berth.framework.status import SUCCESS, CycleState, Status, Verdicts
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "NodeName"
ANOTHER_NODE: Final = Status.unresolvable("node(s) didn't match the requested node name")


class NodeName(VectorFilterPlugin, EnqueueExtensions):
    name: ClassVar[str] = NAME
    reads = Reads.SPEC
    only_for = Trait.NODE_NAME

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS if pod.spec.node_name in ("", node.name) else ANOTHER_NODE

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        if not pod.spec.node_name:
            return Verdicts.all_fit(len(nodes))
        return Verdicts.refusing(~nodes.named(pod.spec.node_name), ANOTHER_NODE)

    def events(self) -> Sequence[EventHint]:
        return (EventHint(ClusterEvent(Resource.NODE, Action.ADD), _is_the_node, key=_node_name, index=_index),)


def _is_the_node(pod: Pod, _: object, new: object) -> bool:
    return isinstance(new, Node) and pod.spec.node_name in ("", new.metadata.name)


def _node_name(pod: Pod) -> str:
    return pod.spec.node_name


def _index() -> ValueIndex:
    return ValueIndex(
        lambda pod: (pod.spec.node_name,), lambda _, new: ("", new.metadata.name) if isinstance(new, Node) else ()
    )


FACTORY: Final = PluginFactory(name=NAME, points=(Point.FILTER,), build=no_args(NodeName))
