"""Bodies in Kubernetes' protobuf, which `kubectl create deployment` and other typed clients send.

`schema.json` has the numbers of the fields. Empty strings, false, and zeros that are not in _ZEROS are left out, as in
JSON: in protobuf they look like absent fields.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from berth_sim.apiserver.schema import DELETE_OPTIONS, Field, type_of, types
from berth_sim.apiserver.status import JsonObject, bad_request

CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_WIDTHS: Final = {_FIXED64: 8, _FIXED32: 4}
_ZEROS: Final = frozenset(
    {
        "replicas",
        "completions",
        "parallelism",
        "backoffLimit",
        "terminationGracePeriodSeconds",
        "gracePeriodSeconds",
        "partition",
        "value",
    }
)
"""Optional numbers whose zero has a meaning of its own; clients send them only where they were set."""


def decode(body: bytes, name: str) -> JsonObject:
    """The object of a body as JSON would have it.

    Raises:
        StatusError: 400, not such a body, or an object of a kind that is not known here.
    """
    try:
        return _decoded(body)
    except (ValueError, IndexError, KeyError, OverflowError) as exc:
        raise bad_request(f"the object provided is unrecognized (must be of type {name}): protobuf: {exc!r}") from exc


def _decoded(body: bytes) -> JsonObject:
    if not body.startswith(_MAGIC):
        raise ValueError("want the four bytes k8s\\0 at the beginning")
    envelope = dict(_fields(body[len(_MAGIC) :]))
    api_version, kind = (dict(_fields(envelope[1])).get(number, b"").decode() for number in (1, 2))
    group = api_version.rpartition("/")[0]
    type_ = DELETE_OPTIONS if kind == "DeleteOptions" else type_of(group, kind)
    if type_ not in types():
        raise ValueError(f"{kind} of {api_version} is not simulated: use `kubectl create --dry-run=client -o json`")
    return {"apiVersion": api_version, "kind": kind, **_object(type_, envelope.get(2, b""))}


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number of each field, and its bytes or number, in order."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, place = _varint(data, place)
            yield number, value - (1 << 64) if value >> 63 else value
            continue
        if wire == _BYTES:
            length, place = _varint(data, place)
        else:
            length = _WIDTHS[wire]
        if place + length > len(data):
            raise ValueError("it ends within a field")
        yield number, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & ((1 << 64) - 1), place
    raise ValueError("a number is longer than ten bytes")


def _object(type_: str, data: bytes) -> JsonObject:
    described = types()[type_]
    value: JsonObject = {}
    for number, given in _fields(data):
        name = described.numbers.get(str(number))
        if name is None:
            raise ValueError(f"field {number} of {type_} is not known")
        if name.startswith("="):
            value |= _object(name[1:], given)
        else:
            _set(value, name, described.properties[name], given)
    return value


def _set(value: JsonObject, name: str, field: Field, given: Any) -> None:
    if field.is_list:
        value.setdefault(name, []).append(_value(field.item.type, given))
    elif field.is_map:
        entry = dict(_fields(given))
        inner = field.item.type
        value.setdefault(name, {})[entry.get(1, b"").decode()] = _value(inner, entry.get(2, b""))
    else:
        found = _value(field.type, given)
        if found or isinstance(found, dict) or (name in _ZEROS and found == 0):
            value[name] = found


def _value(type_: str, given: Any) -> Any:
    convert = _SCALARS.get(type_)
    return convert(given) if convert else _object(type_, given)


def _quantity(given: bytes) -> str:
    return str(dict(_fields(given)).get(1, b"").decode())


def _int_or_string(given: bytes) -> int | str:
    parts = dict(_fields(given))
    return str(parts.get(3, b"").decode()) if parts.get(1) else int(parts.get(2, 0))


def _time(given: bytes) -> str | None:
    parts = dict(_fields(given))
    if not parts:
        return None
    moment = datetime.fromtimestamp(parts.get(1, 0) + parts.get(2, 0) / 1e9, UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="microseconds" if parts.get(2) else "seconds") + "Z"


def _json(given: bytes) -> Any:
    return json.loads(dict(_fields(given)).get(1, b"null"))


_SCALARS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "string": lambda given: given.decode(),
    "integer": int,
    "boolean": bool,
    "quantity": _quantity,
    "time": _time,
    "bytes": lambda given: base64.b64encode(given).decode(),
    "int-or-string": _int_or_string,
    "any": lambda _: None,
    "json": _json,
}
