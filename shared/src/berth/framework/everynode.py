"""What the scheduling cycle says of every node: for people who ask why, not for speed."""

from __future__ import annotations

from dataclasses import dataclass

from berth.api.identity import Attempt
from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.framework.detail import Detail
from berth.framework.profile import Profile
from berth.framework.ranking import Ranking


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryNode:
    """``ranking`` has every feasible node as a candidate, best first; ``detail`` says of the other nodes why."""

    ranking: Ranking
    detail: Detail


def rank_every_node(pod: Pod, snapshot: Snapshot, profile: Profile, *, attempt: Attempt) -> EveryNode:
    """The cycle, with nothing left out. A plugin that fails ends it as it ends a cycle: in ``ranking.error``."""
    detail = Detail()
    ranking = rank(pod, snapshot, profile, attempt=attempt, best=max(1, snapshot.node_count), detail=detail)
    return EveryNode(ranking=ranking, detail=Detail() if ranking.error else detail)
