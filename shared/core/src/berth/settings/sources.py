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
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, cast, get_type_hints

import typer

from berth.exits import UsageError
from berth.settings import readers
from berth.settings.readers import Reader, Secret
from berth.settings.settings import Settings, broken_rules

PREFIX: Final = "BERTH"

FILE_SUFFIX: Final = "_FILE"


class SettingsError(UsageError):
    """Invalid settings: every problem, each with its path."""

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
    def written_path(self) -> str:
        """The path in the form of configuration files: ``leaderElection.renewDeadline``."""
        head, *rest = self.path.split("_")
        return head + "".join(word.capitalize() for word in rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sources:
    """The values of each source: text by path or variable; ``file`` may hold parsed values."""

    flags: Mapping[str, str]
    environment: Mapping[str, str]
    file: Mapping[str, object]
    problems: list[str] = field(default_factory=list)


def read_settings(
    *,
    flags: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Mapping[str, object] | None = None,
) -> Settings:
    """The settings of this process; ``flags`` and ``file`` are by path (``leader_election.renew_deadline``).

    Raises:
        SettingsError: with every problem of every source.
    """
    given = _Sources(flags=flags or {}, environment=os.environ if environment is None else environment, file=file or {})
    settings: Settings = _build(Settings, "", given)
    read = [problem.partition(":")[0] for problem in given.problems]
    rules = [problem for problem in broken_rules(settings) if problem.partition(":")[0] not in read]
    if problems := [*given.problems, *rules]:  # an unreadable setting is not also missing
        raise SettingsError(problems)
    return settings


def leaves(kind: type[Any] = Settings, prefix: str = "") -> Iterator[Leaf]:
    """All settings, in order of declaration."""
    for name, (of, marks) in _fields(kind).items():
        if is_dataclass(of):
            yield from leaves(of, f"{prefix}{name}.")
        else:
            yield _leaf(prefix + name, marks)


def _fields(kind: type[Any]) -> dict[str, tuple[type[Any], tuple[Any, ...]]]:
    """Name, type and other items of each field's annotation."""
    plain = get_type_hints(kind)
    full = get_type_hints(kind, include_extras=True)
    return {name: (plain[name], getattr(full[name], "__metadata__", ())) for name in plain}


def _leaf(path: str, marks: tuple[Any, ...]) -> Leaf:
    read, *rest = marks
    return Leaf(path=path, read=read, variable=rest[0] if rest else f"{PREFIX}_{path.replace('.', '_').upper()}")


def _build(kind: type[Any], prefix: str, given: _Sources) -> Any:
    values: dict[str, Any] = {}
    for name, (of, marks) in _fields(kind).items():
        if is_dataclass(of):
            values[name] = _build(of, f"{prefix}{name}.", given)
            continue
        leaf = _leaf(prefix + name, marks)
        try:
            found = _find(leaf, given)
            if found is not None:
                values[name] = leaf.read(found) if isinstance(found, str) else found
        except ValueError as exc:
            given.problems.append(f"{leaf.written_path}: {exc}")
    return kind(**values)


def _find(leaf: Leaf, given: _Sources) -> object | None:
    if leaf.path in given.flags:
        return given.flags[leaf.path]
    if leaf.variable in given.environment:
        return given.environment[leaf.variable]
    if leaf.read is readers.secret and leaf.variable + FILE_SUFFIX in given.environment:
        return _text_of(given.environment[leaf.variable + FILE_SUFFIX])
    return given.file.get(leaf.path)


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


def variables() -> Iterator[Variable]:
    settings = Settings()
    for leaf in leaves():
        value = "" if leaf.path in _OWN else _written(attrgetter(leaf.path)(settings))
        file = leaf.variable + FILE_SUFFIX if leaf.read is readers.secret else ""
        yield Variable(name=leaf.variable, path=leaf.written_path, default=value, file=file)


def help_text() -> str:
    """The end of ``--help``: each variable with its default."""
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


BOOLEANS: Final = ("--leader-elect", "--allow-other-scheduler")  # take a value only after ``=``; alone they mean true


# The parser's exception. A newer Typer brings its own parser.
WrongUsage: Final = cast("type[typer.BadParameter]", typer.BadParameter.__base__)


def usage_problem(error: typer.BadParameter) -> str:
    """The parser's sentence on one line, as a part of one: ``no such option: --foo``."""
    what = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    what = what.replace(". Did you mean", ", did you mean").removesuffix("?")
    return f"{what[:1].lower()}{what[1:]}"


def go_forms(args: list[str]) -> list[str]:
    """Convert Go's forms to the parser's: a boolean alone is true, ``-v=4`` is ``--v=4``."""
    end = args.index("--") if "--" in args else len(args)
    return [*(_go_form(arg) for arg in args[:end]), *args[end:]]


def _go_form(arg: str) -> str:
    if arg in BOOLEANS:
        return f"{arg}=true"
    return f"-{arg}" if arg.startswith("-v=") else arg
