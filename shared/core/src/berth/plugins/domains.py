"""Sums by topology domain: nodes with the same value of a label form one domain.

PodTopologySpread and InterPodAffinity count pods by domain, where kube-scheduler has maps from topology pair to count.
"""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from berth.cluster.nodes import Mask, Nodes
from berth.cluster.snapshot import Snapshot

Numbers = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]


class DomainSums:
    """The domains of one topology key in one Snapshot, each with a number, such as a count of pods.

    ``numbers``: float64, by code + 1. The first, always 0, is for nodes without the label, which are in no domain.
    """

    __slots__ = ("codes", "numbers")

    def __init__(self, codes: Codes, numbers: Numbers) -> None:
        self.codes = codes
        self.numbers = numbers

    @classmethod
    def of_column(
        cls, snapshot: Snapshot, key: str, column: npt.NDArray[np.generic], among: Mask | None = None
    ) -> Self:
        """Add up a column, one number per row, by domain; ``among``: bool[rows], the rows that count."""
        label = snapshot.label_column(key)
        codes, weights = label.codes[: snapshot.size], column[: snapshot.size]
        indices = codes + 1
        if among is not None and not among.all():
            indices, weights = indices[among], weights[among]
        numbers = np.bincount(indices, weights=weights, minlength=len(label.values) + 1).astype(np.float64, copy=False)
        numbers[0] = 0
        return cls(codes, numbers)

    @classmethod
    def without_numbers(cls, snapshot: Snapshot, key: str) -> Self:
        """Domains without sums, to know which rows are in one."""
        return cls(snapshot.label_column(key).codes[: snapshot.size], np.zeros(0))

    def has(self, row: int) -> bool:
        return bool(self.codes[row] >= 0)

    def at(self, row: int) -> float:
        """The number of the row's domain; 0 for a row in no domain."""
        return float(self.numbers[self.codes[row] + 1])

    def of_nodes(self, nodes: Nodes) -> Numbers:
        """float64[nodes]: the number of each node's domain."""
        numbers: Numbers = self.numbers[nodes.take(self.codes) + 1]
        return numbers

    def present(self, nodes: Nodes) -> Mask:
        return np.greater_equal(nodes.take(self.codes), 0)

    def add(self, row: int, by: float) -> None:
        """A row in no domain is ignored."""
        if self.has(row):
            self.numbers[self.codes[row] + 1] += by

    def any(self) -> bool:
        return bool(self.numbers.any())

    def clone(self) -> Self:
        return type(self)(self.codes, self.numbers.copy())
