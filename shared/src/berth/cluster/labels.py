"""Node labels as columns: one array of interned values per label key, made when a key is first asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.cluster.rows import grown

ABSENT: Final = -1
"""The code of a row whose node lacks the label."""
_MAX_COLUMNS: Final = 256
"""More keys than a cluster's selectors name; beyond it the column that was not asked for longest is dropped."""
_SLACK: Final = 1024
"""How many values nobody has any more a column may keep before it is made anew."""


class LabelColumn:
    """The values of one label key. ``codes``: int32[rows], index into ``values`` or ABSENT."""

    def __init__(self, capacity: int) -> None:
        self.codes: npt.NDArray[np.int32] = np.full(capacity, ABSENT, dtype=np.int32)
        self.values: list[str] = []
        self._ids: dict[str, int] = {}

    def code_of(self, value: str) -> int | None:
        """The code of a value that some row has had."""
        return self._ids.get(value)

    def set(self, row: int, value: str | None) -> None:
        """Write a row's value."""
        self.codes[row] = ABSENT if value is None else self._intern(value)

    def grow(self, capacity: int) -> None:
        """Make room for more rows."""
        self.codes = grown(self.codes, capacity, ABSENT)

    def _intern(self, value: str) -> int:
        code = self._ids.get(value)
        if code is None:
            code = self._ids[value] = len(self.values)
            self.values.append(value)
        return code


class LabelColumns:
    """The columns of all keys that were asked for. Codes are good until the next change: they are not to be kept."""

    def __init__(self) -> None:
        self._columns: OrderedDict[str, LabelColumn] = OrderedDict()

    def of(self, key: str, labels: Iterable[tuple[int, Mapping[str, str]]], capacity: int) -> LabelColumn:
        """The column of a key; made from every row's labels when it is not there."""
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = LabelColumn(capacity)
            for row, present in labels:
                column.set(row, present.get(key))
            if len(self._columns) > _MAX_COLUMNS:
                self._columns.popitem(last=False)
        else:
            self._columns.move_to_end(key)
        return column

    def write(self, row: int, labels: Mapping[str, str], rows: int) -> None:
        """Write a row's labels to every column; a column grown stale by it is dropped and made anew when asked for."""
        for key, column in list(self._columns.items()):
            column.set(row, labels.get(key))
            if len(column.values) > 2 * rows + _SLACK:
                del self._columns[key]

    def grow(self, capacity: int) -> None:
        """Make room for more rows in every column."""
        for column in self._columns.values():
            column.grow(capacity)
