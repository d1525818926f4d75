"""The types of the API: which fields there are, of which types, and how their lists merge.

`schema.json` is made from a real API server by `tests/harness/apischema.py`: names and types without descriptions.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec

from berth_sim.apiserver.kinds import SERVED_KINDS, SimulatedKind
from berth_sim.apiserver.status import JsonObject, bad_request

SCALE: Final = "io.k8s.api.autoscaling.v1.Scale"
BINDING: Final = "io.k8s.api.core.v1.Binding"
DELETE_OPTIONS: Final = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"

_ATOMIC: Final = "atomic"
_COMPONENTS: Final = "#/components/schemas/"
_OPENAPI: Final[Mapping[str, JsonObject]] = {
    "integer": {"type": "integer"},
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "quantity": {"type": "string"},
    "time": {"type": "string", "format": "date-time"},
    "bytes": {"type": "string", "format": "byte"},
    "int-or-string": {"oneOf": [{"type": "integer"}, {"type": "string"}], "format": "int-or-string"},
    "any": {"type": "object"},
    "json": {"type": "object"},
}


class Field(msgspec.Struct, array_like=True, frozen=True):
    """One field: its type, and how its lists and maps merge (`list-type`, `list-map-keys`, `map-type`).

    A type is `string`, `integer`, `boolean`, `quantity`, `time`, `bytes` (base64), `int-or-string`, `any`, or
    `json` (an object of its own), or the name of a type with fields; `[T` is a list of T, `{T` a map from strings to T.
    """

    type: str
    merging: Mapping[str, Any] = {}

    @property
    def is_list(self) -> bool:
        return self.type.startswith("[")

    @property
    def is_map(self) -> bool:
        return self.type.startswith("{")

    @property
    def is_atomic(self) -> bool:
        """Whether the whole value has one owner: a list without a key, or a field that the API calls atomic."""
        if self.is_list:
            return bool(self.merging.get("list-type", _ATOMIC) == _ATOMIC)
        return bool(self.merging.get("map-type") == _ATOMIC)

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of a list's items; may be empty."""
        return tuple(self.merging.get("list-map-keys", ()))

    @property
    def item(self) -> "Field":
        return Field(self.type[1:])


class Type(msgspec.Struct, frozen=True):
    """A type with fields; `numbers`: the name of each field by its number in protobuf, or `=TYPE` for inline fields."""

    properties: Mapping[str, Field]
    numbers: Mapping[str, str] = {}


@cache
def types() -> Mapping[str, Type]:
    text = resources.files(__package__).joinpath("schema.json").read_bytes()
    return msgspec.json.decode(text, type=dict[str, Type])


def fields_of(type_: str) -> Mapping[str, Field]:
    found = types().get(type_)
    return found.properties if found else {}


@cache
def type_of(group: str, name: str) -> str:
    return f"io.k8s.api.{group.partition('.')[0] or 'core'}.v1.{name}"


def check_fields(type_: str, value: Any) -> list[str]:
    """Problems, such as `unknown field "spec.replica"`."""
    return [f'unknown field "{path}"' for path in _unknown(Field(type_), value, "")]


def _unknown(field: Field, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for place, item in enumerate(value) if field.is_list else ():
            yield from _unknown(field.item, item, f"{path}[{place}]")
    elif isinstance(value, dict):
        known = fields_of(field.type)
        for member, inner in value.items():
            where = f"{path}.{member}" if path else member
            if field.is_map:
                yield from _unknown(field.item, inner, where)
            elif member in known:
                yield from _unknown(known[member], inner, where)
            elif known:
                yield where


def refuse_unknown(type_: str, value: Any, kind: SimulatedKind) -> None:
    """Refuse a value with unknown fields.

    Raises:
        StatusError: 400, with every field that the type does not have.
    """
    if unknown := check_fields(type_, value):
        name = kind.name
        raise bad_request(
            f'{name} in version "{kind.version}" cannot be handled as a {name}: strict decoding error: '
            + ", ".join(unknown)
        )


_OF_JSON: Final[Mapping[str, tuple[type, ...]]] = {
    "integer": (int,),
    "boolean": (bool,),
    "string": (str,),
    "quantity": (str, int, float),
    "time": (str,),
    "bytes": (str,),
    "int-or-string": (int, str),
}


def refuse_wrong_types(type_: str, value: Any, kind: str) -> None:
    """Refuse an object with a value of another type than its field has; null is a value of every field.

    Raises:
        StatusError: 400, with the path of the first one.
    """
    wrong = next(_wrong(Field(type_), value, ""), None)
    if wrong is not None:
        raise bad_request(f'{kind} in version "v1" cannot be handled as a {kind}: json: cannot unmarshal {wrong}')


def _wrong(field: Field, value: Any, path: str) -> Iterator[str]:
    wanted = _OF_JSON.get(field.type) or ((list,) if field.is_list else (dict,))
    if value is None or field.type == "any":
        return
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        yield f"{type(value).__name__} into the field {path or 'at the top'} of type {field.type}"
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _wrong(field.item, item, f"{path}[{place}]")
    elif isinstance(value, dict):
        known = fields_of(field.type)
        for member, inner in value.items():
            if field.is_map or member in known:
                yield from _wrong(field.item if field.is_map else known[member], inner, f"{path}.{member}".lstrip("."))


def openapi() -> dict[str, JsonObject]:
    """The OpenAPI documents by path; by them kubectl explains types, and leaves validation to the server."""
    roots = {_root(kind) for kind in SERVED_KINDS}
    index = {"paths": {root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in roots}}
    return {"/openapi/v3": index, **{f"/openapi/v3/{root}": _document(root) for root in roots}}


def _root(kind: SimulatedKind) -> str:
    return f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"


def _document(root: str) -> JsonObject:
    kinds = [kind for kind in SERVED_KINDS if _root(kind) == root]
    reached: dict[str, JsonObject] = {}
    for kind in kinds:
        _reach(type_of(kind.group, kind.name), reached)
    for kind in kinds:
        reached[type_of(kind.group, kind.name)]["x-kubernetes-group-version-kind"] = [_meaning(kind)]
    paths = {
        f"/{root}/{_place(kind)}": {"get": _operation(kind, "get"), "patch": _operation(kind, "patch")}
        for kind in kinds
    }
    info = {"title": "berth_sim", "version": "v1"}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": reached}}


def _place(kind: SimulatedKind) -> str:
    return f"{'namespaces/{namespace}/' if kind.namespaced else ''}{kind.plural}/{{name}}"


def _meaning(kind: SimulatedKind) -> JsonObject:
    return {"group": kind.group, "version": kind.version, "kind": kind.name}


def _operation(kind: SimulatedKind, action: str) -> JsonObject:
    parameters = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}] if action == "patch" else []
    content = {"application/json": {"schema": {"$ref": _COMPONENTS + type_of(kind.group, kind.name)}}}
    return {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _meaning(kind),
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": content}},
    }


def _reach(name: str, reached: dict[str, JsonObject]) -> None:
    if name in reached:
        return
    properties: JsonObject = {}
    reached[name] = {"type": "object", "properties": properties}
    for field, described in fields_of(name).items():
        merging = {f"x-kubernetes-{key}": value for key, value in described.merging.items()}
        properties[field] = {**_described(described.type), **merging}
        inner = described.type.lstrip("[{")
        if inner not in _OPENAPI:
            _reach(inner, reached)


def _described(type_: str) -> JsonObject:
    if type_.startswith("["):
        return {"type": "array", "items": _described(type_[1:])}
    if type_.startswith("{"):
        return {"type": "object", "additionalProperties": _described(type_[1:])}
    return dict(_OPENAPI.get(type_) or {"allOf": [{"$ref": _COMPONENTS + type_}]})
