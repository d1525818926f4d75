"""Freed memory stays with the process: a cycle's arrays are not faulted in anew each time."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
if sys.argv[1] == "kept":
    from berth.process.lifecycle import keep_freed_memory
    assert keep_freed_memory()
def cycle():
    arrays = [np.zeros(5000) + 1 for _ in range(16)]
for _ in range(10):
    cycle()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    cycle()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    """In a process of its own: the allocator's thresholds are the whole process's, and move."""
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back so eagerly")
def test_arrays_of_a_cycle_are_not_faulted_in_anew():
    assert page_faults("kept") < 20 < page_faults("as it is")
