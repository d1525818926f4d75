"""Which container images lie on which nodes, and how large they are."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.node import ContainerImage

Sizes = npt.NDArray[np.int64]
_MAX_COLUMNS: Final = 256
"""How many images have a column at a time; the one that was not asked for longest is dropped."""


class Images:
    """Images by name as nodes give it. Columns are made when an image is first asked for, then kept up."""

    def __init__(self) -> None:
        self._sizes: dict[str, dict[int, int]] = {}
        self._columns: OrderedDict[str, Sizes] = OrderedDict()

    def write(self, row: int, before: Iterable[ContainerImage] | None, now: Iterable[ContainerImage] | None) -> None:
        """The row's node had these images and has those."""
        old, new = _by_name(before), _by_name(now)
        for name in old.keys() - new.keys():
            self._remove(name, row)
        for name, size in new.items():
            if old.get(name) != size:
                self._set(name, row, size)

    def nodes_with(self, name: str) -> int:
        """How many nodes have the image."""
        return len(self._sizes.get(name, ()))

    def size_on(self, name: str, row: int) -> int:
        """Bytes of the image on a row; 0 where it is not."""
        return self._sizes.get(name, {}).get(row, 0)

    def sizes(self, name: str, capacity: int) -> Sizes:
        """int64[capacity] of :meth:`size_on`, to be read only."""
        column = self._columns.get(name)
        if column is None or len(column) != capacity:
            column = self._columns[name] = np.zeros(capacity, dtype=np.int64)
            rows = self._sizes.get(name, {})
            column[list(rows)] = list(rows.values())
            if len(self._columns) > _MAX_COLUMNS:
                self._columns.popitem(last=False)
        else:
            self._columns.move_to_end(name)
        return column

    def _set(self, name: str, row: int, size: int) -> None:
        self._sizes.setdefault(name, {})[row] = size
        self._show(name, row, size)

    def _remove(self, name: str, row: int) -> None:
        rows = self._sizes[name]
        del rows[row]
        self._show(name, row, 0)
        if not rows:
            del self._sizes[name]
            self._columns.pop(name, None)

    def _show(self, name: str, row: int, size: int) -> None:
        column = self._columns.get(name)
        if column is not None and row < len(column):
            column[row] = size
        elif column is not None:
            del self._columns[name]


def _by_name(images: Iterable[ContainerImage] | None) -> dict[str, int]:
    return {name: image.size_bytes for image in images or () for name in image.names or ()}
