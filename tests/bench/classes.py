"""A scheduling cycle when pods of so many equivalence classes come in turn: its CPU time, and the memory of the caches.

As in `bench.cycle`: the nodes of a busy cluster, every node filtered and scored by the whole default profile, the pod
placed on the best one. One process for each figure, since memory that was used once is not given back.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from time import process_time_ns

import msgspec

from bench.cycle import loaded_cluster, plain
from berth.framework.equivalencecache import EquivalenceCache
from berth.memory import keep_freed_memory

ROUNDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassesInTurn:
    """The figures of one number of classes, as in the results."""

    nodes: int
    classes: int
    cached: int
    """Classes that the equivalence cache had at the end."""
    median_microseconds: float
    """CPU of a cycle, once every class has been seen."""
    mean_microseconds: float
    added_mebibytes: int
    """Resident memory, above that of the cluster before the first cycle."""


def in_own_process(nodes: int, classes: int) -> ClassesInTurn:
    """Measure in another process."""
    command = [sys.executable, "-m", "bench.classes", str(nodes), str(classes)]
    done = subprocess.run(command, check=True, capture_output=True)
    return msgspec.json.decode(done.stdout, type=ClassesInTurn)


def in_turn(nodes: int, classes: int) -> ClassesInTurn:
    """Rank and place pods of the classes in turn: each class once, and then the rounds that are measured."""
    cluster = loaded_cluster(nodes)
    gc.freeze()  # as a service does: later collections skip the objects that exist at the start
    before, spent = _resident_mebibytes(), []
    for number in range(classes + ROUNDS):
        form = number % classes  # small requests, so that all fit
        pod = plain(number, f"{100 + form % 100}m", f"{128 + form // 100}Mi")
        start = process_time_ns()
        cluster.place(pod)
        spent.append((process_time_ns() - start) / 1000)
    measured = spent[classes:]
    return ClassesInTurn(
        nodes=nodes,
        classes=classes,
        cached=len(EquivalenceCache.of(cluster.snapshot, cluster.profile)),
        median_microseconds=round(statistics.median(measured), 1),
        mean_microseconds=round(statistics.fmean(measured), 1),
        added_mebibytes=round(_resident_mebibytes() - before),
    )


def _resident_mebibytes() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    keep_freed_memory()
    sys.stdout.buffer.write(msgspec.json.encode(in_turn(int(sys.argv[1]), int(sys.argv[2]))))
