"""What NodeResourcesFit wants free for a pod, and which events may free it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    MEMORY,
    PODS,
    Amounts,
    Requests,
    is_extended,
    is_scalar,
    pod_requests,
    read_amounts,
)
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.plugins.noderesourcesargs import NodeResourcesFitArgs

_FIRST: Final = (CPU, MEMORY, EPHEMERAL_STORAGE)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What must be free: (resource, amount), each amount more than 0, in the order in which reasons are given."""

    amounts: tuple[tuple[str, int], ...]


class Needs:
    """What of a pod's requests counts: all but the extended resources that the arguments leave out."""

    def __init__(self, args: NodeResourcesFitArgs) -> None:
        self._ignored = frozenset(args.ignored_resources or ())
        self._ignored_groups = frozenset(args.ignored_resource_groups or ())

    def of(self, requests: Requests) -> Wanted:
        """What must be free for these requests."""
        names = [*_FIRST, *sorted(name for name in requests.amounts if is_scalar(name) and not self._ignores(name))]
        amounts = ((name, requests.amounts.get(name, 0)) for name in names)
        return Wanted(tuple((name, amount) for name, amount in amounts if amount > 0))

    def _ignores(self, resource: str) -> bool:
        group = resource.split("/", maxsplit=1)[0]
        return is_extended(resource) and (resource in self._ignored or group in self._ignored_groups)


def events_of(needs: Needs) -> Sequence[EventHint]:
    """A pod goes or shrinks; a node is added or has more to give; room that was kept for a pod is free again."""
    pod_frees = ClusterEvent(Resource.POD, Action.DELETE | Action.UPDATE_POD_SCALE_DOWN)
    node_offers = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_ALLOCATABLE)
    return (
        EventHint(pod_frees, partial(_pod_frees, needs)),
        EventHint(node_offers, partial(_node_offers, needs)),
        EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE)),
    )


def _pod_frees(needs: Needs, pod: Pod, old: object, new: object) -> bool:
    """A pod that is gone frees what it had if it had a node; one that shrinks, what this pod wants too."""
    if not isinstance(old, Pod):
        return True
    if not isinstance(new, Pod):
        return bool(old.spec.node_name or old.status.nominated_node_name)
    if new.uid != pod.uid and not new.spec.node_name:
        return False
    before, now = pod_requests(old.spec).amounts, pod_requests(new.spec).amounts
    wanted = needs.of(pod_requests(old.spec if new.uid == pod.uid else pod.spec))
    return any(now.get(name, 0) < before.get(name, 0) for name, _ in wanted.amounts)


def _node_offers(needs: Needs, pod: Pod, old: object, new: object) -> bool:
    """The node, were it empty, has room for the pod, and more of something that the pod wants than before."""
    if not isinstance(new, Node):
        return False
    wanted, now = needs.of(pod_requests(pod.spec)).amounts, _allocatable(new)
    if now.get(PODS, 0) < 1 or any(amount > now.get(name, 0) for name, amount in wanted):
        return False
    before = _allocatable(old) if isinstance(old, Node) else {}
    return any(now.get(name, 0) > before.get(name, 0) for name in (PODS, *(name for name, _ in wanted)))


def _allocatable(node: Node) -> Amounts:
    return read_amounts(node.status.allocatable, "status.allocatable", lambda _: None)
