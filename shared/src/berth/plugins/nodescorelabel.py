"""NodeScoreLabel: nodes with a certain label are the last choice.

Score: 0 with the label ``key=value``, 1 without, normalized so that the largest is 100. As the article's plugin of that
name; there the label is ``node=hello``, which is the default here.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.framework.interface import NormalizePlugin, Reads, Scores, VectorScorePlugin
from berth.framework.normalize import default_normalize
from berth.framework.state import CycleState
from berth.plugins.factory import PluginFactory
from berth.plugins.labelargs import LabelArgs, validate
from berth.plugins.matching import has_label

NAME: Final = "NodeScoreLabel"


class NodeScoreLabelArgs(LabelArgs, frozen=True, kw_only=True):
    """The label that costs a node its point."""

    key: str = "node"
    value: str = "hello"


class NodeScoreLabel(VectorScorePlugin, NormalizePlugin):
    """Scores by one label of the node."""

    name: ClassVar[str] = NAME
    reads = Reads.NODE

    def __init__(self, args: NodeScoreLabelArgs) -> None:
        self._key, self._value = args.key, args.value

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """0 with the label, 1 without."""
        return int(node.labels.get(self._key) != self._value)

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        scores: Scores = (~has_label(self._key, self._value, nodes)).astype(np.int64)
        return scores

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """1 becomes 100; 0 stays, also when no node has more."""
        return default_normalize(scores)


def _build(args: Any) -> NodeScoreLabel:
    return NodeScoreLabel(args or NodeScoreLabelArgs())


FACTORY: Final = PluginFactory(
    name=NAME, points=(Point.SCORE,), build=_build, args_type=NodeScoreLabelArgs, validate=validate
)
