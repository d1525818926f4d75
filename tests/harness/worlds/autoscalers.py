"""HorizontalPodAutoscalers as the controller manager computes them, with the numbers of deploy/kubernetes.

KEDA hands each trigger to an HPA as an external metric with the target AverageValue, so one algorithm serves both.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from berth.api.resources import milli_value
from harness.worlds.manifests import KUBERNETES

TOLERANCE: Final = 0.1
"""Of the controller manager (``--horizontal-pod-autoscaler-tolerance``)."""
SYNC_SECONDS: Final = 15.0
"""Between two of its decisions (``--horizontal-pod-autoscaler-sync-period``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """One direction of ``behavior``: ``policies`` are pods and the seconds of their period."""

    window: float
    policies: tuple[tuple[int, float], ...]

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Rules:
        """Pods policies, of which the one that allows most counts."""
        assert given.get("selectPolicy", "Max") == "Max"
        assert all(policy["type"] == "Pods" for policy in given["policies"])
        policies = tuple((policy["value"], float(policy["periodSeconds"])) for policy in given["policies"])
        return cls(window=float(given["stabilizationWindowSeconds"]), policies=policies)


@dataclass(kw_only=True)
class Autoscaler:
    """Decides how many replicas there are. ``targets`` are averages per replica, by metric."""

    least: int
    most: int
    up: Rules
    down: Rules
    targets: Mapping[str, float]
    _recommended: deque[tuple[float, int]] = field(default_factory=deque)
    _changes: deque[tuple[float, int]] = field(default_factory=deque)

    def decide(self, now: float, current: int, totals: Mapping[str, float]) -> int:
        """The replicas from now on; ``totals`` are the metrics, summed over all replicas."""
        assert totals.keys() == self.targets.keys()
        wanted = max(self._wanted(current, totals[name], target) for name, target in self.targets.items())
        chosen = self._allowed(now, current, self._stabilized(now, current, wanted))
        if chosen != current:
            self._changes.append((now, chosen - current))
        return chosen

    @staticmethod
    def _wanted(current: int, total: float, target: float) -> int:
        ratio = total / (target * current)
        return current if abs(ratio - 1) <= TOLERANCE else math.ceil(total / target)

    def _stabilized(self, now: float, current: int, wanted: int) -> int:
        """Up to the least that was wanted in the window of scaling up, down to the most in that of scaling down."""
        self._recommended.append((now, wanted))
        up = min(count for at, count in self._recommended if at > now - self.up.window or at == now)
        down = max(count for at, count in self._recommended if at > now - self.down.window or at == now)
        while self._recommended[0][0] <= now - max(self.up.window, self.down.window, SYNC_SECONDS):
            self._recommended.popleft()
        return min(max(current, up), down)

    def _allowed(self, now: float, current: int, wanted: int) -> int:
        """What the policies allow, from what there was at the start of their periods."""
        if wanted > current:
            limit = max(self._before(now, current, period) + pods for pods, period in self.up.policies)
            wanted = min(wanted, max(limit, current))
        elif wanted < current:
            limit = min(self._before(now, current, period) - pods for pods, period in self.down.policies)
            wanted = max(wanted, min(limit, current))
        return min(max(wanted, self.least), self.most)

    def _before(self, now: float, current: int, period: float) -> int:
        return current - sum(change for at, change in self._changes if at > now - period)


def of_hpa() -> Autoscaler:
    """The one of the component ``hpa``; its metric is ``cpu``, in cores."""
    spec = _document("hpa")["spec"]
    targets = {}
    for metric in spec["metrics"]:
        assert metric["type"] == "Resource"
        assert metric["resource"]["target"]["type"] == "AverageValue"
        targets[metric["resource"]["name"]] = milli_value(metric["resource"]["target"]["averageValue"]) / 1000
    return _autoscaler(spec["minReplicas"], spec["maxReplicas"], spec["behavior"], targets)


def of_keda() -> Autoscaler:
    """The one that KEDA makes of the component ``keda``; its metrics are ``lag``, and the queries by what they ask."""
    spec, triggers = _document("keda")["spec"], keda_triggers()
    targets = {name: float(told["lagThreshold" if name == "lag" else "threshold"]) for name, told in triggers.items()}
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    return _autoscaler(spec["minReplicaCount"], spec["maxReplicaCount"], behavior, targets)


def keda_triggers() -> dict[str, Mapping[str, str]]:
    """The metadata of each trigger of the component ``keda``, by the names that ``of_keda`` gives its metrics."""
    found = {}
    for trigger in _document("keda")["spec"]["triggers"]:
        told = trigger["metadata"]
        if trigger["type"] == "nats-jetstream":
            found["lag"] = told
        else:
            assert trigger["type"] == "prometheus"
            found[told["query"]] = told
    return found


def _autoscaler(least: int, most: int, behavior: Mapping[str, Any], targets: Mapping[str, float]) -> Autoscaler:
    up, down = Rules.read(behavior["scaleUp"]), Rules.read(behavior["scaleDown"])
    return Autoscaler(least=least, most=most, up=up, down=down, targets=targets)


def _document(component: str) -> Mapping[str, Any]:
    return yaml.safe_load((KUBERNETES / "components" / component / "scorer.yaml").read_text(encoding="utf-8"))
