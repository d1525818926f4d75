"""The arguments of VolumeBinding and what is wrong with them.

Which events may help a pod that VolumeBinding refused.

What VolumeBinding does about claims that wait, once a node is chosen: supposed, written, and waited for until bound.

A volume is kept for its claim, or a claim says for which node its volume is to be made. The cluster's controllers do
the rest; the claim is bound when both sides say so.


VolumeBinding: a pod goes where its claims have, or can get, their volumes. As kube-scheduler's plugin of that name.

A bound claim ties the pod to the nodes from which its volume is reached. One that waits for its first consumer takes a
free volume that the node reaches, or has one made for the node; the pod is bound when that is done. Any other claim
must be bound before a pod is placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.volumes import (
    MIGRATED_PLUGINS,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    StorageClass,
)
from berth.cluster.nodes import NodeInfo, Nodes, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import (
    SNAPSHOT,
    EnqueueExtensions,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    ReservePlugin,
    VectorFilterPlugin,
    Write,
)
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SKIP, SUCCESS, Status, Verdicts
from berth.plugins.factory import Args, PluginFactory
from berth.plugins.noderesources.scoringstrategy import ShapePoint
from berth.plugins.volumes.claims import uses_claim
from berth.plugins.volumes.volumebinding.binder import (
    PodVolumeFinder,
    assume_pod_volumes,
    bind_pod_volumes,
    check_bindings,
    pod_volume_finder,
    revert_assumed_pod_volumes,
)
from berth.plugins.volumes.volumebinding.claimmatcher import PodVolumes, maximum_volume_bytes


class VolumeBindingArgs(Args, frozen=True, kw_only=True):
    """``bindTimeoutSeconds``: how long a pod waits on its node for its claims to be bound, 0 or more.

    Ten minutes, as in kube-scheduler: a disk that is made somewhere else takes its time. ``shape`` is a field of v1
    that means something only under the gate StorageCapacityScoring, which 1.36 has off.
    """

    bind_timeout_seconds: int = 600
    shape: list[ShapePoint] | None = None


def validate(args: VolumeBindingArgs, path: str) -> list[str]:
    """The time must not be negative, and a shape would mean nothing."""
    seconds = args.bind_timeout_seconds
    problems = [] if seconds >= 0 else [f"{path}.bindTimeoutSeconds: want 0 or more, got {seconds}"]
    if args.shape is not None:
        problems.append(f"{path}.shape: want none (StorageCapacityScoring is off), got {len(args.shape)} points")
    return problems


def _after_storage_class_change(_: Pod, old: object, new: object) -> bool:
    """A new class, or one that makes volumes for other nodes."""
    if not isinstance(old, StorageClass) or not isinstance(new, StorageClass):
        return True
    return (old.allowed_topologies or []) != (new.allowed_topologies or [])


def _after_claim_change(pod: Pod, _: object, new: object) -> bool:
    return uses_claim(pod, new)


def _after_csi_node_change(_: Pod, old: object, new: object) -> bool:
    """Volumes are reached by other labels where a driver took them over."""
    if not isinstance(old, CSINode) or not isinstance(new, CSINode):
        return True
    before, now = old.metadata.annotations or {}, new.metadata.annotations or {}
    return before.get(MIGRATED_PLUGINS) != now.get(MIGRATED_PLUGINS)


def _after_csi_driver_change(pod: Pod, old: object, new: object) -> bool:
    """A driver whose volume the pod names stops saying how much room there is: then nobody waits for room."""
    if not isinstance(old, CSIDriver) or not isinstance(new, CSIDriver):
        return True
    named = {volume.csi.driver for volume in pod.spec.volumes or () if volume.csi is not None}
    return new.metadata.name in named and bool(old.spec.storage_capacity) and not new.spec.storage_capacity


def _after_capacity_change(_: Pod, old: object, new: object) -> bool:
    if not isinstance(old, CSIStorageCapacity) or not isinstance(new, CSIStorageCapacity):
        return True
    before, now = maximum_volume_bytes(old), maximum_volume_bytes(new)
    return now is not None and (before is None or now > before)


_CHANGED: Final = Action.ADD | Action.UPDATE


EVENTS: Final[Sequence[EventHint]] = (
    EventHint(ClusterEvent(Resource.STORAGE_CLASS, _CHANGED), _after_storage_class_change),
    EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, _CHANGED), _after_claim_change),
    EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME, _CHANGED)),
    EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)),
    EventHint(ClusterEvent(Resource.CSI_NODE, _CHANGED), _after_csi_node_change),
    EventHint(ClusterEvent(Resource.CSI_DRIVER, Action.UPDATE), _after_csi_driver_change),
    EventHint(ClusterEvent(Resource.CSI_STORAGE_CAPACITY, _CHANGED), _after_capacity_change),
)


NAME: Final = "VolumeBinding"


FINDER: Final = StateKey[PodVolumeFinder | Status]("VolumeBinding.needs")


POD_VOLUMES: Final = StateKey[PodVolumes]("VolumeBinding.plan")


class VolumeBinding(PreFilterPlugin, VectorFilterPlugin, ReservePlugin, PreBindPlugin, EnqueueExtensions):
    """Filters by volumes, and sees to it that a pod has its own."""

    name: ClassVar[str] = NAME
    too_late = "binding volumes: context deadline exceeded"

    def __init__(self, args: VolumeBindingArgs) -> None:
        self.wait_seconds = args.bind_timeout_seconds

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod without claims; a rejection when one of them cannot be had anywhere."""
        if not pod.spec.volumes:
            return PreFilterResult(SKIP)
        needs = self._needs(state, pod, snapshot)
        if isinstance(needs, Status):
            return PreFilterResult(needs)
        return PreFilterResult(SUCCESS if needs.bound or needs.search else SKIP)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Bound claims up to the first that does not fit, then those that wait."""
        needs = self._needs(state, pod, node.snapshot)
        return needs if isinstance(needs, Status) else needs.of_node(node)

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """The same for all nodes."""
        needs = self._needs(state, pod, nodes.snapshot)
        if isinstance(needs, Status):
            return Verdicts.refusing(np.ones(len(nodes), dtype=np.bool_), needs)
        return needs.of_nodes(nodes)

    def reserve(self, state: CycleState, pod: Pod, node: str) -> Status:
        """Choose volumes for the claims that wait, and let nobody else have them."""
        if not pod.spec.volumes:
            return SUCCESS
        snapshot = state.read(SNAPSHOT)
        needs, info = pod_volume_finder(pod, snapshot), node_info(snapshot, node)
        if isinstance(needs, Status):
            return needs
        if needs.search is None or info is None:
            return SUCCESS
        status = needs.of_node(info)
        if status.is_success:
            plan = needs.search.on_node(info)
            state.write(POD_VOLUMES, plan)
            assume_pod_volumes(plan, node, snapshot)
        return status

    def unreserve(self, state: CycleState, pod: Pod, node: str) -> None:
        """Others may have the volumes."""
        plan = state.find(POD_VOLUMES)
        if plan is not None:
            revert_assumed_pod_volumes(plan, state.read(SNAPSHOT))

    def writes(self, state: CycleState, pod: Pod, node: str) -> tuple[Write, ...]:
        """What has claims bound: volumes that are kept for them, and the node for which others are made."""
        plan = state.find(POD_VOLUMES)
        return () if plan is None else bind_pod_volumes(plan, node)

    def pre_bind(self, state: CycleState, pod: Pod, node: str) -> Status:
        """Wait until they are bound."""
        plan, info = state.find(POD_VOLUMES), node_info(state.read(SNAPSHOT), node)
        return SUCCESS if plan is None or info is None else check_bindings(plan, info)

    def events(self) -> Sequence[EventHint]:
        """Classes, the pod's claims, volumes, nodes, drivers and their room: added or changed in what is looked at."""
        return EVENTS

    def _needs(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PodVolumeFinder | Status:
        """Found once a cycle, by Filter where a profile has no PreFilter of this plugin."""
        needs = state.find(FINDER)
        if needs is None:
            needs = pod_volume_finder(pod, snapshot)
            state.write(FINDER, needs)
        return needs


def _build(args: Any) -> VolumeBinding:
    return VolumeBinding(args or VolumeBindingArgs())


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER, Point.RESERVE, Point.PRE_BIND),
    build=_build,
    args_type=VolumeBindingArgs,
    validate=validate,
)
