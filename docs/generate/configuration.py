"""The tables of docs/configuration.md: the file, plugins' arguments, berth's own plugins, variables with flags.

Names, types and defaults are those of the types that are read; what a field means is the docstring under it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from datetime import timedelta
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from berth.api.config.encode import as_document
from berth.api.config.load import load
from berth.api.config.presets import DEFAULT
from berth.api.config.types import API_VERSION, KIND, File, Plugins
from berth.framework.profile import services_of
from berth.lifecycle.start import FLAGS
from berth.plugins.registry import BUILT_IN
from berth.settings.settings import Settings
from berth.settings.sources import leaves, variables
from berth_metrics_collector.settings import CollectorSettings

WORDS: Final = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    timedelta: "duration",
    object: "object",
    dict: "object",
}


@cache
def meanings(kind: type) -> Mapping[str, str]:
    """The docstring under each field of a class, its parents' fields included."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        if is_dataclass(each) or (issubclass(each, msgspec.Struct) and each is not msgspec.Struct):
            found.update(_documented(ast.parse(inspect.getsource(each)).body[0]))
    return found


def _documented(kind: Any) -> Iterator[tuple[str, str]]:
    for field, after in pairwise(kind.body):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            yield field.target.id, in_markdown(inspect.cleandoc(str(after.value.value)))


def in_markdown(text: str) -> str:
    """One line, with Markdown's code marks."""
    return re.sub(r"\s+", " ", text).replace("``", "`").replace("|", "\\|")


def meaning(kind: type, name: str) -> str:
    """What a field means, as its docstring says."""
    found = meanings(kind)
    if name not in found:
        raise LookupError(f"documenting {kind.__name__}.{name}: want a docstring under the field, got none")
    return found[name]


def table(heads: str, rows: Iterator[tuple[str, ...]]) -> str:
    """A table of Markdown; heads are separated by ``|``."""
    names = heads.split("|")
    body = [f"| {' | '.join(each)} |".replace("|  |", "| |").replace("|  |", "| |") for each in (names, *rows)]
    return "\n".join([body[0], "|---" * len(names) + "|", *body[1:]])


def code(text: str) -> str:
    """A value in code marks; nothing when there is none."""
    return f"`{text}`" if text else ""


def inside(of: Any) -> tuple[Any, str]:
    """The type that matters of ``list[X] | None`` (X), and what is put behind the path (``[]``)."""
    if get_origin(of) in (Union, UnionType):
        return inside(next(each for each in get_args(of) if each is not type(None)))
    if get_origin(of) is list:
        return inside(get_args(of)[0])[0], "[]"
    return of, ""


def word(of: Any) -> str:
    """A type in a word."""
    kind, many = inside(of)
    if get_origin(kind) is Literal:
        return " or ".join(code(str(each)) for each in get_args(kind))
    one = WORDS.get(get_origin(kind) or kind, "object")
    return f"list of {one}s" if many else one


def with_default(of: Any, default: str) -> str:
    """A type in a word, and the default if there is one."""
    return f"{word(of)}, {default}" if default else word(of)


# The file


def file_rows(kind: type[msgspec.Struct] = File, path: str = "") -> Iterator[tuple[str, ...]]:
    """A row for each field; those of sets of plugins once for all extension points."""
    hints = get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        of, many = inside(hints[field.name])
        here = f"{path}{field.encode_name}{many}"
        yield code(here), with_default(hints[field.name], default_of(here)), meaning(kind, field.name)
        if here.endswith(".disabled[]"):
            continue  # its fields are those of enabled[]
        if of is Plugins:
            one, _ = inside(get_type_hints(Plugins)["score"])
            yield from file_rows(one, f"{here}.<point>.")
        elif isinstance(of, type) and issubclass(of, msgspec.Struct):
            yield from file_rows(of, f"{here}.")


@cache
def defaults() -> Mapping[str, Any]:
    """The shortest file with every default, as `berth config show` prints it."""
    text = msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND}).decode()
    document = as_document(load(text, known=BUILT_IN, preset=DEFAULT))
    return {**document, "profiles[]": document["profiles"][0]}


def default_of(path: str) -> str:
    """The default of a field of the file; nothing for a list or an object."""
    if path in ("apiVersion", "kind"):
        return "required"
    value: Any = defaults()
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None or isinstance(value, dict | list):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value))


# Plugins


def argument_rows() -> Iterator[tuple[str, ...]]:
    """A row for each argument of each plugin, its parts after it where the table has not had them yet."""
    had: set[type] = set()
    for name, factory in BUILT_IN.items():
        if factory.args_type is None or factory.name != name:
            continue
        plugin = name
        for row in _arguments(factory.args_type, factory.args_type(), "", had):
            yield plugin, *row
            plugin = ""


def _arguments(
    kind: type[msgspec.Struct], default: msgspec.Struct | None, path: str, had: set[type]
) -> Iterator[tuple[str, ...]]:
    hints = get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        of, many = inside(hints[field.name])
        value = None if default is None else getattr(default, field.name)
        here = f"{path}{field.encode_name}{many}"
        yield code(here), with_default(hints[field.name], _written(value)), meaning(kind, field.name)
        if isinstance(of, type) and issubclass(of, msgspec.Struct) and meanings(of) and of not in had:
            had.add(of)
            part = of() if many else value
            yield from _arguments(of, part, f"{here}.", had)


def _written(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(f"{each.name} {each.weight}" for each in value)
    if value is None or isinstance(value, msgspec.Struct):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value))


def own_rows() -> Iterator[tuple[str, ...]]:
    """A row for each plugin that kube-scheduler does not have."""
    of_kubernetes = {each.name for each in DEFAULT.multi_point.enabled or ()}
    for name, factory in BUILT_IN.items():
        if name in of_kubernetes:
            continue
        if factory.name != name:
            yield code(name), "", "", f"another name of `{factory.name}`"
            continue
        where = dict.fromkeys(str(service) for point in factory.points for service in services_of(point))
        points = ", ".join(code(str(point)) for point in factory.points)
        plugin = factory.build(factory.args_type() if factory.args_type else None)
        yield code(name), points, ", ".join(where), in_markdown(inspect.getdoc(plugin) or "")


# Flags and variables


def variable_rows() -> Iterator[tuple[str, ...]]:
    """A row for each variable of every service with its flags, then for those of the collector."""
    flags: dict[str, list[str]] = defaultdict(list)
    for flag in FLAGS:
        flags[flag.path] += [code(each) for each in flag.names]
    for settings, before in ((Settings(), ""), (CollectorSettings(), "The collector's. ")):
        paths = {leaf.variable: leaf.path for leaf in leaves(type(settings))}
        for variable in variables(settings):
            means = _of_setting(type(settings), paths[variable.name])
            named = [] if before else flags[paths[variable.name]]
            also = f" Flag: {', '.join(named)}." if named else ""
            yield code(variable.name), code(variable.default), before + means + also


def _of_setting(kind: type, path: str) -> str:
    """What the setting means that a path of code leads to (``nats.url``)."""
    *groups, name = path.split(".")
    for group in groups:
        kind = get_type_hints(kind)[group]
    return meaning(kind, name)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "file": lambda: table("field|type, default|meaning", file_rows()),
    "arguments": lambda: table("plugin|argument|type, default|meaning", argument_rows()),
    "own plugins": lambda: table("plugin|extension points|called in|does", own_rows()),
    "variables": lambda: table("variable|default|means", variable_rows()),
}


def with_tables(page: str) -> str:
    """The page with its tables made again; each stands between ``<!-- NAME -->`` and ``<!-- end -->``."""
    for name, make in TABLES.items():
        marks = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        made = make()
        page, found = marks.subn(lambda marks, made=made: f"{marks[1]}\n{made}\n\n{marks[2]}", page)
        if found != 1:
            raise LookupError(f"placing the table {name!r}: want its marks once, got them {found} times")
    return page
