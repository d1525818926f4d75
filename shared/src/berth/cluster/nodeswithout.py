"""Nodes as they would be without some of their pods: how many are left, and what these ask for together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from berth.cluster.nodes import Amount, Nodes, RowIndex
from berth.cluster.podgroup import PodGroup

if TYPE_CHECKING:
    from berth.cluster.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Gone:
    """What is supposed to be gone from each node: float64[nodes], how many pods, and what they asked for.

    ``count``: how many of them count by a question that is put to their group, as often as it says.
    """

    pods: Amount
    requested: Mapping[str, Amount]
    count: Callable[[Callable[[PodGroup], int]], Amount]


class NodesWithout(Nodes):
    """A view that shows sums only: whoever asks for anything else about pods sees them all."""

    __slots__ = ("_gone",)

    def __init__(self, snapshot: Snapshot, rows: RowIndex, gone: Gone) -> None:
        super().__init__(snapshot, rows)
        self._gone = gone

    @property
    def pods(self) -> Amount:
        """How many pods are left on each node."""
        return super().pods - self._gone.pods

    def requested(self, resource: str) -> Amount:
        """What the pods that are left ask for."""
        requested, gone = super().requested(resource), self._gone.requested.get(resource)
        return requested if gone is None else requested - gone
