"""The memory that a process keeps: glibc's free pages, and objects that only the garbage collector finds."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3  # glibc's numbers of these parameters (malloc.h)
# Arrays below this size are allocated on the heap: the highest value that glibc itself sets for this threshold. An
# array of one number for each of 50,000 nodes has 400,000 bytes.
_HEAP_BYTES: Final = 32 * 1024 * 1024
# Free bytes kept at the end of the heap: twice the other, as in glibc when it raises its threshold.
_KEPT_BYTES: Final = 2 * _HEAP_BYTES


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory for reuse; once per process. Returns whether it worked (only with glibc)."""
    mallopt = _of_libc("mallopt")
    if mallopt is None:
        return False
    # A cycle allocates and frees arrays of a few dozen kilobytes. By default glibc returns them to the kernel as soon
    # as 128 KiB are free at the end of the heap, and the next cycle faults in each page again: 290 µs per pod of a
    # known class at 5,000 equal nodes instead of 174.
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _HEAP_BYTES))


def give_back_memory() -> None:
    """Free ended objects now: cycles, and unused pages of glibc's heap.

    Call it when much has ended at once: a takeover's memory would otherwise stay until the process ends.
    """
    gc.collect()
    give_back_free_pages()


def give_back_free_pages() -> None:
    """Return unused pages of glibc's heap to the kernel: a millisecond."""
    if (trim := _of_libc("malloc_trim")) is not None:
        trim(0)


def _of_libc(name: str) -> Callable[..., int] | None:
    """A function of the C library; ``None`` if it has no such one."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
