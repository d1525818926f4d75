"""The victims on one node, as few and unimportant as possible, and the cost of evicting them.

PodDisruptionBudgets decide which evictions are violations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from berth.api.pod import Pod, priority_of
from berth.api.podgroups import group_of
from berth.cluster.nodes import NodeInfo
from berth.cluster.placedpods import started_at
from berth.cluster.podgroups import PodGroups
from berth.cluster.pods import PlacedPod
from berth.framework.disruptionbudgets import DisruptionBudgets
from berth.framework.interface import DryRun, DryRunNode
from berth.framework.status import Status

NO_VICTIMS: Final = Status.unresolvable("No preemption victims found for incoming pod")
PRIORITY_OFFSET: Final = 2**31  # makes every priority in a sum positive, so that more pods always cost more
# Compares nodes, smaller is better: violated budgets, highest priority, sum of priorities, number of victims, and the
# earliest start among the victims of the highest priority, as Unix seconds times -1.
Cost = tuple[int, int, int, int, float]


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods to evict from a node, most important first; ``violations``: those that violate a budget."""

    row: int
    pods: tuple[PlacedPod, ...]
    violations: int

    @property
    def highest(self) -> int:
        return max(priority_of(placed.pod) for placed in self.pods)

    @property
    def cost(self) -> Cost:
        priorities, highest = [priority_of(placed.pod) for placed in self.pods], self.highest
        since = min(started_at(placed.pod) for placed in self.pods if priority_of(placed.pod) == highest)
        return (self.violations, highest, sum(priorities) + PRIORITY_OFFSET * len(priorities), len(priorities), -since)


def victims_on(node: NodeInfo, dry_run: DryRun, budgets: DisruptionBudgets) -> Victims | Status:
    """Remove all pods of lower priority, then reprieve as many as possible: pods protected by budgets first.

    Returns a Status with the reason if the pod does not fit even without all of them.

    Raises:
        PluginFailure: a plugin failed.
    """
    potential = most_important_first(_not_of_its_group(lower_priority_pods_on(node, dry_run.pod), dry_run))
    if not potential:
        return NO_VICTIMS
    violating, others = budgets.split(potential)
    with dry_run.removing(node, potential) as vacated:
        status = vacated.status()
        if not status.is_success:
            return status
        violating_victims = _not_reprieved(violating, vacated)
        victims = violating_victims + _not_reprieved(others, vacated)
    if not victims:
        return Status.unresolvable(f'expected at least one victim pod on node "{node.name}"')
    return Victims(node.row, tuple(most_important_first(victims)), len(violating_victims))


def _not_reprieved(pods: Iterable[PlacedPod], vacated: DryRunNode) -> list[PlacedPod]:
    """The pods that must be evicted for the pod to fit; the others are put back (reprieved)."""
    victims = []
    for placed in pods:
        vacated.add(placed)
        if not vacated.status().is_success:
            vacated.remove(placed)
            victims.append(placed)
    return victims


def _not_of_its_group(pods: list[PlacedPod], dry_run: DryRun) -> list[PlacedPod]:
    """A pod beyond the minimum of its group does not break the group: not so in kube-scheduler."""
    key = group_of(dry_run.pod)
    if key is None or PodGroups.of(dry_run.snapshot).get(key) is None:
        return pods
    return [placed for placed in pods if group_of(placed.pod) != key]


def lower_priority_pods_on(node: NodeInfo, pod: Pod) -> list[PlacedPod]:
    return [placed for placed in node.placed() if priority_of(placed.pod) < priority_of(pod)]


def most_important_first(pods: Iterable[PlacedPod]) -> list[PlacedPod]:
    """Pods by priority, then start time; the uid makes the order the same in every process."""
    return sorted(pods, key=lambda placed: (-priority_of(placed.pod), started_at(placed.pod), placed.pod.uid))
