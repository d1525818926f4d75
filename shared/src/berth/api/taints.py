"""Which tolerations put up with which taints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from berth.api.node import Taint
from berth.api.pod import Toleration

NO_SCHEDULE: Final = "NoSchedule"
NO_EXECUTE: Final = "NoExecute"
PREFER_NO_SCHEDULE: Final = "PreferNoSchedule"
REPELLING: Final = frozenset({NO_SCHEDULE, NO_EXECUTE})
"""The effects that keep a new pod away; PreferNoSchedule only costs points."""
UNSCHEDULABLE: Final = Taint(key="node.kubernetes.io/unschedulable", effect=NO_SCHEDULE)
"""What a cordoned node carries; a pod that tolerates it may go there."""


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration matches the taint. No effect matches every effect; no key with Exists every taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Whether any toleration matches the taint."""
    return any(tolerates(toleration, taint) for toleration in tolerations)


def first_untolerated(taints: Iterable[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint that keeps a pod with these tolerations away, if there is one."""
    return next((t for t in taints if t.effect in REPELLING and not is_tolerated(t, tolerations)), None)


def discouraging(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> int:
    """How many PreferNoSchedule taints are not tolerated; only tolerations that could match that effect count."""
    mild = [t for t in tolerations if t.effect in ("", PREFER_NO_SCHEDULE)]
    return sum(t.effect == PREFER_NO_SCHEDULE and not is_tolerated(t, mild) for t in taints)
