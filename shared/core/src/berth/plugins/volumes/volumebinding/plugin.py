"""VolumeBinding: a pod's claims must be bound to, or find, volumes that the node has access to.

A bound claim restricts the pod to the nodes with access to its volume. A claim that waits for its first consumer takes
a free volume or has one provisioned for the node; the pod is bound afterwards. Any other claim must be bound before the
pod is scheduled. As kube-scheduler's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.volumes import (
    MIGRATED_PLUGINS,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    StorageClass,
)
from berth.cluster.nodes import NodeInfo, Nodes, RejectedNodes, node_info
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource, ValueIndex, nothing
from berth.framework.interface import (
    PRE_FILTER_SKIPPED,
    SNAPSHOT,
    EnqueueExtensions,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    RemedyPlugin,
    RemedySentence,
    ReservePlugin,
    VectorFilterPlugin,
    Write,
)
from berth.framework.status import SKIP, SUCCESS, CycleState, StateKey, Status, Verdicts
from berth.plugins.factory import Args, PluginFactory, with_args
from berth.plugins.noderesources.scoringstrategy import ShapePoint
from berth.plugins.volumes.claims import (
    claim_index,
    has_claims,
    is_reserved_for,
    names_of_claims,
    pod_volume_claims,
    reserved_for,
    uses_claim,
)
from berth.plugins.volumes.volumebinding.binder import (
    PodVolumeFinder,
    assume_pod_volumes,
    bind_pod_volumes,
    check_bindings,
    pod_volume_finder,
    revert_assumed_pod_volumes,
)
from berth.plugins.volumes.volumebinding.claimmatcher import ClaimMatcher, PodVolumeBindings, maximum_volume_bytes
from berth.plugins.volumes.volumebinding.topology import translated_node_affinity_of

NAME: Final = "VolumeBinding"
FINDER: Final = StateKey[PodVolumeFinder | Status]("VolumeBinding.finder")
POD_VOLUMES: Final = StateKey[PodVolumeBindings]("VolumeBinding.pod_volumes")


class VolumeBindingArgs(Args, frozen=True, kw_only=True):
    """Waiting for a pod's claims."""

    bind_timeout_seconds: int = 600
    """Wait of a pod on its node for its claims to be bound, 0 or more. Ten minutes, as in kube-scheduler, because
    provisioning a disk may take long."""
    shape: list[ShapePoint] | None = None
    """Has an effect only with the feature gate StorageCapacityScoring of kube-scheduler, which is off in 1.36."""


class VolumeBinding(PreFilterPlugin, VectorFilterPlugin, RemedyPlugin, ReservePlugin, PreBindPlugin, EnqueueExtensions):
    """Filters by volumes, and has a pod's claims bound before its Binding."""

    name: ClassVar[str] = NAME
    only_for = Trait.VOLUMES
    too_late = "binding volumes: context deadline exceeded"

    def __init__(self, args: VolumeBindingArgs) -> None:
        self.wait_seconds = args.bind_timeout_seconds

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        if not has_claims(pod):
            return PRE_FILTER_SKIPPED
        finder = self._finder(state, pod, snapshot)
        if isinstance(finder, Status):
            return PreFilterResult(finder)
        return PreFilterResult(SUCCESS if finder.bound or finder.unbound else SKIP)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        finder = self._finder(state, pod, node.snapshot)
        return finder if isinstance(finder, Status) else finder.of_node(node)

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        finder = self._finder(state, pod, nodes.snapshot)
        if isinstance(finder, Status):
            return Verdicts.refusing(np.ones(len(nodes), dtype=np.bool_), finder)
        return finder.of_nodes(nodes)

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        claims = pod_volume_claims(pod, nodes.snapshot)
        if isinstance(claims, Status):
            return
        for claim in claims.bound:
            name, volume = claim.metadata.name, nodes.snapshot.objects(PersistentVolume).named(claim.spec.volume_name)
            what = f"the volume {claim.spec.volume_name} of claim {name}"
            if volume is None:
                yield RemedySentence(about=name, before=f"{what} is gone, which keeps it from")
                continue
            unreachable = ~translated_node_affinity_of(volume).mask(nodes)
            yield RemedySentence(about=name, nodes=unreachable, before=f"{what} cannot be reached from")
        for claim in claims.delayed:
            unmatched = ClaimMatcher((claim,), nodes.snapshot).problems(nodes) > 0
            before = f"claim {claim.metadata.name} has no volume yet, and none can be bound or made for"
            yield RemedySentence(about=claim.metadata.name, nodes=unmatched, before=before)

    def reserve(self, state: CycleState, pod: Pod, node: str) -> Status:
        if not pod.spec.volumes:
            return SUCCESS
        snapshot = state.read(SNAPSHOT)
        finder, info = pod_volume_finder(pod, snapshot), node_info(snapshot, node)
        if isinstance(finder, Status):
            return finder
        if finder.unbound is None:
            return SUCCESS
        if info is None:
            return _node_is_gone(node)
        status = finder.of_node(info)
        if status.is_success:
            pod_volumes = finder.unbound.on_node(info)
            state.write(POD_VOLUMES, pod_volumes)
            assume_pod_volumes(pod_volumes, node, snapshot)
        return status

    def unreserve(self, state: CycleState, pod: Pod, node: str) -> None:
        pod_volumes = state.find(POD_VOLUMES)
        if pod_volumes is not None:
            revert_assumed_pod_volumes(pod_volumes, state.read(SNAPSHOT))

    def writes(self, state: CycleState, pod: Pod, node: str) -> tuple[Write, ...]:
        pod_volumes = state.find(POD_VOLUMES)
        return () if pod_volumes is None else bind_pod_volumes(pod_volumes, node)

    def pre_bind(self, state: CycleState, pod: Pod, node: str) -> Status:
        """WAIT until the claims are bound; a rejection if the node was deleted meanwhile."""
        pod_volumes, info = state.find(POD_VOLUMES), node_info(state.read(SNAPSHOT), node)
        if pod_volumes is None:
            return SUCCESS
        return _node_is_gone(node) if info is None else check_bindings(pod_volumes, info)

    def events(self) -> Sequence[EventHint]:
        return EVENTS

    def _finder(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PodVolumeFinder | Status:
        """Made once a cycle; by Filter if the profile lacks this plugin's PreFilter."""
        finder = state.find(FINDER)
        if finder is None:
            finder = pod_volume_finder(pod, snapshot)
            state.write(FINDER, finder)
        return finder


def _node_is_gone(node: str) -> Status:
    return Status.unschedulable(f"binding volumes: node {node!r} not found")


def _after_storage_class_change(_: Pod, old: object, new: object) -> bool:
    """A class is added, changes its allowedTopologies, or was made anew while no watch was open."""
    if not isinstance(old, StorageClass) or not isinstance(new, StorageClass):
        return True
    return _provisioning_of(old) != _provisioning_of(new)


def _provisioning_of(storage_class: StorageClass) -> tuple[object, ...]:
    return storage_class.provisioner, storage_class.volume_binding_mode, storage_class.allowed_topologies or []


def _after_volume_deletion(pod: Pod, old: object, _: object) -> bool:
    """The volume was reserved for one of the pod's claims, which may now take another."""
    return is_reserved_for(pod, old)


def _index() -> ValueIndex:
    return ValueIndex(names_of_claims, lambda old, _: reserved_for(old))


def _after_claim_change(pod: Pod, _: object, new: object) -> bool:
    return uses_claim(pod, new)


def _after_csi_node_change(_: Pod, old: object, new: object) -> bool:
    """The migrated plugins of the node change, and with them the labels that volumes are translated to."""
    before, now = ((each.metadata.annotations or {}) if isinstance(each, CSINode) else {} for each in (old, new))
    return before.get(MIGRATED_PLUGINS, "") != now.get(MIGRATED_PLUGINS, "")


def _after_csi_driver_change(_: Pod, old: object, new: object) -> bool:
    """The driver stops publishing its capacity, which is then not checked. Classes name it, not the pod."""
    published = isinstance(old, CSIDriver) and bool(old.spec.storage_capacity)
    return published and not (isinstance(new, CSIDriver) and new.spec.storage_capacity)


def _after_capacity_change(_: Pod, old: object, new: object) -> bool:
    before, now = (maximum_volume_bytes(each) if isinstance(each, CSIStorageCapacity) else None for each in (old, new))
    return now is not None and (before is None or now > before)


_CHANGED: Final = Action.ADD | Action.UPDATE
EVENTS: Final[Sequence[EventHint]] = (
    EventHint(ClusterEvent(Resource.STORAGE_CLASS, _CHANGED), _after_storage_class_change, nothing),
    EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, _CHANGED), _after_claim_change, index=claim_index),
    EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME, _CHANGED)),
    EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME, Action.DELETE), _after_volume_deletion, index=_index),
    EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)),
    EventHint(ClusterEvent(Resource.CSI_NODE, _CHANGED | Action.DELETE), _after_csi_node_change, nothing),
    EventHint(ClusterEvent(Resource.CSI_DRIVER, Action.UPDATE | Action.DELETE), _after_csi_driver_change, nothing),
    EventHint(ClusterEvent(Resource.CSI_STORAGE_CAPACITY, _CHANGED), _after_capacity_change, nothing),
)


def validate(args: VolumeBindingArgs, path: str) -> list[str]:
    seconds = args.bind_timeout_seconds
    problems = [] if seconds >= 0 else [f"{path}.bindTimeoutSeconds: want 0 or more, got {seconds}"]
    if args.shape is not None:
        problems.append(f"{path}.shape: want none (StorageCapacityScoring is off), got {len(args.shape)} points")
    return problems


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER, Point.RESERVE, Point.PRE_BIND),
    build=with_args(VolumeBinding, VolumeBindingArgs),
    args_type=VolumeBindingArgs,
    validate=validate,
)
