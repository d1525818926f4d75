"""InterPodAffinity: pods that must, or would rather, be together with other pods or apart from them, by topology.

Filter and raw score: as today's plugin of that name. Normalized so that the least, but not more than 0, is 0, and the
most, but not less than 0, is 100: when every node has something that is wished for, the least of them is not 0. As in
kube-scheduler 1.18.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np

from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.framework.interface import MAX_SCORE, Scores
from berth.framework.state import CycleState
from berth.plugins import interpodaffinity
from berth.plugins.interpodaffinityargs import InterPodAffinityArgs


class InterPodAffinity(interpodaffinity.InterPodAffinity):
    """Filters and scores by who is where."""

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        """Divided first, then times 100, as in kube-scheduler."""
        least, most = min(0, int(scores.min())), max(0, int(scores.max()))
        if least == most:
            return np.zeros(len(scores), dtype=np.int64)
        normalized: Scores = (MAX_SCORE * ((scores - least) / float(most - least))).astype(np.int64)
        return normalized


def _build(args: Any) -> InterPodAffinity:
    return InterPodAffinity(args or InterPodAffinityArgs())


FACTORY: Final = replace(interpodaffinity.FACTORY, build=_build)
