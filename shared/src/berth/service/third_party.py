"""Plugins of other distributions: found by entry point, made with care, ended when they take too long.

What is wrong with one of them concerns only who uses it: a package that cannot be loaded is named when a configuration
is refused, and otherwise left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from berth.api.errors import PermanentError
from berth.framework.interface import Limit, Plugin
from berth.plugins.factory import PluginFactory
from berth.service.calldeadline import CallDeadline

GROUP: Final = "berth.plugins"
"""The entry-point group: ``NAME = "module:FACTORY"``, FACTORY being a ``berth.plugins.factory.PluginFactory``."""


class PluginBuildError(PermanentError):
    """A plugin from elsewhere could not be made from arguments that it called valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """``factories`` of all that can be loaded, and a sentence for each that cannot."""

    factories: tuple[PluginFactory, ...]
    broken: tuple[str, ...]


def third_party_plugins(deadline: timedelta, points: Iterable[EntryPoint] | None = None) -> Found:
    """What is installed beside berth. A call of such a plugin that takes longer than ``deadline`` fails its pod."""
    limit = CallDeadline(deadline)
    factories: list[PluginFactory] = []
    broken: list[str] = []
    for point in entry_points(group=GROUP) if points is None else points:
        loaded = _load(point)
        if isinstance(loaded, PluginFactory):
            factories.append(replace(loaded, build=_with_care(loaded, limit)))
        else:
            broken.append(loaded)
    return Found(factories=tuple(factories), broken=tuple(broken))


def _load(point: EntryPoint) -> PluginFactory | str:
    where = f"loading plugin {point.name!r} from {point.value!r}"
    if point.dist is not None:
        where = f"{where} of {point.dist.name} {point.dist.version}"
    try:
        loaded = point.load()
    except Exception as exc:  # noqa: BLE001 - whatever a package raises on import is its own
        return f"{where}: {type(exc).__name__}: {exc}"
    if not isinstance(loaded, PluginFactory):
        return f"{where}: want a berth.plugins.factory.PluginFactory, got {loaded!r:.80}"
    if loaded.name != point.name:
        return f"{where}: want a plugin of that name, got one named {loaded.name!r}"
    return loaded


def _with_care(factory: PluginFactory, limit: Limit) -> Callable[[Any], Plugin]:
    def build(args: Any) -> Plugin:
        try:
            plugin = factory.build(args)
        except Exception as exc:
            raise PluginBuildError(f"making plugin {factory.name!r}: {type(exc).__name__}: {exc}") from exc
        plugin.limit = limit
        return plugin

    return build
