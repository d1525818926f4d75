"""Whom a pod needs gone from one node: as few and as unimportant pods as it takes, and how good that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from berth.api.pod import Pod, priority_of
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.placedpods import started_at
from berth.cluster.placement import Placed
from berth.framework.dryrun import DryRun, Vacated
from berth.framework.status import Status
from berth.plugins.disruptionbudgets import Budgets

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


def victims_on(node: NodeInfo, dry_run: DryRun, budgets: Budgets) -> Victims | Status:
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
