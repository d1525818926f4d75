"""A label in the arguments of a plugin: its key and its value, and what is wrong with them."""

from __future__ import annotations

import re
from typing import Final

from berth.plugins.factory import Args

_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class LabelArgs(Args, frozen=True, kw_only=True):
    """One label."""

    key: str
    value: str


def validate(args: LabelArgs, path: str) -> list[str]:
    """What no label can have would silently match nothing."""
    return [*key_problems(args.key, f"{path}.key"), *value_problems(args.value, f"{path}.value")]


def key_problems(key: str, path: str, wanted: str = "a label key such as disk or example.com/disk") -> list[str]:
    """Problems of what must be written as a label key, ``name`` or ``prefix/name``; ``wanted`` says what it is."""
    prefix, slash, name = key.rpartition("/")
    if _NAME.fullmatch(name) and (not slash or _PREFIX.fullmatch(prefix)):
        return []
    return [f"{path}: want {wanted}, got {key!r}"]


def value_problems(value: str, path: str) -> list[str]:
    """Problems of a label value; an empty one is a value too."""
    if not value or _NAME.fullmatch(value):
        return []
    return [f"{path}: want a label value of at most 63 letters, digits, '-', '_' and '.', got {value!r}"]
