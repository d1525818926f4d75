"""``berth config providers``: which plugins each preset runs, before and after its gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from berth.api.config.configuration import PluginLists
from berth.api.config.profiles import expand
from berth.api.config.types import PluginRef, Plugins, Point
from berth.cli.commands.config import Gates
from berth.cli.lookup import Output, OutputFormat
from berth.cli.rendering import below, columns, note, plain, say_json, show
from berth.plugins.presets import EVERY_GATE, PRESETS, Preset, UnknownPresetError, preset
from berth.plugins.registry import plugins_of_release
from berth.plugins.v1_18.providers import GateError, GateValues, read_gates
from berth.process.configuration import known_plugins
from berth.process.exits import Exit

Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Only this one; without it all of them.", show_default=False)
]


def providers(name: Name = None, feature_gates: Gates = None, output: Output = OutputFormat.TABLE) -> None:
    """Print the plugins of each name that --algorithm-provider takes, by extension point, before and after gates."""
    try:
        values = read_gates(feature_gates or "", EVERY_GATE)
        chosen = PRESETS if name is None else {name: preset(name)}
    except (GateError, UnknownPresetError) as error:
        note(str(error))
        raise typer.Exit(Exit.USAGE) from error
    if output is OutputFormat.JSON:
        say_json({each: described(found, values) for each, found in chosen.items()})
        return
    for each, found in chosen.items():
        _show(each, found, values)


def described(of: Preset, values: GateValues) -> Mapping[str, Any]:
    """A preset for programs: points without plugins are left out; ``beside`` runs as well, after the others."""
    return {
        "release": of.release,
        "gates": _gates_of(of, values),
        "beforeGates": _by_point(lists_of(of.plugins, of.release)),
        "afterGates": _by_point(lists_of(of.gated(values), of.release)),
        "beside": _by_point(lists_of(of.appended, of.release)),
    }


def lists_of(plugins: Plugins, release: str) -> PluginLists:
    """The list of each extension point; what is listed for many points stands at each that the plugin has."""
    known = plugins_of_release(release, known_plugins())
    return expand(plugins, Plugins(), {name: plugin.points for name, plugin in known.items()})


def _gates_of(of: Preset, values: GateValues) -> dict[str, bool]:
    return {gate.name: values.get(gate.name, gate.is_on) for gate in of.gates}


def _by_point(lists: PluginLists) -> dict[str, list[dict[str, Any]]]:
    return {str(point): [_described(ref, point) for ref in refs] for point, refs in lists.items() if refs}


def _described(ref: PluginRef, point: Point) -> dict[str, Any]:
    return {"name": ref.name, "weight": ref.weight or 1} if point is Point.SCORE else {"name": ref.name}


def _show(name: str, of: Preset, values: GateValues) -> None:
    before = lists_of(of.plugins, of.release)
    after = lists_of(of.gated(values), of.release)
    beside = lists_of(of.appended, of.release)
    table = columns("POINT", "BEFORE GATES", "BY GATES", "BESIDE")
    for point in Point:
        added = after[point][len(before[point]) :]
        if after[point] or beside[point]:
            cells = (_listed(refs, point) for refs in (before[point], added, beside[point]))
            table.add_row(plain(point), *(plain(cell) for cell in cells))
    gates = ", ".join(f"{gate}={str(is_on).lower()}" for gate, is_on in _gates_of(of, values).items())
    show(plain(f"{name} ({of.release}{'; ' if gates else ''}{gates})", "bold"), below(""), table, plain(""))


def _listed(refs: Iterable[PluginRef], point: Point) -> str:
    """A line each."""
    return "\n".join(f"{ref.name} {ref.weight or 1}" if point is Point.SCORE else ref.name for ref in refs)
