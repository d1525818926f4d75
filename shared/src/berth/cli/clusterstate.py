"""A cluster's objects, read from files, as the Snapshot that a scheduler would have of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from berth.api.boundat import bound_at
from berth.api.furtherkinds import FURTHER_KINDS, FurtherKind
from berth.api.namespace import Namespace
from berth.api.node import Node
from berth.api.pod import Pod, is_bound, is_finished, is_gone_while_unbound
from berth.api.priorityclass import PriorityClass
from berth.cli.creation.limitranges import LimitRange
from berth.cli.creation.runtimeclasses import RuntimeClass
from berth.cli.objects import KubernetesObject
from berth.cluster.snapshot import Snapshot

_NAME_LABEL: Final = "kubernetes.io/metadata.name"
_BY_KIND: Final[dict[str, FurtherKind]] = {further.kind: further for further in FURTHER_KINDS.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """``waiting`` is how many pods are neither on a node nor finished."""

    snapshot: Snapshot
    waiting: int


def snapshot_of(pods: Iterable[Pod], others: Iterable[KubernetesObject]) -> State:
    """Pods count where they are bound or nominated to; those among ``others`` do not."""
    snapshot = Snapshot()
    for thing in others:
        _set(snapshot, thing)
    waiting = sum(_take_pod(snapshot, pod) for pod in pods)
    return State(snapshot=snapshot, waiting=waiting)


def _set(snapshot: Snapshot, thing: KubernetesObject) -> None:
    if isinstance(thing, Node):
        snapshot.set_node(thing)
    elif isinstance(thing, Namespace):
        snapshot.set_namespace(_labelled(thing))
    elif not isinstance(thing, Pod | PriorityClass | LimitRange | RuntimeClass):
        further = _BY_KIND[type(thing).__name__]
        snapshot.objects(further.struct).set(further.key_of(name=thing.metadata.name, uid=thing.metadata.uid), thing)


def _labelled(namespace: Namespace) -> Namespace:
    """With the label that the API server gives each namespace; one from a manifest does not have it yet."""
    labels = {**(namespace.metadata.labels or {}), _NAME_LABEL: namespace.metadata.name}
    return msgspec.structs.replace(namespace, metadata=msgspec.structs.replace(namespace.metadata, labels=labels))


def _take_pod(snapshot: Snapshot, pod: Pod) -> bool:
    """Whether the pod waits."""
    if is_bound(pod):
        snapshot.place(pod, pod.spec.node_name, bound_at=bound_at(pod))
        return False
    if is_finished(pod) or is_gone_while_unbound(pod):
        return False
    if pod.status.nominated_node_name:
        snapshot.nominate(pod, pod.status.nominated_node_name)
    return True
