"""Which evictions a PodDisruptionBudget forbids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from berth.api.budgets import PodDisruptionBudget
from berth.api.pod import Pod
from berth.api.selectors import Labels, compile_label_selector
from berth.cluster.placement import Placed
from berth.cluster.podgroup import PodGroup
from berth.cluster.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Budget:
    """``disrupted``: names of pods whose eviction is under way already and counted in ``allowed``."""

    pods: Labels
    allowed: int
    disrupted: frozenset[str]

    def means(self, pod: Pod) -> bool:
        """Whether evicting the pod takes something from the budget."""
        return self.pods.matches(pod.metadata.labels or {}) and pod.metadata.name not in self.disrupted


class Budgets:
    """The budgets of one Snapshot, by namespace, compiled when they are first asked for after a change."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._objects = snapshot.objects(PodDisruptionBudget)
        self._version = -1
        self._by_namespace: dict[str, list[Budget]] = {}

    def split(self, pods: Iterable[Placed]) -> tuple[list[Placed], list[Placed]]:
        """Those whose eviction would violate a budget if all were evicted in this order, and the others."""
        violating: list[Placed] = []
        others: list[Placed] = []
        left: dict[int, int] = {}
        for placed in pods:
            (violating if self._violates(placed.pod, left) else others).append(placed)
        return violating, others

    def forbid(self, group: PodGroup) -> bool:
        """Whether evicting any pod of the group violates a budget, whoever else is evicted."""
        return bool(group.labels) and any(
            budget.allowed <= 0 and not budget.disrupted and budget.pods.matches(group.labels)
            for budget in self._of(group.namespace)
        )

    def _violates(self, pod: Pod, left: dict[int, int]) -> bool:
        """Take the pod from all its budgets; ``left``: by budget, what was left of it before."""
        if not pod.metadata.labels:
            return False
        violates = False
        for budget in self._of(pod.metadata.namespace):
            if budget.means(pod):
                left[id(budget)] = left.get(id(budget), budget.allowed) - 1
                violates = violates or left[id(budget)] < 0
        return violates

    def _of(self, namespace: str) -> list[Budget]:
        if self._version != self._objects.version:
            self._version, self._by_namespace = self._objects.version, {}
        known = self._by_namespace.get(namespace)
        if known is None:
            there = self._objects.in_namespace(namespace)
            known = self._by_namespace[namespace] = [budget for each in there if (budget := _compiled(each))]
        return known


def _compiled(budget: PodDisruptionBudget) -> Budget | None:
    """None for one that means no pods: its selector is absent or empty."""
    pods = compile_label_selector(budget.spec.selector)
    if not pods.requirements:
        return None
    return Budget(pods, budget.status.disruptions_allowed, frozenset(budget.status.disrupted_pods or ()))
