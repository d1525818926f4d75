"""Which evictions a PodDisruptionBudget forbids.

Whom a pod needs gone from one node: as few and as unimportant pods as it takes, and how good that is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from berth.api.pod import Pod, priority_of
from berth.api.selectors import LabelMatcher, compile_label_selector
from berth.api.workloads import PodDisruptionBudget
from berth.cluster.equivalence import Placed
from berth.cluster.nodes import NodeInfo
from berth.cluster.pods import started_at
from berth.cluster.snapshot import Snapshot
from berth.cluster.topologycounts import PodGroup
from berth.framework.preemption import DryRun, Vacated
from berth.framework.status import Status


@dataclass(frozen=True, slots=True)
class DisruptionBudget:
    """``disrupted``: names of pods whose eviction is under way already and counted in ``allowed``."""

    pods: LabelMatcher
    allowed: int
    disrupted: frozenset[str]

    def means(self, pod: Pod) -> bool:
        """Whether evicting the pod takes something from the budget."""
        return self.pods.matches(pod.metadata.labels or {}) and pod.metadata.name not in self.disrupted


class DisruptionBudgets:
    """The budgets of one Snapshot, by namespace, compiled when they are first asked for after a change."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._objects = snapshot.objects(PodDisruptionBudget)
        self._version = -1
        self._by_namespace: dict[str, list[DisruptionBudget]] = {}

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

    def _of(self, namespace: str) -> list[DisruptionBudget]:
        if self._version != self._objects.version:
            self._version, self._by_namespace = self._objects.version, {}
        known = self._by_namespace.get(namespace)
        if known is None:
            there = self._objects.in_namespace(namespace)
            known = self._by_namespace[namespace] = [budget for each in there if (budget := _compiled(each))]
        return known


def _compiled(budget: PodDisruptionBudget) -> DisruptionBudget | None:
    """None for one that means no pods: its selector is absent or empty."""
    pods = compile_label_selector(budget.spec.selector)
    if not pods.requirements:
        return None
    return DisruptionBudget(pods, budget.status.disruptions_allowed, frozenset(budget.status.disrupted_pods or ()))


NO_VICTIMS: Final = Status.unresolvable("No preemption victims found for incoming pod")

ABOVE_ALL: Final = 2**31
"""Added to every priority in a sum, so that none is below 0: more pods are always more."""

Worth = tuple[int, int, int, int, float]
"""What nodes are compared by, the smaller the better: violated budgets, highest priority, sum of priorities, number of
victims, and how long ago the first of the most important ones started, as Unix seconds times -1."""


@dataclass(frozen=True, slots=True)
class Victims:
    """Pods to evict from a node, the most important one first; of ``violations`` a budget forbids it."""

    row: int
    pods: tuple[Placed, ...]
    violations: int

    @property
    def worth(self) -> Worth:
        """What this node is compared with others by."""
        priorities = [priority_of(placed.pod) for placed in self.pods]
        highest = max(priorities)
        since = min(started_at(placed.pod) for placed in self.pods if priority_of(placed.pod) == highest)
        return (self.violations, highest, sum(priorities) + ABOVE_ALL * len(priorities), len(priorities), -since)


def victims_on(node: NodeInfo, dry_run: DryRun, budgets: DisruptionBudgets) -> Victims | Status:
    """Let every less important pod go, then take back whom one can: those that budgets protect first.

    A Status says why the pod does not fit even without them.

    Raises:
        PluginFailure: a plugin failed.
    """
    potential = by_importance(less_important_on(node, dry_run.pod))
    if not potential:
        return NO_VICTIMS
    violating, others = budgets.split(potential)
    with dry_run.vacating(node, potential) as vacated:
        status = vacated.status()
        if not status.is_success:
            return status
        stay_out = _not_taken_back(violating, vacated)
        victims = stay_out + _not_taken_back(others, vacated)
    if not victims:
        return Status.unresolvable(f'expected at least one victim pod on node "{node.name}"')
    return Victims(node.row, tuple(by_importance(victims)), len(stay_out))


def less_important_on(node: NodeInfo, pod: Pod) -> list[Placed]:
    """The pods on the node that the pod may preempt."""
    return [placed for placed in node.placed() if priority_of(placed.pod) < priority_of(pod)]


def by_importance(pods: Iterable[Placed]) -> list[Placed]:
    """Higher priority first, of equal ones the one that has run longer; the uid only keeps every process in step."""
    return sorted(pods, key=lambda placed: (-priority_of(placed.pod), started_at(placed.pod), placed.pod.uid))


def _not_taken_back(pods: Iterable[Placed], vacated: Vacated) -> list[Placed]:
    """Those with whom the pod would not fit; the others are back."""
    victims = []
    for placed in pods:
        vacated.put_back(placed)
        if not vacated.status().is_success:
            vacated.take_away(placed)
            victims.append(placed)
    return victims
