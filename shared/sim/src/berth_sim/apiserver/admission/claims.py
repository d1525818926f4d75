"""Defaults and rules of ResourceClaims, ResourceSlices and DeviceClasses in the simulated API server.

As the real one, it compares no two objects: a device may be in several claims, and in no slice.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from berth.cel.errors import CompileError, UnsupportedError
from berth_sim.apiserver.kinds import (
    DEVICE_CLASSES,
    NAMESPACES,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SimulatedKind,
)
from berth_sim.apiserver.status import JsonObject, invalid
from berth_sim.apiserver.store import Store

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOST_RESERVATIONS: Final = 256
_IMMUTABLE: Final = "Invalid value: field is immutable"
_OF_A_SLICE: Final = (("driver",), ("pool", "name"), ("nodeName",))
_FOR_ADMINISTRATORS: Final = "resource.kubernetes.io/admin-access"


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


def check_requests(store: Store, kind: SimulatedKind, before: JsonObject, after: JsonObject) -> None:
    """Reject selectors that do not compile, and administrators' access to devices where the namespace has no label.

    Raises:
        StatusError: 422.
    """
    name = after["metadata"]["name"]
    added = [
        field for field in _used_by_administrators(kind, after) if field not in _used_by_administrators(kind, before)
    ]
    if added and not _admits_administrators(store, after["metadata"]["namespace"]):
        problem = (
            f"admin access to devices requires the `{_FOR_ADMINISTRATORS}: true` label on the containing namespace"
        )
        raise invalid(kind, name, added[0], f"Forbidden: {problem}", "FieldValueForbidden")
    if before.get("spec") == after.get("spec"):
        return
    for field, expression in _expressions(kind, after.get("spec") or {}):
        problem, cause = _problem_of(expression)
        if problem:
            raise invalid(kind, name, field, problem, cause)


def _used_by_administrators(kind: SimulatedKind, value: JsonObject) -> Iterator[str]:
    spec = value.get("spec") or {}
    if kind is RESOURCE_CLAIM_TEMPLATES:
        spec = spec.get("spec") or {}
    elif kind is not RESOURCE_CLAIMS:
        return
    for i, request in enumerate((spec.get("devices") or {}).get("requests") or ()):
        if (request.get("exactly") or {}).get("adminAccess"):
            yield f"spec.devices.requests[{i}].adminAccess"
    for i, result in enumerate(_results(value)):
        if result.get("adminAccess"):
            yield f"status.allocation.devices.results[{i}].adminAccess"


def _admits_administrators(store: Store, namespace: str) -> bool:
    found = store.table(NAMESPACES).items[("", namespace)]
    return (found.value["metadata"].get("labels") or {}).get(_FOR_ADMINISTRATORS) == "true"


def _expressions(kind: SimulatedKind, spec: JsonObject) -> Iterator[tuple[str, str]]:
    """The selectors of a class, claim or template, each with its field."""
    if kind is DEVICE_CLASSES:
        yield from _selectors("spec", spec)
    if kind is RESOURCE_CLAIM_TEMPLATES:
        yield from _of_requests("spec.spec", spec.get("spec") or {})
    if kind is RESOURCE_CLAIMS:
        yield from _of_requests("spec", spec)


def _of_requests(field: str, spec: JsonObject) -> Iterator[tuple[str, str]]:
    for i, request in enumerate((spec.get("devices") or {}).get("requests") or ()):
        of_request = f"{field}.devices.requests[{i}]"
        yield from _selectors(f"{of_request}.exactly", request.get("exactly") or {})
        for n, each in enumerate(request.get("firstAvailable") or ()):
            yield from _selectors(f"{of_request}.firstAvailable[{n}]", each)


def _selectors(field: str, of: JsonObject) -> Iterator[tuple[str, str]]:
    for i, selector in enumerate(of.get("selectors") or ()):
        if selector.get("cel"):
            yield f"{field}.selectors[{i}].cel.expression", selector["cel"].get("expression") or ""


@lru_cache(maxsize=1024)
def _problem_of(expression: str) -> tuple[str, str]:
    """What is wrong with it and the reason of the cause; empty if it compiles."""
    from berth.cel.selector import compile_selector  # noqa: PLC0415 - 15 ms, and few clusters have devices

    try:
        compile_selector(expression)
    except UnsupportedError:  # the real server takes it
        return "", ""
    except CompileError as error:
        if error.reason.startswith("Too long"):
            return error.reason, "FieldValueTooLong"
        return f"Invalid value: {json.dumps(expression, ensure_ascii=False)}: {error.reason}", "FieldValueInvalid"
    return "", ""


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
    return map(_device, _results(claim))


def _results(claim: JsonObject) -> list[JsonObject]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


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
    for number, result in enumerate(_results(after)):
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
