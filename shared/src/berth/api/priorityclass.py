"""PriorityClass, trimmed to what a pod gets of it when it is created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from berth.api.meta import Int32, ObjectMeta, Trimmed


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
