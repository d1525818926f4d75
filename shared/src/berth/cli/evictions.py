"""What evicting pods does to a Snapshot that nobody else keeps up: they are gone, and their budgets allow fewer."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from berth.api.budgets import PodDisruptionBudget
from berth.api.pod import Pod
from berth.api.selectors import compile_label_selector
from berth.cluster.snapshot import Snapshot


def evict(snapshot: Snapshot, uids: Iterable[str]) -> None:
    """Remove the pods, as if they ended at once, and take each from the budgets that mean it."""
    for uid in uids:
        placed = snapshot.placed(uid)
        if placed is not None:
            snapshot.remove_pod(uid)
            _charge(snapshot, placed.pod)


def _charge(snapshot: Snapshot, pod: Pod) -> None:
    """What the disruption controller does when it sees a healthy pod of a budget go."""
    budgets = snapshot.objects(PodDisruptionBudget)
    for budget in list(budgets.in_namespace(pod.metadata.namespace)):
        left = budget.status.disruptions_allowed - 1
        if left >= 0 and compile_label_selector(budget.spec.selector).matches(pod.metadata.labels or {}):
            status = msgspec.structs.replace(budget.status, disruptions_allowed=left)
            budgets.set(budget.metadata.uid, msgspec.structs.replace(budget, status=status))
