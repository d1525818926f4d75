"""The sources of settings: flags, then environment variables, then the file, then defaults.

Reading opens only files of secrets and connects nowhere. All problems are reported at once. ``--help`` and the docs
list each setting's variable.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from berth.exits import UsageError
from berth.settings import readers
from berth.settings.readers import Reader, Secret
from berth.settings.settings import (
    PROPOSAL,
    BrokenRule,
    Settings,
    broken_rules,
    with_proposal_of_the_lease,
    written_path,
)

S = TypeVar("S")

PREFIX: Final = "BERTH"

FILE_SUFFIX: Final = "_FILE"


class SettingsError(UsageError):
    """Invalid settings: every problem, each with the name of its setting."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One setting: path in code (``leader_election.renew_deadline``), reader, variable."""

    path: str
    read: Reader[Any]
    variable: str

    @property
    def file_variable(self) -> str:
        """For secrets, the variable that names a file with the value; else empty."""
        return self.variable + FILE_SUFFIX if self.read is readers.secret else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """The values of each source: text by path or variable; ``file`` may hold parsed values."""

    flags: Mapping[str, str]
    environment: Mapping[str, str]
    file: Mapping[str, object]
    flag_names: Mapping[str, str]
    # Filled by reading: by path, the name under which a person can change the setting; the paths of the file's values,
    # and those without a value.
    names: dict[str, str] = field(default_factory=dict)
    of_file: set[str] = field(default_factory=set)
    defaults: set[str] = field(default_factory=set)
    problems: list[BrokenRule] = field(default_factory=list)


def read_settings(
    *,
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Mapping[str, object] | None = None,
    flag_names: Mapping[str, str] | None = None,
    file_name: str = "",
) -> Settings:
    """The settings of this process; flags and ``file`` are by path (``leader_election.renew_deadline``).

    Errors name the flag, the variable or the field of the file that has the value, and for a default the variable.

    ``file``: None where the configuration file is not known; rules between it and the environment are not checked then.
    ``file_name`` is written before its fields.

    Raises:
        SettingsError: with every problem of every source.
    """
    given = _Sources(
        flags=flags or {},
        environment=os.environ if environment is None else environment,
        file=file or {},
        flag_names=flag_names or {},
    )
    settings: Settings = _build(Settings, "", given)
    if PROPOSAL in given.defaults:
        settings = with_proposal_of_the_lease(settings)
    unread = {path for path, _ in given.problems}
    rules = broken_rules(settings, given.names.__getitem__, knows_file=file is not None)
    problems = [*given.problems, *(rule for rule in rules if rule[0] not in unread)]  # unread is not also missing
    if problems:
        before = f"{file_name}: " if file_name else ""
        raise SettingsError(
            [f"{before if path in given.of_file else ''}{given.names[path]}: {problem}" for path, problem in problems]
        )
    return settings


def read_variables(kind: type[S], environment: Mapping[str, str]) -> S:
    """The settings of one service alone, which come from variables.

    Raises:
        SettingsError: with every problem.
    """
    given = _Sources(flags={}, environment=environment, file={}, flag_names={})
    settings: S = _build(kind, "", given)
    if given.problems:
        raise SettingsError([f"{given.names[path]}: {problem}" for path, problem in given.problems])
    return settings


def leaves(kind: type[Any] = Settings, prefix: str = "") -> Iterator[Leaf]:
    for name, (of, marks) in _fields(kind).items():  # type: ignore[arg-type]  # a class is hashable
        if is_dataclass(of):
            yield from leaves(of, f"{prefix}{name}.")
        else:
            yield _leaf(prefix + name, marks)


@cache
def _fields(kind: type[Any]) -> dict[str, tuple[type[Any], tuple[Any, ...]]]:
    """Type and reader of each field that has a reader, and the variable if its name is not the path."""
    hints = get_type_hints(kind, include_extras=True)
    every = {name: (getattr(of, "__origin__", of), getattr(of, "__metadata__", ())) for name, of in hints.items()}
    return {name: (of, marks) for name, (of, marks) in every.items() if marks or is_dataclass(of)}


def _leaf(path: str, marks: tuple[Any, ...]) -> Leaf:
    read, *rest = marks
    return Leaf(path=path, read=read, variable=rest[0] if rest else f"{PREFIX}_{path.replace('.', '_').upper()}")


def _build(kind: type[Any], prefix: str, given: _Sources) -> Any:
    values: dict[str, Any] = {}
    for name, (of, marks) in _fields(kind).items():  # type: ignore[arg-type]  # a class is hashable
        if is_dataclass(of):
            values[name] = _build(of, f"{prefix}{name}.", given)
            continue
        leaf = _leaf(prefix + name, marks)
        given.names[leaf.path] = leaf.variable
        try:
            found = _find(leaf, given)
            if found is None:
                given.defaults.add(leaf.path)
            else:
                values[name] = leaf.read(found) if isinstance(found, str) else found
        except ValueError as exc:
            given.problems.append((leaf.path, str(exc)))
    return kind(**values)


def _find(leaf: Leaf, given: _Sources) -> object | None:
    """The setting's value in the first source that has it; its name there is noted."""
    if leaf.path in given.flags:
        given.names[leaf.path] = given.flag_names.get(leaf.path, written_path(leaf.path))
        return given.flags[leaf.path]
    if leaf.variable in given.environment:
        return given.environment[leaf.variable]
    if leaf.file_variable in given.environment:
        given.names[leaf.path] = leaf.file_variable
        return _text_of(given.environment[leaf.file_variable])
    found = given.file.get(leaf.path)
    if found is not None:
        given.names[leaf.path] = written_path(leaf.path)
        given.of_file.add(leaf.path)
    return found


def _text_of(name: str) -> str:
    """Read a secret's file, without its final line end."""
    try:
        return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as exc:
        cause = getattr(exc, "strerror", None) or "not text"
        raise ValueError(f"want a file that can be read, got {name!r} ({cause})") from exc


def misspelt(environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence per unread variable with a name close to a read one.

    Other names with BERTH are ignored, because Kubernetes sets some for a Service of such a name.
    """
    known = [name for each in variables() for name in (each.name, each.file) if name]
    for name in environment:
        if name.startswith(f"{PREFIX}_") and name not in known:
            for meant in get_close_matches(name, known, n=1, cutoff=ALIKE):
                yield f"the variable {name} is read by nothing: did you mean {meant}?"


ALIKE: Final = 0.9  # similarity from which a name counts as misspelt: two of twenty letters differ
_OWN: Final = ("identity",)  # settings with a different default in each process

_UNWRAPPED: Final = "\b\n"  # makes typer keep the lines of this paragraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """``default`` is text, empty for none. ``file``: for secrets, the variable that names a file with the value."""

    name: str
    path: str
    default: str
    file: str = ""


def variables(settings: Any = None) -> Iterator[Variable]:
    """Variables of these settings, by default of every service."""
    settings = settings or Settings()
    for leaf in leaves(type(settings)):
        value = "" if leaf.path in _OWN else _written(attrgetter(leaf.path)(settings))
        yield Variable(name=leaf.variable, path=written_path(leaf.path), default=value, file=leaf.file_variable)


def help_text() -> str:
    found = list(variables())
    width = max(len(variable.name) for variable in found)
    lines = [f"  {variable.name:{width}}  {variable.default}".rstrip() for variable in found]
    secrets = ", ".join(variable.file for variable in found if variable.file)
    files = f"{secrets} name files that hold the values."
    return f"{_UNWRAPPED}Variables; flags beat them, they beat the file:\n" + "\n".join(lines) + f"\n\n{files}"


def _written(value: object) -> str:
    if value is None or isinstance(value, Secret):
        return ""
    if isinstance(value, timedelta):
        return readers.written(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
