"""Node, trimmed to the fields that plugins read; readiness, and tolerations of its taints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from berth.api.meta import NOT_KEPT, Int64, ObjectMeta, Trimmed
from berth.api.pod import Toleration


class Taint(Trimmed, frozen=True, kw_only=True):
    """Keeps pods that do not tolerate it off the node."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(Trimmed, frozen=True, kw_only=True):
    """The node's configuration."""

    unschedulable: bool = False
    taints: list[Taint] | None = None


class ContainerImage(Trimmed, frozen=True, kw_only=True):
    """An image on the node, with all its names."""

    names: list[str] | None = None
    size_bytes: Int64 = 0


class NodeAddress(Trimmed, frozen=True, kw_only=True):
    type: str
    address: str


class NodeCondition(Trimmed, frozen=True, kw_only=True):
    """A condition reported by the kubelet, without heartbeat times, which change all the time."""

    type: str
    status: str


class NodeStatus(Trimmed, frozen=True, kw_only=True):
    """The kubelet's report. Quantities are text as written; ``berth.api.resources`` reads them."""

    allocatable: dict[str, str | int | float] | None = None
    capacity: dict[str, str | int | float] | None = None
    conditions: list[NodeCondition] | None = None
    addresses: list[NodeAddress] | None = None
    images: list[ContainerImage] | None = None
    declared_features: list[str] | None = None


class Node(Trimmed, frozen=True, kw_only=True):
    """A machine of the cluster. A node without a status has no allocatable resources, so pods do not fit.

    ``whole`` is the complete node as JSON for extenders; only berth writes it.
    """

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()
    whole: msgspec.Raw = NOT_KEPT


READY = "Ready"  # the condition of a node that takes pods


def is_ready(node: Node) -> bool:
    """Whether the condition Ready is True or absent."""
    return all(condition.status == "True" for condition in node.status.conditions or () if condition.type == READY)


NO_SCHEDULE: Final = "NoSchedule"

NO_EXECUTE: Final = "NoExecute"

PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"

# Effects that exclude a node; PreferNoSchedule only lowers its score.
NO_SCHEDULE_EFFECTS: Final = frozenset({NO_SCHEDULE, NO_EXECUTE})

# The taint of a cordoned node; a pod that tolerates it may be placed there.
UNSCHEDULABLE_TAINT: Final = Taint(key="node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)


# As the API server accepts it in a toleration with Gt or Lt: no plus sign, no leading zeros.
_DECIMAL_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration matches the taint. No effect matches every effect; no key with Exists every taint.

    Gt and Lt compare the taint's value with the toleration's as decimal integers of 64 bits; other values do not match.
    They always count, because the API server decides whether a pod may have them.
    """
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return toleration.value == taint.value
        case "Gt":
            return _is_less(toleration.value, taint.value)
        case "Lt":
            return _is_less(taint.value, toleration.value)
    return False


def _is_less(one: str, other: str) -> bool:
    """Whether both are decimal integers of 64 bits, the first below the second."""
    if _DECIMAL_INTEGER.fullmatch(one) is None or _DECIMAL_INTEGER.fullmatch(other) is None:
        return False
    return -(2**63) <= int(one) < int(other) < 2**63


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def first_untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that excludes the node for a pod with these tolerations, or None."""
    return next((t for t in taints if t.effect in NO_SCHEDULE_EFFECTS and not is_tolerated(t, tolerations)), None)


def count_untolerated_prefer_no_schedule(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> int:
    """The number of untolerated PreferNoSchedule taints; only tolerations of that effect, or of all, count."""
    mild = [t for t in tolerations if t.effect in ("", PREFER_NO_SCHEDULE)]
    return sum(t.effect == PREFER_NO_SCHEDULE and not is_tolerated(t, mild) for t in taints)
