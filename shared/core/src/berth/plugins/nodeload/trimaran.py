"""TargetLoadPacking and LoadVariationRiskBalancing: Trimaran's plugins (scheduler-plugins, pkg/trimaran).

TargetLoadPacking fills nodes up to ``T = targetUtilization`` percent of CPU and no further. ``p`` is the percent used
with the pod. Score: ``(100 - T) p / T + T`` up to T, ``T (100 - p) / (100 - T)`` above it, 0 above 100; rounded.

LoadVariationRiskBalancing prefers nodes whose load is low and steady. Of CPU and of memory, ``m`` is the share used
with the pod's request, ``s`` the share that is the deviation, each 0..1; ``risk = (m + margin s^(1 / sensitivity)) /
2``, the second part at most 1. Score: ``100 (1 - risk)``, of both the lower; rounded.

They differ where theirs are wrong or berth knows less:
- A node without a sample counts as the mean of the others, not as 0 points; a sample above the age of its range, which
  theirs use for ever, as unknown too.
- Newcomers count until samples show them, and fade; TargetLoadPacking's whole for 60 seconds after its window,
  LoadVariationRiskBalancing's not at all. Pods that other scorers have promised are among them.
- Shares are of what is allocatable; TargetLoadPacking's of the capacity.
- ``watcherAddress`` is not asked: the metrics collector does load-watcher's work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Final

import numpy as np

from berth.api.config.nodeload.queries import MEASURED, MeasuredResource
from berth.api.config.nodeload.trimaran import (
    LOAD_VARIATION_RISK_BALANCING,
    POINTS,
    TARGET_LOAD_PACKING,
    LoadVariationRiskBalancingArgs,
    TargetLoadPackingArgs,
    balancing_readings,
    default_millicores_of,
    packing_readings,
    target_of,
    validate_balancing,
    validate_packing,
)
from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.plugins.factory import PluginFactory
from berth.plugins.nodeload.estimates import packed, requested
from berth.plugins.nodeload.loads import Amount, NodeLoads
from berth.plugins.nodeload.scoring import Loads, OneReadingScore, Usage


class TargetLoadPacking(OneReadingScore):
    """Fills nodes up to a share of their CPU, as Trimaran's plugin does."""

    name: ClassVar[str] = TARGET_LOAD_PACKING
    packs = True

    def __init__(self, args: TargetLoadPackingArgs) -> None:
        self._target = target_of(args)
        (reading,) = packing_readings(args)
        super().__init__(
            reading, ("cpu",), packed(float(args.default_requests_multiplier), default_millicores_of(args))
        )

    def points(self, pod: Pod, nodes: Nodes, loads: Loads) -> Amount:
        used, target = 100 * loads.share("cpu"), self._target
        below = (100 - target) * used / target + target
        above = target * (100 - used) / max(100 - target, 1)  # at 100 only values of 0 remain
        points: Amount = np.floor(np.where(used > target, np.where(used > 100, 0.0, above), below) + 0.5)
        return points

    def points_of(self, row: int, loads: NodeLoads, usages: Mapping[MeasuredResource, Usage]) -> float:
        del row, loads
        used, allocatable = usages["cpu"]
        used, target = 100 * (used / allocatable), self._target
        if used > 100:
            return 0.0
        if used > target:
            return math.floor(target * (100 - used) / max(100 - target, 1) + 0.5)
        return math.floor((100 - target) * used / target + target + 0.5)


class LoadVariationRiskBalancing(OneReadingScore):
    """Prefers nodes whose load is low and steady, as Trimaran's plugin does."""

    name: ClassVar[str] = LOAD_VARIATION_RISK_BALANCING

    def __init__(self, args: LoadVariationRiskBalancingArgs) -> None:
        self._margin = args.safe_variance_margin if args.safe_variance_margin >= 0 else 1.0
        self._sensitivity = args.safe_variance_sensitivity if args.safe_variance_sensitivity >= 0 else 1.0
        reading, deviations = balancing_readings(args)
        self.second_statistic = deviations.statistic
        super().__init__(reading, MEASURED, requested)

    def points(self, pod: Pod, nodes: Nodes, loads: Loads) -> Amount:
        of_nodes = self.loads_for(pod, nodes.snapshot)
        scores = []
        for resource in loads.used:
            measured = of_nodes.measured(resource, self.second_statistic)
            share = np.clip(nodes.take(measured.amount) / nodes.take(measured.allocatable), 0.0, 1.0)
            risk = (np.clip(loads.share(resource), 0.0, 1.0) + self._of_deviation(share)) / 2
            scores.append((1 - risk) * 100)
        lower: Amount = np.minimum.reduce(scores)
        return np.floor(lower + 0.5)

    def points_of(self, row: int, loads: NodeLoads, usages: Mapping[MeasuredResource, Usage]) -> float:
        lower = 100.0
        for resource, (used, allocatable) in usages.items():
            measured = loads.measured(resource, self.second_statistic)
            deviation = min(max(measured.amount.item(row) / measured.allocatable.item(row), 0.0), 1.0)
            # numpy's powers, which may differ from Python's in the last digit.
            root = (
                math.floor(deviation) if self._sensitivity == 0 else float(np.power(deviation, 1 / self._sensitivity))
            )
            risk = (min(max(used / allocatable, 0.0), 1.0) + min(max(self._margin * root, 0.0), 1.0)) / 2
            lower = min(lower, (1 - risk) * 100)
        return math.floor(lower + 0.5)

    def _of_deviation(self, share: Amount) -> Amount:
        root: Amount = np.floor(share) if self._sensitivity == 0 else np.power(share, 1 / self._sensitivity)
        return np.clip(self._margin * root, 0.0, 1.0)


PACKING_FACTORY: Final = PluginFactory(
    name=TARGET_LOAD_PACKING,
    points=POINTS,
    build=TargetLoadPacking,
    args_type=TargetLoadPackingArgs,
    validate=validate_packing,
)
BALANCING_FACTORY: Final = PluginFactory(
    name=LOAD_VARIATION_RISK_BALANCING,
    points=POINTS,
    build=LoadVariationRiskBalancing,
    args_type=LoadVariationRiskBalancingArgs,
    validate=validate_balancing,
)
