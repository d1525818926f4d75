"""NodeResourcesFit: the pod's requests must be free on the node; scores by free or used resources.

Filter: rejects a node if ``requested + pod > allocatable`` for any resource, or if it has too many pods; each
insufficient resource is a separate reason. A node without an extended resource that a DeviceClass serves is left to
DynamicResources. Score: see ``scoringstrategy``. As kube-scheduler 1.36's plugin of that
name, which scores a waiting pod by the requests of its containers even if it has pod-level ones: these count in Filter,
in NodeResourcesBalancedAllocation, and everywhere once the pod is placed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.devices import DeviceClass
from berth.api.node import Node
from berth.api.pod import Pod, PodSpec, Quantities, priority_of
from berth.api.resources import (
    CPU,
    DEVICE_CLASS_PREFIX,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    Amounts,
    Requests,
    amount_in_words,
    is_extended,
    is_scalar,
    may_be_served,
    pod_requests,
    read_amounts,
)
from berth.cluster.devices.extended import ExtendedResources
from berth.cluster.nodes import Mask, NodeInfo, Nodes, RejectedNodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, IdentityCache, Resource
from berth.framework.interface import (
    EnqueueExtensions,
    PreFilterPlugin,
    PreFilterResult,
    Reads,
    RemedyPlugin,
    RemedySentence,
    Scores,
    VectorFilterPlugin,
    VectorScorePlugin,
)
from berth.framework.status import SUCCESS, CycleState, StateKey, Status, Verdicts
from berth.plugins.factory import Args, PluginFactory, key_problems, with_args
from berth.plugins.noderesources.amountsindex import AmountsIndex, CountedAmounts, FreedIndex
from berth.plugins.noderesources.scoringstrategy import (
    LEAST,
    ScoringStrategy,
    strategy_of,
    strategy_problems,
    weights_of,
)

NAME: Final = "NodeResourcesFit"
TOO_MANY_PODS: Final = "Too many pods"
INSUFFICIENT: Final = "Insufficient {}"
WANTED: Final = StateKey[CountedAmounts]("NodeResourcesFit.wanted")
_FIRST: Final = (CPU, MEMORY, EPHEMERAL_STORAGE)
_WORDS: Final = {CPU: "CPU", MEMORY: "memory", EPHEMERAL_STORAGE: "ephemeral storage"}
_MAX_BITS: Final = 60  # reasons that fit into the bits of an int64


class NodeResourcesFitArgs(Args, frozen=True, kw_only=True):
    """Resources that Filter ignores, and how Score compares the rest."""

    ignored_resources: list[str] | None = None
    """Extended resources that Filter ignores."""
    ignored_resource_groups: list[str] | None = None
    """The same by the part before the ``/``, such as ``example.com``."""
    scoring_strategy: ScoringStrategy = ScoringStrategy(type=LEAST)
    """How Score compares nodes."""


class NodeResourcesFit(PreFilterPlugin, VectorFilterPlugin, RemedyPlugin, VectorScorePlugin, EnqueueExtensions):
    name: ClassVar[str] = NAME
    reads = Reads.NODE | Reads.PODS
    reads_amounts = True
    counts_others = True
    sums_only = True

    def __init__(self, args: NodeResourcesFitArgs) -> None:
        self._ignored = frozenset(args.ignored_resources or ())
        self._ignored_groups = frozenset(args.ignored_resource_groups or ())
        self._weights = weights_of(args.scoring_strategy)
        self._strategy = strategy_of(args.scoring_strategy)
        self.packs = self._strategy.packs
        self._wanted_by = IdentityCache[PodSpec, CountedAmounts](lambda spec: self._wanted(pod_requests(spec)))
        self._amounts_of = IdentityCache[Quantities, Amounts](_amounts)

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Never Skip, because a node may have too many pods."""
        state.write(WANTED, self._wanted(state.pod_class.requests))
        return PreFilterResult()

    def counted_amounts(self, state: CycleState) -> dict[str, int]:
        """Without resources that DeviceClasses may serve in place of the node."""
        return {name: amount for name, amount in state.read(WANTED) if not may_be_served(name)}

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        missing = [TOO_MANY_PODS] if node.pods + 1 > node.allowed_pods else []
        unresolvable = False
        for resource, amount in state.read(WANTED):
            allocatable = node.allocatable(resource)
            if not allocatable and _is_of_a_class(resource, node.snapshot):
                continue
            if amount > allocatable - node.requested(resource):
                missing.append(INSUFFICIENT.format(resource))
                unresolvable = unresolvable or amount > allocatable
        return _status(missing, unresolvable=unresolvable)

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """One bit per reason, then one status per occurring set of bits."""
        wanted = state.read(WANTED)
        if len(wanted) > _MAX_BITS:
            return Verdicts.of(SUCCESS if info is None else self.filter(state, pod, info) for info in nodes.infos())
        missing = [nodes.pods + 1 > nodes.allowed_pods]
        missing += [_is_short(name, amount, nodes) for name, amount in wanted]
        if not any(np.count_nonzero(mask) for mask in missing):
            return Verdicts.all_fit(nodes.size)
        beyond = np.zeros(nodes.size, dtype=np.bool_)
        for (resource, amount), short in zip(wanted, missing[1:], strict=True):
            beyond |= short & (amount > nodes.allocatable(resource))
        bits = np.zeros(nodes.size, dtype=np.int64)
        for bit, mask in enumerate([*missing, beyond]):
            bits |= mask.astype(np.int64) << bit
        return Verdicts.of_bits(bits, len(wanted) + 2, partial(_status_of, [resource for resource, _ in wanted]))

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        wanted = state.find(WANTED) or ()
        short = [_is_short(name, amount, nodes) for name, amount in wanted]
        large = nodes.with_large_amounts()
        for position, info in zip(large.tolist(), nodes.infos_at(large), strict=True):
            for (name, amount), mask in zip(wanted, short, strict=True):
                mask[position] = info is not None and amount > info.allocatable(name) - info.requested(name)
        full = nodes.pods + 1 > nodes.allowed_pods
        only = nodes.alone & (np.sum([*short, full], axis=0) == 1)
        for (resource, amount), mask in zip(wanted, short, strict=True):
            if mask.any():
                yield _shortage(resource, amount, nodes, mask, mask & only)
        yield RemedySentence(about=TOO_MANY_PODS, nodes=full, after="have as many pods as they may")

    def remedy_by_reason(self, reason: str, nodes: Nodes) -> RemedySentence | None:
        """The nodes' amounts of a resource, if the request is unknown."""
        resource = reason.removeprefix(INSUFFICIENT.format(""))
        if resource == reason:
            return None
        room = _free_room(resource, nodes, np.ones(nodes.size, dtype=np.bool_))
        text = f"{room.word}: {room.most}"
        return RemedySentence(about=resource, text=text, examples=[room.node], amounts=room.amounts())

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        requests = state.pod_class.container_requests
        return self._strategy.of_node(
            [
                (weight, _used(name, amount, requests, node), node.allocatable(name))
                for name, weight, amount in self._counted(requests)
            ]
        )

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        requests = state.pod_class.container_requests
        return self._strategy.of_nodes(
            (
                (weight, _used(name, amount, requests, nodes), nodes.allocatable(name))
                for name, weight, amount in self._counted(requests)
            ),
            nodes.size,
        )

    def events(self) -> Sequence[EventHint]:
        pod_change = ClusterEvent(Resource.POD, Action.DELETE | Action.UPDATE_POD_SCALE_DOWN)
        node_change = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE)
        class_change = ClusterEvent(Resource.DEVICE_CLASS, Action.ADD | Action.UPDATE)
        return (
            EventHint(pod_change, self._after_pod_change, key=self._wanted_at_priority, index=self._freed_index),
            EventHint(node_change, self._after_node_change, key=self._wanted_at_priority, index=self._index),
            EventHint(class_change, self._after_class_change, key=self._wanted_at_priority),
            EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE)),
        )

    def _index(self) -> AmountsIndex:
        return AmountsIndex(self._wanted_by_pod, self._allocatable)

    def _freed_index(self) -> FreedIndex:
        return FreedIndex(self._wanted_by_pod)

    def _wanted_at_priority(self, pod: Pod) -> Hashable:
        """Priority and requests, because priority decides which pods the pod may evict."""
        return priority_of(pod), self._wanted_by(pod.spec)

    def _wanted_by_pod(self, pod: Pod) -> CountedAmounts:
        return self._wanted_by(pod.spec)

    def _allocatable(self, node: Node) -> Amounts:
        # By the quantities alone: a node has kilobytes of images beside them.
        return self._amounts_of(node.status.allocatable) if node.status.allocatable else {}

    def _wanted(self, requests: Requests) -> CountedAmounts:
        """The requests that Filter counts: without the extended resources that the arguments ignore."""
        names = [*_FIRST, *sorted(name for name in requests.amounts if is_scalar(name) and not self._ignores(name))]
        amounts = ((name, requests.amounts.get(name, 0)) for name in names)
        return tuple((name, amount) for name, amount in amounts if amount > 0)

    def _ignores(self, resource: str) -> bool:
        group = resource.split("/", maxsplit=1)[0]
        return is_extended(resource) and (resource in self._ignored or group in self._ignored_groups)

    def _after_pod_change(self, pod: Pod, old: object, new: object) -> bool:
        """A placed pod is deleted, or scaled down in a resource that this pod requests."""
        if not isinstance(old, Pod):
            return True
        if not isinstance(new, Pod):
            return bool(old.spec.node_name or old.status.nominated_node_name)
        if new.uid != pod.uid and not new.spec.node_name:
            return False
        before, now = pod_requests(old.spec).amounts, pod_requests(new.spec).amounts
        wanted = self._wanted_by(old.spec if new.uid == pod.uid else pod.spec)
        return any(now.get(name, 0) < before.get(name, 0) for name, _ in wanted)

    def _after_node_change(self, pod: Pod, old: object, new: object) -> bool:
        """The pod fits the empty node, and the node has more of a requested resource than before.

        What the node has not at all a DeviceClass may serve there.
        """
        if not isinstance(new, Node):
            return False
        wanted, now = self._wanted_by(pod.spec), self._allocatable(new)
        wanted = tuple((name, amount) for name, amount in wanted if now.get(name) or not may_be_served(name))
        if now.get(PODS, 0) < 1 or any(amount > now.get(name, 0) for name, amount in wanted):
            return False
        before = self._allocatable(old) if isinstance(old, Node) else {}
        return any(now.get(name, 0) > before.get(name, 0) for name in (PODS, *(name for name, _ in wanted)))

    def _after_class_change(self, pod: Pod, old: object, new: object) -> bool:
        """The class serves a resource that this pod requests. Without a class, any may have come."""
        asked = [name for name, _ in self._wanted_by(pod.spec) if may_be_served(name)]
        if not isinstance(new, DeviceClass):
            return bool(asked)
        return not {new.spec.extended_resource_name, f"{DEVICE_CLASS_PREFIX}{new.metadata.name}"}.isdisjoint(asked)

    def _counted(self, requests: Requests) -> list[tuple[str, int, int]]:
        """(resource, weight, amount) of the resources that Score counts: scalar ones only if the pod requests them."""
        return [
            (name, weight, amount)
            for name, weight in self._weights
            if (amount := requests.amounts.get(name, 0)) or not is_scalar(name)
        ]


def _is_short(resource: str, amount: int, nodes: Nodes) -> Mask:
    allocatable = nodes.allocatable(resource)
    short: Mask = amount > allocatable - nodes.requested(resource)
    return short & (allocatable > 0) if _is_of_a_class(resource, nodes.snapshot) else short


def _is_of_a_class(resource: str, snapshot: Snapshot) -> bool:
    """Whether a DeviceClass serves the resource on nodes without it: DynamicResources decides about these."""
    return may_be_served(resource) and ExtendedResources.of(snapshot).class_of(resource) is not None


def _status(missing: Sequence[str], *, unresolvable: bool) -> Status:
    if not missing:
        return SUCCESS
    return Status.unresolvable(*missing) if unresolvable else Status.unschedulable(*missing)


def _status_of(resources: Sequence[str], bits: int) -> Status:
    """Bits from the lowest: too many pods; one per resource; a request exceeds the node's allocatable."""
    reasons = [TOO_MANY_PODS, *(INSUFFICIENT.format(resource) for resource in resources)]
    missing = [reason for bit, reason in enumerate(reasons) if bits >> bit & 1]
    return _status(missing, unresolvable=bool(bits >> len(reasons)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Some nodes' amounts of a resource: ``largest`` is the most allocatable, ``node`` has the most free."""

    resource: str
    largest: int
    node: str
    free: int
    allocatable: int

    @property
    def word(self) -> str:
        return _WORDS.get(self.resource, self.resource)

    @property
    def of_the_freest(self) -> str:
        return f"{self.text(self.free)} of {self.text(self.allocatable)} free"

    @property
    def most(self) -> str:
        if not self.largest:
            return "no node has any"
        return f"the largest node has {self.text(self.largest)}, and the freest {self.of_the_freest} ({self.node})"

    def beside(self, amount: int) -> str:
        if amount > self.largest:
            return self.most
        missing = self.text(amount - self.free, up=True)
        return f"the freest node has {self.of_the_freest} ({self.node}), {missing} too little"

    def text(self, amount: int, *, up: bool = False) -> str:
        return amount_in_words(self.resource, amount, up=up)

    def amounts(self) -> dict[str, int]:
        return {"largest": self.largest, "free": self.free, "allocatable": self.allocatable}


def _free_room(resource: str, nodes: Nodes, among: Mask) -> _Room:
    allocatable = nodes.allocatable(resource)
    free = np.where(among, allocatable - nodes.requested(resource), -np.inf)
    freest = int(free.argmax())
    return _Room(
        resource=resource,
        largest=int(allocatable[among].max()),
        node=nodes.snapshot.rows.names[int(nodes.rows[freest])],
        free=int(max(0.0, free[freest])),
        allocatable=int(allocatable[freest]),
    )


def _shortage(resource: str, amount: int, nodes: Nodes, short: Mask, only: Mask) -> RemedySentence:
    """Compare the request with the nodes without another obstacle, if there are any."""
    among = only if only.any() else short
    count, room = int(np.count_nonzero(among)), _free_room(resource, nodes, among)
    if count == nodes.snapshot.node_count:
        compared = room.beside(amount)
    elif count == 1:
        compared = f"{room.node}{', which nothing else refuses,' if only.any() else ''} has {room.of_the_freest}"
    else:
        which = "that nothing else refuses" if only.any() else "that have too little"
        compared = f"of the {count} nodes {which}, {room.beside(amount)}"
    return RemedySentence(
        about=resource,
        nodes=short,
        text=f"asks for {room.text(amount, up=True)} {room.word}; {compared}",
        examples=[room.node],
        amounts={"asked": amount, **room.amounts()},
    )


Sum_co = TypeVar("Sum_co", int, npt.NDArray[np.float64], covariant=True)


class _Sums(Protocol[Sum_co]):
    """Requested amounts on one node, or on each of many."""

    @property
    def nonzero_cpu(self) -> Sum_co: ...

    @property
    def nonzero_memory(self) -> Sum_co: ...

    def requested(self, resource: str) -> Sum_co: ...


def _used(resource: str, amount: int, requests: Requests, nodes: _Sums[Sum_co]) -> Sum_co:
    if resource == CPU:
        return nodes.nonzero_cpu + requests.nonzero_cpu
    if resource == MEMORY:
        return nodes.nonzero_memory + requests.nonzero_memory
    return nodes.requested(resource) + amount


def _amounts(allocatable: Quantities) -> Amounts:
    return read_amounts(allocatable, "status.allocatable", lambda _: None)


def validate(args: NodeResourcesFitArgs, path: str) -> list[str]:
    return _ignored_problems(args, path) + strategy_problems(args.scoring_strategy, f"{path}.scoringStrategy")


def _ignored_problems(args: NodeResourcesFitArgs, path: str) -> list[str]:
    """Problems with the names, because an invalid one would have no effect."""
    problems = [
        problem
        for i, name in enumerate(args.ignored_resources or ())
        for problem in key_problems(name, f"{path}.ignoredResources[{i}]", "a resource such as example.com/gpu")
    ]
    for i, group in enumerate(args.ignored_resource_groups or ()):
        where, wanted = f"{path}.ignoredResourceGroups[{i}]", "a group such as example.com, without '/'"
        problems += [f"{where}: want {wanted}, got {group!r}"] if "/" in group else key_problems(group, where, wanted)
    return problems


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER, Point.SCORE),
    build=with_args(NodeResourcesFit, NodeResourcesFitArgs),
    args_type=NodeResourcesFitArgs,
    validate=validate,
)
