"""Which events are worth a look: what the plugins of each profile listen to, asked once for all pods they refused.

What a change of an object means to pods that wait: the framework's words for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from berth.api.kinds import PLUGIN_KINDS
from berth.api.messages import Outcome
from berth.api.meta import KubernetesObject
from berth.api.node import Node
from berth.api.pod import Pod, is_bound
from berth.framework.events import NO_ACTION, Action, ClusterEvent, Resource, node_update_actions, pod_update_actions
from berth.framework.interface import EnqueueExtensions, Plugin
from berth.framework.profile import Profile
from berth.framework.status import Status
from berth_watcher.queuedpod import WaitingPod
from berth_watcher.store import ObjectChange

VICTIM_LEFT = ClusterEvent(Resource.POD, Action.DELETE)
"""What a pod waits for whose victims were evicted, whatever its blockers say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnschedulablePlugins:
    """What pods have in common that the same events may help."""

    profile: str
    blockers: frozenset[str]
    preempting: bool = False


def unschedulable_plugins_of(pod: WaitingPod) -> UnschedulablePlugins:
    """By whom the pod was refused."""
    return UnschedulablePlugins(
        profile=pod.profile, blockers=pod.blockers, preempting=pod.outcome is Outcome.PREEMPTING
    )


class QueueingHints:
    """Answers of the profiles' plugins. Pods without blockers, and plugins that name no events, hear everything."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        self._profiles = profiles
        self._listened = {name: _listened(profile) for name, profile in profiles.items()}
        self._answers: dict[tuple[UnschedulablePlugins, ClusterEvent], bool] = {}
        self._everybody = [
            UnschedulablePlugins(profile=name, blockers=frozenset(all_)) for name, all_ in self._listened.items()
        ]

    def listens(self, refusal: UnschedulablePlugins, event: ClusterEvent) -> bool:
        """Whether such an event may help any pod that was refused so."""
        key = (refusal, event)
        answer = self._answers.get(key)
        if answer is None:
            awaited = refusal.preempting and VICTIM_LEFT.matches(event)
            answer = self._answers[key] = awaited or self._names(refusal, event)
        return answer

    def may_help(self, pod: WaitingPod, event: ClusterEvent, old: object, new: object) -> bool:
        """Whether this event may help this pod."""
        if pod.outcome is Outcome.PREEMPTING and VICTIM_LEFT.matches(event):
            return not isinstance(old, Pod) or not pod.node or old.spec.node_name == pod.node
        return self._profiles[pod.profile].may_help(pod.blockers, event, pod.pod, old, new)

    def helps(self, pod: WaitingPod, event: ClusterEvent, old: object, new: object) -> bool:
        """Both questions at once."""
        return self.listens(unschedulable_plugins_of(pod), event) and self.may_help(pod, event, old, new)

    def anybody_listens(self, event: ClusterEvent) -> bool:
        """Whether any plugin of any profile names such an event: whether it has to be remembered."""
        return VICTIM_LEFT.matches(event) or any(self.listens(everybody, event) for everybody in self._everybody)

    def pre_enqueue(self, pod: Pod) -> Status:
        """Whether the pod may enter the queue."""
        return self._profiles[pod.spec.scheduler_name].pre_enqueue(pod)

    def _names(self, refusal: UnschedulablePlugins, event: ClusterEvent) -> bool:
        events = [self._listened[refusal.profile].get(name) for name in refusal.blockers]
        return not events or any(named is None or any(each.matches(event) for each in named) for named in events)


def _listened(profile: Profile) -> dict[str, tuple[ClusterEvent, ...] | None]:
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


Happening = tuple[ClusterEvent, object, object]
"""An event with the object before and after it."""


RESOURCES = {
    "pod": Resource.POD,
    "node": Resource.NODE,
    "namespace": Resource.NAMESPACE,
    **{name: Resource(kind.kind) for name, kind in PLUGIN_KINDS.items()},
}


def happenings(change: ObjectChange) -> Iterator[Happening]:
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
