"""QueueingHints: which cluster events a change of an object makes, and which waiting pods they may help.

Whether any plugin of a group of pods registered for an event is looked up once for the group and cached. The plugins'
hints are called for each pod only if one has. The names of events in metrics are here too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from berth.api.kinds import PLUGIN_KINDS
from berth.api.messages import Outcome
from berth.api.meta import KubernetesObject
from berth.api.node import Node
from berth.api.pod import Pod, is_bound
from berth.framework.events import NO_ACTION, Action, ClusterEvent, Resource, node_update_actions, pod_update_actions
from berth.framework.interface import EnqueueExtensions, Plugin
from berth.framework.plugincalls import may_help, pre_enqueue
from berth.framework.profile import Profile
from berth.framework.status import Status
from berth_watcher.queue import QueuedPod, RejectedBy
from berth_watcher.store import ObjectChange, nominated_node, without_version

VICTIM_DELETED: Final = ClusterEvent(Resource.POD, Action.DELETE)
"""A pod whose victims were evicted waits for this, whatever its unschedulable plugins registered for."""


class QueueingHints:
    """Applies the QueueingHints of the profiles' plugins.

    Every event may help a pod that no plugin rejected, or that was rejected by a plugin which registers no events.
    """

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        self._profiles = profiles
        self._registered = {name: _registered_events(profile) for name, profile in profiles.items()}
        self._has_hint: dict[tuple[RejectedBy, ClusterEvent], bool] = {}
        self._by_all_plugins = [
            RejectedBy(profile=name, plugins=frozenset(plugins)) for name, plugins in self._registered.items()
        ]

    def pods_worth_requeuing(
        self,
        groups: Mapping[RejectedBy, Mapping[str, QueuedPod]],
        event: ClusterEvent,
        old: object,
        new: object,
    ) -> list[QueuedPod]:
        """The pods that an event may help. A group that no plugin registered the event for costs one look-up."""
        found: list[QueuedPod] = []
        for rejected_by, pods in groups.items():
            if self._is_registered(rejected_by, event):
                found += [pod for pod in pods.values() if self._may_help(pod, event, old, new)]
        return found

    def is_worth_requeuing(self, pod: QueuedPod, event: ClusterEvent, old: object, new: object) -> bool:
        """Whether an event may help this pod."""
        return self._is_registered(pod.rejected_by, event) and self._may_help(pod, event, old, new)

    def is_event_of_interest(self, event: ClusterEvent) -> bool:
        """Whether any plugin of any profile registered for the event, so that it has to be remembered."""
        return VICTIM_DELETED.matches(event) or any(self._is_registered(each, event) for each in self._by_all_plugins)

    def pre_enqueue(self, pod: Pod) -> Status:
        """Whether the PreEnqueue plugins let the pod into the queue."""
        return pre_enqueue(self._profiles[pod.spec.scheduler_name], pod)

    def _is_registered(self, rejected_by: RejectedBy, event: ClusterEvent) -> bool:
        key = (rejected_by, event)
        answer = self._has_hint.get(key)
        if answer is None:
            awaits_victim = rejected_by.preempting and VICTIM_DELETED.matches(event)
            answer = self._has_hint[key] = awaits_victim or self._plugins_register(rejected_by, event)
        return answer

    def _plugins_register(self, rejected_by: RejectedBy, event: ClusterEvent) -> bool:
        registered = [self._registered[rejected_by.profile].get(name) for name in rejected_by.plugins]
        return not registered or any(
            events is None or any(each.matches(event) for each in events) for events in registered
        )

    def _may_help(self, pod: QueuedPod, event: ClusterEvent, old: object, new: object) -> bool:
        if pod.outcome is Outcome.PREEMPTING and VICTIM_DELETED.matches(event):
            return not isinstance(old, Pod) or not pod.node or old.spec.node_name == pod.node
        return may_help(self._profiles[pod.profile], pod.unschedulable_plugins, event, pod.pod, old, new)


def _registered_events(profile: Profile) -> dict[str, tuple[ClusterEvent, ...] | None]:
    """By plugin, the events that it registers for; None for a plugin without EnqueueExtensions."""
    plugins: tuple[Plugin, ...] = (
        *profile.pre_enqueues,
        *profile.pre_filters,
        *profile.filters,
        *profile.reserves,
        *profile.permits,
    )
    return {
        plugin.name: tuple(hint.event for hint in plugin.events()) if isinstance(plugin, EnqueueExtensions) else None
        for plugin in plugins
    }


EventWithObjects = tuple[ClusterEvent, object, object]
"""An event with the object before and after it."""

RESOURCES: Final = {
    "pod": Resource.POD,
    "node": Resource.NODE,
    "namespace": Resource.NAMESPACE,
    **{name: Resource(kind.kind) for name, kind in PLUGIN_KINDS.items()},
}


def cluster_events(change: ObjectChange) -> Iterator[EventWithObjects]:
    """The events of a change; none when nothing that scheduling reads is different."""
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
    """NO_ACTION when only the resourceVersion differs, as after every LIST."""
    if isinstance(old, Node) and isinstance(new, Node):
        return node_update_actions(old, new)
    return NO_ACTION if without_version(old) == without_version(new) else Action.UPDATE


def _pod_events(old: object, new: object) -> Iterator[EventWithObjects]:
    """Only bound pods count as there: binding is ADD, and leaving the node is DELETE."""
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
    if before is not None and nominated_node(before) not in ("", nominated_node(after) if after is not None else ""):
        yield _nomination_ended(before, after)


def _nomination_ended(before: Pod, after: Pod | None) -> EventWithObjects:
    """Plugins see it as if the pod had left the node that it was nominated for: its resources are free for others."""
    spec = msgspec.structs.replace(before.spec, node_name=nominated_node(before))
    return ClusterEvent(Resource.NOMINATION, Action.DELETE), msgspec.structs.replace(before, spec=spec), after


_RESOURCE_LABELS: Final = {
    Resource.POD: "AssignedPod",
    Resource.CSI_NODE: "storage.k8s.io/CSINode",
    Resource.CSI_DRIVER: "storage.k8s.io/CSIDriver",
    Resource.CSI_STORAGE_CAPACITY: "storage.k8s.io/CSIStorageCapacity",
    Resource.STORAGE_CLASS: "storage.k8s.io/StorageClass",
    Resource.VOLUME_ATTACHMENT: "storage.k8s.io/VolumeAttachment",
}
"""kube-scheduler's labels that are not just the kind. The only pods that plugins get events of are assigned ones."""

_ACTION_LABELS: Final = {Action.UPDATE_POD_TOLERATIONS: "UpdatePodToleration"}


def label_of(event: ClusterEvent) -> str:
    """kube-scheduler's name of the event in metrics. When several parts changed at once it names the first."""
    return f"{_RESOURCE_LABELS.get(event.resource, event.resource.value)}{_action_label(event.action)}"


def label_of_own_update(action: Action) -> str:
    """The same for a change of the waiting pod itself."""
    return f"UnschedulablePod{_action_label(action) or 'Update'}"


def _action_label(actions: Action) -> str:
    for action in actions:
        return _ACTION_LABELS.get(action) or "".join(word.capitalize() for word in (action.name or "").split("_"))
    return ""
