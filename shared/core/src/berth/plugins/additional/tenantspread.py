"""TenantSpread: spreads each tenant's pods evenly over the nodes. A pod's label ``tenant`` names its tenant.

PreFilter: a pod without the label is unschedulable. Score: the node's pods of the tenant in all namespaces, without
terminating ones; normalized by rank and reversed: the fewest are 100, the next larger number 99, and so on. With a
weight above 100 no other score outweighs one pod of the tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo, Nodes, NodesWithAnother
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, nothing
from berth.framework.interface import (
    EnqueueExtensions,
    NormalizePlugin,
    PreFilterPlugin,
    PreFilterResult,
    Scores,
    SpreadingPlugin,
    VectorScorePlugin,
)
from berth.framework.scoring import normalize_by_rank
from berth.framework.status import CycleState, Status
from berth.plugins.factory import Args, PluginFactory, key_problems, with_args

NAME: Final = "TenantSpread"
NO_TENANT: Final = "pod has no label {}, which names the tenant it belongs to"


class TenantSpreadArgs(Args, frozen=True, kw_only=True):
    """The label that names a pod's tenant."""

    key: str = "tenant"
    """The label of pods whose value is the tenant."""


class TenantSpread(PreFilterPlugin, VectorScorePlugin, NormalizePlugin, SpreadingPlugin, EnqueueExtensions):
    """Spreads each tenant's pods evenly over the nodes."""

    name: ClassVar[str] = NAME

    def __init__(self, args: TenantSpreadArgs) -> None:
        self._key = args.key
        self._refusal = PreFilterResult(Status.unresolvable(NO_TENANT.format(args.key)))

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        return PreFilterResult() if self._tenant(pod) else self._refusal

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        tenant = self._tenant(pod)
        return sum(self._counts(placed.pod, tenant) and placed.pod.uid != pod.uid for placed in node.placed())

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        return self.counted_pods(pod, nodes)

    def score_with_another(self, state: CycleState, pod: Pod, nodes: NodesWithAnother) -> Scores:
        return self.counted_pods(pod, nodes) + 1

    def normalize(self, state: CycleState, pod: Pod, scores: Scores, nodes: Nodes) -> Scores:
        return normalize_by_rank(-scores)

    def counted_pods(self, pod: Pod, nodes: Nodes) -> Scores:
        snapshot, tenant = nodes.snapshot, self._tenant(pod)
        counts = np.zeros(snapshot.size, dtype=np.int64)
        for group in snapshot.groups.all():
            if not group.terminating and group.labels.get(self._key, "") == tenant:
                counts[list(group.counts)] += list(group.counts.values())
        itself = snapshot.placed(pod.uid)
        if itself is not None and self._counts(itself.pod, tenant):
            counts[itself.row] -= 1
        return nodes.take(counts)

    def events(self) -> Sequence[EventHint]:
        """The pod gets the label; no other event helps."""
        return (EventHint(ClusterEvent(Resource.POD, Action.UPDATE_POD_LABEL), self._is_labelled_now, key=nothing),)

    def _tenant(self, pod: Pod) -> str:
        return (pod.metadata.labels or {}).get(self._key, "")

    def _counts(self, pod: Pod, tenant: str) -> bool:
        return pod.metadata.deletion_timestamp is None and self._tenant(pod) == tenant

    def _is_labelled_now(self, pod: Pod, _: object, new: object) -> bool:
        return isinstance(new, Pod) and new.uid == pod.uid and bool(self._tenant(new))


def validate(args: TenantSpreadArgs, path: str) -> list[str]:
    return key_problems(args.key, f"{path}.key")


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.SCORE),
    build=with_args(TenantSpread, TenantSpreadArgs),
    args_type=TenantSpreadArgs,
    validate=validate,
)
