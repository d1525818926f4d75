"""Feature gates of presets: switches of a release that add plugins to its lists; flag ``--feature-gates``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import msgspec

from berth.api.config.types import PluginRef, Plugins, PluginSet, Point
from berth.api.errors import PermanentError

# Go's own words (strconv.ParseBool), since the flag means what it means to kube-scheduler.
_SAID: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


GateValues = Mapping[str, bool]


NO_GATES: Final[GateValues] = MappingProxyType({})


class GateError(PermanentError):
    """What is said of gates cannot be followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A switch, on or off unless somebody says otherwise, and what it appends at which points when it is on."""

    name: str
    is_on: bool
    adds: Mapping[Point, PluginRef]


def read_gates(text: str, gates: Iterable[Gate]) -> GateValues:
    """``A=true,B=false``, as the flag has it; of a gate that is named twice the last word counts.

    Raises:
        GateError: a gate that is none of ``gates``, or a value that is not true or false.
    """
    values: dict[str, bool] = {}
    names = [gate.name for gate in gates]
    for part in text.split(","):
        name, equals, said = (piece.strip() for piece in part.partition("="))
        if name not in names and name:
            raise GateError(f"featureGates: want {' or '.join(names)}, got {name!r}")
        if name and (not equals or said not in _SAID):
            raise GateError(f"featureGates: want {name}=true or {name}=false, got {part.strip()!r}")
        if name:
            values[name] = _SAID[said]
    return values


def through_gates(plugins: Plugins, gates: Iterable[Gate], values: GateValues) -> Plugins:
    """The lists with what every gate that is on appends, in the order of the gates."""
    for gate in gates:
        if values.get(gate.name, gate.is_on):
            added = {point: PluginSet(enabled=[ref]) for point, ref in gate.adds.items()}
            plugins = appended(plugins, added)
    return plugins


def appended(plugins: Plugins, added: Mapping[Point, PluginSet]) -> Plugins:
    """The lists with what is enabled in others at the end."""
    sets = {
        point.name.lower(): PluginSet(enabled=[*(plugins.at(point).enabled or ()), *(more.enabled or ())])
        for point, more in added.items()
    }
    return msgspec.structs.replace(plugins, **sets)
