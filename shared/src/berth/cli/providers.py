"""``berth config providers``: which plugins each preset runs, before and after its gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import typer

from berth.api.config.plugins import PluginLists, expand
from berth.api.config.types import PluginRef, Plugins, Point
from berth.cli.asking import Form, Output
from berth.cli.config import Gates
from berth.cli.console import below, columns, note, plain, say_json, show
from berth.plugins.gates import GateError, GateValues, read_gates
from berth.plugins.presets import EVERY_GATE, PRESETS, Preset
from berth.plugins.registry import of_release
from berth.service.configuration import known_plugins
from berth.service.exits import Exit


def providers(feature_gates: Gates = None, output: Output = Form.TABLE) -> None:
    """Print the plugins of each name that --algorithm-provider takes, by extension point, before and after gates."""
    try:
        values = read_gates(feature_gates or "", EVERY_GATE)
    except GateError as error:
        note(str(error))
        raise typer.Exit(Exit.USAGE) from error
    if output is Form.JSON:
        say_json({name: described(preset, values) for name, preset in PRESETS.items()})
        return
    for name, preset in PRESETS.items():
        _show(name, preset, values)


def described(preset: Preset, values: GateValues) -> Mapping[str, Any]:
    """A preset for programs: points without plugins are left out; ``beside`` runs as well, after the others."""
    return {
        "release": preset.release,
        "gates": _gates_of(preset, values),
        "beforeGates": _by_point(lists_of(preset.plugins, preset.release)),
        "afterGates": _by_point(lists_of(preset.gated(values), preset.release)),
        "beside": _by_point(lists_of(preset.beside, preset.release)),
    }


def lists_of(plugins: Plugins, release: str) -> PluginLists:
    """The list of each extension point; what is listed for many points stands at each that the plugin has."""
    known = of_release(release, known_plugins())
    return expand(plugins, Plugins(), {name: plugin.points for name, plugin in known.items()})


def _gates_of(preset: Preset, values: GateValues) -> dict[str, bool]:
    return {gate.name: values.get(gate.name, gate.is_on) for gate in preset.gates}


def _by_point(lists: PluginLists) -> dict[str, list[dict[str, Any]]]:
    return {str(point): [_described(ref, point) for ref in refs] for point, refs in lists.items() if refs}


def _described(ref: PluginRef, point: Point) -> dict[str, Any]:
    return {"name": ref.name, "weight": ref.weight or 1} if point is Point.SCORE else {"name": ref.name}


def _show(name: str, preset: Preset, values: GateValues) -> None:
    before = lists_of(preset.plugins, preset.release)
    after = lists_of(preset.gated(values), preset.release)
    beside = lists_of(preset.beside, preset.release)
    table = columns("POINT", "BEFORE GATES", "BY GATES", "BESIDE")
    for point in Point:
        added = after[point][len(before[point]) :]
        if after[point] or beside[point]:
            cells = (_listed(refs, point) for refs in (before[point], added, beside[point]))
            table.add_row(plain(point), *(plain(cell) for cell in cells))
    gates = ", ".join(f"{gate}={str(is_on).lower()}" for gate, is_on in _gates_of(preset, values).items())
    show(plain(f"{name} ({preset.release}{'; ' if gates else ''}{gates})", "bold"), below(""), table, plain(""))


def _listed(refs: Iterable[PluginRef], point: Point) -> str:
    """A line each."""
    return "\n".join(f"{ref.name} {ref.weight or 1}" if point is Point.SCORE else ref.name for ref in refs)
