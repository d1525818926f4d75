"""Container images by node, and their sizes."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.node import ContainerImage

Sizes = npt.NDArray[np.int64]

# Images with a column at a time; the least recently used one is dropped.
_MAX_COLUMNS: Final = 256

_LARGEST: Final = 1 << 50


class Images:
    """Images by name. The column of an image is built on first use and then kept up to date."""

    def __init__(self) -> None:
        self._holders: dict[str, ImageNodes] = {}
        self._columns: OrderedDict[str, Sizes] = OrderedDict()

    def copied(self) -> Images:
        copy = Images()
        copy._holders = {name: holders.copied() for name, holders in self._holders.items()}
        return copy

    def deduplicated(self, images: list[ContainerImage]) -> list[ContainerImage]:
        """The same images, with entries equal to another node's replaced by that node's object."""
        return [self._shared(image) for image in images]

    def write(self, row: int, before: Iterable[ContainerImage] | None, now: Iterable[ContainerImage] | None) -> None:
        old, new = _by_name(before), _by_name(now)
        for name in old.keys() - new.keys():
            self._remove(name, row)
        for name, image in new.items():
            had = old.get(name)
            if had is None:
                self._holders.setdefault(name, ImageNodes(image)).add(row, image.size_bytes)
            elif had.size_bytes != image.size_bytes:
                self._holders[name].set(row, image.size_bytes)
            else:
                continue
            self._update_column(name, row, image.size_bytes)

    def nodes_with(self, name: str) -> int:
        return len(self._holders.get(name, ()))

    def size_on(self, name: str, row: int) -> int:
        """Bytes of the image on a row; 0 without it."""
        holders = self._holders.get(name)
        return holders.size_on(row) if holders is not None else 0

    def sizes(self, name: str, capacity: int) -> Sizes:
        """int64[capacity] of :meth:`size_on`, read only."""
        column = self._columns.get(name)
        if column is None or len(column) != capacity:
            column = self._columns[name] = np.zeros(capacity, dtype=np.int64)
            holders = self._holders.get(name)
            if holders is not None:
                holders.write_to(column)
            if len(self._columns) > _MAX_COLUMNS:
                self._columns.popitem(last=False)
        else:
            self._columns.move_to_end(name)
        return column

    def _shared(self, image: ContainerImage) -> ContainerImage:
        holders = self._holders.get(image.names[0]) if image.names else None
        return holders.image if holders is not None and holders.image == image else image

    def _remove(self, name: str, row: int) -> None:
        holders = self._holders[name]
        holders.remove(row)
        self._update_column(name, row, 0)
        if not len(holders):
            del self._holders[name]
            self._columns.pop(name, None)

    def _update_column(self, name: str, row: int, size: int) -> None:
        column = self._columns.get(name)
        if column is not None and row < len(column):
            column[row] = size
        elif column is not None:
            del self._columns[name]


class ImageNodes:
    """The rows with an image and its size on each: 12 bytes per row, where a dict takes 100.

    ``image`` is the entry of one of these nodes; nodes with an equal entry share it.
    """

    __slots__ = ("_rows", "_sizes", "image")

    def __init__(self, image: ContainerImage) -> None:
        self.image = image
        self._rows = array("i")
        self._sizes = array("q")

    def __len__(self) -> int:
        return len(self._rows)

    def copied(self) -> ImageNodes:
        copy = ImageNodes(self.image)
        copy._rows, copy._sizes = self._rows[:], self._sizes[:]
        return copy

    def add(self, row: int, size: int) -> None:
        self._rows.append(row)
        self._sizes.append(_limited(size))

    def set(self, row: int, size: int) -> None:
        self._sizes[self._place(row)] = _limited(size)

    def remove(self, row: int) -> None:
        # The last row takes the place of the removed one.
        place = self._place(row)
        self._rows[place], self._sizes[place] = self._rows[-1], self._sizes[-1]
        self._rows.pop()
        self._sizes.pop()

    def size_on(self, row: int) -> int:
        places = np.flatnonzero(np.frombuffer(self._rows, dtype=np.int32) == row)
        return self._sizes[int(places[0])] if len(places) else 0

    def write_to(self, column: Sizes) -> None:
        column[np.frombuffer(self._rows, dtype=np.int32)] = np.frombuffer(self._sizes, dtype=np.int64)

    def _place(self, row: int) -> int:
        return int(np.argmax(np.frombuffer(self._rows, dtype=np.int32) == row))


def _limited(size: int) -> int:
    # Limited, so that sums of sizes stay within 64 bits.
    return max(0, min(size, _LARGEST))


def _by_name(images: Iterable[ContainerImage] | None) -> dict[str, ContainerImage]:
    return {name: image for image in images or () for name in image.names or ()}
