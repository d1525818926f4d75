"""The binder's view of the cluster: the objects that its own watches show, and its assumed pods.

The Snapshot counts a pod once, by uid: on the node where the API shows it, or else on the node where it is assumed. A
pod stops being assumed when the watch shows it on a node, finished or deleted, when a later LIST lacks it, or when its
attempt has failed for good (docs/protocol.md, 5). Pure: no I/O, no waiting.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from berth.api.devices import ResourceClaim, as_allocated
from berth.api.kinds import PLUGIN_KINDS, RESOURCE_CLAIM
from berth.api.node import Node
from berth.api.pod import CONDITION_FENCE, Pod, bound_at, bound_at_text, is_bound, is_finished, is_gone_while_unbound
from berth.api.podgroups import GroupKey, Members
from berth.api.workloads import Namespace
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.devices.pools import DevicePools
from berth.cluster.podgroups import PodGroups
from berth.cluster.snapshot import Snapshot
from berth.decoding import version_number
from berth.kube.listwatch import (
    Current,
    Deleted,
    Listed,
    ListedPart,
    ReflectorEvent,
    Undecodable,
    Upserted,
)
from berth.messages.subjects import PodSubject

PODS: Final = "pod"
NODES: Final = "node"
NAMESPACES: Final = "namespace"
CLAIMS: Final = RESOURCE_CLAIM.name


@dataclass(slots=True, kw_only=True)
class AssumedPod:
    """A pod that counts on a node before a watch shows it there."""

    pod: Pod
    node: str
    is_bound: bool = False  # the API answered its Binding with 201


@dataclass(slots=True)
class ForeignBindings:
    """Pods of berth's profiles that the watch shows on a node where this binder had not assumed them.

    While this binder leads, another client has bound them, because after the takeover no Binding of a former leader can
    land. A standby counts the leader's Bindings too.
    """

    counts: Counter[str] = field(default_factory=Counter)  # by profile
    last: tuple[str, str] = ("", "")  # pod and node of the last one

    def note(self, pod: Pod) -> None:
        self.counts[pod.spec.scheduler_name] += 1
        self.last = (pod.key, pod.spec.node_name)


class Cache:
    """Applies the reflectors' events in order; every check and decision reads it."""

    def __init__(self, snapshot: Snapshot | None = None, *, schedulers: Collection[str] = ()) -> None:
        """``schedulers``: names of the profiles. Fences count on their pods only."""
        self.snapshot = Snapshot() if snapshot is None else snapshot
        self._schedulers = frozenset(schedulers)
        self.nominated_pods = NominatedPods(self.snapshot)
        self.devices = DeviceLedger.of(self.snapshot)
        DevicePools.of(
            self.snapshot
        )  # they are made as slices are read, not all at once for the first pod with a claim
        self.groups = PodGroups.of(self.snapshot)
        self._unbound: dict[str, Pod] = {}
        self._by_subject: dict[str, str] = {}  # uids of unbound pods, by the subject of their RANKED
        self._bound: set[str] = set()
        self._assumed: dict[str, AssumedPod] = {}
        self.foreign_bindings = ForeignBindings()
        self._names: dict[str, set[str]] = {NODES: set(), NAMESPACES: set()}
        self._newest_versions: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        # How often a LIST was older than what was read before: what is awaited of the former store may never come.
        self.older_stores = 0
        self._awaited: set[str] = set()
        self._awaited_versions: dict[str, list[tuple[int, str]]] = {}  # by kind, a heap of versions and uids
        self._on_shown: Callable[[str], None] | None = None
        # The highest epoch of a fence on a pod of these schedulers. If it is above the binder's own, the binder checks
        # whether it still leads.
        self.highest_fence = 0
        self._upsert: Mapping[str, Callable[[Any], None]] = {
            PODS: self._set_pod,
            NODES: self._set_node,
            NAMESPACES: self._set_namespace,
        }
        self._remove: Mapping[str, Callable[[Any], None]] = {
            PODS: lambda pod: self._remove_pod(pod.uid),
            NODES: lambda node: self._remove_node(node.metadata.name),
            NAMESPACES: lambda namespace: self._remove_namespace(namespace.metadata.name),
        }

    # Watch events.

    def observe(self, event: ReflectorEvent[Any]) -> None:
        match event:
            case Upserted():
                self._apply(event.kind, event.object)
                self._reach(event.kind, version_number(event.object.metadata.resource_version))
            case Deleted():
                self._remove_object(event.kind, event.object)
                self._saw_version(event.kind, event.object.metadata.resource_version)
            case ListedPart():  # objects of the same age are still to come: the kind is not complete up to them
                for present in event.objects:
                    self._apply(event.kind, present, is_listed=True)
            case Listed():
                self._replace(event)
            case Current():
                self._reach(event.kind, version_number(event.resource_version))
                if event.kind in PLUGIN_KINDS:
                    self.snapshot.objects(PLUGIN_KINDS[event.kind].struct).unread = event.unread
                self.groups.note_served(event.kind, is_served=event.is_served)
            case Undecodable():
                self._observe_undecodable(event)

    def reached(self, kind: str) -> int:
        """The resourceVersion up to which a kind is complete: of its last event, LIST or bookmark."""
        return self._reached.get(kind, 0)

    def newest_resource_versions(self) -> dict[str, str]:
        """By kind, the highest resourceVersion of an object or event, not of a LIST (docs/protocol.md, 3)."""
        return {kind: str(version) for kind, version in self._newest_versions.items()}

    def _apply(self, kind: str, item: Any, *, is_listed: bool = False) -> None:
        """Set an object. If it raises an exception, report it and go on with the others."""
        if kind == CLAIMS:
            version = version_number(item.metadata.resource_version)
            before = min(self.reached(kind) + 1, version) if is_listed else version
            self.devices.changed_between = (before, version)
        try:
            self._set(kind, item)
        except Exception as exc:  # noqa: BLE001 - an odd object may raise anything
            text = f"reading {kind} {item.metadata.name!r}: {type(exc).__name__}: {exc}"
            self.snapshot.problems.append(text)
        self._note_newest(kind, version_number(item.metadata.resource_version))

    def _observe_undecodable(self, event: Undecodable) -> None:
        """Keep the last known state of an object that cannot be decoded, unless it was deleted."""
        if event.deleted and event.kind == PODS:
            self._remove_pod(event.uid)
        elif event.deleted and event.kind == NODES:
            self._remove_node(event.name)
        elif event.deleted and event.kind in PLUGIN_KINDS:
            self._remove_further(event.kind, uid=event.uid, name=event.name)
        self._saw_version(event.kind, event.resource_version)

    def _saw_version(self, kind: str, resource_version: str) -> None:
        version = version_number(resource_version)
        self._note_newest(kind, version)
        self._reach(kind, version)

    def _note_newest(self, kind: str, version: int) -> None:
        if version > self._newest_versions.get(kind, 0):
            self._newest_versions[kind] = version

    def _reach(self, kind: str, version: int) -> None:
        if version > self._reached.get(kind, 0):
            self._reached[kind] = version
            if kind in self._awaited_versions:
                self._notify_of_versions(kind)

    def _notify_of_versions(self, kind: str) -> None:
        awaited = self._awaited_versions[kind]
        while awaited and awaited[0][0] <= self.reached(kind):
            _, uid = heapq.heappop(awaited)
            if self._on_shown is not None:
                self._on_shown(uid)
        if not awaited:
            del self._awaited_versions[kind]

    def _replace(self, listed: Listed[Any]) -> None:
        """Apply a LIST and remove objects that it lacks. Its version may go back: the API server has an older store."""
        version = version_number(listed.resource_version)
        self.older_stores += version < self.reached(listed.kind)
        for present in listed.rest:
            self._apply(listed.kind, present, is_listed=True)
        if listed.kind == PODS:
            self._remove_pods_lacking({pod.uid for pod in listed.objects}, version)
        elif listed.kind in PLUGIN_KINDS:
            self._remove_further_lacking(listed)
        else:
            self._remove_names_lacking(listed.kind, {item.metadata.name for item in listed.objects})
        self._reached[listed.kind] = version
        if listed.kind in self._awaited_versions:
            self._notify_of_versions(listed.kind)
        if listed.kind in self._newest_versions:
            self._newest_versions[listed.kind] = min(self._newest_versions[listed.kind], version)

    def _remove_pods_lacking(self, present: set[str], version: int) -> None:
        """Remove pods that were seen up to the LIST's version and are not in it, because uids never come back."""
        for uid in [*(self._unbound.keys() - present), *(self._bound - present)]:
            self._remove_pod(uid)
        for uid, assumed in list(self._assumed.items()):
            if uid not in present and version_number(assumed.pod.metadata.resource_version) <= version:
                self._remove_pod(uid)
        self.groups.keep(present)

    def _set(self, kind: str, item: Any) -> None:
        further = PLUGIN_KINDS.get(kind)
        if isinstance(item, ResourceClaim):
            item = as_allocated(item)
        if further is not None:
            key = further.key_of(uid=item.metadata.uid, name=item.metadata.name)
            self.snapshot.objects(further.struct).set(key, item)
        else:
            self._upsert[kind](item)

    def _remove_object(self, kind: str, item: Any) -> None:
        if kind in PLUGIN_KINDS:
            self._remove_further(kind, uid=item.metadata.uid, name=item.metadata.name)
        else:
            self._remove[kind](item)

    def _remove_further(self, kind: str, *, uid: str, name: str) -> None:
        further = PLUGIN_KINDS[kind]
        self.snapshot.objects(further.struct).remove(further.key_of(uid=uid, name=name))

    def _remove_further_lacking(self, listed: Listed[Any]) -> None:
        further = PLUGIN_KINDS[listed.kind]
        found = (item.metadata for item in listed.objects)
        present = {further.key_of(uid=metadata.uid, name=metadata.name) for metadata in found}
        objects = self.snapshot.objects(further.struct)
        for key in objects.keys - present:
            objects.remove(key)

    def _remove_names_lacking(self, kind: str, present: set[str]) -> None:
        remove = self._remove_node if kind == NODES else self._remove_namespace
        for name in self._names[kind] - present:
            remove(name)

    def _set_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._notify_of(uid)
        self.groups.observe(pod)
        if is_finished(pod):
            self._end_pod(uid)
            return
        if is_bound(pod):
            self._set_bound(pod)
            return
        if uid not in self._unbound:
            self._by_subject[_subject_of(pod)] = uid  # of any scheduler: a newer binder may have its profile
        self._unbound[uid] = pod
        if pod.spec.scheduler_name in self._schedulers:
            self.highest_fence = max(self.highest_fence, fence_epoch(pod))
        if uid not in self._assumed:
            self._update_nomination(pod)

    def _set_bound(self, pod: Pod) -> None:
        """The API shows the pod on a node: count it only there. The Snapshot keeps the pod."""
        uid = pod.metadata.uid
        waited, assumed = self._take_unbound(uid), self._assumed.pop(uid, None)
        self._bound.add(uid)
        is_own = assumed is not None and assumed.node == pod.spec.node_name
        if waited is not None and not is_own and pod.spec.scheduler_name in self._schedulers:
            self.foreign_bindings.note(pod)
        self.nominated_pods.remove(uid)
        self.snapshot.place(_as_mirrored(pod), pod.spec.node_name, bound_at=bound_at(pod))

    def _take_unbound(self, uid: str) -> Pod | None:
        pod = self._unbound.pop(uid, None)
        if pod is not None:
            subject = _subject_of(pod)
            if self._by_subject.get(subject) == uid:  # else a later pod of that name has it
                del self._by_subject[subject]
        return pod

    def _remove_pod(self, uid: str) -> None:
        self.groups.remove(uid)
        self._end_pod(uid)

    def _end_pod(self, uid: str) -> None:
        self._take_unbound(uid)
        self._bound.discard(uid)
        self._assumed.pop(uid, None)
        self.nominated_pods.remove(uid)
        self.snapshot.remove_pod(uid)
        self._notify_of(uid)

    def _set_node(self, node: Node) -> None:
        self._names[NODES].add(node.metadata.name)
        self.snapshot.set_node(node)

    def _remove_node(self, name: str) -> None:
        self._names[NODES].discard(name)
        self.snapshot.remove_node(name)

    def _set_namespace(self, namespace: Namespace) -> None:
        self._names[NAMESPACES].add(namespace.metadata.name)
        self.snapshot.set_namespace(namespace)

    def _remove_namespace(self, name: str) -> None:
        self._names[NAMESPACES].discard(name)
        self.snapshot.remove_namespace(name)

    # Pods as the watch shows them.

    def pod(self, uid: str) -> Pod | None:
        """The unbound pod as the watch last showed it; ``None``: not shown, or bound, finished or deleted."""
        return self._unbound.get(uid)

    def uid_at(self, subject: str) -> str | None:
        """The uid of the unbound pod whose rankings have this subject, if the watch shows one."""
        return self._by_subject.get(subject)

    def notify(self, on_shown: Callable[[str], None] | None) -> None:
        """Call ``on_shown`` with the uid of each awaited pod once the watch shows it or its end; ``None`` stops."""
        self._on_shown = on_shown
        self._awaited.clear()
        self._awaited_versions.clear()

    def await_pod(self, uid: str) -> None:
        """Notify once when the watch shows the pod next."""
        self._awaited.add(uid)

    def await_version(self, uid: str, kind: str, version: int) -> None:
        """Notify with the uid once the kind is complete up to this resourceVersion, which it has not reached yet."""
        heapq.heappush(self._awaited_versions.setdefault(kind, []), (version, uid))

    def stop_awaiting(self, uid: str) -> None:
        self._awaited.discard(uid)
        for kind, awaited in [*self._awaited_versions.items()]:
            self._awaited_versions[kind] = sorted(each for each in awaited if each[1] != uid)
            if not self._awaited_versions[kind]:
                del self._awaited_versions[kind]

    def _notify_of(self, uid: str) -> None:
        if uid in self._awaited and self._on_shown is not None:
            self._awaited.remove(uid)
            self._on_shown(uid)

    def needs_node(self, pod: Pod) -> bool:
        """Whether a pending pod still needs a node: the watch has not shown it bound, terminating or deleted."""
        shown = self._unbound.get(pod.uid)
        if shown is not None:
            return shown.metadata.deletion_timestamp is None
        return pod.uid not in self._bound and self.reached(PODS) < version_number(pod.metadata.resource_version)

    def bound_node(self, uid: str) -> str | None:
        """The node on which the watch has shown the pod; being assumed there is not enough."""
        return self.snapshot.node_of(uid) if uid in self._bound else None

    def answered_node(self, uid: str) -> str | None:
        """The node of a pod whose Binding the API server has answered with 201, before the watch shows it."""
        assumed = self.assumed_pod(uid)
        return assumed.node if assumed is not None and assumed.is_bound else None

    def unbound_pods(self, scheduler_names: Iterable[str]) -> Iterator[Pod]:
        names = frozenset(scheduler_names)
        return (pod for pod in self._unbound.values() if pod.spec.scheduler_name in names)

    def members_of(self, key: GroupKey) -> Members:
        """The states of the pods that name the group. One counts as bound once the API server has answered 201."""
        pods = self.groups.pods(key).values()
        return Members.of(map(self._as_answered, pods), self._schedulers)

    def _as_answered(self, pod: Pod) -> Pod:
        node = self.answered_node(pod.uid)
        if node is None:
            return pod
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))

    @property
    def pod_count(self) -> int:
        return len(self._unbound) + len(self._bound)

    # Assumed pods.

    def assumed_pod(self, uid: str) -> AssumedPod | None:
        return self._assumed.get(uid)

    @property
    def assumed_pods(self) -> Mapping[str, AssumedPod]:
        return self._assumed

    def assume(self, pod: Pod, node: str) -> None:
        """Count the pod on the node before the API shows it there, and no longer on an earlier node."""
        uid = pod.metadata.uid
        if uid in self._bound:
            return  # the watch shows it on a node already: it counts there
        self._assumed[uid] = AssumedPod(pod=pod, node=node)
        self.snapshot.end_nomination(uid)
        self.snapshot.place(pod, node)

    def finish_binding(self, uid: str) -> None:
        """The API has answered 201: the pod stays assumed until a watch shows it."""
        assumed = self._assumed.get(uid)
        if assumed is not None:
            assumed.is_bound = True

    def forget(self, uid: str) -> None:
        """The attempt has failed for good: free the node, and count a nomination of the pod again."""
        if self._assumed.pop(uid, None) is None:
            return
        self.snapshot.remove_pod(uid)
        self._restore_nomination(uid)

    def forget_former_epochs(self) -> None:
        """Forget assumed pods and nominations of former epochs that the API has not confirmed.

        Call it only after the watch has shown this epoch's fence, because until then a POST of a former epoch could
        land.
        """
        for uid in [uid for uid, assumed in self._assumed.items() if not assumed.is_bound]:
            self.forget(uid)
        for kind in PLUGIN_KINDS.values():
            self.snapshot.objects(kind.struct).restore_all()
        self.devices.forget_all()
        for uid in self.nominated_pods.unwritten():
            self.withdraw_nomination(uid)

    # Nominated pods.

    def nominate(self, pod: Pod, node: str, victims: frozenset[str]) -> None:
        """Nominate the node for the pod; ``victims``: uids of the pods to be evicted for it."""
        self.nominated_pods.nominate(pod, node, victims)

    def nomination_written(self, uid: str, version: int) -> None:
        """The API server has written the nomination; the pod now has this resourceVersion."""
        self.nominated_pods.written(uid, version)
        self._restore_nomination(uid)

    def withdraw_nomination(self, uid: str) -> None:
        """Drop an unwritten nomination: the pod's status in the API counts again."""
        if self.nominated_pods.is_unwritten(uid):
            self.nominated_pods.withdraw(uid)
            self._restore_nomination(uid)

    def victims_left(self, uid: str) -> frozenset[str]:
        """Pods evicted for this one that the watch still shows."""
        return self.nominated_pods.victims_of(uid) & self._bound

    def _restore_nomination(self, uid: str) -> None:
        pod = self._unbound.get(uid)
        if pod is not None and uid not in self._assumed:
            self._update_nomination(pod)

    def _update_nomination(self, pod: Pod) -> None:
        """Update the nomination. A terminating unbound pod loses it, as in the mirror: it can never be bound."""
        if is_gone_while_unbound(pod):
            self.nominated_pods.remove(pod.uid)
        else:
            self.nominated_pods.update(pod, version_number(pod.metadata.resource_version))


class NominatedPods:
    """The nominated node of each pod: from the API, or from this binder until a watch shows it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._own: dict[str, _OwnNomination] = {}

    def update(self, pod: Pod, version: int) -> None:
        """The API shows the pod unbound at this version. Our own nomination counts until the watch reaches it."""
        own = self._own.get(pod.uid)
        if own is not None and not own.is_shown:
            own.is_shown = 0 < own.version <= version
        if own is not None and not own.is_shown:
            self._snapshot.nominate(pod, own.node)
        elif pod.status.nominated_node_name:
            self._snapshot.nominate(pod, pod.status.nominated_node_name)
        else:
            self._snapshot.end_nomination(pod.uid)

    def remove(self, uid: str) -> None:
        """Drop the nomination: the pod is bound, terminating or deleted."""
        self._own.pop(uid, None)
        self._snapshot.end_nomination(uid)

    def nominate(self, pod: Pod, node: str, victims: frozenset[str]) -> None:
        self._own[pod.uid] = _OwnNomination(node=node, victims=victims)
        self._snapshot.nominate(pod, node)

    def written(self, uid: str, version: int) -> None:
        own = self._own.get(uid)
        if own is not None:
            own.version = version

    def withdraw(self, uid: str) -> None:
        self._own.pop(uid, None)

    def is_unwritten(self, uid: str) -> bool:
        """Whether this binder has nominated a node for the pod that the API server has not confirmed."""
        own = self._own.get(uid)
        return own is not None and not own.version

    def unwritten(self) -> list[str]:
        return [uid for uid in self._own if self.is_unwritten(uid)]

    def node_of(self, pod: Pod) -> str:
        """The pod's nominated node in the API; may be empty."""
        own = self._own.get(pod.uid)
        if own is not None and own.version and not own.is_shown:
            return own.node
        return pod.status.nominated_node_name

    def victims_of(self, uid: str) -> frozenset[str]:
        own = self._own.get(uid)
        return frozenset() if own is None else own.victims


@dataclass(slots=True, kw_only=True)
class _OwnNomination:
    node: str
    victims: frozenset[str]  # uids
    # The pod's resourceVersion with the nomination; 0 until the API server has answered.
    version: int = 0
    is_shown: bool = False  # whether the watch has reached that version


def _subject_of(pod: Pod) -> str:
    metadata = pod.metadata
    return str(
        PodSubject(stage="ranked", profile=pod.spec.scheduler_name, namespace=metadata.namespace, pod=metadata.name)
    )


def fence_epoch(pod: Pod) -> int:
    """The epoch of the pod's fence; 0 if it has no fence, or one whose message is not a number."""
    for condition in pod.status.conditions or ():
        if condition.type == CONDITION_FENCE:
            return version_number(condition.message)
    return 0


def _as_mirrored(pod: Pod) -> Pod:
    """The pod with the start time that scorers see (when it was bound), so that both choose the same victims."""
    since = bound_at_text(pod)
    if since == pod.status.start_time:
        return pod
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, start_time=since))
