"""The three patch formats of the API; each returns a new object that shares the unchanged parts."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from berth_sim.apiserver.schema import types
from berth_sim.apiserver.status import StatusError, bad_request

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON = "application/json-patch+json"

_ORDER = "$setElementOrder/"
_DELETE_FROM = "$deleteFromPrimitiveList/"


def apply(content_type: str, value: Any, patch: Any) -> Any:
    """`value` with a patch of that content type applied.

    Raises:
        StatusError: 400, the patch does not fit the object.
        KeyError: the content type is not one of the three.
    """
    return {MERGE: merge, STRATEGIC: strategic_merge, JSON: json_patch}[content_type](value, patch)


def merge(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386): objects merge, null removes, all else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for member, change in patch.items():
        if change is None:
            merged.pop(member, None)
        else:
            merged[member] = merge(merged.get(member), change)
    return merged


def strategic_merge(value: Any, patch: Any) -> Any:
    """Apply a patch like a merge patch, but merge the lists that the schema names by their key."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {member: change for member, change in patch.items() if member != "$patch"}
    merged = dict(value) if isinstance(value, dict) else {}
    for member, change in patch.items():
        _strategic_member(merged, member, change)
    for member, order in patch.items():
        if member.startswith(_ORDER):
            _reorder(merged, member.removeprefix(_ORDER), order)
    return merged


def _strategic_member(merged: dict[str, Any], member: str, change: Any) -> None:
    if member.startswith(_DELETE_FROM):
        kept = merged.get(member.removeprefix(_DELETE_FROM)) or []
        merged[member.removeprefix(_DELETE_FROM)] = [item for item in kept if item not in change]
    elif member.startswith("$"):
        return
    elif change is None or (isinstance(change, dict) and change.get("$patch") == "delete"):
        merged.pop(member, None)
    elif isinstance(change, list):
        merged[member] = _merge_lists(member, merged.get(member) or [], change)
    else:
        merged[member] = strategic_merge(merged.get(member), change)


@cache
def _merged_lists() -> Mapping[str, tuple[str, ...]]:
    """The lists that a strategic merge patch merges, by name, with their possible keys; it replaces all others."""
    found: dict[str, tuple[str, ...]] = {}
    for described in types().values():
        for name, field in described.properties.items():
            if field.is_list and str(field.merging.get("patch-strategy", "")).startswith("merge"):
                key = field.merging.get("patch-merge-key")
                found[name] = tuple(dict.fromkeys((*found.get(name, ()), *([key] if key else ()))))
    return found


def _merge_lists(member: str, items: list[Any], changes: list[Any]) -> list[Any]:
    if member in _merged_lists() and not _merged_lists()[member]:  # of strings: finalizers
        return [*items, *(item for item in changes if item not in items)]
    key = _merge_key(member, changes)
    if key is None or {"$patch": "replace"} in changes:
        return [item for item in changes if item != {"$patch": "replace"}]
    return _merge_by_key(key, items, changes)


def _merge_key(member: str, changes: Sequence[Any]) -> str | None:
    candidates = _merged_lists().get(member, ())
    return next((key for key in candidates if all(isinstance(c, dict) and key in c for c in changes)), None)


def _merge_by_key(key: str, items: list[Any], changes: list[Any]) -> list[Any]:
    """As in kube-apiserver, new elements come first and changed ones keep their positions."""
    by_key = {change[key]: change for change in changes}
    known = {item.get(key) for item in items}
    added = [strategic_merge({}, change) for change in changes if change[key] not in known and "$patch" not in change]
    kept = [item for item in items if by_key.get(item.get(key), {}).get("$patch") != "delete"]
    return added + [strategic_merge(item, by_key[item[key]]) if item.get(key) in by_key else item for item in kept]


def _reorder(merged: dict[str, Any], member: str, order: list[Any]) -> None:
    items = merged.get(member)
    key = _merge_key(member, order)
    if isinstance(items, list) and key is not None:
        places = {entry[key]: place for place, entry in enumerate(order)}
        merged[member] = sorted(items, key=lambda item: places.get(item.get(key), len(places)))


def json_patch(value: Any, operations: Any) -> Any:
    """Apply the operations of a JSON patch (RFC 6902) in order."""
    if not isinstance(operations, list) or not all(isinstance(operation, dict) for operation in operations):
        raise bad_request("error decoding patch: want a list of objects with op, path and value")
    for operation in operations:
        try:
            value = _operated(value, operation)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as exc:
            shown = f"{operation.get('op')} operation at {operation.get('path')!r}"
            why = str(exc) if isinstance(exc, ValueError) else "the object has no such place, or the operation no value"
            raise StatusError(
                422, "Invalid", f"the server rejected our request: {shown} does not apply: {why}"
            ) from exc
    return value


def _operated(value: Any, operation: dict[str, Any]) -> Any:
    op, path = operation["op"], _parts(operation["path"])
    if op in ("copy", "move"):
        source = _parts(operation["from"])
        found = value
        for part in source:
            found = found[int(part) if isinstance(found, list) else part]
        if op == "move":
            value = _at(value, source, {"op": "remove"})
        operation = {**operation, "op": "add", "value": found}
    return _at(value, path, operation)


def _parts(path: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _at(value: Any, path: list[str], operation: dict[str, Any]) -> Any:
    if not path:
        return operation["value"]
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    place: Any = path[0]
    if isinstance(copy, list):
        place = len(copy) if path[0] == "-" else int(path[0])
    if len(path) > 1:
        copy[place] = _at(copy[place], path[1:], operation)
    else:
        _operate(copy, place, operation)
    return copy


def _operate(container: Any, place: Any, operation: dict[str, Any]) -> None:
    match operation["op"]:
        case "add" if isinstance(container, list):
            if place > len(container):
                raise IndexError(place)
            container.insert(place, operation["value"])
        case "add":
            container[place] = operation["value"]
        case "replace":
            container[place]
            container[place] = operation["value"]
        case "remove":
            del container[place]
        case "test":
            if container[place] != operation["value"]:
                raise ValueError("the object has another value")
        case other:
            raise ValueError(f"there is no operation {other!r}")
