"""How the registry knows a plugin: its name, its points, its arguments and how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from berth.api.config.types import Point
from berth.framework.interface import Plugin


class Args(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Arguments of a plugin as the file has them; every field has its default."""


def nothing_to_check(_args: Any, _path: str) -> list[str]:
    """Validation of a plugin that takes no arguments."""
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFactory:
    """A plugin that a configuration can name.

    Attributes:
        name: as the configuration has it.
        points: the extension points that the plugin has.
        build: makes an instance for one profile, from valid arguments (None when it takes none).
        args_type: the type of its arguments, each field with its default; None when it takes none.
        validate: (arguments, path) -> every problem as ``path: want expectation, got value``.
        only_in_presets: whether it is gone from v1, and in the lists of an older release: a file may name it only
            in a list that it writes out whole, as the preset has it.
    """

    name: str
    points: tuple[Point, ...]
    build: Callable[[Any], Plugin]
    args_type: type[msgspec.Struct] | None = None
    validate: Callable[[Any, str], list[str]] = nothing_to_check
    only_in_presets: bool = False


def no_args(plugin: Callable[[], Plugin]) -> Callable[[Any], Plugin]:
    """What builds a plugin that takes no arguments."""
    return lambda _args: plugin()
