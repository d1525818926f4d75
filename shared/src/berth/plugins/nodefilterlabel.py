"""NodeFilterLabel: pods go to nodes with a certain label only, whatever the pods ask for.

Filter: the node has the label ``key=value``, ``cpu=true`` by default as in the article. Unschedulable otherwise, and
evicting pods does not help.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from berth.api.config.types import Point
from berth.api.node import Node
from berth.api.pod import Pod
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import EnqueueExtensions, Reads, VectorFilterPlugin
from berth.framework.state import CycleState
from berth.framework.status import SUCCESS, Status
from berth.framework.verdicts import Verdicts
from berth.plugins.factory import PluginFactory
from berth.plugins.labelargs import LabelArgs, validate
from berth.plugins.matching import has_label

NAME: Final = "NodeFilterLabel"
NO_LABEL: Final = "node(s) didn't have label {}={}"


class NodeFilterLabelArgs(LabelArgs, frozen=True, kw_only=True):
    """The label that a node must have."""

    key: str = "cpu"
    value: str = "true"


class NodeFilterLabel(VectorFilterPlugin, EnqueueExtensions):
    """Filters by one label of the node."""

    name: ClassVar[str] = NAME
    reads = Reads.NODE

    def __init__(self, args: NodeFilterLabelArgs) -> None:
        self._key, self._value = args.key, args.value
        self._refusal = Status.unresolvable(NO_LABEL.format(args.key, args.value))

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Whether the node has the label."""
        return SUCCESS if self._is_labelled(node.node) else self._refusal

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """The same for all nodes."""
        return Verdicts.refusing(~has_label(self._key, self._value, nodes), self._refusal)

    def events(self) -> Sequence[EventHint]:
        """A node is added with the label, or gets it."""
        return (EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL), self._is_labelled_now),)

    def _is_labelled(self, node: Node) -> bool:
        return (node.metadata.labels or {}).get(self._key) == self._value

    def _is_labelled_now(self, _: Pod, old: object, new: object) -> bool:
        was = isinstance(old, Node) and self._is_labelled(old)
        return isinstance(new, Node) and self._is_labelled(new) and not was


def _build(args: Any) -> NodeFilterLabel:
    return NodeFilterLabel(args or NodeFilterLabelArgs())


FACTORY: Final = PluginFactory(
    name=NAME, points=(Point.FILTER,), build=_build, args_type=NodeFilterLabelArgs, validate=validate
)
