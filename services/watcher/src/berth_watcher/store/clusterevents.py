"""The cluster events of a changed object, for queueing hints, and kube-scheduler's labels of them, for metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from berth.api.kinds import PLUGIN_KINDS
from berth.api.meta import KubernetesObject
from berth.api.node import Node
from berth.api.pod import Pod, is_bound
from berth.decoding import check_size
from berth.errors import DecodeError
from berth.framework.events import (
    NO_ACTION,
    Action,
    ClusterEvent,
    LiveDataUpdate,
    Resource,
    node_update_actions,
    pod_update_actions,
)
from berth.messages.livedata import BANDWIDTH, FACT_BYTES, FACTS, LiveBucket, LiveSource
from berth.messages.subjects import parse_key
from berth_watcher.events import LiveDataReceived
from berth_watcher.store.objects import ObjectChange, nominated_node, without_version

EventWithObjects = tuple[ClusterEvent, object, object]  # the object before and after

RESOURCES: Final = {
    "pod": Resource.POD,
    "node": Resource.NODE,
    "namespace": Resource.NAMESPACE,
    **{name: Resource(kind.kind) for name, kind in PLUGIN_KINDS.items()},
}


def cluster_events(change: ObjectChange) -> Iterator[EventWithObjects]:
    """The events of a change; empty if no field that scheduling reads has changed."""
    if change.kind == "pod":
        yield from _pod_events(change.old, change.new)
        return
    resource, old, new = RESOURCES[change.kind], change.old, change.new
    if old is None or new is None:
        yield ClusterEvent(resource, Action.ADD if old is None else Action.DELETE), old, new
        return
    action = _update_action(old, new)
    if action is not NO_ACTION:
        yield ClusterEvent(resource, action), old, new


def _update_action(old: KubernetesObject, new: KubernetesObject) -> Action:
    """NO_ACTION if only the resourceVersion differs, as after every LIST."""
    if isinstance(old, Node) and isinstance(new, Node):
        return node_update_actions(old, new)
    return NO_ACTION if without_version(old) == without_version(new) else Action.UPDATE


def _pod_events(old: object, new: object) -> Iterator[EventWithObjects]:
    """Only bound pods count: binding is ADD, leaving the node is DELETE."""
    before = old if isinstance(old, Pod) else None
    after = new if isinstance(new, Pod) else None
    was_bound, is_now_bound = before is not None and is_bound(before), after is not None and is_bound(after)
    if was_bound and not is_now_bound:
        yield ClusterEvent(Resource.POD, Action.DELETE), before, None
    elif is_now_bound and not was_bound:
        yield ClusterEvent(Resource.POD, Action.ADD), None, after
    elif was_bound and before is not None and after is not None:
        action = pod_update_actions(before, after)
        if action:
            yield ClusterEvent(Resource.POD, action), before, after
    if before is not None and nominated_node(before) and _counts_otherwise(before, after):
        yield ClusterEvent(Resource.NOMINATION, Action.DELETE), _as_placed(before), None
    if after is not None and nominated_node(after) and (before is None or _counts_otherwise(after, before)):
        yield ClusterEvent(Resource.NOMINATION, Action.ADD), None, _as_placed(after)


def _counts_otherwise(before: Pod, after: Pod | None) -> bool:
    """Whether a nominated pod is gone from the node, or stays there with other labels or requests."""
    return after is None or nominated_node(after) != nominated_node(before) or bool(pod_update_actions(before, after))


def as_new(change: ObjectChange) -> EventWithObjects | None:
    """The event for a scorer that has not read the former version; ``None`` for an added or deleted object.

    The mirror keeps one version of an object, so that scorer can never read the former one.
    """
    old, new = change.old, change.new
    if old is None or new is None:
        return None
    if isinstance(old, Pod) and isinstance(new, Pod) and not (is_bound(old) and is_bound(new)):
        return None  # binding is ADD already, and unbound pods count only where they are nominated
    return ClusterEvent(RESOURCES[change.kind], Action.ADD), None, new


def _as_placed(nominated: Pod) -> Pod:
    """A nominated pod as plugins see it: on its node."""
    spec = msgspec.structs.replace(nominated.spec, node_name=nominated_node(nominated))
    return msgspec.structs.replace(nominated, spec=spec)


LIVE_DATA_EVENTS: Final[Mapping[LiveBucket, ClusterEvent]] = {
    BANDWIDTH: ClusterEvent(Resource.BANDWIDTH, Action.UPDATE),
    FACTS: ClusterEvent(Resource.FACTS, Action.UPDATE),
}


def live_data_event(received: LiveDataReceived) -> tuple[ClusterEvent, LiveDataUpdate] | None:
    """The event of live data; ``None`` for an entry that no plugin reads, because any client may put facts."""
    try:
        name, node = parse_key(received.key)
        if received.data is not None:
            check_size(received.data, "live data", most=FACT_BYTES)
    except DecodeError:
        return None
    source = LiveSource(bucket=received.bucket, name=name)
    return LIVE_DATA_EVENTS[received.bucket], LiveDataUpdate(source=source, node=node, data=received.data)


# kube-scheduler's labels that differ from the kind. Plugins get events of assigned pods only.
_RESOURCE_LABELS: Final = {
    Resource.POD: "AssignedPod",
    Resource.CSI_NODE: "storage.k8s.io/CSINode",
    Resource.CSI_DRIVER: "storage.k8s.io/CSIDriver",
    Resource.CSI_STORAGE_CAPACITY: "storage.k8s.io/CSIStorageCapacity",
    Resource.STORAGE_CLASS: "storage.k8s.io/StorageClass",
    Resource.VOLUME_ATTACHMENT: "storage.k8s.io/VolumeAttachment",
}

_ACTION_LABELS: Final = {Action.UPDATE_POD_TOLERATIONS: "UpdatePodToleration"}


def label_of(event: ClusterEvent) -> str:
    """kube-scheduler's name of the event in metrics. If several parts changed at once, it names the first."""
    return f"{_RESOURCE_LABELS.get(event.resource, event.resource.value)}{_action_label(event.action)}"


def label_of_own_update(action: Action) -> str:
    """The same for a change of the waiting pod."""
    return f"UnschedulablePod{_action_label(action) or 'Update'}"


def _action_label(actions: Action) -> str:
    for action in actions:
        return _ACTION_LABELS.get(action) or "".join(word.capitalize() for word in (action.name or "").split("_"))
    return ""
