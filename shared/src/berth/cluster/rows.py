"""Names to rows, and arrays with one element a row that grow together."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Scalar = TypeVar("Scalar", bound=np.generic)


class Rows:
    """Gives every name a row that stays its own until it is released; released rows are given away again.

    ``size`` is one more than the highest row ever in use: rows beyond it hold nothing.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self.names: list[str] = []
        """Row to name; empty text where the row is free."""

    @property
    def size(self) -> int:
        """How many rows there are, the free ones among them included."""
        return len(self.names)

    def of(self, name: str) -> int | None:
        """The row of a name that has one."""
        return self._rows.get(name)

    def claim(self, name: str) -> int:
        """The row of the name; a new one when it has none."""
        row = self._rows.get(name)
        if row is not None:
            return row
        row = self._free.pop() if self._free else self.size
        if row == self.size:
            self.names.append(name)
        else:
            self.names[row] = name
        self._rows[name] = row
        return row

    def release(self, name: str) -> None:
        """Give the row of the name back."""
        row = self._rows.pop(name)
        self.names[row] = ""
        self._free.append(row)


def grown(column: npt.NDArray[Scalar], capacity: int, empty: Any = 0) -> npt.NDArray[Scalar]:
    """The column with room for ``capacity`` rows; new rows hold ``empty``."""
    wider = np.full(capacity, empty, dtype=column.dtype)
    wider[: len(column)] = column
    return wider
