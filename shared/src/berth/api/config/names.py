"""Which plugins a file may name and where, and what is said of a name that it may not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from berth.api.config.decode import did_you_mean
from berth.api.config.types import API_VERSION, Plugins, Point
from berth.api.config.versions import GONE_PLUGINS

MULTI_POINT: Final = "multiPoint"


class Named(Protocol):
    """What is asked of a plugin here."""

    @property
    def only_in_presets(self) -> bool:
        """Whether it is gone from v1: a file may name it where the preset it starts from has it, and nowhere else."""
        ...


@dataclass(slots=True, kw_only=True)
class PluginNames:
    """The names that one file may use."""

    known: Mapping[str, Named]
    preset: Plugins
    has_listed: bool = field(init=False, default=False)
    """Whether somebody was told all names."""

    def allows(self, name: str, place: str = "") -> bool:
        """Whether the file may name the plugin at this extension point, or under multiPoint."""
        if name not in self.known:
            return False
        return not self.known[name].only_in_presets or self._is_in_preset(name, place)

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

    def _is_in_preset(self, name: str, place: str) -> bool:
        if place not in set(Point):
            return False
        return any(ref.name == name for ref in self.preset.at(Point(place)).enabled or ())

    def _offered(self) -> list[str]:
        return [name for name in sorted(self.known) if self.allows(name)]
