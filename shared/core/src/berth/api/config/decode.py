"""From text to Structs, strictly: YAML or JSON, then types, with all problems and not only the first.

``Problems`` collects sentences of the form ``path: expectation, got value``. An unreadable value keeps its default, so
that the rest of the file is still checked. A repeated key is a problem too, because PyYAML would use only the last one,
and half a file could be lost silently.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from datetime import timedelta
from types import UnionType
from typing import Final, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from berth.api.config.types import KIND
from berth.api.config.yamlreader import YamlLoader, check_yaml, reason_in_a_line

S = TypeVar("S", bound=msgspec.Struct)


_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}

_DURATION: Final = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>ms|us|µs|ns|h|m|s)")

# Characters of a duration. Finding the parts of a longer text takes time with the square of its length.
_MOST_OF_DURATION: Final = 64

_NEAR: Final = 0.75  # similarity, 0..1, from which a name counts as misspelt

_WORDS: Final = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}


class Problems(list[str]):
    """The problems of a file, a sentence each, in the order of the file. ``unknown_fields`` counts unknown fields."""

    def __init__(self) -> None:
        super().__init__()
        self.unknown_fields = 0

    def add_unknown_field(self, path: str, name: object, known: Collection[str]) -> None:
        self.unknown_fields += 1
        self.append(f"{join(path, name)}: unknown field{did_you_mean(name, known)}")

    def add(self, path: str, expectation: str, got: object) -> None:
        """``path: want expectation, got value``."""
        where = f"{path}: " if path else ""
        self.append(f"{where}want {expectation}, got {_show(got)}")

    def check_range(self, path: str, value: int | None, low: int, high: int) -> None:
        if value is not None and not low <= value <= high:
            self.append(f"{path}: want {low}..{high}, got {value}")


def read_struct(value: object, kind: type[S], path: str, problems: Problems) -> S | None:
    """A Struct from a mapping; ``None`` if a required field is missing or invalid."""
    if not isinstance(value, dict):
        problems.add(path, "a mapping", value)
        return None
    fields = {field.encode_name: field for field in msgspec.structs.fields(kind)}
    hints = get_type_hints(kind)
    for name in (name for name in value if name not in fields):
        problems.add_unknown_field(path, name, fields)
    missing = [name for name, field in fields.items() if field.required and value.get(name) is None]
    for name in missing:
        problems.append(f"{join(path, name)}: required")
    present = {
        fields[name].name: (name, given) for name, given in value.items() if name in fields and given is not None
    }
    read = {
        attribute: _read(given, hints[attribute], join(path, name), problems)
        for attribute, (name, given) in present.items()
    }
    if missing or any(read.get(f.name) is None for f in fields.values() if f.required):
        return None
    return kind(**{attribute: made for attribute, made in read.items() if made is not None})


def parse_duration(text: str) -> timedelta | None:
    """A Go duration such as ``15s`` or ``1m30s``; ``None`` for other text."""
    matches = list(_DURATION.finditer(text)) if len(text) <= _MOST_OF_DURATION else []
    if not matches or "".join(match[0] for match in matches) != text:
        return None
    try:
        return timedelta(seconds=sum(float(match["number"]) * _UNITS[match["unit"]] for match in matches))
    except OverflowError:  # more than 2.7 million years
        return None


def _read(value: object, hint: object, path: str, problems: Problems) -> object:
    hint = _without_none(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return read_struct(value, hint, path, problems)
    if get_origin(hint) is list:
        return _read_list(value, get_args(hint)[0], path, problems)
    if get_origin(hint) is dict:
        return _read_mapping(value, get_args(hint)[1], path, problems)
    if hint is timedelta:
        return _read_duration(value, path, problems)
    if hint is object:
        return value
    return _read_scalar(value, hint, path, problems)


def _read_list(value: object, hint: object, path: str, problems: Problems) -> object:
    if not isinstance(value, list):
        problems.add(path, "a list", value)
        return None
    made = [_read(item, hint, f"{path}[{index}]", problems) for index, item in enumerate(value)]
    return [item for item in made if item is not None]


def _read_mapping(value: object, hint: object, path: str, problems: Problems) -> object:
    if not isinstance(value, dict):
        problems.add(path, "a mapping", value)
        return None
    return {str(key): _read(item, hint, join(path, key), problems) for key, item in value.items()}


def _read_duration(value: object, path: str, problems: Problems) -> timedelta | None:
    made = parse_duration(value) if isinstance(value, str) else None
    if made is None:
        problems.add(path, "a duration such as 15s or 1m30s", value)
    return made


def _read_scalar(value: object, hint: object, path: str, problems: Problems) -> object:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(hint, type) and type(value) is hint:
        return value
    word = _WORDS.get(hint, f"a {hint}") if isinstance(hint, type) else f"a {hint}"
    problems.add(path, word, value)
    return None


def _without_none(hint: object) -> object:
    if get_origin(hint) not in (Union, UnionType):
        return hint
    rest = [arg for arg in get_args(hint) if arg is not type(None)]
    return rest[0] if len(rest) == 1 else object


def join(path: str, name: object) -> str:
    """The path of a field below ``path``; the file's own path is empty."""
    return f"{path}.{name}" if path else str(name)


def did_you_mean(name: object, known: Collection[str]) -> str:
    """A suggestion to append to a sentence; empty unless a known name is close."""
    close = difflib.get_close_matches(str(name), known, n=1, cutoff=_NEAR)
    return f", did you mean {close[0]!r}?" if close else ""


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # readable in a line


MOST_CHARACTERS: Final = 256 * 1024  # of a configuration file; one with every plugin and argument has 10,000
SEVERAL: Final = f"want one {KIND}, got several documents (separated by lines of ---): keep one in this file"


def parse_yaml(text: str, problems: Problems) -> dict[str, object] | None:
    """The file's mapping; ``None`` with a problem otherwise."""
    if len(text) > MOST_CHARACTERS:
        problems.append(f"want at most {MOST_CHARACTERS} characters, got {len(text)}")
        return None
    try:
        check_yaml(text)
    except yaml.YAMLError as exc:
        problems.append(f"not YAML: {reason_in_a_line(exc)}")
        return None
    loader = YamlLoader(text)
    try:
        node = loader.get_node() if loader.check_node() else None
        if loader.check_node():
            problems.append(SEVERAL)
            return None
        repeated = list(_repeated(node, "", set()))  # before construction, which writes merged keys into the nodes
        document = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as exc:
        problems.append(f"not YAML: {reason_in_a_line(exc)}")
        return None
    finally:
        loader.dispose()
    if not isinstance(document, dict):
        if document is None:
            problems.append(f"is empty: want a {KIND}")
        else:
            problems.add("", f"a {KIND}", document)
        return None
    problems.extend(repeated)
    return document


def _repeated(node: yaml.Node | None, path: str, seen: set[int]) -> Iterator[str]:
    """All keys that occur more than once in their mapping; a node with aliases is checked once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        yield from _repeated_keys(node, path)
        for key, value in node.value:
            yield from _repeated(value, join(path, key.value), seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated(item, f"{path}[{index}]", seen)


def _repeated_keys(node: yaml.MappingNode, path: str) -> Iterator[str]:
    lines: dict[object, list[int]] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            lines.setdefault(key.value, []).append(key.start_mark.line + 1)
    for name, where in lines.items():
        if len(where) > 1:
            yield f"{join(path, name)}: want it once, got it in lines {', '.join(map(str, where))}"
