"""What the binder needs to correct a ranking for pods that came later (docs/protocol.md, 5, *Best estimate*).

``counted_pods``: which pods on a node count for a pod. ``losses``: the points that one more pod like it costs there.
The scorer writes both on each candidate. The binder counts again and takes the node with the most of ``total - loss x
(pods by its own count - pods counted)``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.cluster.nodes import AnotherPod, Nodes, NodesWithAnother, RowIndex
from berth.cluster.snapshot import Snapshot
from berth.framework.equivalencecache import ClassResults
from berth.framework.interface import NormalizePlugin, Scores
from berth.framework.plugincalls import run_counted_pods, run_normalize, run_score_with_another
from berth.framework.profile import Profile
from berth.framework.scoring import Scored
from berth.framework.state import CycleState

Points = npt.NDArray[np.float64]
_DECIMALS: Final = 3


def counted_pods(pod: Pod, nodes: Nodes, profile: Profile) -> Scores:
    """int64[nodes]: how many pods on each node count for the pod; itself and nominated pods never do.

    All pods count, unless the profile keeps pods of a kind apart (``Profile.spreading``): then those of its kind do.

    Raises:
        PluginFailure: a plugin failed.
    """
    if profile.spreading is not None:
        return run_counted_pods(profile.spreading, pod, nodes)
    counts = nodes.pods.astype(np.int64)
    itself = nodes.snapshot.placed(pod.uid)
    if itself is not None:
        counts -= nodes.rows == itself.row
    return counts


def counted_pods_by_node(pod: Pod, names: Iterable[str], snapshot: Snapshot, profile: Profile) -> dict[str, int]:
    """The same by node name; 0 for a node that does not exist.

    Raises:
        PluginFailure: a plugin failed.
    """
    rows = {name: row for name in names if (row := snapshot.rows.of(name)) is not None}
    counts = counted_pods(pod, Nodes(snapshot, np.array(list(rows.values()), dtype=np.intp)), profile)
    return defaultdict(int, zip(rows, counts.tolist(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class BestNodes:
    """``positions``: which of the scored nodes are the best, best first."""

    pod: Pod
    nodes: Nodes
    scored: Scored
    positions: RowIndex


def losses(best: BestNodes, profile: Profile, state: CycleState, results: ClassResults) -> list[float]:
    """Of each best node, its total minus what that would be if one more pod like this one were there.

    0 where pods do not move the total, negative where they make the node better. Only these nodes are scored again,
    each by itself.

    Raises:
        PluginFailure: a plugin failed.
    """
    pod, raw, positions = best.pod, best.scored.raw, best.positions
    rows, snapshot = best.nodes.rows_at(positions), best.nodes.snapshot
    local = results.scores_with_another(rows)
    whole: Scores = np.zeros(len(rows), dtype=np.int64)
    normalized: Points | None = None
    for entry in profile.scores_that_read_pods:
        plugin = entry.plugin
        before = raw.get(plugin.name)
        if before is None:
            continue
        if plugin.is_row_local:
            after = local[plugin.name]
        else:
            nodes = NodesWithAnother(snapshot, rows, AnotherPod(pod, snapshot))
            after = run_score_with_another(plugin, state, pod, nodes)
        if not isinstance(plugin, NormalizePlugin):
            whole += (before[positions] - after) * entry.weight
        elif (after != before[positions]).any():
            lost = _normalized_loss(plugin, entry.weight, best, after, state)
            normalized = lost if normalized is None else normalized + lost
    if normalized is None:
        whole_points: list[float] = whole.tolist()
        return whole_points
    return [int(loss) if loss.is_integer() else loss for loss in np.round(whole + normalized, _DECIMALS).tolist()]


def _normalized_loss(plugin: NormalizePlugin, weight: int, best: BestNodes, after: Scores, state: CycleState) -> Points:
    """With NormalizeScore as in the ranking: what it gave to these nodes is read off in between.

    A rank has no value in between, and a node with 2 pods beside nodes with 7 must not lose to them by its first
    newcomer. Beyond these scores NormalizeScore is called again, with the changed scores in addition to all others.
    """
    raw, points = best.scored.raw[plugin.name], best.scored.parts[plugin.name][best.positions]
    known, first, inverse = np.unique(raw[best.positions], return_index=True, return_inverse=True)
    follows: bool = bool((points[first][inverse] == points).all())  # the points follow from the raw score alone
    inside = (known[0] <= after) & (after <= known[-1]) & follows
    lost = points - np.interp(after, known, points[first])
    if not inside.all():
        extended = Nodes(best.nodes.snapshot, np.concatenate((best.nodes.rows, best.nodes.rows_at(best.positions))))
        normalized = run_normalize(plugin, state, best.pod, np.concatenate((raw, after)), extended)
        beyond = (normalized[: len(raw)][best.positions] - normalized[len(raw) :]) * weight
        lost = np.where(inside, lost, beyond)
    return np.asarray(lost, dtype=np.float64)
