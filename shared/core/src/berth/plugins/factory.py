"""Describes a plugin to the registry: name, extension points, arguments, build.

The checks of labels are here because several plugins have labels as arguments.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from berth.api.config.types import Args as Args  # noqa: PLC0414 - plugins of other distributions take it from here
from berth.api.config.types import Point
from berth.framework.interface import Plugin

A = TypeVar("A")


def no_problems(_args: Any, _path: str) -> list[str]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFactory:
    """A plugin that a configuration can name.

    Attributes:
        name: the name in the configuration.
        points: the extension points that the plugin implements.
        build: makes an instance for one profile, from valid arguments (None if it takes none).
        args_type: the type of its arguments, each field with a default; None if it takes none.
        validate: (arguments, path) -> every problem as ``path: want expectation, got value``. A plugin without
            arguments gets None, and may check other inputs.
        only_in_presets: the plugin exists only in presets of an older release. A file may name it only in a whole list,
            as the preset has it.
    """

    name: str
    points: tuple[Point, ...]
    build: Callable[[Any], Plugin]
    args_type: type[msgspec.Struct] | None = None
    validate: Callable[[Any, str], list[str]] = no_problems
    only_in_presets: bool = False


def no_args(plugin: Callable[[], Plugin]) -> Callable[[Any], Plugin]:
    return lambda _args: plugin()


def with_args(plugin: Callable[[A], Plugin], args_type: Callable[[], A]) -> Callable[[Any], Plugin]:
    """Without arguments in the configuration, the plugin gets the defaults."""
    return lambda args: plugin(args_type() if args is None else args)


_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def key_problems(key: str, path: str, wanted: str = "a label key such as disk or example.com/disk") -> list[str]:
    """Problems of a label key, ``name`` or ``prefix/name``; ``wanted`` is the expectation in the message."""
    prefix, slash, name = key.rpartition("/")
    if _NAME.fullmatch(name) and (not slash or _PREFIX.fullmatch(prefix)):
        return []
    return [f"{path}: want {wanted}, got {key!r}"]


def value_problems(value: str, path: str) -> list[str]:
    """Problems of a label value; the empty value is valid."""
    if not value or _NAME.fullmatch(value):
        return []
    return [f"{path}: want a label value of at most 63 letters, digits, '-', '_' and '.', got {value!r}"]
