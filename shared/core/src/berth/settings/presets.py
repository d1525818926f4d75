"""Finds presets by name: built-in ones, and ones of installed distributions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from berth.api.config.presets import PRESETS, Gate, GateError, GateValues, Preset, read_gates
from berth.errors import PermanentError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# Entry-point group: `NAME = "module:PRESET"`, with a `berth.api.config.presets.Preset`.
PRESETS_GROUP: Final = "berth.presets"


class UnknownPresetError(PermanentError):
    """No preset has this name, or its distribution cannot be loaded."""


def preset(name: str) -> Preset:
    """Find the preset of this name.

    Raises:
        UnknownPresetError: no such preset; the message lists all.
    """
    if name in PRESETS:
        return PRESETS[name]
    points = _points()
    if name not in points:
        raise UnknownPresetError(f"algorithmProvider: want one of {', '.join((*PRESETS, *points))}, got {name!r}")
    return _load(points[name])


def preset_names() -> tuple[str, ...]:
    return (*PRESETS, *_points())


def presets() -> Mapping[str, Preset]:
    """All presets by name.

    Raises:
        UnknownPresetError: another distribution's preset cannot be loaded.
    """
    return {**PRESETS, **{name: _load(point) for name, point in _points().items()}}


def every_gate() -> tuple[Gate, ...]:
    return tuple({gate.name: gate for each in presets().values() for gate in each.gates}.values())


def gates_for(name: str, text: str) -> GateValues:
    """Parse ``--feature-gates`` for the preset of this name.

    Raises:
        GateError: the preset has no such gate, or the value is neither true nor false.
    """
    values = read_gates(text, every_gate()) if text.strip() else {}
    if values and not preset(name).gates:
        having = " or ".join(f"--algorithm-provider={other}" for other, each in presets().items() if each.gates)
        raise GateError(f"featureGates: {', '.join(values)}: preset {name!r} has no gates; start with {having}")
    return values


def deprecation_warning(name: str) -> str | None:
    return preset(name).deprecation or None


def _points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - 12 ms, and most processes need no preset

    return {point.name: point for point in entry_points(group=PRESETS_GROUP) if point.name not in PRESETS}


def _load(point: EntryPoint) -> Preset:
    where = f"loading preset {point.name!r} from {point.value!r}"
    try:
        loaded = point.load()
    except Exception as exc:  # a package may raise anything on import
        raise UnknownPresetError(f"{where}: {type(exc).__name__}: {exc}") from exc
    if not isinstance(loaded, Preset):
        raise UnknownPresetError(f"{where}: want a berth.api.config.presets.Preset, got {loaded!r:.80}")
    return loaded
