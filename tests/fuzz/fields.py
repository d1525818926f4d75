"""Every field of a decoded type, and the values of each that have broken things.

The fields are read from the types: a new one is tried without a line here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import msgspec.inspect as inspected

Path = tuple[str, ...]
"""Names of fields as in JSON, or their places in an array; ``*`` is an element of a list, or a value of a map."""

ANY: Final = "*"
DIGITS: Final = "9" * 100_000
MANY: Final = 2_000
"""Keys of a large map, elements of a large list in each run; the long form has fifty times as many."""

NUMBERS: Final[Mapping[str, bytes]] = {
    "int64": b"9223372036854775807",
    "least int64": b"-9223372036854775808",
    "above int64": b"9223372036854775808",
    "int32": b"2147483647",
    "least int32": b"-2147483648",
    "0": b"0",
    "-1": b"-1",
    "1e30": b"1e30",
    "1e308": b"1e308",
    "1e999": b"1e999",
    "1e-320": b"1e-320",
    "100,000 digits": DIGITS.encode(),
}
TEXTS: Final[Mapping[str, bytes]] = {
    **{f"{name} as text": b'"%s"' % value for name, value in NUMBERS.items()},
    "NaN": b'"NaN"',
    "-Inf": b'"-Inf"',
    "100,000 digits of an exponent": b'"1e%s"' % DIGITS.encode(),
    "empty": b'""',
    "NUL": b'"\\u0000"',
    "right to left": b'"\\u202ea\\u202c\\u001b[31mb"',
    "a wildcard": b'"*.>"',
}
TIMES: Final[Mapping[str, bytes]] = {
    "the first time": b'"0001-01-01T00:00:00+14:00"',
    "the last time": b'"9999-12-31T23:59:59.999999-14:00"',
    "a time without a zone": b'"2026-01-01T00:00:00"',
    "no time": b'"2026-99-99T99:99:99Z"',
}
"""Tried in fields whose names end as those of times do."""
OTHERS: Final[Mapping[str, bytes]] = {"null": b"null", "true": b"true", "a list": b"[[]]", "a map": b'{"a":{}}'}


def struct_fields(kind: type[Any]) -> Iterator[tuple[Path, inspected.Type]]:
    """Each field of the type and of the types in it, with the field's type."""
    yield from _walk(inspected.type_info(kind), (), ())


def _walk(info: inspected.Type, path: Path, inside: tuple[type, ...]) -> Iterator[tuple[Path, inspected.Type]]:
    match info:
        case inspected.UnionType():
            for each in info.types:
                yield from _walk(each, path, inside)
        case inspected.StructType() if info.cls not in inside:
            for place, field in enumerate(info.fields):
                name = str(place) if info.array_like else field.encode_name
                yield (*path, name), field.type
                yield from _walk(field.type, (*path, name), (*inside, info.cls))
        case inspected.ListType() | inspected.VarTupleType():
            yield (*path, ANY), info.item_type
            yield from _walk(info.item_type, (*path, ANY), inside)
        case inspected.DictType():
            yield (*path, ANY), info.value_type
            yield from _walk(info.value_type, (*path, ANY), inside)


def _alternatives(info: inspected.Type) -> Iterator[inspected.Type]:
    if isinstance(info, inspected.UnionType):
        for each in info.types:
            yield from _alternatives(each)
    else:
        yield info


def values_of(name: str, info: inspected.Type, present: object, *, many: int = MANY) -> dict[str, bytes]:
    """The values to try in a field of this type, as JSON; ``present`` is what an ordinary object has there."""
    found: dict[str, bytes] = {
        "null": b"null",
        **(TIMES if name.lower().endswith(("time", "timestamp", "_at")) else {}),
    }
    for each in _alternatives(info):
        match each:
            case inspected.IntType() | inspected.FloatType():
                found |= NUMBERS | {"NaN": b'"NaN"', "empty": b'""'}
            case inspected.StrType() | inspected.DateTimeType() | inspected.EnumType():
                found |= TEXTS | {"a number": b"7"}
            case inspected.BoolType():
                found |= {"true": b"true", "false": b"false", "empty": b'""', "a number": b"1"}
            case inspected.DictType():
                found |= _maps(each, present, many)
            case inspected.ListType() | inspected.VarTupleType():
                found |= _lists(present, many)
            case inspected.StructType():
                found |= {"no field": b"{}", "a number": b"7", "a list": b"[]"}
            case _:
                found |= OTHERS | NUMBERS | TEXTS
    return found


def _maps(info: inspected.DictType, present: object, many: int) -> dict[str, bytes]:
    value = next(iter(present.values()), "") if isinstance(present, dict) else ""
    encoded = msgspec.json.encode(value)
    keys = {
        "an empty key": b'""',
        "a key of NUL": b'"\\u0000"',
        "a key of right to left": b'"\\u202ea"',
        "a key of 100,000 digits": b'"%s"' % DIGITS.encode(),
        "a key with a slash": b'"a/b/c"',
    }
    found = {name: b"{%s:%s}" % (key, encoded) for name, key in keys.items()}
    found["no key"] = b"{}"
    found["many keys"] = b"{%s}" % b",".join(b'"example.com/k%d":%s' % (number, encoded) for number in range(many))
    return found


def _lists(present: object, many: int) -> dict[str, bytes]:
    first = msgspec.json.encode(present[0]) if isinstance(present, list) and present else b'""'
    return {
        "no element": b"[]",
        "an element of null": b"[null]",
        "an element twice": b"[%s,%s]" % (first, first),
        "many elements": b"[%s]" % b",".join([first] * many),
    }


class _Missing:
    pass


MISSING: Final = _Missing()


def at(body: Any, path: Path) -> object:
    """What the object has at this path; of a list or map, at the first element that has it."""
    if not path:
        return body
    for key in _keys(body, path[0]):
        found = at(body[key], path[1:])
        if found is not MISSING:
            return found
    return MISSING


def _keys(body: Any, name: str) -> list[Any]:
    if isinstance(body, list):
        return [each for each in range(len(body)) if name in {ANY, str(each)}]
    if isinstance(body, dict):
        return list(body) if name == ANY else [name] if name in body else []
    return []


def with_value(body: Any, path: Path, value: bytes) -> bytes:
    """The object as JSON, with this JSON at the path."""
    changed = msgspec.json.decode(msgspec.json.encode(body))
    assert _set(changed, path, msgspec.Raw(value)), f"no {'.'.join(path)} in the ordinary object"
    return msgspec.json.encode(changed)


def _set(body: Any, path: Path, value: msgspec.Raw) -> bool:
    for key in _keys(body, path[0]):
        if len(path) == 1:
            body[key] = value
            return True
        if _set(body[key], path[1:], value):
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class Odd:
    """One value in one field."""

    field: Path
    """With ``*`` for the keys of maps too."""
    path: Path
    name: str
    value: bytes

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.name}"


def present_paths(ordinary: Any, path: Path) -> list[Path]:
    """The path with the ordinary object's keys in place of ``*``: some keys of a map have a meaning of their own."""
    if not path:
        return [()]
    if path[0] == ANY and isinstance(ordinary, dict):
        return [(key, *rest) for key in ordinary for rest in present_paths(ordinary[key], path[1:])]
    for key in _keys(ordinary, path[0]):
        if at(ordinary[key], path[1:]) is not MISSING:
            return [(path[0], *rest) for rest in present_paths(ordinary[key], path[1:])]
    return []


def odd_values(kind: type[Any], ordinary: Any, *, many: int = MANY) -> Iterator[Odd]:
    """Every value of every field that the ordinary object has."""
    for general, info in struct_fields(kind):
        for path in present_paths(ordinary, general):
            present = at(ordinary, path)
            for name, value in values_of(path[-1], info, present, many=many).items():
                yield Odd(field=general, path=path, name=name, value=value)
