"""The volumes of one pod, as in kube-scheduler's volume binder: find, assume, bind, check.

PodVolumeFinder checks bound and unbound claims against nodes. Once a node is chosen, its volumes are assumed in the
Snapshot, the binder writes the result of ``bind_pod_volumes``, and the cluster's controllers bind the claims: a volume
gets a claimRef, or a claim gets the node for which its volume is provisioned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.api.volumes import (
    ClaimReference,
    PersistentVolume,
    PersistentVolumeClaim,
)
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import (
    ClaimName,
    KeepVolume,
    SelectNode,
    Write,
)
from berth.framework.status import SUCCESS, Code, Status, Verdicts
from berth.plugins.volumes.claims import pod_volume_claims
from berth.plugins.volumes.volumebinding.claimmatcher import (
    SELECTED_NODE,
    ClaimMatcher,
    PodVolumeBindings,
)
from berth.plugins.volumes.volumebinding.topology import (
    VolumeTopology,
    translated_node_affinity_of,
)

NODE_CONFLICT: Final = "node(s) didn't match PersistentVolume's node affinity"
BIND_CONFLICT: Final = "node(s) didn't find available persistent volumes to bind"
NOT_ENOUGH_SPACE: Final = "node(s) did not have enough free storage"
PV_NOT_EXIST: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
UNBOUND_IMMEDIATE: Final = Status.unresolvable("pod has unbound immediate PersistentVolumeClaims")
NOT_BOUND_YET: Final = Status(Code.WAIT, ("its claims are not bound yet",))
# In the order of messages; a node's reasons are bits, the first is 1.
_REASONS: Final = (NODE_CONFLICT, BIND_CONFLICT, NOT_ENOUGH_SPACE, PV_NOT_EXIST)
_BIT_NODE_CONFLICT: Final = 1
_BIT_PV_NOT_EXIST: Final = 8
_BIT_UNTRANSLATABLE: Final = 16
_BITS_OF_PROBLEM: Final = (0, 2, 4)  # by ``PodVolumeBindings.problem``
Bits = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PodVolumeFinder:
    """Checks the claims of one pod against nodes.

    ``bound``: the topology of each bound claim's volume, None for a missing volume. ``unbound``: finds volumes for the
    claims that wait for their first consumer, None without such claims.
    """

    bound: tuple[VolumeTopology | None, ...]
    unbound: ClaimMatcher | None

    def of_node(self, node: NodeInfo) -> Status:
        """The bound claims up to the first that does not fit, then the unbound claims."""
        bits = next(filter(None, (_bit_of(topology, node) for topology in self.bound)), 0)
        if self.unbound is not None:
            bits |= _BITS_OF_PROBLEM[self.unbound.on_node(node).problem]
        return self._status(bits)

    def of_nodes(self, nodes: Nodes) -> Verdicts:
        bits: Bits = np.zeros(len(nodes), dtype=np.int64)
        for topology in self.bound:
            bits = np.where(bits == 0, _bits_of(topology, nodes), bits)
        if self.unbound is not None:
            bits |= np.array(_BITS_OF_PROBLEM)[self.unbound.problems(nodes)]
        return Verdicts.of_bits(bits, len(_REASONS) + 1, self._status)

    def _status(self, bits: int) -> Status:
        """The status for the bits of a node; a volume that cannot be translated is an error."""
        if bits & _BIT_UNTRANSLATABLE:
            errors = (topology.translation_error for topology in self.bound if topology is not None)
            return Status.error(f"could not translate pv: {next(filter(None, errors))}")
        reasons = [reason for bit, reason in enumerate(_REASONS) if bits >> bit & 1]
        return Status.unresolvable(*reasons) if reasons else SUCCESS


def pod_volume_finder(pod: Pod, snapshot: Snapshot) -> PodVolumeFinder | Status:
    """The finder for a pod's claims; a Status if no node can satisfy one of them."""
    claims = pod_volume_claims(pod, snapshot)
    if isinstance(claims, Status):
        return claims
    if claims.immediate:
        return UNBOUND_IMMEDIATE
    volumes = [snapshot.objects(PersistentVolume).named(claim.spec.volume_name) for claim in claims.bound]
    bound = tuple(None if volume is None else translated_node_affinity_of(volume) for volume in volumes)
    return PodVolumeFinder(bound, ClaimMatcher(claims.delayed, snapshot) if claims.delayed else None)


def _bit_of(topology: VolumeTopology | None, node: NodeInfo) -> int:
    if topology is None:
        return _BIT_PV_NOT_EXIST
    if topology.is_untranslatable(node):
        return _BIT_UNTRANSLATABLE
    return 0 if topology.includes(node) else _BIT_NODE_CONFLICT


def _bits_of(topology: VolumeTopology | None, nodes: Nodes) -> Bits:
    if topology is None:
        return np.full(len(nodes), _BIT_PV_NOT_EXIST, dtype=np.int64)
    return np.where(
        topology.untranslatable_mask(nodes), _BIT_UNTRANSLATABLE, np.where(topology.mask(nodes), 0, _BIT_NODE_CONFLICT)
    )


def assume_pod_volumes(pod_volumes: PodVolumeBindings, node: str, snapshot: Snapshot) -> None:
    """Assume volumes and claims in the Snapshot, so that no other pod gets them."""
    volumes, claims = snapshot.objects(PersistentVolume), snapshot.objects(PersistentVolumeClaim)
    for claim, volume in pod_volumes.static_bindings:
        volumes.assume(volume.metadata.name, _with_claim_ref(volume, claim))
    for claim in pod_volumes.dynamic_provisions:
        claims.assume(claim.metadata.uid, _with_selected_node(claim, node))


def revert_assumed_pod_volumes(pod_volumes: PodVolumeBindings, snapshot: Snapshot) -> None:
    """Revert the Snapshot. Writes that were made stay: the controllers go on, as with kube-scheduler."""
    for _, volume in pod_volumes.static_bindings:
        snapshot.objects(PersistentVolume).restore(volume.metadata.name)
    for claim in pod_volumes.dynamic_provisions:
        snapshot.objects(PersistentVolumeClaim).restore(claim.metadata.uid)


def bind_pod_volumes(pod_volumes: PodVolumeBindings, node: str) -> tuple[Write, ...]:
    static = (
        KeepVolume(volume=volume.metadata.name, claim=_claim_name(claim))
        for claim, volume in pod_volumes.static_bindings
    )
    dynamic = (SelectNode(claim=_claim_name(claim), node=node) for claim in pod_volumes.dynamic_provisions)
    return (*static, *dynamic)


def check_bindings(pod_volumes: PodVolumeBindings, node: NodeInfo) -> Status:
    """Success if all claims are bound, WAIT, or a rejection that requeues the pod."""
    answers = [_check_static(claim, volume, node) for claim, volume in pod_volumes.static_bindings]
    answers += [_check_dynamic(claim, node) for claim in pod_volumes.dynamic_provisions]
    rejection = next((answer for answer in answers if answer.is_rejection), None)
    if rejection is not None:
        return rejection
    return SUCCESS if all(answer.is_success for answer in answers) else NOT_BOUND_YET


def _check_static(claim: PersistentVolumeClaim, volume: PersistentVolume, node: NodeInfo) -> Status:
    name = volume.metadata.name
    found = node.snapshot.objects(PersistentVolume).api_object(name)
    if found is None:
        return _rejected(f'failed to check binding: persistentvolume "{name}" not found')
    if not translated_node_affinity_of(found).includes(node):
        return _affinity_mismatch(name, node)
    if found.spec.claim_ref is None or not found.spec.claim_ref.uid:
        return _rejected(f'ClaimRef got reset for pv "{name}"')
    return _check_claim(claim, node)


def _check_dynamic(claim: PersistentVolumeClaim, node: NodeInfo) -> Status:
    found = node.snapshot.objects(PersistentVolumeClaim).api_object(claim.metadata.uid)
    if found is None:
        return _claim_not_found(claim)
    if (found.metadata.annotations or {}).get(SELECTED_NODE) != node.name:
        return _rejected(f'provisioning failed for PVC "{claim.metadata.name}"')
    if not found.spec.volume_name:
        return NOT_BOUND_YET
    volume = node.snapshot.objects(PersistentVolume).api_object(found.spec.volume_name)
    if volume is None:
        return NOT_BOUND_YET
    return (
        _check_claim(claim, node)
        if translated_node_affinity_of(volume).includes(node)
        else _affinity_mismatch(volume.metadata.name, node)
    )


def _check_claim(claim: PersistentVolumeClaim, node: NodeInfo) -> Status:
    found = node.snapshot.objects(PersistentVolumeClaim).api_object(claim.metadata.uid)
    if found is None:
        return _claim_not_found(claim)
    return SUCCESS if found.is_fully_bound else NOT_BOUND_YET


def _rejected(reason: str) -> Status:
    return Status.unschedulable(f"binding volumes: {reason}")


def _claim_not_found(claim: PersistentVolumeClaim) -> Status:
    return _rejected(f'failed to check binding: persistentvolumeclaim "{claim.metadata.name}" not found')


def _affinity_mismatch(volume: str, node: NodeInfo) -> Status:
    reason = f'pv "{volume}" node affinity doesn\'t match node "{node.name}": no matching NodeSelectorTerms'
    return _rejected(reason)


def _claim_name(claim: PersistentVolumeClaim) -> ClaimName:
    return ClaimName(namespace=claim.metadata.namespace, name=claim.metadata.name, uid=claim.metadata.uid)


def _with_claim_ref(volume: PersistentVolume, claim: PersistentVolumeClaim) -> PersistentVolume:
    meta = claim.metadata
    reference = ClaimReference(namespace=meta.namespace, name=meta.name, uid=meta.uid)
    return msgspec.structs.replace(volume, spec=msgspec.structs.replace(volume.spec, claim_ref=reference))


def _with_selected_node(claim: PersistentVolumeClaim, node: str) -> PersistentVolumeClaim:
    annotations = {**(claim.metadata.annotations or {}), SELECTED_NODE: node}
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, annotations=annotations))
