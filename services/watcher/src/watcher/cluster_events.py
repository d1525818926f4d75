"""What a change of an object means to pods that wait: the framework's words for it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from berth.api.furtherkinds import FURTHER_KINDS
from berth.api.node import Node
from berth.api.pod import Pod, is_bound
from berth.framework.events import NO_ACTION, Action, ClusterEvent, Resource, node_update_actions, pod_update_actions
from berth.kube.port import KubernetesObject
from watcher.store import Change

Happening = tuple[ClusterEvent, object, object]
"""An event with the object before and after it."""

RESOURCES = {
    "pod": Resource.POD,
    "node": Resource.NODE,
    "namespace": Resource.NAMESPACE,
    **{name: Resource(kind.kind) for name, kind in FURTHER_KINDS.items()},
}


def happenings(change: Change) -> Iterator[Happening]:
    """The events of a change; none when nothing that scheduling reads is different."""
    if change.kind == "pod":
        yield from _of_pod(change.old, change.new)
        return
    resource, old, new = RESOURCES[change.kind], change.old, change.new
    if old is None or new is None:
        yield ClusterEvent(resource, Action.ADD if old is None else Action.DELETE), old, new
        return
    action = _update(old, new)
    if action is not NO_ACTION:
        yield ClusterEvent(resource, action), old, new


def _update(old: KubernetesObject, new: KubernetesObject) -> Action:
    """A new version that says the same, as every LIST brings them, is no update."""
    if isinstance(old, Node) and isinstance(new, Node):
        return node_update_actions(old, new)
    return NO_ACTION if _unversioned(old) == _unversioned(new) else Action.UPDATE


def _unversioned(thing: KubernetesObject) -> KubernetesObject:
    metadata = msgspec.structs.replace(thing.metadata, resource_version="")
    return msgspec.structs.replace(thing, metadata=metadata)  # type: ignore[type-var]  # all kinds are Structs


def _of_pod(old: object, new: object) -> Iterator[Happening]:
    was = old if isinstance(old, Pod) else None
    now = new if isinstance(new, Pod) else None
    was_bound, is_now_bound = was is not None and is_bound(was), now is not None and is_bound(now)
    if was_bound and not is_now_bound:
        yield ClusterEvent(Resource.POD, Action.DELETE), was, None
    elif is_now_bound and not was_bound:
        yield ClusterEvent(Resource.POD, Action.ADD), None, now
    elif was_bound and was is not None and now is not None:
        action = pod_update_actions(was, now)
        if action:
            yield ClusterEvent(Resource.POD, action), was, now
    if was is not None and nomination(was) and (now is None or nomination(now) != nomination(was)):
        yield _end_of_nomination(was, now)


def nomination(pod: Pod) -> str:
    """The node that is kept for an unbound pod; empty for none."""
    if pod.spec.node_name or pod.metadata.deletion_timestamp is not None or pod.status.phase in ("Succeeded", "Failed"):
        return ""
    return pod.status.nominated_node_name


def _end_of_nomination(was: Pod, now: Pod | None) -> Happening:
    """The room that was kept is free for others: as if a pod had left that node."""
    spec = msgspec.structs.replace(was.spec, node_name=nomination(was))
    return ClusterEvent(Resource.NOMINATION, Action.DELETE), msgspec.structs.replace(was, spec=spec), now
