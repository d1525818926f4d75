"""Server-side apply: each applier owns the fields of its configuration; a field that it drops goes.

Owners are kept in `metadata.managedFields`, in the API's form (FieldsV1). Unlike in a real API server, only appliers
own fields: other writes take a field without a conflict.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from berth_sim.apiserver.kinds import SimulatedKind
from berth_sim.apiserver.schema import Field, fields_of, type_of
from berth_sim.apiserver.status import JsonObject, StatusError

CONTENT_TYPE: Final = "application/apply-patch+yaml"
Owned = dict[str, Any]  # FieldsV1: `f:NAME`, `k:{KEYS}` and `v:VALUE` to what is owned below; `.` is the item itself
_NAMING: Final = frozenset({"name", "namespace"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Applier:
    """Who applies, whether it takes fields from other owners, and the time of the request."""

    name: str
    is_forced: bool
    now: str


def applied(kind: SimulatedKind, live: JsonObject | None, config: JsonObject, applier: Applier) -> JsonObject:
    """The object after `applier` has applied its configuration.

    Raises:
        StatusError: 409, another applier owns a field and has another value for it.
    """
    whole = Field(type_of(kind.group, kind.name))
    config = {member: value for member, value in config.items() if member not in ("apiVersion", "kind", "status")}
    config["metadata"] = {k: v for k, v in (config.get("metadata") or {}).items() if k != "managedFields"}
    wanted = _owned(whole, {**config, "metadata": {k: v for k, v in config["metadata"].items() if k not in _NAMING}})
    kept = ((live or {}).get("metadata") or {}).get("managedFields")
    entries = [each for each in kept if {"manager", "fieldsV1"} <= set(each)] if isinstance(kept, list) else []
    others = {entry["manager"]: entry["fieldsV1"] for entry in entries if entry["manager"] != applier.name}
    before: Owned = next((entry["fieldsV1"] for entry in entries if entry["manager"] == applier.name), {})
    found = {name: list(_conflicts(whole, live or {}, config, fields, "")) for name, fields in others.items()}
    if any(found.values()) and not applier.is_forced:
        raise _refused(found)
    others = {name: _without(fields, wanted, set(found[name])) for name, fields in others.items()}
    merged = _merged(whole, live or {}, config)
    kept = wanted
    for fields in others.values():
        kept = _united(kept, fields)
    merged = _pruned(whole, merged, before, kept)
    if live is not None and merged == live and before == wanted:
        return live
    entry = {"manager": applier.name, "operation": "Apply", "apiVersion": kind.api_version, "time": applier.now}
    owners = [{**each, "fieldsV1": others[each["manager"]]} for each in entries if others.get(each["manager"])]
    owners.append({**entry, "fieldsType": "FieldsV1", "fieldsV1": wanted})
    return {**merged, "metadata": {**merged["metadata"], "managedFields": owners}}


def _refused(found: Mapping[str, list[str]]) -> StatusError:
    conflicts = [(manager, path) for manager, paths in found.items() for path in paths]
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": path}
        for manager, path in conflicts
    ]
    many = f"{len(conflicts)} conflict{'s' if len(conflicts) > 1 else ''}"
    (first, path), *_ = conflicts
    said = f': conflict with "{first}": {path}' if len(conflicts) == 1 else _listed(found)
    return StatusError(409, "Conflict", f"Apply failed with {many}{said}", {"causes": causes})


def _listed(found: Mapping[str, list[str]]) -> str:
    parts = [
        f'conflicts with "{manager}":\n' + "\n".join(f"- {path}" for path in paths)
        for manager, paths in found.items()
        if paths
    ]
    return ": " + "\n".join(parts)


def _owned(field: Field, value: Any) -> Owned:
    if isinstance(value, dict) and not field.is_atomic:
        return {f"f:{name}": _owned(_inner(field, name), inner) for name, inner in value.items()}
    if isinstance(value, list) and not field.is_atomic:
        return {_key(field, item): {".": {}, **_owned(field.item, item)} if field.keys else {} for item in value}
    return {}


def _inner(field: Field, name: str) -> Field:
    return field.item if field.is_map else fields_of(field.type).get(name, Field("any", {"map-type": "atomic"}))


def _key(field: Field, item: Any) -> str:
    """The name of an item: by its keys, or by its value."""
    if not field.keys:
        return f"v:{msgspec.json.encode(item).decode()}"
    defaults = {"protocol": "TCP"}
    keys = {key: item.get(key, defaults.get(key)) for key in field.keys if isinstance(item, dict)}
    return f"k:{msgspec.json.encode(keys, order='sorted').decode()}"


def _conflicts(field: Field, live: Any, config: Any, owned: Owned, path: str) -> Any:
    if isinstance(config, dict) and isinstance(live, dict) and not field.is_atomic:
        for name, inner in config.items():
            if (below := owned.get(f"f:{name}")) is not None and name in live:
                yield from _conflicts(_inner(field, name), live[name], inner, below, f"{path}.{name}")
    elif isinstance(config, list) and isinstance(live, list) and not field.is_atomic:
        known = {_key(field, item): item for item in live}
        for item in config if field.keys else ():
            key = _key(field, item)
            if (below := owned.get(key)) is not None and key in known:
                yield from _conflicts(field.item, known[key], item, below, f"{path}[{_shown(key)}]")
    elif live != config:
        yield path


def _shown(key: str) -> str:
    return ",".join(
        f"{name}={msgspec.json.encode(value).decode()}" for name, value in msgspec.json.decode(key[2:]).items()
    )


def _merged(field: Field, live: Any, config: Any) -> Any:
    if isinstance(config, dict) and isinstance(live, dict) and not field.is_atomic:
        changed = {name: _merged(_inner(field, name), live.get(name), inner) for name, inner in config.items()}
        return {**live, **changed}
    if isinstance(config, list) and isinstance(live, list) and not field.is_atomic:
        given = {_key(field, item): item for item in config}
        kept = [
            _merged(field.item, item, given.pop(key)) if (key := _key(field, item)) in given else item for item in live
        ]
        return [*kept, *given.values()]
    return config


def _pruned(field: Field, value: Any, before: Owned, kept: Owned) -> Any:
    if isinstance(value, dict) and not field.is_atomic:
        pruned = {}
        for name, inner in value.items():
            below = before.get(f"f:{name}")
            if below is None:
                pruned[name] = inner
            elif (stays := kept.get(f"f:{name}")) is not None:
                pruned[name] = _pruned(_inner(field, name), inner, below, stays)
            elif below and (rest := _pruned(_inner(field, name), inner, below, {})):
                pruned[name] = rest  # others have written below it
        return pruned
    if isinstance(value, list) and not field.is_atomic:
        return [
            _pruned(field.item, item, before[key], kept[key]) if key in before and key in kept else item
            for item in value
            if (key := _key(field, item)) in kept or key not in before
        ]
    return value


def _united(one: Owned, other: Owned) -> Owned:
    return {**one, **{name: _united(one.get(name, {}), below) for name, below in other.items()}}


def _without(owned: Owned, taken: Owned, lost: set[str], path: str = "") -> Owned:
    """Fields that an owner keeps when another takes the paths in `lost` by force."""
    kept: Owned = {}
    for name, below in owned.items():
        where = f"{path}[{_shown(name)}]" if name.startswith("k:") else f"{path}.{name[2:]}"
        if where in lost and name in taken:
            continue
        rest = _without(below, taken.get(name, {}), lost, where)
        if rest or not below:
            kept[name] = rest
    return kept
