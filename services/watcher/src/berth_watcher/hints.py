"""QueueingHints: which cluster events a change of an object makes, and calls of the hints that say whom they may help.

Which pods a hint is called for is in ``unschedulable``. The names of events in metrics are here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from berth.api.kinds import PLUGIN_KINDS
from berth.api.messages import Outcome
from berth.api.meta import KubernetesObject
from berth.api.node import Node
from berth.api.pod import Pod, is_bound
from berth.framework.events import (
    NO_ACTION,
    Action,
    ClusterEvent,
    EventHint,
    Resource,
    node_update_actions,
    pod_update_actions,
)
from berth.framework.interface import Plugin
from berth.framework.plugincalls import PluginFailure, PluginTimeout, pre_enqueue, run_hint
from berth.framework.profile import Profile
from berth.framework.status import Status
from berth_watcher.queue import EventClock, QueuedPod
from berth_watcher.store import ObjectChange, nominated_node, without_version

VICTIM_DELETED: Final = ClusterEvent(Resource.POD, Action.DELETE)
"""A pod whose victims were evicted waits for this, whatever its unschedulable plugins registered for."""


SUSPENDED_SECONDS: Final = 60.0
"""How long a plugin's hints are not called after one of them exceeded its deadline: every event counts meanwhile."""


class QueueingHints:
    """Calls the QueueingHints of the profiles' plugins. One that fails counts as yes."""

    def __init__(self, profiles: Mapping[str, Profile], clock: EventClock, warn: Callable[[str, str], None]) -> None:
        self._profiles = profiles
        self._clock = clock
        self._warn = warn
        self._suspended: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._of_interest: dict[ClusterEvent, bool] = {}

    def may_help(self, pod: QueuedPod, event: ClusterEvent, old: object, new: object) -> bool:
        """Whether an event may help a pod: one that no plugin rejected, or one without events, is helped by any."""
        if pod.outcome is Outcome.PREEMPTING and VICTIM_DELETED.matches(event):
            return not isinstance(old, Pod) or not pod.node or old.spec.node_name == pod.node
        profile = self._profiles[pod.profile]
        if not pod.unschedulable_plugins:
            return True
        for name in pod.unschedulable_plugins:
            hints = profile.event_hints.get(name)
            if hints is None:
                return True
            plugin = profile.requeueing[name]
            if any(hint.event.matches(event) and self.ask(plugin, hint, pod.pod, old, new) for hint in hints):
                return True
        return False

    def ask(self, plugin: Plugin, hint: EventHint, pod: Pod, old: object, new: object) -> bool:
        """Whether one hint says that an event may help a pod."""
        if self._suspended and self._clock.now < self._suspended.get(plugin.name, 0.0):
            return True
        try:
            return run_hint(plugin, hint, pod, old, new)
        except PluginTimeout as failure:
            self._suspended[plugin.name] = self._clock.now + SUSPENDED_SECONDS
            self._report(plugin, pod, f"{failure}; for {SUSPENDED_SECONDS:g} s every event counts as one that may help")
        except PluginFailure as failure:
            self._report(plugin, pod, f"{failure}; the event counts as one that may help")
        return True

    def is_event_of_interest(self, event: ClusterEvent) -> bool:
        """Whether any plugin of any profile registered for the event, so that it has to be remembered."""
        answer = self._of_interest.get(event)
        if answer is None:
            registered = (hints for profile in self._profiles.values() for hints in profile.event_hints.values())
            answer = self._of_interest[event] = VICTIM_DELETED.matches(event) or any(
                hints is None or any(hint.event.matches(event) for hint in hints) for hints in registered
            )
        return answer

    def pre_enqueue(self, pod: Pod) -> Status:
        """Whether the PreEnqueue plugins let the pod into the queue."""
        return pre_enqueue(self._profiles[pod.spec.scheduler_name], pod)

    def _report(self, plugin: Plugin, pod: Pod, failure: str) -> None:
        """Once a minute for each plugin: a broken hint fails for every pod and event."""
        if self._clock.now >= self._reported.get(plugin.name, 0.0):
            self._reported[plugin.name] = self._clock.now + SUSPENDED_SECONDS
            self._warn(failure, pod.key)


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
