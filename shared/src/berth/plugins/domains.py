"""Numbers by domain: nodes that have the same value of a label are one domain, and what is on them is added up."""

from __future__ import annotations

from typing import Self

import numpy as np
import numpy.typing as npt

from berth.cluster.nodes import Mask, Nodes
from berth.cluster.snapshot import Snapshot

Numbers = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]


class Domains:
    """The domains of one label key on one Snapshot, each with a number.

    ``numbers``: float64, by code + 1; the first is that of nodes without the label, which are no domain: always 0.
    """

    __slots__ = ("codes", "numbers")

    def __init__(self, codes: Codes, numbers: Numbers) -> None:
        self.codes = codes
        self.numbers = numbers

    @classmethod
    def adding(cls, snapshot: Snapshot, key: str, column: npt.NDArray[np.generic], among: Mask | None = None) -> Self:
        """A column of numbers, one a row, added up by domain; ``among``: bool[rows], rows that count."""
        label = snapshot.label_column(key)
        codes, weights = label.codes[: snapshot.size], column[: snapshot.size]
        places = codes + 1
        if among is not None:
            places, weights = places[among], weights[among]
        numbers = np.bincount(places, weights=weights, minlength=len(label.values) + 1).astype(np.float64, copy=False)
        numbers[0] = 0
        return cls(codes, numbers)

    def has(self, row: int) -> bool:
        """Whether the row is in a domain."""
        return bool(self.codes[row] >= 0)

    def at(self, row: int) -> float:
        """The number of the row's domain; 0 for a row that is in none."""
        return float(self.numbers[self.codes[row] + 1])

    def on(self, nodes: Nodes) -> Numbers:
        """The same for many nodes."""
        numbers: Numbers = self.numbers[nodes.take(self.codes) + 1]
        return numbers

    def present(self, nodes: Nodes) -> Mask:
        """Which nodes are in a domain."""
        return np.greater_equal(nodes.take(self.codes), 0)

    def add(self, row: int, by: float) -> None:
        """More, or less, in the row's domain."""
        if self.has(row):
            self.numbers[self.codes[row] + 1] += by

    def any(self) -> bool:
        """Whether some domain's number is not 0."""
        return bool(self.numbers.any())

    def clone(self) -> Self:
        """A copy that may be changed."""
        return type(self)(self.codes, self.numbers.copy())
