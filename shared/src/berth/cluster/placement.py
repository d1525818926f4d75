"""A pod on a node: counted there, or nominated to it."""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.pod import Pod
from berth.cluster.podclass import PodClass
from berth.cluster.podgroup import PodGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A pod that takes up room on a row.

    ``bound_at``: Unix seconds since when it is bound; ``None`` for one that is proposed or reserved: its time is now.
    """

    pod: Pod
    row: int
    pod_class: PodClass
    group: PodGroup
    bound_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nominated:
    """A pod for which room is being made on a node: lower priorities leave it free."""

    pod: Pod
    node: str
