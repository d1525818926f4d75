"""Which plugins a file may name and where, and what is said of a name that it may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from berth.api.config.decode import did_you_mean
from berth.api.config.plugins import EVERYTHING
from berth.api.config.types import API_VERSION, PluginRef, Plugins, PluginSet, Point
from berth.api.config.versions import GONE_PLUGINS

MULTI_POINT: Final = "multiPoint"


class Named(Protocol):
    """What is asked of a plugin here."""

    @property
    def only_in_presets(self) -> bool:
        """Whether it is gone from v1: a file may name it only in lists that it writes out whole, as its preset has."""
        ...


@dataclass(slots=True, kw_only=True)
class PluginNames:
    """The names that one file may use."""

    known: Mapping[str, Named]
    preset: Plugins
    has_listed: bool = field(init=False, default=False)
    """Whether somebody was told all names."""

    def allows(self, name: str) -> bool:
        """Whether any file may name the plugin."""
        return name in self.known and not self.known[name].only_in_presets

    def allows_at(self, ref: PluginRef, place: str, written: PluginSet) -> bool:
        """Whether this set of an extension point, or of multiPoint, may name the plugin.

        One that is gone from v1 may stand in a list that is written out whole (what ``berth config show`` prints), as
        the preset has it there.
        """
        return self.allows(ref.name) or (
            ref.name in self.known and _is_whole(written) and _read(ref) in self._of_preset(place)
        )

    def refusal(self, path: str, name: str) -> str:
        """What is wrong with the name at this path."""
        if name in GONE_PLUGINS:
            return f"{path}: {name!r} was invalid in version {API_VERSION!r}; {GONE_PLUGINS[name]}"
        near, listed = did_you_mean(name, self._offered()), self._listed_once()
        known = f"{' Known' if near else ', known'} are {listed}" if listed else ""
        return f"{path}: unknown plugin {name!r}{near}{known}"

    def _listed_once(self) -> str:
        """All that may be named, the first time; a second one would bury the other lines."""
        if self.has_listed:
            return ""
        self.has_listed = True
        return ", ".join(self._offered())

    def _of_preset(self, place: str) -> set[tuple[str, int]]:
        if place not in set(Point):
            return set()
        return {_read(ref) for ref in self.preset.at(Point(place)).enabled or ()}

    def _offered(self) -> list[str]:
        return [name for name in sorted(self.known) if self.allows(name)]


def _is_whole(written: PluginSet) -> bool:
    return any(ref.name == EVERYTHING for ref in written.disabled or ())


def _read(ref: PluginRef) -> tuple[str, int]:
    """Weight absent or 0 is 1."""
    return ref.name, ref.weight or 1
