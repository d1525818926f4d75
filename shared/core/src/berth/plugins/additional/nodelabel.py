"""NodeFilterLabel and NodeScoreLabel, the articles' plugins for one label of the node.

NodeFilterLabel: nodes must have the label ``key=value``, ``cpu=true`` by default. Evictions do not help.
NodeScoreLabel: 0 with the label ``key=value`` and 1 without, normalized so that the largest is 100: nodes with the
label (``node=hello`` by default) are the last choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.node import Node
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo, Nodes
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, nothing
from berth.framework.interface import (
    EnqueueExtensions,
    NormalizePlugin,
    Reads,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.scoring import default_normalize
from berth.framework.status import SUCCESS, CycleState, Status, Verdicts
from berth.plugins.factory import Args, PluginFactory, key_problems, value_problems, with_args
from berth.plugins.matching import has_label

NODE_FILTER_LABEL: Final = "NodeFilterLabel"
NO_LABEL: Final = "node(s) didn't have label {}={}"
NODE_SCORE_LABEL: Final = "NodeScoreLabel"


class LabelArgs(Args, frozen=True, kw_only=True):
    key: str
    """The label's key, such as ``disk`` or ``example.com/disk``."""
    value: str
    """The label's value."""


class NodeFilterLabelArgs(LabelArgs, frozen=True, kw_only=True):
    """The label that a node must have."""

    key: str = "cpu"
    value: str = "true"


class NodeFilterLabel(VectorFilterPlugin, EnqueueExtensions):
    """Rejects nodes without a certain label."""

    name: ClassVar[str] = NODE_FILTER_LABEL
    reads = Reads.NODE

    def __init__(self, args: NodeFilterLabelArgs) -> None:
        self._key, self._value = args.key, args.value
        self._refusal = Status.unresolvable(NO_LABEL.format(args.key, args.value))

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS if self._is_labelled(node.node) else self._refusal

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        return Verdicts.refusing(~has_label(self._key, self._value, nodes), self._refusal)

    def events(self) -> Sequence[EventHint]:
        changes = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)
        return (EventHint(changes, self._is_labelled_now, key=nothing),)

    def _is_labelled(self, node: Node) -> bool:
        return (node.metadata.labels or {}).get(self._key) == self._value

    def _is_labelled_now(self, _: Pod, old: object, new: object) -> bool:
        was = isinstance(old, Node) and self._is_labelled(old)
        return isinstance(new, Node) and self._is_labelled(new) and not was


class NodeScoreLabelArgs(LabelArgs, frozen=True, kw_only=True):
    """The label that makes a node the last choice."""

    key: str = "node"
    value: str = "hello"


class NodeScoreLabel(VectorScorePlugin, NormalizePlugin):
    """Prefers nodes without a certain label."""

    name: ClassVar[str] = NODE_SCORE_LABEL
    reads = Reads.NODE

    def __init__(self, args: NodeScoreLabelArgs) -> None:
        self._key, self._value = args.key, args.value

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        return int(node.labels.get(self._key) != self._value)

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        scores: Scores = (~has_label(self._key, self._value, nodes)).astype(np.int64)
        return scores

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """1 becomes 100; 0 stays 0, also if every node has 0."""
        return default_normalize(scores)


def validate(args: LabelArgs, path: str) -> list[str]:
    """Reject invalid keys and values, because a label that cannot exist would silently never match."""
    return [*key_problems(args.key, f"{path}.key"), *value_problems(args.value, f"{path}.value")]


NODE_FILTER_LABEL_FACTORY: Final = PluginFactory(
    name=NODE_FILTER_LABEL,
    points=(Point.FILTER,),
    build=with_args(NodeFilterLabel, NodeFilterLabelArgs),
    args_type=NodeFilterLabelArgs,
    validate=validate,
)
NODE_SCORE_LABEL_FACTORY: Final = PluginFactory(
    name=NODE_SCORE_LABEL,
    points=(Point.SCORE,),
    build=with_args(NodeScoreLabel, NodeScoreLabelArgs),
    args_type=NodeScoreLabelArgs,
    validate=validate,
)
