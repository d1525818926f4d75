"""Services and the controllers that make pods, trimmed to what says which pods are theirs.

PodDisruptionBudget, trimmed to what says how many of which pods may be evicted.

Namespace, trimmed to its labels.

PriorityClass, trimmed to what a pod gets of it when it is created.

Lease: who leads, until when, and in its annotations the numbers that outlive the bus (PROTOCOL 1, *term*).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from berth.api.meta import Int32, LabelSelector, ObjectMeta, Trimmed


class LabelsSpec(Trimmed, frozen=True, kw_only=True):
    """Pods that have all these labels; absent means none."""

    selector: dict[str, str] | None = None


class SelectorSpec(Trimmed, frozen=True, kw_only=True):
    """Pods that the selector means."""

    selector: LabelSelector | None = None


class Service(Trimmed, frozen=True, kw_only=True):
    """A service."""

    metadata: ObjectMeta
    spec: LabelsSpec = LabelsSpec()


class ReplicationController(Trimmed, frozen=True, kw_only=True):
    """A replication controller."""

    metadata: ObjectMeta
    spec: LabelsSpec = LabelsSpec()


class ReplicaSet(Trimmed, frozen=True, kw_only=True):
    """A replica set."""

    metadata: ObjectMeta
    spec: SelectorSpec = SelectorSpec()


class StatefulSet(Trimmed, frozen=True, kw_only=True):
    """A stateful set."""

    metadata: ObjectMeta
    spec: SelectorSpec = SelectorSpec()


class BudgetStatus(Trimmed, frozen=True, kw_only=True):
    """What the budget allows now. ``disrupted_pods``: by name, since when their eviction is under way."""

    disruptions_allowed: Int32 = 0
    disrupted_pods: dict[str, str] | None = None


class PodDisruptionBudget(Trimmed, frozen=True, kw_only=True):
    """A budget of disruptions; its selector, absent, means no pods."""

    metadata: ObjectMeta
    spec: SelectorSpec = SelectorSpec()
    status: BudgetStatus = BudgetStatus()


class Namespace(Trimmed, frozen=True, kw_only=True):
    """A namespace; namespace selectors match its labels."""

    metadata: ObjectMeta


class PriorityClass(Trimmed, frozen=True, kw_only=True):
    """A name for a priority. ``global_default``: pods that name no class get this one."""

    metadata: ObjectMeta
    value: Int32 = 0
    global_default: bool = False
    preemption_policy: str | None = None


SYSTEM_PRIORITIES: Final[Mapping[str, int]] = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}
"""The classes that every cluster has."""


class LeaseSpec(Trimmed, frozen=True, kw_only=True):
    """The record of an election. Times are the holder's wall clock: for people, never to be reckoned with."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(Trimmed, frozen=True, kw_only=True):
    """A Lease."""

    metadata: ObjectMeta
    spec: LeaseSpec = LeaseSpec()
