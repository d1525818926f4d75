"""For whom which node is kept: as the API shows it, and as this binder has decided where no watch has shown it yet.

The fence: a status condition whose message is the epoch (PROTOCOL 5, *Fence*).

Writing it moves the pod's resourceVersion, so that no POST of a former leader can land any more. Pure: who needs one.


The newest state that the binder knows: what its own watches have shown, and the room that it has promised.

The Snapshot counts a pod by uid, on the node where the API shows it, or else on the node of its reservation. A
reservation ends when the watch shows the pod on a node, finished or deleted, when a later LIST lacks it, or when the
attempt has failed for good (PROTOCOL 5). Nothing here waits or talks to anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from berth.api.kinds import PLUGIN_KINDS
from berth.api.node import Node
from berth.api.pod import Pod, bound_at, bound_since, is_bound, is_finished, is_gone_while_unbound
from berth.api.subjects import Epoch
from berth.api.workloads import Namespace
from berth.cluster.snapshot import Snapshot
from berth.kube.pods import CONDITION_FENCE
from berth.kube.watch import Current, Deleted, Listed, ReflectorEvent, Undecodable, Upserted


@dataclass(slots=True, kw_only=True)
class OwnNomination:
    """A node that this binder keeps for a pod.

    ``victims``: uids of pods whose deletion it has asked for. ``version``: the pod's resourceVersion from which on its
    status says it; 0 as long as the API server has not answered.
    """

    node: str
    victims: frozenset[str]
    version: int = 0
    is_shown: bool = False


class Nominations:
    """What the Snapshot is told of nominated pods."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._decided: dict[str, OwnNomination] = {}

    def shown(self, pod: Pod, version: int) -> None:
        """The API shows the pod unbound, at this resourceVersion. What was decided counts until then."""
        decided = self._decided.get(pod.uid)
        if decided is not None and not decided.is_shown:
            decided.is_shown = 0 < decided.version <= version
        if decided is not None and not decided.is_shown:
            self._snapshot.nominate(pod, decided.node)
        elif pod.status.nominated_node_name:
            self._snapshot.nominate(pod, pod.status.nominated_node_name)
        else:
            self._snapshot.end_nomination(pod.uid)

    def ended(self, uid: str) -> None:
        """The pod is on a node, or is not there any more."""
        self._decided.pop(uid, None)
        self._snapshot.end_nomination(uid)

    def decide(self, pod: Pod, node: str, victims: frozenset[str]) -> None:
        """The node is kept for the pod from now on."""
        self._decided[pod.uid] = OwnNomination(node=node, victims=victims)
        self._snapshot.nominate(pod, node)

    def answered(self, uid: str, version: int) -> None:
        """The API server has written it, in the pod's status of this resourceVersion."""
        decided = self._decided.get(uid)
        if decided is not None:
            decided.version = version

    def is_unanswered(self, uid: str) -> bool:
        """Whether a node is kept for the pod that the API server may not know of."""
        decided = self._decided.get(uid)
        return decided is not None and not decided.version

    def take_back(self, uid: str) -> None:
        """Nothing came of it."""
        self._decided.pop(uid, None)

    def unanswered(self) -> list[str]:
        """The pods for which a node is kept that the API server may not know of."""
        return [uid for uid in self._decided if self.is_unanswered(uid)]

    def node_of(self, pod: Pod) -> str:
        """Which node is kept for the pod as far as the API server knows; empty for none."""
        decided = self._decided.get(pod.uid)
        is_news = decided is not None and decided.version and not decided.is_shown
        return decided.node if decided is not None and is_news else pod.status.nominated_node_name

    def victims_of(self, uid: str) -> frozenset[str]:
        """Whose deletion this binder has asked for on behalf of the pod."""
        decided = self._decided.get(uid)
        return frozenset() if decided is None else decided.victims


CONSUMER_PREFIX: Final = "binder-"


def fence_epoch(pod: Pod) -> int:
    """The epoch of the fence that the pod carries; 0 without one, or when somebody else wrote what is no number."""
    for condition in pod.status.conditions or ():
        if condition.type == CONDITION_FENCE:
            return _number(condition.message)
    return 0


def needs_fence(pod: Pod, epoch: Epoch) -> bool:
    """Whether a former leader's POST for the pod could still land: it is unbound, and not yet fenced by this epoch."""
    return not pod.spec.node_name and not is_gone_while_unbound(pod) and fence_epoch(pod) < epoch


def pods_to_fence(pods: Iterable[Pod], epoch: Epoch) -> list[Pod]:
    """Those of the pods that need this epoch's fence, each once."""
    return list({pod.uid: pod for pod in pods if needs_fence(pod, epoch)}.values())


def consumer_of(epoch: Epoch) -> str:
    """The name of an epoch's consumer of RANKED."""
    return f"{CONSUMER_PREFIX}{epoch}"


def former_consumers(names: Iterable[str], epoch: Epoch) -> list[str]:
    """Those of lower epochs: a leader that wakes late must not delete its successor's."""
    return [name for name in names if 0 < _number(name.removeprefix(CONSUMER_PREFIX)) < epoch]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


PODS: Final = "pod"

NODES: Final = "node"

NAMESPACES: Final = "namespace"


@dataclass(slots=True, kw_only=True)
class Reservation:
    """Room promised to a pod. ``answered``: the API has said 201, so the pod is bound though no watch has shown it."""

    pod: Pod
    node: str
    answered: bool = False


def version_number(resource_version: str) -> int:
    """A resourceVersion as a number; the API server says that they may be compared so. Absent or odd is 0."""
    return int(resource_version) if resource_version.isascii() and resource_version.isdigit() else 0


class Cache:
    """Fed with reflector events in the order in which they arrive; asked by everything that decides."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.snapshot = Snapshot() if snapshot is None else snapshot
        self.nominations = Nominations(self.snapshot)
        self._unbound: dict[str, Pod] = {}
        self._bound: set[str] = set()
        self._reservations: dict[str, Reservation] = {}
        self._names: dict[str, set[str]] = {NODES: set(), NAMESPACES: set()}
        self._newest_object: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self.highest_fence = 0
        """The highest epoch whose fence a pod carries: one above our own ends our leading."""
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

    # What the watches show.

    def _take_in(self, kind: str, item: Any) -> None:
        """Take in an object. One that nobody foresaw is told of and must not keep all others from being seen."""
        try:
            self._set(kind, item)
        except Exception as exc:  # noqa: BLE001 - whatever an odd object breaks
            text = f"reading {kind} {item.metadata.name!r}: {type(exc).__name__}: {exc}"
            self.snapshot.oddities.append(text)
        self._saw_object(kind, item.metadata.resource_version)

    def observe(self, event: ReflectorEvent[Any]) -> None:
        """Take in one event of a reflector."""
        match event:
            case Upserted():
                self._take_in(event.kind, event.object)
            case Deleted():
                self._forget(event.kind, event.object)
                self._saw_object(event.kind, event.object.metadata.resource_version)
            case Listed():
                self._replace(event)
            case Current():
                self._reach(event.kind, version_number(event.resource_version))
            case Undecodable():
                self._take_unreadable(event)

    def _take_unreadable(self, event: Undecodable) -> None:
        """What cannot be read leaves things as they were last known, unless it is gone."""
        if event.deleted and event.kind == PODS:
            self._remove_pod(event.uid)
        elif event.deleted and event.kind == NODES:
            self._remove_node(event.name)
        elif event.deleted and event.kind in PLUGIN_KINDS:
            self._remove_further(event.kind, uid=event.uid, name=event.name)
        self._saw_object(event.kind, event.resource_version)

    def reached(self, kind: str) -> int:
        """The resourceVersion up to which a kind is complete: of its last event, LIST or bookmark."""
        return self._reached.get(kind, 0)

    def newest_objects(self) -> dict[str, str]:
        """Per kind the highest resourceVersion of an object or event, never that of a LIST or bookmark (PROTOCOL 3)."""
        return {kind: str(version) for kind, version in self._newest_object.items()}

    def _saw_object(self, kind: str, resource_version: str) -> None:
        version = version_number(resource_version)
        if version > self._newest_object.get(kind, 0):
            self._newest_object[kind] = version
        self._reach(kind, version)

    def _reach(self, kind: str, version: int) -> None:
        if version > self._reached.get(kind, 0):
            self._reached[kind] = version

    def _replace(self, listed: Listed[Any]) -> None:
        """A LIST: what is not in it is gone. Its version may go back: then the API server has another store."""
        version = version_number(listed.resource_version)
        for present in listed.objects:
            self._take_in(listed.kind, present)
        if listed.kind == PODS:
            self._remove_pods_lacking({pod.uid for pod in listed.objects}, version)
        elif listed.kind in PLUGIN_KINDS:
            self._remove_further_lacking(listed)
        else:
            self._remove_names_lacking(listed.kind, {item.metadata.name for item in listed.objects})
        self._reached[listed.kind] = version
        if listed.kind in self._newest_object:
            self._newest_object[listed.kind] = min(self._newest_object[listed.kind], version)

    def _remove_pods_lacking(self, present: set[str], version: int) -> None:
        """A pod that was seen up to the LIST's version and is not in it has been deleted: uids never come back."""
        for uid in [*(self._unbound.keys() - present), *(self._bound - present)]:
            self._remove_pod(uid)
        for uid, reservation in list(self._reservations.items()):
            if uid not in present and version_number(reservation.pod.metadata.resource_version) <= version:
                self._remove_pod(uid)

    def _set(self, kind: str, item: Any) -> None:
        further = PLUGIN_KINDS.get(kind)
        if further is not None:
            key = further.key_of(uid=item.metadata.uid, name=item.metadata.name)
            self.snapshot.objects(further.struct).set(key, item)
        else:
            self._upsert[kind](item)

    def _forget(self, kind: str, item: Any) -> None:
        if kind in PLUGIN_KINDS:
            self._remove_further(kind, uid=item.metadata.uid, name=item.metadata.name)
        else:
            self._remove[kind](item)

    def _remove_further(self, kind: str, *, uid: str, name: str) -> None:
        further = PLUGIN_KINDS[kind]
        self.snapshot.objects(further.struct).remove(further.key_of(uid=uid, name=name))

    def _remove_further_lacking(self, listed: Listed[Any]) -> None:
        further = PLUGIN_KINDS[listed.kind]
        found = (thing.metadata for thing in listed.objects)
        present = {further.key_of(uid=metadata.uid, name=metadata.name) for metadata in found}
        objects = self.snapshot.objects(further.struct)
        for key in objects.keys - present:
            objects.remove(key)

    def _remove_names_lacking(self, kind: str, present: set[str]) -> None:
        remove = self._remove_node if kind == NODES else self._remove_namespace
        for name in self._names[kind] - present:
            remove(name)

    def _set_pod(self, pod: Pod) -> None:
        if is_finished(pod):
            self._remove_pod(pod.uid)
            return
        if is_bound(pod):
            self._set_bound(pod)
            return
        self._unbound[pod.uid] = pod
        self.highest_fence = max(self.highest_fence, fence_epoch(pod))
        if pod.uid not in self._reservations:
            self._count_nomination(pod)

    def _set_bound(self, pod: Pod) -> None:
        """The API shows the pod on a node: that is what counts, and only there (the Snapshot keeps the pod)."""
        self._unbound.pop(pod.uid, None)
        self._bound.add(pod.uid)
        self._reservations.pop(pod.uid, None)
        self.nominations.ended(pod.uid)
        self.snapshot.place(_as_mirrored(pod), pod.spec.node_name, bound_at=bound_at(pod))

    def _remove_pod(self, uid: str) -> None:
        self._unbound.pop(uid, None)
        self._bound.discard(uid)
        self._reservations.pop(uid, None)
        self.nominations.ended(uid)
        self.snapshot.remove_pod(uid)

    def _count_nomination(self, pod: Pod) -> None:
        self.nominations.shown(pod, version_number(pod.metadata.resource_version))

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

    # What is asked.

    def pod(self, uid: str) -> Pod | None:
        """The unbound pod as the watch last showed it; ``None``: not shown, or bound, finished or deleted."""
        return self._unbound.get(uid)

    def node_shown(self, uid: str) -> str | None:
        """The node on which the watch has shown the pod. A reservation is not shown."""
        return self.snapshot.node_of(uid) if uid in self._bound else None

    def unbound_pods(self, scheduler_names: Iterable[str]) -> Iterator[Pod]:
        """Every pod of these schedulers that has no node yet."""
        names = frozenset(scheduler_names)
        return (pod for pod in self._unbound.values() if pod.spec.scheduler_name in names)

    @property
    def pod_count(self) -> int:
        """How many pods the watch shows, bound or not."""
        return len(self._unbound) + len(self._bound)

    # What is promised.

    def reservation(self, uid: str) -> Reservation | None:
        """The room promised to a pod, until the API shows what became of it."""
        return self._reservations.get(uid)

    @property
    def reservations(self) -> Mapping[str, Reservation]:
        """All promised room, by uid."""
        return self._reservations

    def reserve(self, pod: Pod, node: str) -> None:
        """Promise the pod room on the node. There is one promise per uid: an earlier one is moved."""
        if pod.uid in self._bound:
            return  # The watch was faster: the pod is counted where it is.
        self._reservations[pod.uid] = Reservation(pod=pod, node=node)
        self.snapshot.end_nomination(pod.uid)
        self.snapshot.place(pod, node)

    def confirm(self, uid: str) -> None:
        """The API has answered 201: the promise stands until a watch shows the pod."""
        reservation = self._reservations.get(uid)
        if reservation is not None:
            reservation.answered = True

    def release(self, uid: str) -> None:
        """The attempt has failed for good: the room is free, and a nomination of the pod counts again."""
        if self._reservations.pop(uid, None) is None:
            return
        self.snapshot.remove_pod(uid)
        self._count_nomination_again(uid)

    def keep(self, pod: Pod, node: str, victims: frozenset[str]) -> None:
        """Keep the node for the pod, at the cost of these pods, whose deletion is about to be asked for."""
        self.nominations.decide(pod, node, victims)

    def kept(self, uid: str, version: int) -> None:
        """The API server has written that the node is kept, in the pod of this resourceVersion."""
        self.nominations.answered(uid, version)
        self._count_nomination_again(uid)

    def give_up_keeping(self, uid: str) -> None:
        """Nothing came of a node that was to be kept for the pod: what the API shows counts again."""
        if self.nominations.is_unanswered(uid):
            self.nominations.take_back(uid)
            self._count_nomination_again(uid)

    def victims_left(self, uid: str) -> frozenset[str]:
        """Of the pods whose deletion was asked for on behalf of this one, those that the watch still shows."""
        return self.nominations.victims_of(uid) & self._bound

    def _count_nomination_again(self, uid: str) -> None:
        pod = self._unbound.get(uid)
        if pod is not None and uid not in self._reservations:
            self._count_nomination(pod)

    def release_unanswered(self) -> None:
        """Forget the promises of a former epoch that the API never confirmed.

        Only once this epoch's fence stands and the watch has read it: no POST of theirs can land any more.
        """
        for uid in [uid for uid, reservation in self._reservations.items() if not reservation.answered]:
            self.release(uid)
        for kind in PLUGIN_KINDS.values():
            self.snapshot.objects(kind.struct).show_all_real()
        for uid in self.nominations.unanswered():
            self.give_up_keeping(uid)


def _as_mirrored(pod: Pod) -> Pod:
    """The pod with the start that scorers know of it, so that both choose the same victims: when it was bound."""
    since = bound_since(pod)
    if since == pod.status.start_time:
        return pod
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, start_time=since))
