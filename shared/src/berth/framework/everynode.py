"""What the scheduling cycle says of every node: for people who ask why, not for speed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from berth.api.identity import Attempt
from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.framework.filtering import Filtering, pre_filter
from berth.framework.profile import Profile
from berth.framework.ranking import Ranking
from berth.framework.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryNode:
    """``ranking`` has every feasible node as a candidate, best first; ``refused`` says of each other node why."""

    ranking: Ranking
    refused: dict[str, Status]


def rank_every_node(pod: Pod, snapshot: Snapshot, profile: Profile, *, attempt: Attempt) -> EveryNode:
    """The cycle, with nothing left out. A plugin that fails ends it as it ends a cycle: in ``ranking.error``."""
    ranking = rank(pod, snapshot, profile, attempt=attempt, best=max(1, snapshot.node_count))
    return EveryNode(ranking=ranking, refused={} if ranking.error else _refused(pod, snapshot, profile))


def _refused(pod: Pod, snapshot: Snapshot, profile: Profile) -> dict[str, Status]:
    placed = snapshot.node_of(pod.uid) is not None
    with snapshot.supposing(removed=[pod.uid]) if placed else nullcontext():
        found = pre_filter(pod, snapshot, profile)
        if found.rejection is not None:
            return dict.fromkeys(snapshot.node_names(), found.rejection)
        filtering = Filtering(pod, snapshot, profile, found)
        filtering.run()
        refused = filtering.refusals().refused
    names = snapshot.rows.names
    return {names[row]: refusal.status for refusal in refused for row in np.sort(refusal.rows).tolist()}
