"""Freed memory stays with the process, so that no cycle faults its arrays in anew. What a former session took goes."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
if sys.argv[1] == "kept":
    from berth.memory import keep_freed_memory
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

PEAK = """
import re, sys
from pathlib import Path
from berth.memory import give_back_memory, keep_freed_memory
def mebibytes():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024
assert keep_freed_memory()
before = mebibytes()
taken = [bytes(2000) for _ in range(20_000)]
kept = [bytes(2000)]  # behind the others: the end of the heap is in use
del taken
if sys.argv[1] == "given back":
    give_back_memory()
print(mebibytes() - before)
"""

LIST = """
import asyncio, re
from pathlib import Path
from types import SimpleNamespace
from berth.api.kinds import NODE
from berth.kube.http1 import Response
from berth.kube.listwatch import list_objects
from berth.memory import keep_freed_memory
def mebibytes():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024
assert keep_freed_memory()
NODE_JSON = b'{"metadata": {"name": "n", "managedFields": "%s"}}' % (b"x" * 10_000)
async def request(*_, params, **__):
    token = b'"continue": "next"' if "continue" not in params else b""
    items = b",".join([NODE_JSON] * int(params["limit"]))
    return Response(status=200, body=b'{"metadata": {%s}, "items": [%s]}' % (token, items))
before = mebibytes()
found = asyncio.run(list_objects(SimpleNamespace(request=request), NODE))
assert len(found.objects) > 1000
print(mebibytes() - before)
"""


def page_faults(how: str) -> int:
    return number_printed(FAULTS, how)


def mebibytes_after_a_peak(how: str) -> int:
    return number_printed(PEAK, how)


def number_printed(program: str, *how: str) -> int:
    """In a process of its own: the allocator's thresholds are the whole process's, and move."""
    done = subprocess.run([sys.executable, "-c", program, *how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back so eagerly")
def test_arrays_of_a_cycle_are_not_faulted_in_anew():
    assert page_faults("kept") < 20 < page_faults("as it is")


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory")
def test_memory_of_what_has_ended_is_given_back():
    assert mebibytes_after_a_peak("given back") < 10 < mebibytes_after_a_peak("as it is")


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory")
def test_pages_of_a_list_are_given_back():
    assert number_printed(LIST) < 10
