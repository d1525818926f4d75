"""NodeVolumeLimits: a node may have as many volumes of each CSI driver as its CSINode allows.

Counts the volumes of pods on the node and volumes still attached to it. A volume is identified by driver and handle and
counted once, however many pods use it. In-tree volumes count for the driver that they migrate to. As kube-scheduler's
plugin of that name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final
from weakref import ref

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod, Volume
from berth.api.volumes import CSINode, PersistentVolume, PersistentVolumeClaim, StorageClass, VolumeAttachment
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, ValueIndex, nothing
from berth.framework.interface import (
    PRE_FILTER_SKIPPED,
    EnqueueExtensions,
    PreFilterPlugin,
    PreFilterResult,
    VectorFilterPlugin,
)
from berth.framework.status import SUCCESS, CycleState, StateKey, Status, Verdicts
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.volumes.claims import (
    ClaimUse,
    claim_index,
    claim_not_found,
    claim_of,
    has_claims,
    is_reserved_for,
    names_of_claims,
    reserved_for,
    uses_claim,
    why_not_owned,
)
from berth.plugins.volumes.csimigration import BY_PROVISIONER, LEFT_IN_TREE, UntranslatableError, driver_of

NAME: Final = "NodeVolumeLimits"
MAX_VOLUME_COUNT_EXCEEDED: Final = Status.unschedulable("node(s) exceed max volume count")
AttachedVolumes = Mapping[str, str]  # ``driver/handle`` to driver
_NONE: Final[AttachedVolumes] = {}
NEEDED: Final = StateKey[AttachedVolumes | Status]("NodeVolumeLimits.needed")


class NodeVolumeLimits(PreFilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    name: ClassVar[str] = NAME
    only_for = Trait.VOLUMES

    def __init__(self) -> None:
        self._attachments = Attachments()
        self._limits = AttachLimits()

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        if not pod.spec.volumes or not has_attachable(pod):
            return PRE_FILTER_SKIPPED
        self._needed(state, pod, snapshot)
        return PreFilterResult()

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        needed = self._needed(state, pod, node.snapshot)
        if isinstance(needed, Status):
            return needed
        limits = self._limits.by_node(node.snapshot).get(node.name, {})
        if limits.keys().isdisjoint(needed.values()):
            return SUCCESS
        return self._filter(needed, limits, node.name, node.row, node.snapshot)

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """Checks only nodes whose CSINode limits one of the drivers."""
        needed = self._needed(state, pod, nodes.snapshot)
        if isinstance(needed, Status):
            return Verdicts.refusing(np.ones(len(nodes), dtype=np.bool_), needed)
        if not needed:
            return Verdicts.all_fit(len(nodes))
        rejected = self._rejected(needed, nodes.snapshot)
        if not rejected:
            return Verdicts.all_fit(len(nodes))
        return Verdicts.of(rejected.get(row, SUCCESS) for row in nodes.rows.tolist())

    def events(self) -> Sequence[EventHint]:
        """Other pods' claims matter only when they go: they are bound to their volumes before the pods are placed."""
        of_claims, of_volumes = Action.ADD | Action.UPDATE, Action.ADD | Action.UPDATE | Action.DELETE
        return (
            EventHint(ClusterEvent(Resource.NODE, Action.ADD)),
            EventHint(ClusterEvent(Resource.CSI_NODE, Action.UPDATE | Action.DELETE), _allows_more, nothing),
            EventHint(ClusterEvent(Resource.POD, Action.DELETE), _had_volumes, nothing),
            EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, of_claims), _is_its_claim, index=claim_index),
            EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME, of_volumes), _counts_otherwise, index=_index),
            EventHint(ClusterEvent(Resource.STORAGE_CLASS, Action.UPDATE), _provisioner_changed, nothing),
            EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, Action.DELETE)),
            EventHint(
                ClusterEvent(Resource.VOLUME_ATTACHMENT, Action.UPDATE | Action.DELETE), _detaches, _needed_drivers
            ),
            EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE), _had_volumes, nothing),
        )

    def _rejected(self, needed: AttachedVolumes, snapshot: Snapshot) -> dict[int, Status]:
        """The rejected rows. Volumes are counted exactly only if an upper bound exceeds the limit."""
        volumes, drivers, rejected = snapshot.pod_volumes, set(needed.values()), {}
        for name, limits in self._limits.by_node(snapshot).items():
            least = min((limits[driver] for driver in drivers if driver in limits), default=None)
            row = None if least is None else snapshot.rows.of(name)
            if least is None or row is None:
                continue
            most = len(needed) + volumes.count_on(row) + len(self._attachments.on_node(name, snapshot))
            status = SUCCESS if most <= least else self._filter(needed, limits, name, row, snapshot)
            if not status.is_success:
                rejected[row] = status
        return rejected

    def _needed(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> AttachedVolumes | Status:
        """Computed once a cycle; by Filter if the profile lacks this plugin's PreFilter."""
        needed = state.find(NEEDED)
        if needed is None:
            needed = needed_volumes(pod, snapshot)
            state.write(NEEDED, needed)
        return needed

    def _filter(
        self, needed: AttachedVolumes, limits: Mapping[str, int], name: str, row: int, snapshot: Snapshot
    ) -> Status:
        present = volumes_of(snapshot.pod_volumes.on_row(row), snapshot)
        attached = self._attachments.on_node(name, snapshot)
        fits = within_limits(limits, needed=needed, present=present, attached=attached)
        return SUCCESS if fits else MAX_VOLUME_COUNT_EXCEEDED


def _allows_more(_: Pod, old: object, new: object) -> bool:
    now = limits_of(new) if isinstance(new, CSINode) else {}
    before = limits_of(old) if isinstance(old, CSINode) else {}
    return any(driver not in now or now[driver] > limit for driver, limit in before.items())


def _had_volumes(_: Pod, old: object, __: object) -> bool:
    if not isinstance(old, Pod):
        return True
    was_placed = bool(old.spec.node_name or old.status.nominated_node_name)
    return was_placed and has_attachable(old)


def _is_its_claim(pod: Pod, _: object, new: object) -> bool:
    return uses_claim(pod, new)


def _counts_otherwise(pod: Pod, old: object, new: object) -> bool:
    """The volume of one of the pod's claims is there now, or one that counted on some node is gone or made anew."""
    return _counted_volume(old) not in (None, _counted_volume(new)) or is_reserved_for(pod, new)


def _counted_volume(volume: object) -> object:
    return driver_of(volume) or volume.spec.csi if isinstance(volume, PersistentVolume) else None


def _index() -> ValueIndex:
    return ValueIndex(
        names_of_claims,
        lambda old, new: reserved_for(new) if _counted_volume(old) in (None, _counted_volume(new)) else None,
    )


def _provisioner_changed(_: Pod, old: object, new: object) -> bool:
    """The class was made anew while no watch was open: its volumes count for another driver."""
    if not isinstance(old, StorageClass) or not isinstance(new, StorageClass):
        return True
    return old.provisioner != new.provisioner


def _detaches(pod: Pod, old: object, new: object) -> bool:
    """A claim may need any driver; an inline volume needs its own."""
    if not isinstance(old, VolumeAttachment):
        return True
    if isinstance(new, VolumeAttachment) and new.spec == old.spec:
        return False
    drivers, has_claim = _needed_drivers(pod)
    return has_claim or old.spec.attacher in drivers


def _needed_drivers(pod: Pod) -> tuple[frozenset[str], bool]:
    """The drivers of inline volumes, and whether a claim may need any other."""
    volumes = pod.spec.volumes or ()
    inline = filter(None, (driver_of(volume) for volume in volumes))
    drivers = frozenset(driver.name for driver, _source in inline)
    return drivers, has_claims(pod)


class AttachLimits:
    """The limits of CSINodes, reread after a change."""

    def __init__(self) -> None:
        self._seen: tuple[ref[Snapshot], int] | None = None
        self._by_node: dict[str, dict[str, int]] = {}

    def by_node(self, snapshot: Snapshot) -> Mapping[str, Mapping[str, int]]:
        csi_nodes = snapshot.objects(CSINode)
        seen = (ref(snapshot), csi_nodes.version)
        if seen != self._seen:
            found = {node.metadata.name: limits_of(node) for node in csi_nodes}
            self._seen, self._by_node = seen, {name: limits for name, limits in found.items() if limits}
        return self._by_node


def limits_of(node: CSINode) -> dict[str, int]:
    """The limit by driver; a driver without an entry is unlimited."""
    drivers = [(driver.name, driver.allocatable) for driver in node.spec.drivers or ()]
    return {name: allocatable.count for name, allocatable in drivers if allocatable and allocatable.count is not None}


def within_limits(
    limits: Mapping[str, int], *, needed: AttachedVolumes, present: AttachedVolumes, attached: AttachedVolumes
) -> bool:
    """Whether the needed volumes that are not ``present`` fit beside the node's pods' and other attached ones.

    An attached volume without a pod on the node counts in addition to a pod that will use it, as in kube-scheduler.
    """
    new = Counter(driver for volume, driver in needed.items() if volume not in present)
    taken = Counter(present.values())
    taken.update(driver for volume, driver in attached.items() if volume not in present)
    return all(taken[driver] + count <= limits[driver] for driver, count in new.items() if driver in limits)


class Attachments:
    """VolumeAttachments by node, reindexed after a change of one or of a PersistentVolume."""

    def __init__(self) -> None:
        self._seen: tuple[ref[Snapshot], int, int] | None = None
        self._by_node: dict[str, dict[str, str]] = {}

    def on_node(self, node: str, snapshot: Snapshot) -> AttachedVolumes:
        attachments, volumes = snapshot.objects(VolumeAttachment), snapshot.objects(PersistentVolume)
        seen = (ref(snapshot), attachments.version, volumes.version)
        if seen != self._seen:
            self._seen, self._by_node = seen, {}
            for attachment in attachments.in_namespace(""):
                self._add(attachment, snapshot)
        return self._by_node.get(node, _NONE)

    def _add(self, attachment: VolumeAttachment, snapshot: Snapshot) -> None:
        spec = attachment.spec
        volume = snapshot.objects(PersistentVolume).named(spec.source.persistent_volume_name or "")
        if spec.attacher and volume is not None and volume.spec.csi is not None:
            name = _name(spec.attacher, volume.spec.csi.volume_handle)
            self._by_node.setdefault(spec.node_name, {})[name] = spec.attacher


def has_attachable(pod: Pod) -> bool:
    volumes = pod.spec.volumes or ()
    return any(claim_of(volume, pod) is not None or driver_of(volume) is not None for volume in volumes)


def needed_volumes(pod: Pod, snapshot: Snapshot) -> AttachedVolumes | Status:
    """The volumes of a pending pod; a Status if one of its claims is missing or owned by another pod."""
    found: dict[str, str] = {}
    for volume in pod.spec.volumes or ():
        use = claim_of(volume, pod)
        if use is not None and use.find(pod, snapshot) is None:
            missing = f"looking up PVC {pod.metadata.namespace}/{use.name}: {claim_not_found(use.name)}"
            return Status.unresolvable(missing)
        one = _of_volume(volume, use, pod, snapshot)
        if isinstance(one, Status):
            return one
        found.update(one)
    return found


def volumes_of(pods: Iterable[Pod], snapshot: Snapshot) -> AttachedVolumes:
    """The volumes of pods on a node. Volumes with errors are left out, because they must not affect other pods."""
    found: dict[str, str] = {}
    for pod in pods:
        for volume in pod.spec.volumes or ():
            one = _of_volume(volume, claim_of(volume, pod), pod, snapshot)
            found.update(_NONE if isinstance(one, Status) else one)
    return found


def _of_volume(volume: Volume, use: ClaimUse | None, pod: Pod, snapshot: Snapshot) -> AttachedVolumes | Status:
    if use is None:
        return _of_inline(volume)
    claim = use.find(pod, snapshot)
    if claim is None:
        return _NONE
    reason = why_not_owned(pod, claim) if use.is_ephemeral else ""
    return Status.error(reason) if reason else _of_claim(claim, snapshot)


def _of_inline(volume: Volume) -> AttachedVolumes | Status:
    found = driver_of(volume)
    if found is None:
        return _NONE
    driver, source = found
    try:
        return {_name(driver.name, driver.handle(source, {})): driver.name}
    except UntranslatableError as exc:
        return Status.error(f"converting volume({volume.name}) from inline to csi: {exc}")


def _of_claim(claim: PersistentVolumeClaim, snapshot: Snapshot) -> AttachedVolumes:
    volume = snapshot.objects(PersistentVolume).named(claim.spec.volume_name) if claim.spec.volume_name else None
    if volume is None:
        return _of_class(claim, snapshot)
    csi = volume.spec.csi
    return _of_in_tree(volume) if csi is None else _counted(csi.driver, csi.volume_handle)


def _of_in_tree(volume: PersistentVolume) -> AttachedVolumes:
    found = driver_of(volume)
    if found is None:
        return _NONE
    driver, source = found
    try:
        return _counted(driver.name, driver.handle(source, volume.metadata.labels or {}))
    except UntranslatableError:
        return _NONE


def _of_class(claim: PersistentVolumeClaim, snapshot: Snapshot) -> AttachedVolumes:
    """A volume that is not provisioned yet, by the driver of its class."""
    storage_class = snapshot.objects(StorageClass).named(claim.class_name) if claim.class_name else None
    if storage_class is None or storage_class.provisioner in LEFT_IN_TREE:
        return _NONE
    driver = BY_PROVISIONER.get(storage_class.provisioner)
    name = driver.name if driver is not None else storage_class.provisioner
    return _counted(name, f"claim {claim.metadata.namespace}/{claim.metadata.name}")


def _counted(driver: str, handle: str) -> AttachedVolumes:
    return {_name(driver, handle): driver} if driver and handle else _NONE


def _name(driver: str, handle: str) -> str:
    return f"{driver}/{handle}"


FACTORY: Final = PluginFactory(name=NAME, points=(Point.PRE_FILTER, Point.FILTER), build=no_args(NodeVolumeLimits))
