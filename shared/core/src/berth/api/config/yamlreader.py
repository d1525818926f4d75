"""Reads YAML with the same values as PyYAML's safe loader, in a fifth of the time, and within bounds.

As in Kubernetes' reader, a number with an exponent needs neither a dot nor a sign (``1e3``), and a lone ``=`` is text.
Infinite numbers and NaN stay text, because all values become JSON.

Values are built from the events of PyYAML's C parser. Its CSafeLoader builds a tree of nodes first. All YAML passes
through :func:`bounded_events`, because a few hundred bytes with aliases of aliases would become gigabytes, and deep
nesting would end the process.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any, Final

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError, SafeConstructor

from berth.decoding import MAX_NESTING

_TAG: Final = "tag:yaml.org,2002:"
_TEXT: Final = (f"{_TAG}str", f"{_TAG}value")  # a lone ``=`` is text, as in kubectl; the safe loader rejects it
_ANY_LENGTH: Final = (f"{_TAG}str", f"{_TAG}binary")
_MERGE: Final = object()  # the key ``<<``: its value is merged into the mapping
# Values and characters of text that a document's aliases may repeat, as manifests repeat some labels.
MOST_REPEATED: Final = 100_000
LONGEST_NUMBER: Final = 100  # characters of a number or date; longer ones cost the square of their length


class YamlLoader(yaml.CSafeLoader):
    """PyYAML's safe loader with numbers as in Kubernetes' YAML reader."""


class YamlDumper(yaml.SafeDumper):
    """PyYAML's safe dumper, which quotes text that these readers take for a number."""


for _one in (YamlLoader, YamlDumper):
    _one.add_implicit_resolver(
        f"{_TAG}float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
    )
_resolver: Final = YamlLoader("")
_constructor: Final = SafeConstructor()


def check_yaml(text: str) -> None:
    """Check YAML that is decoded elsewhere: all bounds, numbers and dates.

    Raises:
        yaml.YAMLError: not YAML, nested too deep, too much repeated by aliases, or too long a number.
    """
    for event in bounded_events(text):
        if event.__class__ is yaml.ScalarEvent:
            _scalar(event)


def reason_in_a_line(error: Exception) -> str:
    """The error in YAML and its position, without the text itself, which may be secret."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem}: line {error.problem_mark.line + 1} column {error.problem_mark.column + 1}"
    return " ".join(str(error).split())


def bounded_events(text: str) -> Iterator[Any]:
    """The parser's events.

    Raises:
        yaml.YAMLError: not YAML, nested deeper than ``MAX_NESTING``, or too much repeated by aliases.
    """
    events: Iterator[Any] = yaml.parse(text, Loader=yaml.CSafeLoader)
    amount = _Amount()
    for event in events:
        amount.add(event)
        yield event


class _Amount:
    """The size of a document in values and characters of text, repetitions by aliases included."""

    def __init__(self) -> None:
        self._total = self._repeated = 0
        self._begun: list[tuple[str | None, int]] = []
        self._anchored: dict[str, int | None] = {}  # by anchor; None for an unfinished value

    def add(self, event: Any) -> None:
        kind = event.__class__
        if kind is yaml.ScalarEvent:
            self._total += 1 + len(event.value)
            if event.anchor is not None:
                self._anchored[event.anchor] = 1 + len(event.value)
        elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            self._begin(event)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            anchor, before = self._begun.pop()
            if anchor is not None:
                self._anchored[anchor] = self._total - before
        elif kind is yaml.AliasEvent:
            self._repeat(event)
        elif kind is yaml.DocumentStartEvent:
            self._anchored.clear()
            self._repeated = 0

    def _begin(self, event: Any) -> None:
        self._begun.append((event.anchor, self._total))
        self._total += 1
        if event.anchor is not None:
            self._anchored[event.anchor] = None
        if len(self._begun) > MAX_NESTING:
            raise _beyond(f"want at most {MAX_NESTING} mappings and lists inside each other", event)

    def _repeat(self, event: Any) -> None:
        known = self._anchored.get(event.anchor, 0)  # an unknown one is the reader's error
        if known is None:
            raise _beyond(f"the alias {event.anchor!r} stands inside the value that it repeats", event)
        self._total += known
        self._repeated += known
        if self._repeated > MOST_REPEATED:
            raise _beyond(f"aliases repeat more than {MOST_REPEATED} values and characters", event)


def _beyond(problem: str, event: Any) -> ComposerError:
    return ComposerError(None, None, problem, event.start_mark)


def yaml_values(text: str) -> Iterator[Any]:
    """The value of each document, as from PyYAML's safe loader. A duplicate key is an error, as in kubectl.

    Raises:
        yaml.YAMLError: not YAML, or a tag for other than plain values.
    """
    events = bounded_events(text)
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            yield _YamlReader(events).value(next(events))


class _YamlReader:
    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, Any] = {}

    def value(self, event: Any) -> Any:
        kind = event.__class__
        if kind is yaml.ScalarEvent:
            return self._anchored(event, _scalar(event))
        if kind is yaml.MappingStartEvent:
            return self._mapping(event)
        if kind is yaml.SequenceStartEvent:
            return self._sequence(event)
        return self._alias(event)

    def _mapping(self, start: Any) -> dict[Hashable, Any]:
        _check_tag(start, "map")
        mapping: dict[Hashable, Any] = self._anchored(start, {})
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
        _check_tag(start, "seq")
        sequence: list[Any] = self._anchored(start, [])
        for event in self._events:
            if event.__class__ is yaml.SequenceEndEvent:
                break
            sequence.append(self.value(event))
        return sequence

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise ComposerError(None, None, f"found undefined alias {event.anchor!r}", event.start_mark)
        return self._anchors[event.anchor]

    def _anchored(self, event: Any, value: Any) -> Any:
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value


def _merged(merge: Any, start: Any) -> dict[Hashable, Any]:
    """Merge one mapping or several; for a key in several, the first counts."""
    mappings = merge if isinstance(merge, list) else [merge]
    if not all(isinstance(mapping, dict) for mapping in mappings):
        raise ConstructorError(None, None, "expected a mapping or a list of mappings to merge", start.start_mark)
    return {key: value for mapping in reversed(mappings) for key, value in mapping.items()}


def _scalar(event: Any) -> Any:
    if event.implicit[0]:
        return _plain(event.value)
    if event.tag in (None, "!"):
        return event.value
    if event.tag not in _ANY_LENGTH and len(event.value) > LONGEST_NUMBER:
        raise ConstructorError(None, None, _too_long(event.tag), event.start_mark)
    return _constructed(yaml.ScalarNode(event.tag, event.value, event.start_mark))


def _constructed(node: yaml.ScalarNode) -> Any:
    """The value, or the text of a number that JSON does not have. PyYAML's other exceptions become YAMLErrors."""
    try:
        value = _constructor.construct_object(node)
    except (ValueError, OverflowError, IndexError, KeyError) as exc:
        raise ConstructorError(None, None, str(exc), node.start_mark) from exc
    return node.value if isinstance(value, float) and not math.isfinite(value) else value


def _too_long(tag: str) -> str:
    return f"want at most {LONGEST_NUMBER} characters for a value of the type {tag.removeprefix(_TAG)}"


@lru_cache(maxsize=65_536)
def _plain(text: str) -> Any:
    """The value of an unquoted text, cached because the pods of a cluster share a few thousand."""
    tag = _resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # untyped in the stubs
    if tag in _TEXT:
        return text
    if tag == f"{_TAG}merge":
        return _MERGE
    if len(text) > LONGEST_NUMBER:
        raise ConstructorError(None, None, _too_long(tag))
    return _constructed(yaml.ScalarNode(tag, text))


def _check_tag(start: Any, kind: str) -> None:
    if start.tag not in (None, "!", f"{_TAG}{kind}"):
        raise ConstructorError(
            None, None, f"could not determine a constructor for the tag {start.tag!r}", start.start_mark
        )
