"""Queueing hints: which of the pods that wait an event may help.

Unschedulable pods are kept by what could help them, so that an event costs nothing for the others. Each pod is in the
index of every plugin that rejected it, under the key of each of that plugin's hints (``berth.framework.events``). An
event asks a hint once for each key that the hint's index finds, whatever the number of pods with that key. 3,000 pods
that no node fits, and an update of a node's allocatable: 18 us, where asking the hint for every pod takes 10 ms
(``bench.requeue``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from berth.api.pod import Pod
from berth.framework.events import (
    Action,
    ClusterEvent,
    EventHint,
    HintIndex,
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
from berth_watcher.queue.plugins import QueuePlugins
from berth_watcher.queue.queuedpod import QueuedPod

R = TypeVar("R")

VICTIM_DELETED: Final = ClusterEvent(Resource.POD, Action.DELETE)
"""A pod whose victims were evicted waits for this, whatever its unschedulable plugins registered for."""


class QueueingHints:
    """Asks the queueing hints of the plugins that rejected a pod. One that fails counts as yes."""

    def __init__(self, profiles: Mapping[str, Profile], plugins: QueuePlugins) -> None:
        self._profiles = profiles
        self._plugins = plugins
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

    def awaits(self, pod: QueuedPod, event: ClusterEvent) -> bool:
        """Whether a plugin that rejected the pod registered for the event, whatever its hint would say."""
        hints_of = self._profiles[pod.profile].event_hints
        registered = (hints_of.get(name) for name in pod.unschedulable_plugins)
        return any(is_registered(hints, event) for hints in registered)

    def ask(self, plugin: Plugin, hint: EventHint, pod: Pod, old: object, new: object) -> bool:
        """Whether one hint says that an event may help a pod."""
        try:
            return self._plugins.call(plugin, pod, partial(run_hint, plugin, hint, pod, old, new))
        except PluginFailure:
            return True

    def is_event_of_interest(self, event: ClusterEvent) -> bool:
        """Whether any plugin of any profile registered for the event, so that it has to be remembered."""
        answer = self._of_interest.get(event)
        if answer is None:
            registered = (hints for profile in self._profiles.values() for hints in profile.event_hints.values())
            answer = VICTIM_DELETED.matches(event) or any(is_registered(hints, event) for hints in registered)
            self._of_interest[event] = answer
        return answer


Step = QueuedPod | None
"""A pod that an event may help, or None after some work without one: between two steps the work can be interrupted."""


class UnschedulablePods:
    """The unschedulable and gated pods. An event never changes them: the core does, when it tries a pod again."""

    def __init__(
        self, profiles: Mapping[str, Profile], calls: QueueingHints, room_of: RoomOf = lambda _node: None
    ) -> None:
        """``room_of``: what is free on a node now."""
        self._calls = calls
        self._pods: dict[str, QueuedPod] = {}
        self._groups_of: dict[str, list[_Group]] = {}
        self._rejected = {
            (name, preempting): _RejectedPods(profile, calls, room_of)
            for name, profile in profiles.items()
            for preempting in (False, True)
        }
        self._preempting: dict[str, _Group] = {}
        self.last_added = 0
        """The generation of the last pod that began to wait."""

    def __len__(self) -> int:
        return len(self._pods)

    def add(self, pod: QueuedPod) -> None:
        """A pod begins to wait for an event."""
        preempting = pod.outcome is Outcome.PREEMPTING
        groups = self._rejected[pod.profile, preempting].groups_for(pod.unschedulable_plugins)
        if preempting:
            groups = [*groups, self._preempting.setdefault(pod.node, _Group())]
        self._pods[pod.uid], self._groups_of[pod.uid], self.last_added = pod, list(groups), pod.generation
        for group in groups:
            group.add(pod)

    def discard(self, pod: QueuedPod) -> None:
        """A pod does not wait for an event any more, if it did."""
        if self._pods.pop(pod.uid, None) is None:
            return
        for group in self._groups_of.pop(pod.uid):
            group.remove(pod.uid)
            if not group.pods and self._preempting.get(pod.node) is group:
                del self._preempting[pod.node]

    def helped_by(self, event: ClusterEvent, old: object, new: object) -> Iterator[Step]:
        """The pods that an event may help, some perhaps twice. Pods may be added and removed between the steps."""
        itself = {each.uid for each in (old, new) if isinstance(each, Pod)}
        for uid in itself & self._pods.keys():
            if self._calls.may_help(self._pods[uid], event, old, new):
                yield self._pods.get(uid)
        if VICTIM_DELETED.matches(event):
            yield from self._awaiting_victim(old)
        for (_, preempting), rejected in self._rejected.items():
            if not (preempting and VICTIM_DELETED.matches(event)):
                yield from rejected.helped_by(event, old, new, itself)

    def waiting_for(self, event: ClusterEvent) -> Iterator[Step]:
        """The pods that a plugin rejected which registered the event, without asking any hint."""
        for rejected in self._rejected.values():
            yield from rejected.waiting_for(event)
        yield from self._awaiting_victim(None)

    def _awaiting_victim(self, victim: object) -> Iterator[Step]:
        """Pods whose victims are on the node of a pod that is gone; a pod whose node is not known waits for any."""
        nodes = (victim.spec.node_name, "") if isinstance(victim, Pod) else tuple(self._preempting)
        for node in nodes:
            group = self._preempting.get(node)
            yield from group.all() if group is not None else ()


class _Group:
    """Pods in the order in which they began to wait."""

    def __init__(self) -> None:
        self.pods: dict[str, QueuedPod] = {}

    def add(self, pod: QueuedPod) -> None:
        self.pods[pod.uid] = pod

    def remove(self, uid: str) -> None:
        del self.pods[uid]

    def all(self) -> Iterator[QueuedPod]:
        return iter(list(self.pods.values()))


class _KeyedGroup(_Group):
    """Pods that one plugin rejected, by the key of one or more of its hints. Without ``key`` each pod has its own."""

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
        """The keys that an event can concern; all of them without an index, and when the index has failed."""
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
                self._is_indexed = False  # it may lack pods now

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
    """Pods of one profile, by the plugins that rejected them."""

    def __init__(self, profile: Profile, calls: QueueingHints, room_of: RoomOf) -> None:
        self._calls = calls
        self._room_of = room_of
        self._by_any_event = _Group()
        self._groups: dict[str, tuple[_KeyedGroup, ...]] = {}
        self._indexed: defaultdict[Resource, list[_IndexedHint]] = defaultdict(list)
        self._of_event: dict[ClusterEvent, list[_IndexedHint]] = {}
        for name, registered in profile.event_hints.items():
            if registered is not None:
                self._groups[name] = self._index_hints(profile.requeueing[name], registered)

    def groups_for(self, plugins: frozenset[str]) -> list[_Group]:
        """Where a pod belongs that these plugins rejected. Any event may help it if one of them registers none."""
        if not plugins or not plugins <= self._groups.keys():
            return [self._by_any_event]
        return [group for plugin in sorted(plugins) for group in self._groups[plugin]]

    def helped_by(self, event: ClusterEvent, old: object, new: object, itself: set[str]) -> Iterator[Step]:
        """The pods that an event may help, without those that it is about itself."""
        yield from self._by_any_event.all()
        for indexed in self._registered(event):
            for key in indexed.group.find(indexed.index, old, new):
                pods = [pod for pod in indexed.group.with_key(key) if pod.uid not in itself]
                if pods and self._calls.ask(indexed.plugin, indexed.hint, pods[0].pod, old, new):
                    yield from pods
                yield None

    def waiting_for(self, event: ClusterEvent) -> Iterator[Step]:
        yield from self._by_any_event.all()
        for indexed in self._registered(event):
            yield from indexed.group.all()

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
