"""What VolumeBinding does about claims that wait, once a node is chosen: supposed, written, and waited for until bound.

A volume is kept for its claim, or a claim says for which node its volume is to be made. The cluster's controllers do
the rest; the claim is bound when both sides say so.
"""

from __future__ import annotations

from typing import Final

import msgspec

from berth.api.volumes import ClaimReference, PersistentVolume, PersistentVolumeClaim
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.snapshot import Snapshot
from berth.framework.status import SUCCESS, Code, Status
from berth.framework.writes import ClaimName, KeepVolume, SelectNode, Write
from berth.plugins.volumereach import reach_of
from berth.plugins.volumesearch import SELECTED_NODE, Plan

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
