"""What a Filter says of many nodes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.framework.status import SUCCESS, Status

Codes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
_MAX_TABLE_WIDTH: Final = 12
"""Up to here a table of all values is quicker than sorting."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """``codes``: int32[nodes], index into ``statuses``; code 0 is success. A node's reasons are its status's."""

    codes: Codes
    statuses: tuple[Status, ...] = (SUCCESS,)

    @classmethod
    def all_fit(cls, count: int) -> Verdicts:
        """Success for every node."""
        return cls(np.zeros(count, dtype=np.int32))

    @classmethod
    def refusing(cls, refused: Mask, status: Status) -> Verdicts:
        """The same answer for all nodes that are refused."""
        return cls(refused.astype(np.int32), (SUCCESS, status))

    @classmethod
    def of_bits(cls, bits: npt.NDArray[np.int64], width: int, status_of: Callable[[int], Status]) -> Verdicts:
        """One status for each set of bits that occurs; ``bits``: int64[nodes], below ``2**width``, 0 is success."""
        if not bits.any():
            return cls.all_fit(len(bits))
        present, codes = _numbered(np.append(0, bits), width)
        return cls(codes[1:].astype(np.int32), (SUCCESS, *(status_of(combination) for combination in present[1:])))

    @classmethod
    def of(cls, statuses: Iterable[Status]) -> Verdicts:
        """One status a node, in order."""
        known: dict[Status, int] = {SUCCESS: 0}
        codes = [known.setdefault(SUCCESS if s.is_success else s, len(known)) for s in statuses]
        return cls(np.array(codes, dtype=np.int32), tuple(known))


def _numbered(values: npt.NDArray[np.int64], width: int) -> tuple[list[int], npt.NDArray[np.intp]]:
    """The values that occur, rising, and for each element the place of its value among them."""
    if width > _MAX_TABLE_WIDTH:
        present, places = np.unique(values, return_inverse=True)
        return present.tolist(), places
    present = np.flatnonzero(np.bincount(values))
    table = np.zeros(int(present[-1]) + 1, dtype=np.intp)
    table[present] = np.arange(len(present))
    return present.tolist(), table[values]
