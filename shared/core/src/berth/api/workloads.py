"""Small kinds: services, controllers, disruption budgets, namespaces, priority classes and Leases, trimmed.

Services and controllers select pods that belong together. Budgets limit evictions. A Lease names the leader; its
annotations have the numbers that must survive the loss of the bus (docs/protocol.md, 1.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from berth.api.meta import Int32, LabelSelector, ObjectMeta, Trimmed


class LabelsSpec(Trimmed, frozen=True, kw_only=True):
    """Pods that have all these labels; absent selects nothing."""

    selector: dict[str, str] | None = None


class SelectorSpec(Trimmed, frozen=True, kw_only=True):
    """Pods that the selector matches."""

    selector: LabelSelector | None = None


class Service(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: LabelsSpec = LabelsSpec()


class ReplicationController(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: LabelsSpec = LabelsSpec()


class ReplicaSet(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: SelectorSpec = SelectorSpec()


class StatefulSet(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: SelectorSpec = SelectorSpec()


class BudgetStatus(Trimmed, frozen=True, kw_only=True):
    """The number of evictions allowed now. ``disrupted_pods``: start of the eviction by pod name."""

    disruptions_allowed: Int32 = 0
    disrupted_pods: dict[str, str] | None = None


class PodDisruptionBudget(Trimmed, frozen=True, kw_only=True):
    """A disruption budget; without a selector it covers no pods."""

    metadata: ObjectMeta
    spec: SelectorSpec = SelectorSpec()
    status: BudgetStatus = BudgetStatus()


class Namespace(Trimmed, frozen=True, kw_only=True):
    """A namespace; namespace selectors match its labels."""

    metadata: ObjectMeta


class PriorityClass(Trimmed, frozen=True, kw_only=True):
    """A named priority. ``global_default``: the class of pods without one."""

    metadata: ObjectMeta
    value: Int32 = 0
    global_default: bool = False
    preemption_policy: str | None = None


SYSTEM_PRIORITIES: Final[Mapping[str, int]] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}  # in every cluster


class LeaseSpec(Trimmed, frozen=True, kw_only=True):
    """The record of an election. Times are by the holder's wall clock: for display only, never for computations."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Trimmed, frozen=True, kw_only=True):
    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()
