"""Which of the feasible nodes come first: more points, then fewer pods, then a hash that differs by pod and attempt."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from berth.api.identity import Attempt
from berth.cluster.columns import hash_of
from berth.cluster.nodes import Nodes
from berth.framework.interface import Scores

_POD_BITS = 20
_MAX_PODS = (1 << _POD_BITS) - 1


def best_first(totals: Scores, nodes: Nodes, attempt: Attempt, count: int, *, fewer_pods_first: bool) -> list[int]:
    """Positions in ``nodes`` of the best ``count``, best first.

    Equal totals: fewer pods first, unless that is switched off, then by a hash of (uid, attempt, node): spread like
    chance, and the same input gives the same order in every process.
    """
    keys = totals << _POD_BITS
    if fewer_pods_first:
        keys = keys - np.minimum(nodes.pods, _MAX_PODS).astype(np.int64)
    near = _no_worse_than(keys, count)
    hashes = _mixed(nodes.take(nodes.snapshot.columns.name_hash)[near], hash_of(str(attempt)))
    order = np.lexsort((hashes, -keys[near]))[:count]
    positions: list[int] = near[order].tolist()
    return positions


def _no_worse_than(keys: Scores, count: int) -> npt.NDArray[np.intp]:
    """Positions of the ``count`` largest keys and of those that equal the smallest of them."""
    largest = np.flatnonzero(keys == keys.max())
    if len(largest) >= count or len(keys) <= count:
        return largest if len(largest) >= count else np.arange(len(keys))
    return np.flatnonzero(keys >= np.partition(keys, -count)[-count])


def _mixed(hashes: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.uint64]:
    """Hashes stirred with a seed (the finalizer of splitmix64): each seed gives another order."""
    x = hashes ^ np.uint64(seed)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
