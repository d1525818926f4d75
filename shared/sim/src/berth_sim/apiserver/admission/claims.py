"""Defaults and rules of ResourceClaims and ResourceSlices in the simulated API server.

As the real one, it compares no two objects: a device may be in several claims, and in no slice.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from berth_sim.apiserver.kinds import RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES, SimulatedKind
from berth_sim.apiserver.status import JsonObject, invalid

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOST_RESERVATIONS: Final = 256
_IMMUTABLE: Final = "Invalid value: field is immutable"
_OF_A_SLICE: Final = (("driver",), ("pool", "name"), ("nodeName",))


def with_defaults(kind: SimulatedKind, value: JsonObject) -> JsonObject:
    """A new claim or template with its defaults; a new claim has no status."""
    if kind is RESOURCE_CLAIMS:
        return {**value, "spec": _complete(value.get("spec") or {}), "status": {}}
    if kind is RESOURCE_CLAIM_TEMPLATES:
        spec = value.get("spec") or {}
        return {**value, "spec": {**spec, "spec": _complete(spec.get("spec") or {})}}
    return value


def _complete(spec: JsonObject) -> JsonObject:
    devices = spec.get("devices") or {}
    requests = devices.get("requests")
    if not requests:
        return spec
    return {**spec, "devices": {**devices, "requests": [_request(each) for each in requests]}}


def _request(request: JsonObject) -> JsonObject:
    completed = {**request}
    if request.get("exactly"):
        completed["exactly"] = _counted(request["exactly"])
    if request.get("firstAvailable"):
        completed["firstAvailable"] = [_counted(each) for each in request["firstAvailable"]]
    return completed


def _counted(request: JsonObject) -> JsonObject:
    mode = request.get("allocationMode") or "ExactCount"
    count = {"count": request.get("count") or 1} if mode == "ExactCount" else {}
    return {**request, "allocationMode": mode, **count}


def without_old_reports(kind: SimulatedKind, before: JsonObject, after: JsonObject) -> JsonObject:
    """A claim without what drivers have reported about devices that it had before."""
    if kind is not RESOURCE_CLAIMS or not (after.get("status") or {}).get("devices"):
        return after
    gone = {*_devices(before)} - {*_devices(after)}
    if not gone:
        return after
    left = [each for each in after["status"]["devices"] if _device(each) not in gone]
    status = {name: value for name, value in after["status"].items() if name != "devices"}
    return {**after, "status": {**status, "devices": left} if left else status}


def _devices(claim: JsonObject) -> Iterator[tuple[Any, ...]]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return map(_device, (allocation.get("devices") or {}).get("results") or ())


def _device(named: JsonObject) -> tuple[Any, ...]:
    return tuple(named.get(part) for part in ("driver", "pool", "device", "shareID"))


def check_update(kind: SimulatedKind, before: JsonObject, after: JsonObject) -> None:
    """Reject a change of an immutable field, and a status of a claim that contradicts itself.

    Raises:
        StatusError: 422.
    """
    if kind is RESOURCE_SLICES:
        for path in _OF_A_SLICE:
            if _at(before["spec"], path) != _at(after["spec"], path):
                raise invalid(kind, after["metadata"]["name"], ".".join(("spec", *path)), _IMMUTABLE)
    elif kind is RESOURCE_CLAIMS:
        if before["spec"] != after["spec"]:
            raise invalid(kind, after["metadata"]["name"], "spec", _IMMUTABLE)
        for field, problem in _problems(before, after):
            raise invalid(kind, after["metadata"]["name"], f"status.{field}", problem)


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for member in path:
        value = (value or {}).get(member)
    return value


def _problems(before: JsonObject, after: JsonObject) -> Iterator[tuple[str, str]]:
    old, new = before.get("status") or {}, after.get("status") or {}
    allocation, reserved = new.get("allocation"), new.get("reservedFor") or []
    if old.get("allocation") and allocation and allocation != old["allocation"]:
        yield "allocation", _IMMUTABLE
    names = set(_names_of_requests(after["spec"]))
    for number, result in enumerate(((allocation or {}).get("devices") or {}).get("results") or ()):
        if result.get("request") not in names:
            field = f"allocation.devices.results[{number}].request"
            yield field, f'Invalid value: "{result.get("request")}": must be the name of a request in the claim'
        share = result.get("shareID")
        if share is not None and not _UUID.fullmatch(share):
            yield f"allocation.devices.results[{number}].shareID", f'Invalid value: "{share}": must be a lowercase UUID'
    if reserved and not allocation:
        yield "reservedFor", "Forbidden: may not be specified when `allocated` is not set"
    if len(reserved) > _MOST_RESERVATIONS:
        yield "reservedFor", f"Too many: {len(reserved)}: must have at most {_MOST_RESERVATIONS} items"
    uids = [each.get("uid") for each in reserved]
    if len(set(uids)) < len(uids):
        yield "reservedFor", "Duplicate value"
    added = set(uids) - {each.get("uid") for each in old.get("reservedFor") or ()}
    if added and "deletionTimestamp" in after["metadata"]:
        yield "reservedFor", "Forbidden: new entries may not be added while `deletionTimestamp` is set"


def _names_of_requests(spec: JsonObject) -> Iterator[str]:
    for request in (spec.get("devices") or {}).get("requests") or ():
        yield request["name"]
        for each in request.get("firstAvailable") or ():
            yield f"{request['name']}/{each['name']}"
