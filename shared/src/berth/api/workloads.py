"""Services and the controllers that make pods, trimmed to what says which pods are theirs."""

from __future__ import annotations

from berth.api.meta import LabelSelector, ObjectMeta, Trimmed


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
