"""Which of the feasible nodes come first: more points, then fewer pods, then a hash that differs by pod and attempt."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from berth.api.identity import Attempt
from berth.cluster.columns import hash_of
from berth.cluster.nodes import Nodes, RowIndex
from berth.framework.interface import Scores

_POD_BITS = 20
_STEPS = 3
"""So many different keys are looked at before all are partitioned, which takes as long as four to five of them."""
_MAX_PODS = (1 << _POD_BITS) - 1


def best_first(totals: Scores, nodes: Nodes, attempt: Attempt, count: int, *, fewer_pods_first: bool) -> RowIndex:
    """Positions in ``nodes`` of the best ``count``, best first.

    Equal totals: fewer pods first, unless that is switched off, then by a hash of (uid, attempt, node): spread like
    chance, and the same input gives the same order in every process.
    """
    keys = totals << _POD_BITS
    if fewer_pods_first:
        keys = keys - np.minimum(nodes.pods, _MAX_PODS).astype(np.int64)
    above, tied = _around_the_last(keys, count)
    seed, hashes = np.uint64(hash_of(str(attempt))), nodes.take(nodes.snapshot.columns.name_hash)
    if len(above) + len(tied) > count:
        tied = tied[np.argpartition(mixed(hashes[tied], seed), count - len(above) - 1)[: count - len(above)]]
    best = np.concatenate((above, tied))
    return best[np.lexsort((mixed(hashes[best], seed), -keys[best]))]


def _around_the_last(keys: Scores, count: int) -> tuple[RowIndex, RowIndex]:
    """Positions of keys above the ``count``-th largest (fewer than ``count``), and of those equal to it."""
    last = _last_of_best(keys, count) if len(keys) > count else int(keys.min())
    return np.flatnonzero(keys > last), np.flatnonzero(keys == last)


def _last_of_best(keys: Scores, count: int) -> int:
    """The ``count``-th largest. Equal nodes have few different keys: mostly it is among the largest of these."""
    last = int(keys.max())
    for _ in range(_STEPS):
        if np.count_nonzero(keys >= last) >= count:
            return last
        last = int(keys[keys < last].max())
    return int(np.partition(keys, -count)[-count])


def mixed(hashes: npt.NDArray[np.uint64], seed: np.uint64) -> npt.NDArray[np.uint64]:
    """Hashes stirred with a seed (the finalizer of splitmix64): each seed gives another order."""
    x = hashes ^ seed
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
