"""NodeResourcesFit: what the pod asks for must be free on the node, and room is preferred, or the lack of it.

Filter: ``requested + pod > allocatable`` for any resource refuses the node, and so do too many pods; each missing
resource is a reason of its own. Score: see scoringstrategy. As kube-scheduler 1.36's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.resources import CPU, MEMORY, Requests, is_scalar
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import EventHint
from berth.framework.interface import (
    EnqueueExtensions,
    PreFilterPlugin,
    PreFilterResult,
    Reads,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SUCCESS, Status
from berth.framework.verdicts import Verdicts
from berth.plugins.factory import PluginFactory
from berth.plugins.noderesourcesargs import NodeResourcesFitArgs, strategy_of, validate, weights_of
from berth.plugins.noderesourcesneeds import Needs, Wanted, events_of

NAME: Final = "NodeResourcesFit"
TOO_MANY_PODS: Final = "Too many pods"
INSUFFICIENT: Final = "Insufficient {}"
WANTED: Final = StateKey[Wanted]("NodeResourcesFit.wanted")
_MAX_BITS: Final = 60
"""More reasons than that do not fit into the bits of an int64."""


class NodeResourcesFit(PreFilterPlugin, VectorFilterPlugin, VectorScorePlugin, EnqueueExtensions):
    """Filters by real requests, scores by requests of which cpu and memory are never 0 by omission."""

    name: ClassVar[str] = NAME
    reads = Reads.NODE | Reads.PODS
    sums_only = True

    def __init__(self, args: NodeResourcesFitArgs) -> None:
        self._needs = Needs(args)
        self._weights = weights_of(args.scoring_strategy)
        self._strategy = strategy_of(args.scoring_strategy)
        self.packs = self._strategy.packs

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """What counts of the requests; never Skip, since there may be too many pods."""
        state.write(WANTED, self._needs.of(state.pod_class.requests))
        return PreFilterResult()

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Whether all of it is free."""
        missing = [TOO_MANY_PODS] if node.pods + 1 > node.allowed_pods else []
        unresolvable = False
        for resource, amount in state.read(WANTED).amounts:
            allocatable = node.allocatable(resource)
            if amount > allocatable - node.requested(resource):
                missing.append(INSUFFICIENT.format(resource))
                unresolvable = unresolvable or amount > allocatable
        return _status(missing, unresolvable=unresolvable)

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """The same for all nodes: one bit for each reason, then one status for each set of bits that occurs."""
        wanted = state.read(WANTED).amounts
        if len(wanted) > _MAX_BITS:
            return Verdicts.of(SUCCESS if info is None else self.filter(state, pod, info) for info in nodes.infos())
        bits = (nodes.pods + 1 > nodes.allowed_pods).astype(np.int64)
        beyond = np.zeros(len(nodes), dtype=np.bool_)
        for place, (resource, amount) in enumerate(wanted, start=1):
            allocatable = nodes.allocatable(resource)
            bits |= (amount > allocatable - nodes.requested(resource)).astype(np.int64) << place
            beyond |= amount > allocatable
        bits |= beyond.astype(np.int64) << (len(wanted) + 1)
        return Verdicts.of_bits(bits, len(wanted) + 2, partial(_status_of, [resource for resource, _ in wanted]))

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        """By the strategy, over the resources that it counts."""
        requests = state.pod_class.requests
        used = {CPU: (node.nonzero_cpu, requests.nonzero_cpu), MEMORY: (node.nonzero_memory, requests.nonzero_memory)}
        return self._strategy.of_node(
            (weight, sum(used.get(name, (node.requested(name), amount))), node.allocatable(name))
            for name, weight, amount in self._counted(requests)
        )

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        """The same for all nodes."""
        requests = state.pod_class.requests
        return self._strategy.of_nodes(
            (
                (weight, _used(name, amount, requests, nodes), nodes.allocatable(name))
                for name, weight, amount in self._counted(requests)
            ),
            len(nodes),
        )

    def events(self) -> Sequence[EventHint]:
        """A pod goes or shrinks, room kept for one is free again; a node is added or has more to give."""
        return events_of(self._needs)

    def _counted(self, requests: Requests) -> list[tuple[str, int, int]]:
        """(resource, weight, amount) of what scores count: scalars only when the pod asks for them."""
        given = ((name, weight, requests.amounts.get(name, 0)) for name, weight in self._weights)
        return [entry for entry in given if entry[2] or not is_scalar(entry[0])]


def _status(missing: Sequence[str], *, unresolvable: bool) -> Status:
    if not missing:
        return SUCCESS
    return Status.unresolvable(*missing) if unresolvable else Status.unschedulable(*missing)


def _status_of(resources: Sequence[str], bits: int) -> Status:
    """The lowest bit: too many pods; one for each resource; the highest: more is asked for than the node has at all."""
    reasons = [TOO_MANY_PODS, *(INSUFFICIENT.format(resource) for resource in resources)]
    missing = [reason for place, reason in enumerate(reasons) if bits >> place & 1]
    return _status(missing, unresolvable=bool(bits >> len(reasons)))


def _used(resource: str, amount: int, requests: Requests, nodes: Nodes) -> npt.NDArray[np.float64]:
    if resource == CPU:
        return nodes.nonzero_cpu + requests.nonzero_cpu
    if resource == MEMORY:
        return nodes.nonzero_memory + requests.nonzero_memory
    return nodes.requested(resource) + amount


def _build(args: Any) -> NodeResourcesFit:
    return NodeResourcesFit(args or NodeResourcesFitArgs())


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER, Point.SCORE),
    build=_build,
    args_type=NodeResourcesFitArgs,
    validate=validate,
)
