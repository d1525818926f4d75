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

import msgspec
import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.volumes import (
    MIGRATED_PLUGINS,
    ClaimReference,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import (
    SNAPSHOT,
    ClaimName,
    EnqueueExtensions,
    KeepVolume,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    ReservePlugin,
    SelectNode,
    VectorFilterPlugin,
    Write,
)
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SKIP, SUCCESS, Code, Status, Verdicts
from berth.plugins.factory import Args, PluginFactory
from berth.plugins.noderesources.scoringstrategy import ShapePoint
from berth.plugins.volumes.claims import uses_claim
from berth.plugins.volumes.volumebinding.search import SELECTED_NODE, Plan, VolumeNeeds, limit_of, needs_of
from berth.plugins.volumes.volumebinding.topology import reach_of


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


def _class_allows_others(_: Pod, old: object, new: object) -> bool:
    """A new class, or one that makes volumes for other nodes."""
    if not isinstance(old, StorageClass) or not isinstance(new, StorageClass):
        return True
    return (old.allowed_topologies or []) != (new.allowed_topologies or [])


def _is_its_claim(pod: Pod, _: object, new: object) -> bool:
    return uses_claim(pod, new)


def _drivers_took_over(_: Pod, old: object, new: object) -> bool:
    """Volumes are reached by other labels where a driver took them over."""
    if not isinstance(old, CSINode) or not isinstance(new, CSINode):
        return True
    before, now = old.metadata.annotations or {}, new.metadata.annotations or {}
    return before.get(MIGRATED_PLUGINS) != now.get(MIGRATED_PLUGINS)


def _reports_no_more(pod: Pod, old: object, new: object) -> bool:
    """A driver whose volume the pod names stops saying how much room there is: then nobody waits for room."""
    if not isinstance(old, CSIDriver) or not isinstance(new, CSIDriver):
        return True
    named = {volume.csi.driver for volume in pod.spec.volumes or () if volume.csi is not None}
    return new.metadata.name in named and bool(old.spec.storage_capacity) and not new.spec.storage_capacity


def _has_more_room(_: Pod, old: object, new: object) -> bool:
    if not isinstance(old, CSIStorageCapacity) or not isinstance(new, CSIStorageCapacity):
        return True
    before, now = limit_of(old), limit_of(new)
    return now is not None and (before is None or now > before)


_CHANGED: Final = Action.ADD | Action.UPDATE

EVENTS: Final[Sequence[EventHint]] = (
    EventHint(ClusterEvent(Resource.STORAGE_CLASS, _CHANGED), _class_allows_others),
    EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, _CHANGED), _is_its_claim),
    EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME, _CHANGED)),
    EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL)),
    EventHint(ClusterEvent(Resource.CSI_NODE, _CHANGED), _drivers_took_over),
    EventHint(ClusterEvent(Resource.CSI_DRIVER, Action.UPDATE), _reports_no_more),
    EventHint(ClusterEvent(Resource.CSI_STORAGE_CAPACITY, _CHANGED), _has_more_room),
)


WAITS: Final = Status(Code.WAIT, ("its claims are not bound yet",))


def suppose(plan: Plan, node: str, snapshot: Snapshot) -> None:
    """Show volumes and claims as they will be, so that nobody else is given them."""
    volumes, claims = snapshot.objects(PersistentVolume), snapshot.objects(PersistentVolumeClaim)
    for claim, volume in plan.taken:
        volumes.suppose(volume.metadata.name, _kept(volume, claim))
    for claim in plan.made:
        claims.suppose(claim.metadata.uid, _for_node(claim, node))


def give_up(plan: Plan, snapshot: Snapshot) -> None:
    """Show them as they are. What was written stands: who took notice of it goes on, as with kube-scheduler."""
    for _, volume in plan.taken:
        snapshot.objects(PersistentVolume).show_real(volume.metadata.name)
    for claim in plan.made:
        snapshot.objects(PersistentVolumeClaim).show_real(claim.metadata.uid)


def writes_of(plan: Plan, node: str) -> tuple[Write, ...]:
    """What is to be written, volumes first."""
    kept = (KeepVolume(volume=volume.metadata.name, claim=_name(claim)) for claim, volume in plan.taken)
    made = (SelectNode(claim=_name(claim), node=node) for claim in plan.made)
    return (*kept, *made)


def progress(plan: Plan, node: NodeInfo) -> Status:
    """Success when all claims are bound, WAIT, or why they will not be: then the pod is to be tried anew."""
    answers = [_of_taken(claim, volume, node) for claim, volume in plan.taken]
    answers += [_of_made(claim, node) for claim in plan.made]
    rejection = next((answer for answer in answers if answer.is_rejection), None)
    if rejection is not None:
        return rejection
    return SUCCESS if all(answer.is_success for answer in answers) else WAITS


def _of_taken(claim: PersistentVolumeClaim, volume: PersistentVolume, node: NodeInfo) -> Status:
    name = volume.metadata.name
    found = node.snapshot.objects(PersistentVolume).real(name)
    if found is None:
        return _rejected(f'failed to check binding: persistentvolume "{name}" not found')
    if not reach_of(found).includes(node):
        return _out_of_reach(name, node)
    if found.spec.claim_ref is None or not found.spec.claim_ref.uid:
        return _rejected(f'ClaimRef got reset for pv "{name}"')
    return _of_claim(claim, node)


def _of_made(claim: PersistentVolumeClaim, node: NodeInfo) -> Status:
    found = node.snapshot.objects(PersistentVolumeClaim).real(claim.metadata.uid)
    if found is None:
        return _gone(claim)
    if (found.metadata.annotations or {}).get(SELECTED_NODE) != node.name:
        return _rejected(f'provisioning failed for PVC "{claim.metadata.name}"')
    if not found.spec.volume_name:
        return WAITS
    volume = node.snapshot.objects(PersistentVolume).real(found.spec.volume_name)
    if volume is None:
        return WAITS
    return _of_claim(claim, node) if reach_of(volume).includes(node) else _out_of_reach(volume.metadata.name, node)


def _of_claim(claim: PersistentVolumeClaim, node: NodeInfo) -> Status:
    found = node.snapshot.objects(PersistentVolumeClaim).real(claim.metadata.uid)
    if found is None:
        return _gone(claim)
    return SUCCESS if found.is_fully_bound else WAITS


def _rejected(reason: str) -> Status:
    return Status.unschedulable(f"binding volumes: {reason}")


def _gone(claim: PersistentVolumeClaim) -> Status:
    return _rejected(f'failed to check binding: persistentvolumeclaim "{claim.metadata.name}" not found')


def _out_of_reach(volume: str, node: NodeInfo) -> Status:
    reason = f'pv "{volume}" node affinity doesn\'t match node "{node.name}": no matching NodeSelectorTerms'
    return _rejected(reason)


def _name(claim: PersistentVolumeClaim) -> ClaimName:
    return ClaimName(namespace=claim.metadata.namespace, name=claim.metadata.name, uid=claim.metadata.uid)


def _kept(volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
    meta = claim.metadata
    promise = ClaimReference(namespace=meta.namespace, name=meta.name, uid=meta.uid)
    return msgspec.structs.replace(volume, spec=msgspec.structs.replace(volume.spec, claim_ref=promise))


def _for_node(claim: PersistentVolumeClaim, node: str) -> PersistentVolumeClaim:
    annotations = {**(claim.metadata.annotations or {}), SELECTED_NODE: node}
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, annotations=annotations))


NAME: Final = "VolumeBinding"

NEEDS: Final = StateKey[VolumeNeeds | Status]("VolumeBinding.needs")

PLAN: Final = StateKey[Plan]("VolumeBinding.plan")


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
        needs, info = needs_of(pod, snapshot), snapshot.node_info(node)
        if isinstance(needs, Status):
            return needs
        if needs.search is None or info is None:
            return SUCCESS
        status = needs.of_node(info)
        if status.is_success:
            plan = needs.search.on_node(info)
            state.write(PLAN, plan)
            suppose(plan, node, snapshot)
        return status

    def unreserve(self, state: CycleState, pod: Pod, node: str) -> None:
        """Others may have the volumes."""
        plan = state.find(PLAN)
        if plan is not None:
            give_up(plan, state.read(SNAPSHOT))

    def writes(self, state: CycleState, pod: Pod, node: str) -> tuple[Write, ...]:
        """What has claims bound: volumes that are kept for them, and the node for which others are made."""
        plan = state.find(PLAN)
        return () if plan is None else writes_of(plan, node)

    def pre_bind(self, state: CycleState, pod: Pod, node: str) -> Status:
        """Wait until they are bound."""
        plan, info = state.find(PLAN), state.read(SNAPSHOT).node_info(node)
        return SUCCESS if plan is None or info is None else progress(plan, info)

    def events(self) -> Sequence[EventHint]:
        """Classes, the pod's claims, volumes, nodes, drivers and their room: added or changed in what is looked at."""
        return EVENTS

    def _needs(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> VolumeNeeds | Status:
        """Found once a cycle, by Filter where a profile has no PreFilter of this plugin."""
        needs = state.find(NEEDS)
        if needs is None:
            needs = needs_of(pod, snapshot)
            state.write(NEEDS, needs)
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
