"""Writes of ResourceClaims (resource.k8s.io/v1). The answer of a success holds the claim, but for a deletion.

A claim's opaque parameters are stored as they were sent, and printed in another form: compact, with six characters for
each ``<``, ``>`` and ``&``. If the two differ, the API server takes a JSON patch for a change of them, and refuses it:
"field is immutable" (422). Then the object is read and written as protobuf, with the new fields appended; repeated
occurrences of a message are merged. A patch can always clear an allocation. A PUT sets it, because a patch loses every
null in the parameters.

Every function raises ApiUnreachableError without an answer: the write may be carried out, now or later.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import msgspec

from berth.api.devices import (
    FINALIZER,
    AllocationResult,
    ClaimConsumer,
    DeviceAllocationConfiguration,
    ResourceClaim,
)
from berth.api.pod import CONDITION_FENCE, Pod
from berth.clock import whole_seconds
from berth.kube.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, KubeClient
from berth.kube.gojson import decoded
from berth.kube.http1 import Response
from berth.kube.writes import conflict

PROTOBUF: Final = "application/vnd.kubernetes.protobuf"

# Limit of the API server for the parameters of a configuration, as they are stored.
_MOST_PARAMETER_BYTES: Final = 10 << 10
# What Go escapes as it prints JSON, and every other escape.
_ESCAPES: Final = re.compile(rb"\\(?:u(003c|003e|0026|2028|2029)|.)")

_encode: Final = msgspec.json.Encoder().encode
_decoder: Final = msgspec.json.Decoder(ResourceClaim)


def decode_claim(body: bytes) -> ResourceClaim:
    return decoded(_decoder.decode, body)


def consumer(pod: Pod) -> ClaimConsumer:
    return ClaimConsumer(resource="pods", name=pod.metadata.name, uid=pod.uid)


async def get_claim(client: KubeClient, namespace: str, name: str) -> Response:
    return await client.request("GET", _path(namespace, name))


async def create_claim(client: KubeClient, claim: ResourceClaim) -> Response:
    """Create the claim of a pod's extended resources; 409 if its name is taken."""
    path = _path(claim.metadata.namespace, "").rstrip("/")
    owners = [
        {**msgspec.to_builtins(owner), "blockOwnerDeletion": True} for owner in claim.metadata.owner_references or ()
    ]
    metadata = {
        "name": claim.metadata.name,
        "annotations": claim.metadata.annotations or {},
        "ownerReferences": owners,
    }
    return await client.request("POST", path, body=_encode({"metadata": metadata, "spec": claim.spec}))


async def delete_claim(client: KubeClient, claim: ResourceClaim) -> Response:
    """Take the finalizer off and delete the claim of a pod's extended resources."""
    metadata = {"uid": claim.metadata.uid, "$deleteFromPrimitiveList/finalizers": [FINALIZER]}
    path = _path(claim.metadata.namespace, claim.metadata.name)
    body = _encode({"metadata": metadata})
    response = await client.request("PATCH", path, body=body, content_type=STRATEGIC_MERGE_PATCH)
    if not response.succeeded:
        return response
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": claim.metadata.uid}}
    return await client.request("DELETE", path, body=_encode(options))


async def add_finalizer(client: KubeClient, namespace: str, name: str, uid: str) -> Response:
    """Add the finalizer without which the controller does not free the claim; 409 if another claim has the name.

    Needs no resourceVersion: a late one changes nothing that matters.
    """
    body = _encode({"metadata": {"uid": uid, "finalizers": [FINALIZER]}})
    path = _path(namespace, name)
    response = await client.request("PATCH", path, body=body, content_type=STRATEGIC_MERGE_PATCH)
    if not _is_odd(response):
        return response
    return await _append(client, path, _field(1, _field(14, FINALIZER.encode())), uid=uid)


async def fence_claim(client: KubeClient, namespace: str, name: str) -> Response:
    """Change the claim's resourceVersion, so that every earlier write that names one fails."""
    token = uuid.uuid4().hex[:12]
    path = _path(namespace, name)
    body = _encode({"metadata": {"annotations": {CONDITION_FENCE: token}}})
    response = await client.request("PATCH", path, body=body, content_type=MERGE_PATCH)
    if not _is_odd(response):
        return response
    annotation = _field(1, CONDITION_FENCE.encode()) + _field(2, token.encode())
    return await _append(client, path, _field(1, _field(12, annotation)))


async def allocate(
    client: KubeClient, claim: ResourceClaim, allocation: AllocationResult, pod: Pod, time: datetime
) -> Response:
    """Write the allocation and the pod's reservation; 409 if the claim has changed."""
    timed = msgspec.structs.replace(allocation, allocation_timestamp=whole_seconds(time))
    if timed.devices.config:
        config = [_with_short_parameters(each) for each in timed.devices.config]
        timed = msgspec.structs.replace(timed, devices=msgspec.structs.replace(timed.devices, config=config))
    meant = claim.metadata
    metadata = {
        "name": meant.name,
        "namespace": meant.namespace,
        "uid": meant.uid,
        "resourceVersion": meant.resource_version,
    }
    status = {"allocation": timed, "reservedFor": [consumer(pod)]}
    return await client.request("PUT", _status_path(claim), body=_encode({"metadata": metadata, "status": status}))


def _with_short_parameters(config: DeviceAllocationConfiguration) -> DeviceAllocationConfiguration:
    """The parameters as the API server prints them, so that clients may patch the claim; if too long, unescaped."""
    opaque = config.opaque
    if opaque is None or len(bytes(opaque.parameters)) <= _MOST_PARAMETER_BYTES:
        return config
    short = msgspec.Raw(_ESCAPES.sub(_unescaped, bytes(opaque.parameters)))
    return msgspec.structs.replace(config, opaque=msgspec.structs.replace(opaque, parameters=short))


def _unescaped(escape: re.Match[bytes]) -> bytes:
    return chr(int(escape[1], 16)).encode() if escape[1] else escape[0]


async def clear(client: KubeClient, claim: ResourceClaim) -> Response:
    """Clear allocation and reservations; 409 if the claim has changed."""
    return await _patch_status(client, claim, {"allocation": None, "reservedFor": None, "devices": None})


async def reserve(client: KubeClient, claim: ResourceClaim, pod: Pod) -> Response:
    """Add the pod's reservation to an allocated claim; 409 if the claim has changed."""
    users = [*(claim.status.reserved_for or ()), consumer(pod)]
    response = await _patch_status(client, claim, {"reservedFor": users})
    if not _is_odd(response):
        return response
    user = _field(3, b"pods") + _field(4, pod.metadata.name.encode()) + _field(5, pod.uid.encode())
    return await _append(client, _status_path(claim), _field(3, _field(2, user)), of=claim)


async def unreserve(client: KubeClient, claim: ResourceClaim, uid: str) -> Response:
    """Remove a pod's reservation and keep the allocation; 409 if the claim has changed."""
    users = [each for each in claim.status.reserved_for or () if each.uid != uid]
    response = await _patch_status(client, claim, {"reservedFor": users or None})
    if not _is_odd(response):
        return response
    return await _change(client, _status_path(claim), lambda raw: _without_user(raw, uid.encode()), of=claim)


async def _patch_status(client: KubeClient, claim: ResourceClaim, status: dict[str, Any]) -> Response:
    metadata = {"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version}
    body = _encode({"metadata": metadata, "status": status})
    return await client.request("PATCH", _status_path(claim), body=body, content_type=MERGE_PATCH)


def _is_odd(response: Response) -> bool:
    """Whether a patch was refused that may change no more than it says. A claim of another uid is refused as well."""
    is_immutable = b"field is immutable" in response.body and b"metadata.uid" not in response.body
    return response.status == HTTPStatus.UNPROCESSABLE_ENTITY and is_immutable


def _path(namespace: str, name: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{quote(namespace, safe='')}/resourceclaims/{quote(name, safe='')}"


def _status_path(claim: ResourceClaim) -> str:
    return f"{_path(claim.metadata.namespace, claim.metadata.name)}/status"


# Protobuf: an object is the magic and runtime.Unknown, whose field 2 has the object's own fields.

_MAGIC: Final = b"k8s\0"
_METADATA: Final = 1
_UID: Final = 5  # of the metadata
_VERSION: Final = 6
_STATUS: Final = 3
_USERS: Final = 2  # of the status
_USERS_UID: Final = 5
_FIXED: Final = {1: 8, 5: 4}  # bytes of a value by wire type


async def _append(
    client: KubeClient, path: str, fields: bytes, *, uid: str = "", of: ResourceClaim | None = None
) -> Response:
    return await _change(client, path, lambda raw: raw + fields, uid=uid, of=of)


async def _change(
    client: KubeClient, path: str, change: Callable[[bytes], bytes], *, uid: str = "", of: ResourceClaim | None = None
) -> Response:
    """Read and write the object as protobuf; 409 if it is not the one of this uid, or no more ``of`` this version."""
    response = await client.request("GET", path.removesuffix("/status"), accept=PROTOBUF)
    if not response.succeeded:
        return response
    envelope = response.body.removeprefix(_MAGIC)
    raw = next(value for number, value, _ in _entries(envelope) if number == 2)
    metadata = {
        number: value for part, fields, _ in _entries(raw) if part == _METADATA for number, value, _ in _entries(fields)
    }
    if uid and metadata.get(_UID) != uid.encode():
        return conflict("another resource claim has its name")
    if of is not None and metadata.get(_VERSION) != of.metadata.resource_version.encode():
        return conflict("the resource claim has changed")
    parts = [_field(2, change(raw)) if number == 2 else entry for number, _, entry in _entries(envelope)]
    return await client.request("PUT", path, body=_MAGIC + b"".join(parts), content_type=PROTOBUF)


def _without_user(raw: bytes, uid: bytes) -> bytes:
    def is_users(number: int, value: bytes) -> bool:
        return number == _USERS and any(n == _USERS_UID and each == uid for n, each, _ in _entries(value))

    def without(status: bytes) -> bytes:
        return b"".join(entry for number, value, entry in _entries(status) if not is_users(number, value))

    entries = _entries(raw)
    return b"".join(_field(_STATUS, without(value)) if number == _STATUS else entry for number, value, entry in entries)


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _entries(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The fields of a message: number, value, and the whole entry."""
    at = 0
    while at < len(data):
        begin = at
        key, at = _read_varint(data, at)
        wire = key & 7
        if wire == 0:
            length = _read_varint(data, at)[1] - at
        elif wire == 2:
            length, at = _read_varint(data, at)
        else:
            length = _FIXED[wire]
        yield key >> 3, data[at : at + length], data[begin : at + length]
        at += length


def _read_varint(data: Sequence[int], at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
