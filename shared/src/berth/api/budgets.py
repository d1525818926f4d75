"""PodDisruptionBudget, trimmed to what says how many of which pods may be evicted."""

from __future__ import annotations

from berth.api.meta import Int32, ObjectMeta, Trimmed
from berth.api.workloads import SelectorSpec


class BudgetStatus(Trimmed, frozen=True, kw_only=True):
    """What the budget allows now. ``disrupted_pods``: by name, since when their eviction is under way."""

    disruptions_allowed: Int32 = 0
    disrupted_pods: dict[str, str] | None = None


class PodDisruptionBudget(Trimmed, frozen=True, kw_only=True):
    """A budget of disruptions; its selector, absent, means no pods."""

    metadata: ObjectMeta
    spec: SelectorSpec = SelectorSpec()
    status: BudgetStatus = BudgetStatus()
