"""The recorded order of nodes that are equally good, for a recording whose names are masked.

Such nodes are ordered by hashes of their names and of the pod's uid, and masked names have other hashes. A replay takes
the recorded nodes first, in their order; everything that makes them equal is compared as ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from berth.cluster.columns import hash_of
from berth.cluster.snapshot import Snapshot
from berth.framework.scoring import unseeded_hashes
from berth.messages.attempts import Ranked


@contextmanager
def recorded_ties(message: Ranked, snapshot: Snapshot) -> Iterator[None]:
    """Among equals the nodes of a ranking come first, or the node of its preemption."""
    preemption = message.preemption
    names, seed = [each.node for each in message.candidates], message.attempt
    if not names and preemption is not None:
        names, seed = [preemption.node], message.pod.uid
    rows = np.array([row for row in map(snapshot.rows.of, names) if row is not None], dtype=np.intp)
    columns = snapshot.columns
    kept = columns.tie_hash[rows]
    columns.tie_hash[rows] = unseeded_hashes(np.arange(len(rows), dtype=np.uint64), np.uint64(hash_of(seed)))
    try:
        yield
    finally:
        columns.tie_hash[rows] = kept
