"""Queueing hints: the waiting pods that an event may help.

Each unschedulable pod is in the index of every plugin that rejected it, by the key of each of the plugin's hints
(``berth.framework.events``). An event runs a hint once per key that the hint's index finds, however many pods share the
key; other pods cost nothing.

A group whose victims terminate is tried again once all of them are gone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from berth.api.pod import Pod
from berth.framework.events import (
    Action,
    ClusterEvent,
    EventHint,
    HintIndex,
    NodeRoom,
    PodKey,
    Resource,
    RoomIndex,
    RoomOf,
    is_registered,
    nothing,
)
from berth.framework.interface import Plugin
from berth.framework.plugincalls import (
    PluginFailure,
    find_in_index,
    run_hint,
    run_key,
    update_index,
)
from berth.framework.profile import Profile
from berth.messages.attempts import Outcome
from berth_watcher.queue.groups import GroupEntry
from berth_watcher.queue.nominatednodes import ALWAYS_READ, AWAITED, NominatedNodes, PreemptingPods
from berth_watcher.queue.queuedpod import QueuedPod
from berth_watcher.queue.schedulingqueue import QueuePlugins

# A new node, or a node with another label.
NODES_CAME: Final = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)


class QueueingHints:
    """Runs the queueing hints of the plugins that rejected a pod. A hint that fails counts as true."""

    def __init__(
        self, profiles: Mapping[str, Profile], plugins: QueuePlugins, is_placed: Callable[[str], bool]
    ) -> None:
        """``is_placed``: whether the pod of this uid is on a node now."""
        self._profiles = profiles
        self._plugins = plugins
        self._is_placed = is_placed
        self._registered_events: dict[ClusterEvent, bool] = {}
        self.nominated_nodes: Final = NominatedNodes(profiles)

    def may_help(self, pod: QueuedPod, event: ClusterEvent, old: object, new: object) -> bool:
        """Whether the event may help.

        If no plugin rejected the pod, any event may, or only nodes if there was none to try. If one of the plugins that
        rejected it registered no events, any event may.
        """
        if self.awaits_more_victims(pod, old):
            return False
        if pod.outcome is Outcome.PREEMPTING and self.nominated_nodes.concerns(pod, event, old, new):
            return True
        if pod.awaits_nodes:
            return NODES_CAME.matches(event)
        if not pod.unschedulable_plugins or (isinstance(pod, GroupEntry) and not pod.is_uniform):
            return True
        return any(self._may_pass(name, pod, event, old, new) for name in pod.unschedulable_plugins)

    def _may_pass(self, name: str, pod: QueuedPod, event: ClusterEvent, old: object, new: object) -> bool:
        """Whether the plugin of this name may accept a node for the pod after the event."""
        profile = self._profiles[pod.profile]
        hints = profile.event_hints.get(name)
        if hints is None:
            return True
        plugin = profile.requeueing[name]
        return any(hint.event.matches(event) and self.ask(plugin, hint, pod.pod, old, new) for hint in hints)

    def awaits_more_victims(self, pod: QueuedPod, old: object) -> bool:
        """Whether the event is about a victim of a group of which other victims are left: all make room together."""
        if not isinstance(pod, GroupEntry) or not isinstance(old, Pod) or old.uid not in pod.victims:
            return False
        return any(map(self._is_placed, pod.victims))

    def rejected_for(self, pod: QueuedPod) -> float:
        """The seconds after which a plugin that rejected the pod may pass it without an event; infinite if none may."""
        seconds = self._profiles[pod.profile].rejects_for
        return min((seconds[name] for name in pod.unschedulable_plugins if name in seconds), default=math.inf)

    def awaits(self, pod: QueuedPod, event: ClusterEvent) -> bool:
        """Whether a plugin that rejected the pod registered the event; hints are not run."""
        hints_of = self._profiles[pod.profile].event_hints
        registered = (hints_of.get(name) for name in pod.unschedulable_plugins)
        return any(is_registered(hints, event) for hints in registered)

    def ask(self, plugin: Plugin, hint: EventHint, pod: Pod, old: object, new: object) -> bool:
        try:
            return self._plugins.call(plugin, pod, partial(run_hint, plugin, hint, pod, old, new))
        except PluginFailure:
            return True

    def is_event_registered(self, event: ClusterEvent) -> bool:
        """Whether the event is registered and so must be logged."""
        answer = self._registered_events.get(event)
        if answer is None:
            of_plugins = [hints for profile in self._profiles.values() for hints in profile.event_hints.values()]
            hints = [hint for of_plugin in of_plugins for hint in of_plugin or ()]
            answer = None in of_plugins or is_registered(hints, event)
            if not answer:
                is_read = event.resource in ALWAYS_READ or any(hint.event.resource is event.resource for hint in hints)
                answer = is_read and any(each.matches(event) for each in AWAITED)
            self._registered_events[event] = answer
        return answer


# A pod that an event may help, or None after some work without one: work can be interrupted between two steps.
Step = QueuedPod | None


class UnschedulablePods:
    """The unschedulable and gated pods. Events never change them; the core does, when it tries a pod again."""

    def __init__(
        self, profiles: Mapping[str, Profile], calls: QueueingHints, room_of: RoomOf = lambda _node: None
    ) -> None:
        """``room_of``: the free resources of a node now."""
        self._calls = calls
        self._pods: dict[str, QueuedPod] = {}
        self._groups_of: dict[str, list[_Group]] = {}
        self._rejected = {
            (name, preempting): _RejectedPods(profile, calls, partial(_free_room, room_of) if preempting else room_of)
            for name, profile in profiles.items()
            for preempting in (False, True)
        }
        self._preempting = PreemptingPods()
        self.last_added = 0  # generation of the last pod added

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, pod: QueuedPod) -> None:
        preempting = pod.outcome is Outcome.PREEMPTING
        # Hints are asked for one pod, and of a group with several kinds of pods others may be the ones without a node.
        is_mixed = isinstance(pod, GroupEntry) and not pod.is_uniform
        plugins = frozenset[str]() if is_mixed else pod.unschedulable_plugins
        groups = self._rejected[pod.profile, preempting].groups_for(plugins, awaits_nodes=pod.awaits_nodes)
        if preempting:
            self._preempting.add(pod)
        self._pods[pod.uid], self._groups_of[pod.uid], self.last_added = pod, list(groups), pod.generation
        for group in groups:
            group.add(pod)

    def discard(self, pod: QueuedPod) -> None:
        """Remove a pod that no longer waits for an event; no error if it never did."""
        if self._pods.pop(pod.uid, None) is None:
            return
        self._preempting.discard(pod)
        for group in self._groups_of.pop(pod.uid):
            group.remove(pod.uid)

    def helped_by(self, event: ClusterEvent, old: object, new: object) -> Iterator[Step]:
        """Pods that an event may help, some perhaps twice. Pods may be added and removed between steps."""
        for pod in self._possibly_helped_by(event, old, new):
            yield None if pod is not None and self._calls.awaits_more_victims(pod, old) else pod

    def _possibly_helped_by(self, event: ClusterEvent, old: object, new: object) -> Iterator[Step]:
        itself = {each.uid for each in (old, new) if isinstance(each, Pod)}
        for uid in itself & self._pods.keys():
            if self._calls.may_help(self._pods[uid], event, old, new):
                yield self._pods.get(uid)
        for pod in self._preempting.possibly_concerned(event, old, new):
            yield pod if self._calls.nominated_nodes.concerns(pod, event, old, new) else None
        for rejected in self._rejected.values():
            yield from rejected.helped_by(event, old, new, itself)

    def waiting_for(self, event: ClusterEvent) -> Iterator[Step]:
        """Pods rejected by a plugin that registered the event; no hints are run."""
        for rejected in self._rejected.values():
            yield from rejected.waiting_for(event)
        yield from self._preempting.all()


def _free_room(room_of: RoomOf, node: str) -> NodeRoom | None:
    """The node's room without further evictions: a pod whose victims terminate evicts no others meanwhile."""
    room = room_of(node)
    return None if room is None else NodeRoom(room.free, ())


class _Group:
    def __init__(self) -> None:
        self.pods: dict[str, QueuedPod] = {}

    def add(self, pod: QueuedPod) -> None:
        self.pods[pod.uid] = pod

    def remove(self, uid: str) -> None:
        del self.pods[uid]

    def all(self) -> Iterator[QueuedPod]:
        return iter(list(self.pods.values()))


class _KeyedGroup(_Group):
    """Pods that one plugin rejected, by hint key. Without ``key`` each pod has a key of its own."""

    def __init__(self, plugin: Plugin, key: PodKey | None) -> None:
        super().__init__()
        self._plugin = plugin
        self._key = key
        self._keys: dict[str, Hashable] = {}
        self._by_key: dict[Hashable, dict[str, QueuedPod]] = {}
        self._indexes: list[HintIndex] = []
        self._is_indexed = True

    @property
    def keys(self) -> Sequence[Hashable]:
        return list(self._by_key)

    def with_key(self, key: Hashable) -> list[QueuedPod]:
        return list(self._by_key.get(key, {}).values())

    def add(self, pod: QueuedPod) -> None:
        super().add(pod)
        key = self._keys[pod.uid] = self._key_of(pod)
        same = self._by_key.setdefault(key, {})
        same[pod.uid] = pod
        if len(same) == 1:
            self._update_indexes(lambda index: index.add(key, pod.pod))

    def remove(self, uid: str) -> None:
        super().remove(uid)
        key = self._keys.pop(uid)
        del self._by_key[key][uid]
        if not self._by_key[key]:
            del self._by_key[key]
            self._update_indexes(lambda index: index.remove(key))

    def add_index(self, index: HintIndex) -> None:
        self._indexes.append(index)

    def find(self, index: HintIndex | None, old: object, new: object) -> Sequence[Hashable]:
        """The keys that an event can concern; all keys without an index, or after the index failed."""
        if index is None or not self._is_indexed or not self.pods:
            return self.keys
        try:
            return find_in_index(self._plugin, index, old, new)
        except PluginFailure:
            return self.keys

    def _update_indexes(self, update: Callable[[HintIndex], None]) -> None:
        for index in self._indexes:
            try:
                update_index(self._plugin, partial(update, index))
            except PluginFailure:
                self._is_indexed = False  # the index may lack pods now

    def _key_of(self, pod: QueuedPod) -> Hashable:
        if self._key is None:
            return pod.uid
        try:
            return run_key(self._plugin, self._key, pod.pod)
        except PluginFailure:
            return pod.uid


@dataclass(frozen=True, slots=True, kw_only=True)
class _IndexedHint:
    """One hint of a plugin, the pods that the plugin rejected, and the index of their keys."""

    plugin: Plugin
    hint: EventHint
    group: _KeyedGroup
    index: HintIndex | None


class _RejectedPods:
    def __init__(self, profile: Profile, calls: QueueingHints, room_of: RoomOf) -> None:
        self._calls = calls
        self._room_of = room_of
        self._by_any_event = _Group()
        self._by_nodes = _Group()
        self._groups: dict[str, tuple[_KeyedGroup, ...]] = {}
        self._indexed: defaultdict[Resource, list[_IndexedHint]] = defaultdict(list)
        self._of_event: dict[ClusterEvent, list[_IndexedHint]] = {}
        for name, registered in profile.event_hints.items():
            if registered is not None:
                self._groups[name] = self._index_hints(profile.requeueing[name], registered)

    def groups_for(self, plugins: frozenset[str], *, awaits_nodes: bool) -> list[_Group]:
        """Groups of these plugins. Any event may help if one of the plugins registered no events."""
        if awaits_nodes:
            return [self._by_nodes]
        if not plugins or not plugins <= self._groups.keys():
            return [self._by_any_event]
        return [group for plugin in sorted(plugins) for group in self._groups[plugin]]

    def helped_by(self, event: ClusterEvent, old: object, new: object, itself: set[str]) -> Iterator[Step]:
        """Pods that an event may help, except those that the event is about."""
        yield from self._without_plugins(event)
        for indexed in self._registered(event):
            for key in indexed.group.find(indexed.index, old, new):
                pods = [pod for pod in indexed.group.with_key(key) if pod.uid not in itself]
                if pods and self._calls.ask(indexed.plugin, indexed.hint, pods[0].pod, old, new):
                    yield from pods
                yield None

    def waiting_for(self, event: ClusterEvent) -> Iterator[Step]:
        yield from self._without_plugins(event)
        for indexed in self._registered(event):
            yield from indexed.group.all()

    def _without_plugins(self, event: ClusterEvent) -> Iterator[QueuedPod]:
        yield from self._by_any_event.all()
        if NODES_CAME.matches(event):
            yield from self._by_nodes.all()

    def _registered(self, event: ClusterEvent) -> list[_IndexedHint]:
        found = self._of_event.get(event)
        if found is None:
            of_resource = self._indexed[event.resource]
            found = self._of_event[event] = [each for each in of_resource if each.hint.event.matches(event)]
        return found

    def _index_hints(self, plugin: Plugin, hints: Sequence[EventHint]) -> tuple[_KeyedGroup, ...]:
        groups: dict[PodKey | None, _KeyedGroup] = {}
        for hint in hints:
            key = nothing if hint.hint is None else hint.key
            group = groups.setdefault(key, _KeyedGroup(plugin, key))
            index = hint.index() if hint.index is not None else None
            if isinstance(index, RoomIndex):
                index.room_of = self._room_of
            if index is not None:
                group.add_index(index)
            indexed = _IndexedHint(plugin=plugin, hint=hint, group=group, index=index)
            self._indexed[hint.event.resource].append(indexed)
        return tuple(groups.values())
