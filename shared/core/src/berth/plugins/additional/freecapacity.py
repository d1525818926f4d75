"""FreeCapacity: prefers the node with the most free cpu and memory, added up as in the article.

Raw: ``free millicores + free memory / 1,000,000``, where free is allocatable minus the requests of this pod and of the
pods on the node (the article ignores the latter). One millicore weighs as much as one megabyte. Normalized by rank: the
largest is 100, the next smaller number 99, and so on down to 0.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.resources import CPU, MEMORY
from berth.cluster.nodes import NodeInfo, Nodes
from berth.framework.interface import NormalizePlugin, Reads, Scores, VectorScorePlugin
from berth.framework.scoring import normalize_by_rank
from berth.framework.status import CycleState
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "FreeCapacity"
MEGABYTE: Final = 1_000_000
_EXACT: Final = 1 << 53  # amounts are exact in float64 up to here; larger ones are clipped


class FreeCapacity(VectorScorePlugin, NormalizePlugin):
    """Prefers the node with the most free cpu and memory."""

    name: ClassVar[str] = NAME
    reads = Reads.NODE | Reads.PODS
    reads_amounts = True

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        requests = state.pod_class.requests.amounts
        cpu = node.allocatable(CPU) - node.requested(CPU) - requests.get(CPU, 0)
        memory = node.allocatable(MEMORY) - node.requested(MEMORY) - requests.get(MEMORY, 0)
        return _bounded(cpu) + _bounded(memory) // MEGABYTE

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        requests = state.pod_class.requests.amounts
        cpu = nodes.allocatable(CPU) - nodes.requested(CPU) - requests.get(CPU, 0)
        memory = nodes.allocatable(MEMORY) - nodes.requested(MEMORY) - requests.get(MEMORY, 0)
        scores: Scores = _whole(cpu) + _whole(memory) // MEGABYTE
        return scores

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        return normalize_by_rank(scores)


def _bounded(amount: int) -> int:
    return max(-_EXACT, min(amount, _EXACT))


def _whole(amount: npt.NDArray[np.float64]) -> Scores:
    return np.clip(amount, -_EXACT, _EXACT).astype(np.int64)


FACTORY: Final = PluginFactory(name=NAME, points=(Point.SCORE,), build=no_args(FreeCapacity))
