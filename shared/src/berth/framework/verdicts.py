"""What a Filter says of many nodes at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from berth.framework.status import SUCCESS, Status

Codes = npt.NDArray[np.int16]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """``codes``: int16[nodes], index into ``statuses``; code 0 is success. A node's reasons are its status's."""

    codes: Codes
    statuses: tuple[Status, ...] = (SUCCESS,)

    @classmethod
    def refusing(cls, refused: Mask, status: Status) -> Verdicts:
        """The same answer for all nodes that are refused."""
        return cls(refused.astype(np.int16), (SUCCESS, status))

    @classmethod
    def of(cls, statuses: Iterable[Status]) -> Verdicts:
        """One status a node, in order."""
        known: dict[Status, int] = {SUCCESS: 0}
        codes = [known.setdefault(SUCCESS if s.is_success else s, len(known)) for s in statuses]
        return cls(np.array(codes, dtype=np.int16), tuple(known))
