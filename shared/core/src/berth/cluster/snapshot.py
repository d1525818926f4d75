"""The cluster's state as a cycle reads it: node columns, changed in place as events arrive (docs/design.md, 5).

Events may arrive in any order: a pod may be placed before its node exists. Malformed objects never raise: an unparsable
quantity counts as 0 and is reported in ``problems``. Objects of other kinds (claims, volumes, Services, ...) are kept
for plugins (``berth.cluster.objects``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeVar

import msgspec

from berth.api.devices import DeviceClass
from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.podgroups import group_of
from berth.api.workloads import Namespace, Service
from berth.cluster.columns import HostPorts, LabelColumn, NodeColumns, Rows
from berth.cluster.images import Images
from berth.cluster.livedata import LiveData
from berth.cluster.objects import Objects, T
from berth.cluster.pods import (
    EquivalenceClass,
    EquivalenceClasses,
    GroupMembers,
    NominatedPod,
    PlacedPod,
    PodVolumes,
    Trait,
    deduplicated,
    has_source,
)
from berth.cluster.topologycounts import LabelGroups
from berth.messages.earmarks import Earmark

NODE: Final = 1  # the node object: labels, taints, allocatable, images, existence

PODS: Final = 2  # pods placed on the node

CAME: Final = 8  # another pod, behind those that are there

# A placed pod was updated without effect on a sum or count of the row: the time of its binding, its labels or
# annotations.
PODS_UPDATED: Final = 4

# Plain numbers, because operations on an IntFlag cost a microsecond.
_VOLUMES: Final = int(Trait.VOLUMES)
_SELECTED: Final = int(Trait.SELECTED)
_GROUPED: Final = int(Trait.GROUPED)
_PLACED_AFFINITY: Final = int(Trait.PLACED_AFFINITY)
_CORDONED_NODE: Final = int(Trait.CORDONED_NODE)

_MAX_PROBLEMS: Final = 256
_MAX_PROBLEM_LENGTH: Final = 256  # of an error's text, which may quote a whole object

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows whose node object changed, rows with pods placed or removed, rows with updated pods.

    A row may be in several of these. ``came``: by row to which pods were only added, while its node did not change, how
    many; these are its newest.
    """

    nodes: frozenset[int]
    pods: frozenset[int]
    pods_updated: frozenset[int] = frozenset()
    came: Mapping[int, int] = field(default_factory=dict)


class Snapshot:
    """Nodes, the pods on them, nominated pods and namespaces."""

    def __init__(self) -> None:
        self.columns = NodeColumns()  # the numbers of all nodes, by row
        self.rows = Rows()  # assigns each node its row
        self.size = 0  # number of rows, including rows without a node; an attribute, because every view reads it
        self.groups = LabelGroups(self.labels_of_namespace)  # pods by labels and row
        self.groups.reserve(self.columns.capacity)
        self.images = Images()  # images by row
        self.host_ports = HostPorts()  # taken ports by row
        self.pod_volumes = PodVolumes()  # pods with volumes by row
        self.group_members = GroupMembers()  # members of PodGroups by row
        self.live = LiveData(self.rows, self.columns)  # live data of nodes
        self.problems: deque[str] = deque(maxlen=_MAX_PROBLEMS)  # the latest values that could not be parsed
        self.version = 0  # increases with every change of a row; an attribute, because every cycle compares it
        self._changes = ChangeLog()
        self._classes = EquivalenceClasses()
        # The equivalence class of a pending pod; the caller keeps it as long as needed.
        self.class_of: Callable[[Pod], EquivalenceClass] = self._classes.of
        self._nodes: dict[int, Node] = {}
        self._placed: dict[str, PlacedPod] = {}
        self._on_row: dict[int, dict[str, PlacedPod]] = {}
        self._shared: set[int] = set()  # rows whose pods in ``_on_row`` a copy has too: replaced before they change
        self._nominated: dict[str, NominatedPod] = {}
        self._nominated_to: dict[str, dict[str, NominatedPod]] = {}  # by node
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._supposing = 0
        self._unchecked: set[int] = set()  # rows reported since their node changed
        self._objects: dict[type[Any], Objects[Any]] = {}
        self._derived: dict[Hashable, Any] = {}
        self.earmarks: Mapping[str, Earmark] = {}  # by profile; replaced as a whole

    def copied(self) -> Snapshot:
        """A copy that changes apart from this one.

        What plugins derive is made anew, and assumed devices do not count. At 5,000 nodes a copy takes 9 ms.
        """
        copy = Snapshot()
        copy.columns, copy.rows, copy.size = self.columns.copied(), self.rows.copied(), self.size
        copy.groups = self.groups.copied(copy.labels_of_namespace, self.columns.capacity)
        copy.images, copy.host_ports = self.images.copied(), self.host_ports.copied()
        copy.pod_volumes = self.pod_volumes.copied()
        copy.group_members = self.group_members.copied()
        copy.live = self.live.copied(copy.rows, copy.columns)
        copy._classes, copy.class_of = self._classes, self.class_of
        copy._nodes, copy._placed = self._nodes.copy(), self._placed.copy()
        copy._on_row = self._on_row.copy()
        self._shared, copy._shared = set(self._on_row), set(self._on_row)
        copy._nominated = self._nominated.copy()
        copy._nominated_to = {node: pods.copy() for node, pods in self._nominated_to.items()}
        copy._namespaces, copy._unchecked = self._namespaces.copy(), self._unchecked.copy()
        copy.earmarks = self.earmarks
        copy._objects = {kind: objects.copied() for kind, objects in self._objects.items()}
        return copy

    @contextmanager
    def without_earmarks(self) -> Iterator[None]:
        """As if no nodes were earmarked."""
        before, self.earmarks = self.earmarks, {}
        try:
            yield
        finally:
            self.earmarks = before

    # Events

    def set_node(self, node: Node) -> None:
        row = self._claim(node.metadata.name)
        before, node = self._nodes.get(row), self._with_shared_images(node)
        self._nodes[row] = node
        if before is None or _differ(before, node):
            self.columns.write_node(row, node, self.size, self._problem_of(f"node {node.metadata.name}"))
            self.images.write(row, before.status.images if before else None, node.status.images)
            self.version = self._changes.add(row, NODE)
            self._unchecked.discard(row)

    def remove_node(self, name: str) -> None:
        """Remove a node; pods placed on it stay counted until they are removed."""
        row = self.rows.of(name)
        node = self._nodes.pop(row, None) if row is not None else None
        if row is None or node is None:
            return
        self.columns.clear_node(row, self.size)
        self.images.write(row, node.status.images, None)
        self.version = self._changes.add(row, NODE)
        self._unchecked.discard(row)
        self._release_if_empty(row)

    def set_namespace(self, namespace: Namespace) -> None:
        labels = namespace.metadata.labels or {}
        if self._namespaces.get(namespace.metadata.name) != labels:
            self._namespaces[namespace.metadata.name] = labels
            self.groups.namespaces += 1

    def remove_namespace(self, name: str) -> None:
        if self._namespaces.pop(name, None) is not None:
            self.groups.namespaces += 1

    def place(self, pod: Pod, node: str, *, bound_at: float | None = None) -> None:
        """Count the pod on the node, which need not exist yet; a pod placed elsewhere is removed there.

        ``bound_at``: Unix seconds of its binding; ``None`` for an assumed or proposed pod.
        """
        pod_class = self._classes.of(pod, placed=True)
        group = self.groups.of(pod)
        uid = pod.metadata.uid
        before = self._placed.get(uid)
        if before is not None and before.row != self.rows.of(node):
            self.remove_pod(uid)
            before = None
        row = self._claim(node)
        kept = deduplicated(pod, pod_class, group)
        placed = PlacedPod(pod=kept, row=row, pod_class=pod_class, group=group, bound_at=bound_at)
        if before is None:
            self._add(placed)
            if pod_class.requests.problems:
                self._note_problems(placed)
        elif before.pod_class is pod_class:
            if self._shared:
                self._unshare(row)
            self._placed[uid] = self._on_row[row][uid] = placed
            self.group_members.count(before.pod, row, -1)
            self.group_members.count(kept, row, 1)
            if before.group is not group:  # at the latest when the API server adds the node's zone to a bound pod
                self.groups.count(before.group, row, -1)
                self.groups.count(group, row, 1)
            if before.bound_at != bound_at or before.pod != kept:
                self.version = self._changes.add(row, PODS_UPDATED)
        else:
            self._take_off(before)
            self._add(placed)

    def remove_pod(self, uid: str) -> None:
        """Stop counting the pod; an unknown uid is ignored."""
        placed = self._placed.get(uid)
        if placed is not None:
            self._take_off(placed)
            self._release_if_empty(placed.row)

    def nominate(self, pod: Pod, node: str) -> None:
        """Nominate a pod to a node: cycles of pods of the same or a lower priority count it there."""
        before = self._nominated.get(pod.uid)
        if before is not None and before.node != node:
            self.end_nomination(pod.uid)
        nominated = self._nominated[pod.uid] = NominatedPod(pod=pod, node=node)
        self._nominated_to.setdefault(node, {})[pod.uid] = nominated

    def end_nomination(self, uid: str) -> None:
        """Clear the pod's nomination, if any."""
        nominated = self._nominated.pop(uid, None)
        if nominated is None:
            return
        there = self._nominated_to[nominated.node]
        del there[uid]
        if not there:
            del self._nominated_to[nominated.node]

    @contextmanager
    def supposing(self, *, placed: Iterable[tuple[Pod, str]] = (), removed: Iterable[str] = ()) -> Iterator[None]:
        """The state as if some pods were removed and others placed; restored afterwards."""
        placing, removing = list(placed), list(removed)
        touched = [*removing, *(pod.uid for pod, _ in placing)]
        before = {uid: (self._placed.get(uid), self.node_of(uid)) for uid in touched}
        self._supposing += 1
        try:
            for uid in removing:
                self.remove_pod(uid)
            for pod, node in placing:
                self.place(pod, node)
            yield
        finally:
            self._supposing -= 1
            self._restore(before)

    def report_unchecked(self, row: int, error: Exception) -> None:
        """Report in ``problems`` that a check of the node breaks: once until the node changes, and not for each pod."""
        if row not in self._unchecked:
            self._unchecked.add(row)
            what = f"{type(error).__name__}: {error}"
            self.problems.append(f"node {self.rows.names[row]}: checking it for a pod: {what:.{_MAX_PROBLEM_LENGTH}}")

    # Queries

    def changed_since(self, version: int) -> ChangedRows | None:
        """The rows changed after a version, or None if too many changes were made since."""
        return self._changes.since(version)

    @property
    def traits_of_nodes(self) -> int:
        return _CORDONED_NODE if self.columns.unschedulable.any() else 0

    @property
    def version_of_classes(self) -> int:
        """Increases with every change of a DeviceClass."""
        return self.objects(DeviceClass).version

    def traits_of(self, pod: Pod) -> int:
        """The traits of a pending pod in the present state."""
        traits: int = self._classes.of(pod).traits | self.traits_of_nodes
        if pod.spec.volumes and any(map(has_source, pod.spec.volumes)):
            traits |= _VOLUMES
        if group_of(pod) is not None:
            traits |= _GROUPED
        if pod.metadata.owner_references or self.objects(Service).in_namespace(pod.metadata.namespace):
            traits |= _SELECTED
        return traits | _PLACED_AFFINITY if self.groups.have_any_terms else traits

    def has_node(self, name: str) -> bool:
        row = self.rows.of(name)
        return row is not None and row in self._nodes

    def node_names(self) -> list[str]:
        return [node.metadata.name for node in self._nodes.values()]

    @property
    def node_count(self) -> int:
        return len(self._nodes)

    @property
    def pod_count(self) -> int:
        return len(self._placed)

    def node_at(self, row: int) -> Node | None:
        return self._nodes.get(row)

    def node_of(self, uid: str) -> str | None:
        placed = self._placed.get(uid)
        return None if placed is None else self.rows.names[placed.row]

    def placed(self, uid: str) -> PlacedPod | None:
        return self._placed.get(uid)

    def placed_on_row(self, row: int) -> Collection[PlacedPod]:
        return self._on_row.get(row, {}).values()

    def newest_on_row(self, row: int, count: int) -> Sequence[PlacedPod]:
        """So many pods of the row, the last that came first. An update does not move a pod."""
        return list(islice(reversed(self._on_row.get(row, {}).values()), count))

    def pods_on(self, node: str) -> int:
        """The number of pods placed on the node, without nominated ones."""
        row = self.rows.of(node)
        return 0 if row is None else len(self._on_row.get(row, ()))

    def nominations(self) -> Collection[NominatedPod]:
        """All nominated pods; one that is also placed counts where it is placed."""
        return self._nominated.values()

    def nominations_to(self, node: str) -> Collection[NominatedPod]:
        return self._nominated_to.get(node, {}).values()

    @property
    def nominated_nodes(self) -> Collection[str]:
        """The nodes with nominated pods; not all need to exist."""
        return self._nominated_to.keys()

    def labels_of_namespace(self, name: str) -> Mapping[str, str]:
        """The namespace's labels; empty if it is unknown."""
        return self._namespaces.get(name, {})

    def objects(self, kind: type[T]) -> Objects[T]:
        """The objects of another kind, by type, filled from the watch or the mirror."""
        known: Objects[T] | None = self._objects.get(kind)
        if known is None:
            known = self._objects[kind] = Objects(kind)
        return known

    def derived(self, key: Hashable, make: Callable[[], D]) -> D:
        """A value that a plugin or cycle computes once and keeps for the life of the Snapshot."""
        if key not in self._derived:
            self._derived[key] = make()
        made: D = self._derived[key]
        return made

    def label_column(self, key: str) -> LabelColumn:
        """The column of a label key, built on first use."""
        labels = ((row, node.metadata.labels or {}) for row, node in self._nodes.items())
        return self.columns.labels.of(key, labels, self.columns.capacity)

    def _claim(self, node: str) -> int:
        row = self.rows.of(node)
        if row is not None:
            return row
        row = self.rows.claim(node)
        self.size = self.rows.size
        self.columns.reserve(self.size)
        self.groups.reserve(self.columns.capacity)
        return row

    def _with_shared_images(self, node: Node) -> Node:
        if not node.status.images:
            return node
        status = msgspec.structs.replace(node.status, images=self.images.deduplicated(node.status.images))
        return msgspec.structs.replace(node, status=status)

    def _release_if_empty(self, row: int) -> None:
        if row not in self._nodes and row not in self._on_row:
            self.rows.release(self.rows.names[row])

    def _add(self, placed: PlacedPod) -> None:
        uid, row = placed.pod.metadata.uid, placed.row
        if self._shared:
            self._unshare(row)
        there = self._on_row.get(row)
        if there is None:
            there = self._on_row[row] = {}
        there[uid] = self._placed[uid] = placed
        self._count(placed, 1)

    def _take_off(self, placed: PlacedPod) -> None:
        if self._shared:
            self._unshare(placed.row)
        there = self._on_row[placed.row]
        del self._placed[placed.pod.uid], there[placed.pod.uid]
        self._count(placed, -1)
        if not there:
            del self._on_row[placed.row]

    def _unshare(self, row: int) -> None:
        if row in self._shared:
            self._shared.remove(row)
            self._on_row[row] = self._on_row[row].copy()

    def _count(self, placed: PlacedPod, by: int) -> None:
        requests, row = placed.pod_class.requests, placed.row
        self.columns.count(row, requests, by, lambda: [each.pod_class.requests for each in self.placed_on_row(row)])
        self.host_ports.count(placed.pod_class.host_ports, placed.row, by)
        self.groups.count(placed.group, placed.row, by)
        self.pod_volumes.count(placed.pod, placed.row, by)
        self.group_members.count(placed.pod, placed.row, by)
        self.version = self._changes.add(placed.row, CAME if by > 0 else PODS)

    def _restore(self, before: Mapping[str, tuple[PlacedPod | None, str | None]]) -> None:
        for uid in before:
            self.remove_pod(uid)
        for placed, node in before.values():
            if placed is not None and node is not None:
                self._add(msgspec.structs.replace(placed, row=self._claim(node)))

    def _note_problems(self, placed: PlacedPod) -> None:
        if not self._supposing:
            whose = f"pod {placed.pod.key}"
            self.problems.extend(f"{whose}: {problem}; counted as 0" for problem in placed.pod_class.requests.problems)

    def _problem_of(self, whose: str) -> Callable[[str], None]:
        return lambda problem: self.problems.append(f"{whose}: {problem}; counted as 0")


_NOTHING_CHANGED: Final = ChangedRows(frozenset(), frozenset())


class ChangeLog:
    """A bounded log of (row, kind). A version is the number of entries ever written."""

    def __init__(self, bound: int = 4096) -> None:
        self._bound = bound
        self._dropped = 0
        self._entries: list[tuple[int, int]] = []
        self._last_answer: tuple[tuple[int, int], ChangedRows] = (0, 0), _NOTHING_CHANGED
        """The version that a reader asked about, and the one that the log had then; what has changed in between."""

    def add(self, row: int, kind: int) -> int:
        """Record a change of this kind on the row. Returns the version with it."""
        self._entries.append((row, kind))
        if len(self._entries) >= 2 * self._bound:
            del self._entries[: self._bound]
            self._dropped += self._bound
        return self._dropped + len(self._entries)

    def since(self, version: int) -> ChangedRows | None:
        """The changes after the version, or None if the log no longer reaches back to it."""
        if version < self._dropped:
            return None
        asked = version, self._dropped + len(self._entries)
        last, changed = self._last_answer
        if asked != last:  # filters, scores and plugins ask in turn
            changed = _changed_by(self._entries[version - self._dropped :])
            self._last_answer = asked, changed
        return changed


def _changed_by(entries: Sequence[tuple[int, int]]) -> ChangedRows:
    if len(entries) == 1 and entries[0][1] == CAME:  # what most cycles find
        ((row, _),) = entries
        return ChangedRows(frozenset(), frozenset((row,)), came={row: 1})
    nodes, pods, updated, came = set[int](), set[int](), set[int](), dict[int, int]()
    for row, kind in entries:
        if kind == CAME:
            came[row] = came.get(row, 0) + 1
        elif kind == PODS_UPDATED:
            updated.add(row)
        else:
            (nodes if kind == NODE else pods).add(row)
    all_pods = frozenset(pods.union(came))
    for row in came.keys() & (nodes | pods):
        del came[row]
    return ChangedRows(frozenset(nodes), all_pods, frozenset(updated), came)


def _differ(before: Node, now: Node) -> bool:
    """Whether two states of a node differ in anything that plugins read; its resourceVersion does not count."""
    old, new = before.metadata, now.metadata
    return (before.spec, before.status, old.labels, old.annotations, old.creation_timestamp) != (
        now.spec,
        now.status,
        new.labels,
        new.annotations,
        new.creation_timestamp,
    )
