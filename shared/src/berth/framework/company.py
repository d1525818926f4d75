"""Which pods on a node are company to a pod: those that make the node another one than it was when it was ranked.

All of them, unless the profile is about keeping pods of a kind apart: then those of the pod's kind. The scorer writes
the number on each candidate, the binder compares it with what it knows now (PROTOCOL 5, *Untouched first*).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from berth.api.pod import Pod
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.guard import call, checked_scores
from berth.framework.interface import Scores
from berth.framework.profile import Profile


def company(pod: Pod, nodes: Nodes, profile: Profile) -> Scores:
    """int64[nodes]: how many pods on each node are company to the pod, itself and nominated pods not counted.

    Raises:
        PluginFailure: a plugin failed.
    """
    spreading = profile.spreading
    if spreading is not None:
        counts = call(spreading, "Score", spreading.company, np.ndarray, pod, nodes)
        return checked_scores(spreading, counts, len(nodes))
    counts = nodes.pods.astype(np.int64)
    itself = nodes.snapshot.placed(pod.uid)
    if itself is not None:
        counts -= nodes.rows == itself.row
    return counts


def company_by_name(pod: Pod, names: Iterable[str], snapshot: Snapshot, profile: Profile) -> dict[str, int]:
    """The same by the nodes' names; 0 for one that is not there.

    Raises:
        PluginFailure: a plugin failed.
    """
    rows = {name: row for name in names if (row := snapshot.rows.of(name)) is not None}
    counts = company(pod, Nodes(snapshot, np.array(list(rows.values()), dtype=np.intp)), profile)
    return defaultdict(int, zip(rows, counts.tolist(), strict=True))


def nodes_with_less_company(pod: Pod, snapshot: Snapshot, profile: Profile, *, than: int) -> list[str]:
    """The names of all nodes with fewer such pods, the fewest first.

    Raises:
        PluginFailure: a plugin failed.
    """
    nodes = Nodes(snapshot)
    counts = np.where(nodes.exists, company(pod, nodes, profile), than)
    rows = np.flatnonzero(counts < than)
    return [snapshot.rows.names[row] for row in rows[np.argsort(counts[rows], kind="stable")].tolist()]
