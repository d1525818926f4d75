"""Writes to volumes: reserve a PersistentVolume for a claim, or name the node for which one is to be provisioned.

Each object is read and patched with the resourceVersion that was read, so that nothing of others is overwritten. Each
write may be repeated. Rights: ``get`` and ``patch`` on persistentvolumes and persistentvolumeclaims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from berth.api.volumes import PersistentVolume, PersistentVolumeClaim
from berth.framework.interface import ClaimName, KeepVolume, SelectNode
from berth.kube.client import MERGE_PATCH, KubeClient
from berth.kube.errors import Response

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
"""Says that no person has chosen this claim for the volume: it is let go when the claim goes."""
TRIES: Final = 3
"""How often an object is read again that somebody has written between reading and writing."""

_encoder = msgspec.json.Encoder()
_volumes = msgspec.json.Decoder(PersistentVolume)
_claims = msgspec.json.Decoder(PersistentVolumeClaim)
Patch = Mapping[str, Any]


async def keep_volume(client: KubeClient, write: KeepVolume) -> Response:
    """Keep the volume for the claim. 409 when it is somebody else's. A success holds the volume as it is then.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    path = f"/api/v1/persistentvolumes/{write.volume}"
    return await _write(client, path, lambda body: _promise(_volumes.decode(body), write.claim))


async def select_node(client: KubeClient, write: SelectNode) -> Response:
    """Have a volume made for the claim. 409 when another node is selected, or another claim has its name.

    Raises:
        ApiUnreachableError: no answer; it may have been written.
    """
    path = f"/api/v1/namespaces/{write.claim.namespace}/persistentvolumeclaims/{write.claim.name}"
    return await _write(client, path, lambda body: _selection(_claims.decode(body), write))


async def _write(client: KubeClient, path: str, patch_of: Callable[[bytes], Patch | str]) -> Response:
    """``patch_of`` says what is to be patched, nothing when it is as it should be, or why it cannot be."""
    response = await client.request("GET", path)
    for _ in range(TRIES):
        if not response.succeeded:
            return response
        patch = patch_of(response.body)
        if isinstance(patch, str):
            return _conflict(patch)
        if not patch:
            return response
        written = await client.request("PATCH", path, body=_encoder.encode(patch), content_type=MERGE_PATCH)
        if written.status != HTTPStatus.CONFLICT:
            return written
        response = await client.request("GET", path)
    return written


def _promise(volume: PersistentVolume, claim: ClaimName) -> Patch | str:
    """A volume that somebody has kept for the claim's name stays that person's choice."""
    promise, name = volume.spec.claim_ref, (claim.namespace, claim.name)
    if promise is not None and ((promise.namespace, promise.name) != name or promise.uid not in ("", claim.uid)):
        return f"persistentvolume {volume.metadata.name!r} is kept for claim {f'{promise.namespace}/{promise.name}'!r}"
    if promise is not None and promise.uid:
        return {}
    by_us = {"annotations": {BOUND_BY_CONTROLLER: "yes"}} if promise is None else {}
    reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "uid": claim.uid}
    reference |= {"namespace": claim.namespace, "name": claim.name}
    metadata = {"resourceVersion": volume.metadata.resource_version, **by_us}
    return {"metadata": metadata, "spec": {"claimRef": reference}}


def _selection(claim: PersistentVolumeClaim, write: SelectNode) -> Patch | str:
    meta, selected = claim.metadata, (claim.metadata.annotations or {}).get(SELECTED_NODE)
    if meta.uid != write.claim.uid:
        return f"persistentvolumeclaim {f'{meta.namespace}/{meta.name}'!r} is another than the one that was looked at"
    if selected == write.node:
        return {}
    if selected is not None:
        return f"a volume is being made for claim {f'{meta.namespace}/{meta.name}'!r} on node {selected!r}"
    annotations = {SELECTED_NODE: write.node}
    return {"metadata": {"resourceVersion": meta.resource_version, "annotations": annotations}}


def _conflict(message: str) -> Response:
    body = _encoder.encode({"kind": "Status", "reason": "Conflict", "message": message})
    return Response(status=HTTPStatus.CONFLICT, body=body)
