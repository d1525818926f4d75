"""Keeps glibc from giving freed memory back to the kernel again and again.

A cycle makes and frees arrays of a few dozen kilobytes. Where they lie at the end of the heap, glibc trims it once 128
KiB are free there, and the next cycle has every page faulted in anew: 290 us a pod of a known class at 5,000 equal
nodes, 174 without that. A process that has freed something large is spared by chance (glibc then moves its thresholds):
here it is no chance.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Names of glibc's parameters (malloc.h)."""
_ON_HEAP: Final = 32 * 1024 * 1024
"""Bytes below which an array lies on the heap: as far as glibc moves its threshold by itself, at most. An array of one
number for each of 50,000 nodes has 400,000."""
_KEPT: Final = 2 * _ON_HEAP
"""Bytes at the end of the heap that stay: twice that, as glibc sets it when it moves its threshold."""


def keep_freed_memory() -> bool:
    """Tell the allocator; once a process is enough. Whether it listens: only glibc has to be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    return mallopt is not None and bool(mallopt(_TRIM_THRESHOLD, _KEPT)) and bool(mallopt(_MMAP_THRESHOLD, _ON_HEAP))
