"""Which of the feasible nodes come first: more points, then fewer pods, then a hash that differs by pod and attempt."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from berth.api.identity import Attempt
from berth.cluster.columns import hash_of
from berth.cluster.nodes import Nodes, RowIndex
from berth.framework.interface import Scores

_POD_BITS = 20
_MAX_PODS = (1 << _POD_BITS) - 1


def best_first(totals: Scores, nodes: Nodes, attempt: Attempt, count: int, *, fewer_pods_first: bool) -> RowIndex:
    """Positions in ``nodes`` of the best ``count``, best first.

    Equal totals: fewer pods first, unless that is switched off, then by a hash of (uid, attempt, node): spread like
    chance, and the same input gives the same order in every process.
    """
    contenders = _with_most_points(totals, count)
    rows, columns = nodes.rows_at(contenders), nodes.snapshot.columns
    keys = totals[contenders] << _POD_BITS
    if fewer_pods_first:
        keys -= np.minimum(columns.pods[rows], _MAX_PODS).astype(np.int64)
    above, tied = _around_the_last(keys, count)
    seed = np.uint64(hash_of(str(attempt)))
    if len(above) + len(tied) > count:
        places = np.argpartition(mixed(columns.name_hash[rows[tied]], seed), count - len(above) - 1)
        tied = tied[places[: count - len(above)]]
    best = np.concatenate((above, tied))
    return contenders[best[np.lexsort((mixed(columns.name_hash[rows[best]], seed), -keys[best]))]]


def _with_most_points(totals: Scores, count: int) -> RowIndex:
    """Positions of the ``count`` largest totals and of all that are equal to the least of them: nobody else is one."""
    if len(totals) <= count:
        return np.arange(len(totals))
    return np.flatnonzero(totals >= _last_of_best(totals, count))


def _around_the_last(keys: Scores, count: int) -> tuple[RowIndex, RowIndex]:
    """Positions of keys above the ``count``-th largest (fewer than ``count``), and of those equal to it."""
    last = _last_of_best(keys, count) if len(keys) > count else int(keys.min())
    return np.flatnonzero(keys > last), np.flatnonzero(keys == last)


def _last_of_best(keys: Scores, count: int) -> int:
    """The ``count``-th largest of more than so many.

    The largest of each of ``count`` parts: so many are at least as large as the least of these. Mostly few are larger,
    and only those have to be partitioned.
    """
    part = len(keys) // count
    bound = int(keys[: part * count].reshape(count, part).max(axis=1).min())
    above = keys[keys > bound]
    return bound if len(above) < count else int(np.partition(above, -count)[-count])


def mixed(hashes: npt.NDArray[np.uint64], seed: np.uint64) -> npt.NDArray[np.uint64]:
    """Hashes stirred with a seed (the finalizer of splitmix64): each seed gives another order."""
    x = hashes ^ seed
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
