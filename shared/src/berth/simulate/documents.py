"""The values of YAML, from the parser's events. As PyYAML's safe loader gives them, in a tenth of its time.

A key that stands twice in a mapping is refused here, as kubectl refuses it.
The loader makes a tree of nodes first, which takes 40 seconds for the 50,000 pods of a cluster.


An object's fields held to their types, all at once, with ``null`` as Kubernetes takes it: as if nothing were said.

The decoder ends at the first field that is wrong. Here the rest is looked at too, for those objects that it refused.


Files of Kubernetes objects, as ``kubectl get -o json`` or ``-o yaml`` prints them, taken apart: an object each.

A file holds an object, several (YAML documents, or JSON values one after another), or Lists of objects.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import msgspec
import yaml
from msgspec import inspect
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError, SafeConstructor
from yaml.resolver import Resolver

from berth.api.messages import MALFORMED

_TAG: Final = "tag:yaml.org,2002:"

_TEXT: Final = (f"{_TAG}str", f"{_TAG}value")
"""A lone ``=`` is text too, as for kubectl; the safe loader refuses it."""

_MERGE: Final = object()
"""The key ``<<``: what stands there is merged into the mapping."""

_resolver: Final = Resolver()

_constructor: Final = SafeConstructor()


def yaml_values(text: str) -> Iterator[Any]:
    """The value of each document.

    Raises:
        yaml.YAMLError: it is no YAML, or has a tag that no plain value has.
        ValueError: a date or a number that is none.
    """
    events = yaml.parse(text, Loader=yaml.CSafeLoader)
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            yield _Document(events).value(next(events))


class _Document:
    """Reads the events of one document; ``anchors`` are the values that have a name in it."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, Any] = {}

    def value(self, event: Any) -> Any:
        """The value that begins with an event."""
        kind = event.__class__
        if kind is yaml.ScalarEvent:
            return self._named(event, _scalar(event))
        if kind is yaml.MappingStartEvent:
            return self._mapping(event)
        if kind is yaml.SequenceStartEvent:
            return self._sequence(event)
        return self._alias(event)

    def _mapping(self, start: Any) -> dict[Hashable, Any]:
        _see_tag(start, "map")
        mapping: dict[Hashable, Any] = self._named(start, {})
        merged: dict[Hashable, Any] = {}
        for event in self._events:
            if event.__class__ is yaml.MappingEndEvent:
                break
            key, value = self.value(event), self.value(next(self._events))
            if key is _MERGE:
                merged |= _merged(value, start)
            elif isinstance(key, str) and key in mapping:
                raise ConstructorError(None, None, f"found the key {key!r} twice", event.start_mark)
            else:
                mapping[key] = value
        for key in merged.keys() - mapping.keys():
            mapping[key] = merged[key]
        return mapping

    def _sequence(self, start: Any) -> list[Any]:
        _see_tag(start, "seq")
        sequence: list[Any] = self._named(start, [])
        for event in self._events:
            if event.__class__ is yaml.SequenceEndEvent:
                break
            sequence.append(self.value(event))
        return sequence

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise ComposerError(None, None, f"found undefined alias {event.anchor!r}", event.start_mark)
        return self._anchors[event.anchor]

    def _named(self, event: Any, value: Any) -> Any:
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value


def _merged(value: Any, start: Any) -> dict[Hashable, Any]:
    """One mapping, or several of which the first that has a key counts."""
    mappings = value if isinstance(value, list) else [value]
    if not all(isinstance(mapping, dict) for mapping in mappings):
        raise ConstructorError(None, None, "expected a mapping or a list of mappings to merge", start.start_mark)
    return {key: given for mapping in reversed(mappings) for key, given in mapping.items()}


def _scalar(event: Any) -> Any:
    if event.implicit[0]:
        return _plain(event.value)
    if event.tag in (None, "!"):
        return event.value
    return _constructor.construct_object(yaml.ScalarNode(event.tag, event.value, event.start_mark))


@lru_cache(maxsize=65_536)
def _plain(text: str) -> Any:
    """What text without quotes means; the same few thousand stand in all pods of a cluster."""
    tag = _resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # so in its stubs
    if tag in _TEXT:
        return text
    if tag == f"{_TAG}merge":
        return _MERGE
    return _constructor.construct_object(yaml.ScalarNode(tag, text))


def _see_tag(start: Any, wanted: str) -> None:
    if start.tag not in (None, "!", f"{_TAG}{wanted}"):
        raise ConstructorError(
            None, None, f"could not determine a constructor for the tag {start.tag!r}", start.start_mark
        )


_LONGEST: Final = 60
"""How much of a value is shown, in characters."""

_PLAIN: Final = {inspect.StrType: str, inspect.BoolType: bool, inspect.FloatType: float}

_NOTHING: Final[dict[type[inspect.Type], Any]] = {
    inspect.StrType: "",
    inspect.BoolType: False,
    inspect.IntType: 0,
    inspect.FloatType: 0,
    inspect.DictType: {},
    inspect.ListType: [],
    inspect.StructType: {},
}
"""What ``null`` is in a list or a map, by the type of its entries."""

_CALLED: Final = {
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.StrType: "text",
    inspect.ListType: "a list",
}


def fitted(value: Any, struct: type[msgspec.Struct], problems: list[str]) -> Any:
    """The value without its nulls; what in it is not of the struct's types is added to ``problems``, with its path."""
    return _Fitting(problems).value(value, inspect.type_info(struct), "")


@dataclass(slots=True)
class _Fitting:
    problems: list[str] = field(default_factory=list)

    def value(self, value: Any, of: inspect.Type, path: str) -> Any:
        if isinstance(of, inspect.UnionType):
            return self._one_of(value, of, path)
        if value is None:
            return _nothing(of)
        if isinstance(of, inspect.StructType) and isinstance(value, dict):
            return self._struct(value, of, path)
        if isinstance(of, inspect.DictType) and isinstance(value, dict):
            return {key: self.value(entry, of.value_type, _below(path, key)) for key, entry in value.items()}
        if isinstance(of, inspect.ListType) and isinstance(value, list):
            return [self.value(entry, of.item_type, f"{path}[{at}]") for at, entry in enumerate(value)]
        if not _is_of(value, of):
            self.problems.append(f"{path or 'all of it'}: want {_called(of)}, got {_shown(value)}")
        return value

    def _one_of(self, value: Any, of: inspect.UnionType, path: str) -> Any:
        """Of a type or nothing, or of the three that a quantity may have."""
        types = [one for one in of.types if not isinstance(one, inspect.NoneType)]
        if value is None:
            return None if len(types) < len(of.types) else _nothing(types[0]) or "0"
        if len(types) == 1:
            return self.value(value, types[0], path)
        if not any(_is_of(value, one) for one in types):
            self.problems.append(f"{path}: want a quantity such as 500m or 2Gi, got {_shown(value)}")
        return value

    def _struct(self, value: dict[str, Any], of: inspect.StructType, path: str) -> dict[str, Any]:
        kept = {key: entry for key, entry in value.items() if entry is not None}
        for known in of.fields:
            below = _below(path, known.encode_name)
            if known.encode_name in kept:
                kept[known.encode_name] = self.value(kept[known.encode_name], known.type, below)
            elif known.required:
                self.problems.append(f"{below}: missing")
        return kept


def _below(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _nothing(of: inspect.Type) -> Any:
    return _NOTHING.get(type(of))


def _is_of(value: Any, of: inspect.Type) -> bool:
    if isinstance(of, inspect.IntType):
        return type(value) is int and (of.ge is None or value >= of.ge) and (of.le is None or value <= of.le)
    if isinstance(of, inspect.FloatType):
        return type(value) in (int, float)
    wanted = _PLAIN.get(type(of))
    return isinstance(of, inspect.AnyType | inspect.RawType) or (wanted is not None and type(value) is wanted)


def _called(of: inspect.Type) -> str:
    if isinstance(of, inspect.IntType) and of.ge is not None:
        return f"a whole number, {of.ge}..{of.le}"
    return _CALLED.get(type(of), "a mapping")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


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
