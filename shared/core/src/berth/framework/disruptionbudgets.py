"""Which evictions violate a PodDisruptionBudget. Evictions for a pod and for a group of pods ask it alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from berth.api.selectors import LabelMatcher, compile_label_selector
from berth.api.workloads import PodDisruptionBudget
from berth.cluster.pods import PlacedPod
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import LabelGroup, LabelItems

# Sets of labels for which the matching budgets are cached.
_MOST_CACHED: Final = 4096


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """``disrupted``: names of pods with an eviction in progress, already counted in ``allowed``."""

    pods: LabelMatcher
    allowed: int
    disrupted: frozenset[str]


class DisruptionBudgets:
    """One Snapshot's PodDisruptionBudgets by namespace; compiled on first use after a change."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._objects = snapshot.objects(PodDisruptionBudget)
        self._version = -1
        self._by_namespace: dict[str, list[DisruptionBudget]] = {}
        self._by_labels: dict[tuple[str, LabelItems], list[DisruptionBudget]] = {}

    @staticmethod
    def of(snapshot: Snapshot) -> DisruptionBudgets:
        """Those of the Snapshot, made once."""
        return snapshot.derived(DisruptionBudgets, lambda: DisruptionBudgets(snapshot))

    def split(self, pods: Iterable[PlacedPod]) -> tuple[list[PlacedPod], list[PlacedPod]]:
        """The pods whose eviction violates a budget if all are evicted in this order, and the others."""
        violating: list[PlacedPod] = []
        others: list[PlacedPod] = []
        left: dict[int, int] = {}
        for placed in pods:
            (violating if self.violates(placed, left) else others).append(placed)
        return violating, others

    def forbids(self, group: LabelGroup) -> bool:
        """Whether evicting any pod of the group violates a budget on its own."""
        return any(budget.allowed <= 0 and not budget.disrupted for budget in self._that_match(group))

    def violates(self, placed: PlacedPod, left: dict[int, int]) -> bool:
        """Count the pod against all its budgets; ``left``: evictions still allowed, by budget, empty at first."""
        violates = False
        for budget in self._that_match(placed.group):
            if placed.pod.metadata.name not in budget.disrupted:
                left[id(budget)] = left.get(id(budget), budget.allowed) - 1
                violates = violates or left[id(budget)] < 0
        return violates

    def _that_match(self, group: LabelGroup) -> list[DisruptionBudget]:
        if self._version != self._objects.version:
            self._version, self._by_namespace, self._by_labels = self._objects.version, {}, {}
        there = self._in_namespace(group.namespace)
        if not there:
            return there
        key = group.key[:2]
        known = self._by_labels.get(key)
        if known is None:
            if len(self._by_labels) >= _MOST_CACHED:
                self._by_labels.clear()
            known = self._by_labels[key] = [each for each in there if each.pods.matches(group.labels)]
        return known

    def _in_namespace(self, namespace: str) -> list[DisruptionBudget]:
        known = self._by_namespace.get(namespace)
        if known is None:
            there = self._objects.in_namespace(namespace)
            known = self._by_namespace[namespace] = [_compiled(each) for each in there]
        return known


def _compiled(budget: PodDisruptionBudget) -> DisruptionBudget:
    pods, status = compile_label_selector(budget.spec.selector), budget.status
    return DisruptionBudget(pods, status.disruptions_allowed, frozenset(status.disrupted_pods or ()))
