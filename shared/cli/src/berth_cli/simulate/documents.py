"""Splits files of Kubernetes objects into Documents, one an object, not decoded yet.

A file is output of ``kubectl get -o json`` or ``-o yaml``, or a manifest: an object, several YAML documents,
concatenated JSON values, or Lists of objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeVar

import msgspec
import yaml
from msgspec import inspect

from berth.api.config.yamlreader import reason_in_a_line, yaml_values
from berth.decoding import MALFORMED
from berth.errors import DecodeError
from berth.kube.gojson import readable

T = TypeVar("T")

_WANTED: Final = "want what `kubectl get -o json` or `-o yaml` prints"
_LIST: Final = "List"
# Errors of YAML values that JSON does not have: keys that are not text, numbers of more than 64 bits, cycles.
_NOT_JSON: Final = (TypeError, ValueError, OverflowError, RecursionError)
_VALIDATION: Final = re.compile(r"(?P<reason>.*) - at `\$\.?(?P<path>.*)`", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """An object; ``where``: its file and position, for messages; ``raw``: its JSON.

    ``is_generated``: created from the template of a workload.
    """

    where: str
    api_version: str
    kind: str
    raw: bytes
    is_generated: bool = False


class _Head(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    items: list[msgspec.Raw] | None = None

    @property
    def is_list(self) -> bool:
        return self.kind.endswith(_LIST)


_head_decoder: Final = msgspec.json.Decoder(_Head)


def documents(name: str, data: bytes, problems: list[str]) -> Iterator[Document]:
    """Objects of a file; errors are added to ``problems``."""
    values = _values(name, data, problems)
    for number, value in enumerate(values, start=1):
        where = f"{name}: document {number}" if len(values) > 1 else name
        head = _head(where, value, problems)
        if head is None:
            continue
        if head.is_list:
            yield from _items(where, head, problems)
        else:
            yield Document(where=where, api_version=head.api_version, kind=head.kind, raw=value)


def decode(decoder: msgspec.json.Decoder[T], raw: bytes) -> T:
    """Decode an object. As in Kubernetes, a field that is ``null`` is absent.

    Raises:
        DecodeError: names the first field of a wrong type.
    """
    try:
        return decoder.decode(raw)
    except MALFORMED:
        pass  # a null may be the only reason
    try:
        value = _without_nulls(msgspec.json.decode(raw), _type_info(decoder))
        return decoder.decode(msgspec.json.encode(value))
    except MALFORMED as exc:
        raise DecodeError(_reason(exc)) from exc


def _reason(error: Exception) -> str:
    found = _VALIDATION.fullmatch(str(error))
    return f"{found['path']}: {found['reason']}" if found and found["path"] else str(error)


# The zero value that replaces ``null`` in lists and maps, by the type of the entries.
_ZERO: Final[dict[type[inspect.Type], Any]] = {
    inspect.StrType: "",
    inspect.BoolType: False,
    inspect.IntType: 0,
    inspect.FloatType: 0,
    inspect.DictType: {},
    inspect.ListType: [],
    inspect.StructType: {},
    inspect.UnionType: "0",  # a quantity
}


@lru_cache
def _type_info(decoder: msgspec.json.Decoder[Any]) -> inspect.Type:
    return inspect.type_info(decoder.type)


def _without_nulls(value: Any, of: inspect.Type) -> Any:
    """Remove nulls that the type does not allow from objects; in lists and maps they become zero values."""
    if isinstance(of, inspect.UnionType):
        of = next(one for one in of.types if not isinstance(one, inspect.NoneType))
    if isinstance(of, inspect.StructType) and isinstance(value, dict):
        types = {known.encode_name: known.type for known in of.fields}
        given = {key: entry for key, entry in value.items() if entry is not None}
        return {key: _without_nulls(entry, types[key]) if key in types else entry for key, entry in given.items()}
    if isinstance(of, inspect.DictType) and isinstance(value, dict):
        return {key: _entry(entry, of.value_type) for key, entry in value.items()}
    if isinstance(of, inspect.ListType) and isinstance(value, list):
        return [_entry(entry, of.item_type) for entry in value]
    return value


def _entry(value: Any, of: inspect.Type) -> Any:
    return _ZERO.get(type(of)) if value is None else _without_nulls(value, of)


def _items(where: str, of: _Head, problems: list[str]) -> Iterator[Document]:
    for index, raw in enumerate(of.items or ()):
        item = f"{where}: items[{index}]"
        head = _head(item, bytes(raw), problems, kind=of.kind.removesuffix(_LIST))
        if head is None:
            continue
        if head.is_list:
            problems.append(
                f"{item}: kind: {head.kind!r} in a {of.kind}: lists in lists are not read; list its objects"
            )
            continue
        # The pods of a PodList have neither version nor kind of their own.
        yield Document(where=item, api_version=head.api_version or of.api_version, kind=head.kind, raw=bytes(raw))


def _head(where: str, value: bytes, problems: list[str], *, kind: str = "") -> _Head | None:
    try:
        head = decode(_head_decoder, value)
    except DecodeError:
        problems.append(f"{where}: not an object with `apiVersion` and `kind`: {_WANTED}")
        return None
    if not head.kind and not kind:
        problems.append(f"{where}: kind: missing: {_WANTED}")
        return None
    return head if head.kind else msgspec.structs.replace(head, kind=kind)


def _values(name: str, data: bytes, problems: list[str]) -> list[bytes]:
    try:
        is_json = data.lstrip().startswith(b"{") and b"\n---" not in data  # YAML documents may be JSON too
        values = _json_values(data) if is_json else _yaml_as_json(data)
    except json.JSONDecodeError as exc:
        problems.append(f"{name}: not JSON: {exc}")
        return []
    except (yaml.YAMLError, *_NOT_JSON) as exc:
        problems.append(f"{name}: not YAML: {reason_in_a_line(exc)}")
        return []
    if not values:
        problems.append(f"{name}: empty: {_WANTED}")
    return values


def _json_values(data: bytes) -> list[bytes]:
    try:
        _head_decoder.decode(data)
    except msgspec.ValidationError:
        return [data]  # it is JSON; `_head` reports what is wrong with it
    except RecursionError:  # managedFields and parameters of drivers may be as deep as they like
        return _json_values(readable(data))
    except MALFORMED:
        return [msgspec.json.encode(value) for value in _concatenated(readable(data).decode())]
    return [data]


def _concatenated(text: str) -> Iterator[Any]:
    """Concatenated JSON values, for example several files in a pipe."""
    decoder, at = json.JSONDecoder(), 0
    while (at := _next(text, at)) < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value


def _next(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _yaml_as_json(data: bytes) -> list[bytes]:
    """YAML documents as JSON. Empty ones, for example between two ``---``, are left out."""
    return [msgspec.json.encode(value) for value in yaml_values(data.decode()) if value is not None]
