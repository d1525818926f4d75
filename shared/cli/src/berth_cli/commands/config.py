"""``berth config``: checks a configuration file, prints it with its defaults, lists the presets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import yaml

from berth.api.config.configuration import KubeSchedulerConfiguration, PluginLists
from berth.api.config.encode import as_document
from berth.api.config.load import ConfigurationError
from berth.api.config.presets import CURRENT_RELEASE, DEFAULT_NAME, PRESETS, GateError, GateValues, Preset, read_gates
from berth.api.config.profiles import expand
from berth.api.config.types import PluginRef, Plugins, Point
from berth.api.config.yamlreader import YamlDumper
from berth.exits import Exit
from berth.leader.samepods import warning_about
from berth.profiles.configuration import problems_in_services, read_configuration
from berth.profiles.installed import known_plugins
from berth.settings.file import file_values
from berth.settings.presets import UnknownPresetError, deprecation_warning, every_gate, preset, presets
from berth.settings.sources import read_settings
from berth_cli.options import (
    Output,
    OutputFormat,
    named_file,
    print_document,
    reporting_errors,
    shown,
)
from berth_cli.rendering import (
    indented,
    new_table,
    note,
    plain,
    print_line,
    print_rich,
    print_text,
)

app = typer.Typer(name="config", help="Configuration files (KubeSchedulerConfiguration).", no_args_is_help=True)


File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="A KubeSchedulerConfiguration; - is standard input.", parser=named_file, show_default=False
    ),
]


Provider = Annotated[
    str | None,
    typer.Option(
        "--algorithm-provider",
        metavar="NAME",
        envvar="BERTH_ALGORITHM_PROVIDER",
        help=f"The preset that a file starts from: {', '.join(PRESETS)}; `berth config providers` lists all.",
        show_default=False,
    ),
]


Gates = Annotated[
    str | None,
    typer.Option(
        "--feature-gates",
        metavar="A=true,B=false",
        envvar="BERTH_FEATURE_GATES",
        help="Feature gates of the preset; `berth config providers` lists them.",
        show_default=False,
    ),
]


class ConfigFormat(StrEnum):
    YAML = "yaml"
    JSON = "json"


@app.command("check")
def check(file: File, algorithm_provider: Provider = None, feature_gates: Gates = None) -> None:
    """Print all errors of a file, or that it has no errors.

    With errors the exit code is 2. Also prints ignored fields, and a warning about a file written for kube-scheduler.
    The file is checked together with the variables BERTH_*, as services started here would.
    """
    configuration = configured_for_services(file, algorithm_provider, feature_gates)
    name = shown(file)
    for sentence in configuration.converted:
        print_line(f"{name}: {sentence}")
    for path in configuration.ignored:
        print_line(f"{name}: {path}: ignored by berth")
    election = read_settings(file=file_values(configuration)).leader_election
    warning = warning_about(election, configuration.scheduler_names)
    if warning is not None:
        print_line(f"{name}: warning: {warning}")
    names = ", ".join(profile.scheduler_name for profile in configuration.profiles)
    print_line(f"{name}: fine, schedules pods of {names}")


@app.command("show")
def show(
    file: File,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    form: Annotated[ConfigFormat, typer.Option("-o", "--output", help="The form to print.")] = ConfigFormat.YAML,
) -> None:
    """Print a file with all defaults and its presets expanded.

    The output is an equivalent file.
    """
    configuration = configured(file, algorithm_provider, feature_gates)
    document = as_document(configuration)
    hint = "" if configuration.release == CURRENT_RELEASE else _read_again_with(algorithm_provider, feature_gates)
    if hint:
        note(hint)
    if form is ConfigFormat.JSON:
        print_text(json.dumps(document, indent=2))
    else:
        comment = f"# {hint}\n" if hint else ""
        print_text(comment + yaml.dump(document, Dumper=YamlDumper, sort_keys=False).rstrip())


def _read_again_with(provider: str | None, gates: str | None) -> str:
    # A file alone cannot name plugins that v1 no longer has.
    flags = f"--algorithm-provider={provider}{f' --feature-gates={gates}' if gates else ''}"
    return f"these plugins are of an older release: a file with them is read with {flags}"


def extenders_not_asked(configuration: KubeSchedulerConfiguration) -> list[str]:
    """A note for commands that rank pods themselves: only services ask extenders."""
    names = [extender.name for extender in configuration.extenders]
    return [f"extenders are not asked here: nodes and points are as without {', '.join(names)}"] if names else []


def configured_for_services(
    file: Path | None, provider: str | None, gates: str | None = None, flags: Mapping[str, str] | None = None
) -> KubeSchedulerConfiguration:
    """As :func:`configured`; also checks that services with this environment and these flags accept it."""
    configuration = configured(file, provider, gates)
    problems = list(problems_in_services(configuration, os.environ, flags, source=shown(file) if file else ""))
    if problems:
        _refuse(None, problems)
    return configuration


def configured(file: Path | None, provider: str | None, gates: str | None = None) -> KubeSchedulerConfiguration:
    """The configuration. Errors end the command with exit code 2, one a line on standard error.

    Prints a warning for presets that kube-scheduler called deprecated.
    """
    try:
        configuration = read_configuration(file, provider=provider or DEFAULT_NAME, gates=gates or "")
    except ConfigurationError as error:
        _refuse(file, error.problems)
    except (UnknownPresetError, GateError) as error:
        note(str(error))
        raise typer.Exit(Exit.USAGE) from error
    deprecation = deprecation_warning(provider or DEFAULT_NAME)
    if deprecation:
        note(deprecation)
    return configuration


def _refuse(file: Path | None, problems: Iterable[str]) -> NoReturn:
    for problem in problems:
        note(f"{shown(file)}: {problem}" if file else problem)
    raise typer.Exit(Exit.USAGE)


def kubeconfig_of(configuration: KubeSchedulerConfiguration) -> Path | None:
    named = configuration.client_connection.kubeconfig
    return Path(named).expanduser() if named else None


Name = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Only this preset; by default all.", show_default=False)
]


@app.command("providers")
def providers(name: Name = None, feature_gates: Gates = None, output: Output = OutputFormat.TABLE) -> None:
    """Print the plugins of each preset, by extension point.

    Presets are the values of --algorithm-provider, shown before and after their gates.
    """
    try:
        values = read_gates(feature_gates or "", every_gate())
        chosen = presets() if name is None else {name: preset(name)}
    except (GateError, UnknownPresetError) as error:
        note(str(error))
        raise typer.Exit(Exit.USAGE) from error
    if output.is_document:
        print_document({each: preset_json(found, values) for each, found in chosen.items()}, output)
        return
    with reporting_errors():
        for each, found in chosen.items():
            _show(each, found, values)


def preset_json(of: Preset, values: GateValues) -> Mapping[str, Any]:
    """The plugins in ``beside`` run after the others."""
    return {
        "release": of.release,
        "gates": _gates_of(of, values),
        "beforeGates": _by_point(lists_of(of.plugins, of.release)),
        "afterGates": _by_point(lists_of(of.gated(values), of.release)),
        "beside": _by_point(lists_of(of.appended, of.release)),
    }


def lists_of(plugins: Plugins, release: str) -> PluginLists:
    """The plugins of each extension point; a multiPoint plugin is at each of its points."""
    known = known_plugins(release=release)
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
    table = new_table("POINT", "PLUGIN", "WEIGHT", "ADDED BY", numbers=("WEIGHT",))
    for point in Point:
        gated = after[point][len(before[point]) :]
        by_whom = (*((ref, "") for ref in before[point]), *((ref, "gates") for ref in gated))
        refs = (*by_whom, *((ref, "berth") for ref in beside[point]))
        for number, (ref, added_by) in enumerate(refs):
            weight = str(ref.weight or 1) if point is Point.SCORE else ""
            table.add_row(*map(plain, ("" if number else point, ref.name, weight, added_by)))
    gates = ", ".join(f"{gate}={str(is_on).lower()}" for gate, is_on in _gates_of(of, values).items())
    print_rich(plain(f"{name} ({of.release}{'; ' if gates else ''}{gates})", "bold"), indented(""), table, plain(""))
