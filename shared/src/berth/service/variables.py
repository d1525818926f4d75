"""The variables of the environment that services read: one for each setting, for ``--help`` and for the docs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Final

from berth.service import readers
from berth.service.secret import Secret
from berth.service.settings import Settings
from berth.service.sources import FILE_SUFFIX, leaves

_OWN: Final = ("identity",)
"""Settings whose default is made anew for each process."""
_UNWRAPPED: Final = "\b\n"
"""Tells the parser of flags to leave the lines of a paragraph as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """``default`` as it would be written; empty for none. ``file``: names a file that holds the value, for secrets."""

    name: str
    path: str
    default: str
    file: str = ""


def variables() -> Iterator[Variable]:
    """All of them, in the order of the settings."""
    settings = Settings()
    for leaf in leaves():
        value = "" if leaf.path in _OWN else _written(attrgetter(leaf.path)(settings))
        file = leaf.variable + FILE_SUFFIX if leaf.read is readers.secret else ""
        yield Variable(name=leaf.variable, path=leaf.written_path, default=value, file=file)


def help_text() -> str:
    """For the end of ``--help``: each variable with its default."""
    found = list(variables())
    width = max(len(variable.name) for variable in found)
    lines = [f"  {variable.name:{width}}  {variable.default}".rstrip() for variable in found]
    secrets = ", ".join(variable.file for variable in found if variable.file)
    told = f"{secrets} name files that hold the values."
    return f"{_UNWRAPPED}Variables; flags beat them, they beat the file:\n" + "\n".join(lines) + f"\n\n{told}"


def _written(value: object) -> str:
    if value is None or isinstance(value, Secret):
        return ""
    if isinstance(value, timedelta):
        return readers.written(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
