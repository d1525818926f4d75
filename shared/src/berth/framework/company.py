"""Which pods on a node are company to a pod: those that make the node another one than it was when it was ranked.

All of them, unless a plugin of the profile keeps pods of a kind apart: then those of the pod's kind. The scorer writes
the number on each candidate, the binder compares it with what it knows now (PROTOCOL 5, *Untouched first*).
"""

from __future__ import annotations

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


def company_on(pod: Pod, node: str, snapshot: Snapshot, profile: Profile) -> int:
    """The same for one node; 0 for one that is not there.

    Raises:
        PluginFailure: a plugin failed.
    """
    row = snapshot.rows.of(node)
    return 0 if row is None else int(company(pod, Nodes(snapshot, np.array([row], dtype=np.intp)), profile)[0])
