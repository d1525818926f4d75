"""Files of Kubernetes objects, as ``kubectl get -o json`` or ``-o yaml`` prints them, taken apart: an object each.

A file holds an object, several (YAML documents, or JSON values one after another), or Lists of objects.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import yaml

from berth.api.messages import MALFORMED
from berth.cli.fieldtypes import fitted
from berth.cli.yamlvalues import yaml_values

WANTED: Final = "want what `kubectl get -o json` or `-o yaml` prints"
_LIST: Final = "List"
_UNWRITABLE: Final = (TypeError, ValueError, OverflowError, RecursionError)
"""What YAML can say and JSON cannot: keys that are no text, numbers without end, things that hold themselves."""


class _Head(msgspec.Struct, frozen=True, rename="camel"):
    """What says of which kind an object is; ``items`` are those of a list."""

    api_version: str = ""
    kind: str = ""
    items: list[msgspec.Raw] | None = None

    @property
    def is_list(self) -> bool:
        return self.kind.endswith(_LIST)


_decoder: Final = msgspec.json.Decoder(_Head)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One object. ``where`` names its file and its place there; ``raw`` is its JSON.

    ``is_made``: it stands in no file, but is what a controller would make of what does.
    """

    where: str
    api_version: str
    kind: str
    raw: bytes
    is_made: bool = False


def documents(name: str, data: bytes, problems: list[str]) -> Iterator[Document]:
    """The objects of a file of that name; what is wrong with it is added to ``problems``, a sentence each."""
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
        # A PodList names version and kind of its pods once.
        yield Document(where=item, api_version=head.api_version or of.api_version, kind=head.kind, raw=bytes(raw))


def _head(where: str, value: bytes, problems: list[str], *, kind: str = "") -> _Head | None:
    try:
        head = _read_head(value)
    except MALFORMED:
        problems.append(f"{where}: not an object with `apiVersion` and `kind`: {WANTED}")
        return None
    if not head.kind and not kind:
        problems.append(f"{where}: kind: missing: {WANTED}")
        return None
    return head if head.kind else msgspec.structs.replace(head, kind=kind)


def _read_head(value: bytes) -> _Head:
    try:
        return _decoder.decode(value)
    except MALFORMED:  # it may be only that a field is left empty
        return _decoder.decode(msgspec.json.encode(fitted(msgspec.json.decode(value), _Head, [])))


def _values(name: str, data: bytes, problems: list[str]) -> list[bytes]:
    """Each value of the file as JSON."""
    try:
        values = _json(data) if data.lstrip().startswith(b"{") else _yaml(data)
    except json.JSONDecodeError as exc:
        problems.append(f"{name}: not JSON: {exc}")
        return []
    except (yaml.YAMLError, *_UNWRITABLE) as exc:
        problems.append(f"{name}: not YAML: {_of_yaml(exc)}")
        return []
    if not values:
        problems.append(f"{name}: empty: {WANTED}")
    return values


def _of_yaml(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem}: line {error.problem_mark.line + 1} column {error.problem_mark.column + 1}"
    return " ".join(str(error).split())


def _json(data: bytes) -> list[bytes]:
    try:
        _decoder.decode(data)
    except msgspec.ValidationError:
        return [data]  # JSON it is; what it lacks is said by who looks into it
    except MALFORMED:
        return [msgspec.json.encode(value) for value in _one_after_another(data.decode())]
    return [data]


def _one_after_another(text: str) -> Iterator[Any]:
    """JSON values without anything between them, as of several files in a pipe."""
    decoder, at = json.JSONDecoder(), 0
    while (at := _next(text, at)) < len(text):
        value, at = decoder.raw_decode(text, at)
        yield value


def _next(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _yaml(data: bytes) -> list[bytes]:
    """The documents of YAML as JSON; those that are empty, as between two ``---``, are left out."""
    return [msgspec.json.encode(value) for value in yaml_values(data.decode()) if value is not None]
