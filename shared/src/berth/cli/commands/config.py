"""``berth config``: what is wrong with a configuration file, and what it becomes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
import yaml

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.encode import as_document
from berth.api.config.load import ConfigurationError
from berth.cli.rendering import note, say
from berth.plugins.presets import CURRENT_RELEASE, DEFAULT_NAME, PRESETS, UnknownPresetError, deprecation_warning
from berth.plugins.v1_18.providers import GateError
from berth.process.configuration import read_configuration
from berth.process.exits import Exit
from berth.process.start import problems_in_services

app = typer.Typer(help="Configuration files (KubeSchedulerConfiguration).", no_args_is_help=True)

STANDARD_INPUT: Final = Path("/dev/stdin")


def _named(text: str) -> Path:
    return STANDARD_INPUT if text == "-" else Path(text)


File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="A KubeSchedulerConfiguration; - is standard input.", parser=_named, show_default=False
    ),
]
Provider = Annotated[
    str | None,
    typer.Option(
        "--algorithm-provider",
        metavar="NAME",
        envvar="BERTH_ALGORITHM_PROVIDER",
        help=f"Plugins that a file starts from: {', '.join(PRESETS)}.",
        show_default=False,
    ),
]
Gates = Annotated[
    str | None,
    typer.Option(
        "--feature-gates",
        metavar="A=true,B=false",
        envvar="BERTH_FEATURE_GATES",
        help="Gates of the provider on and off; `berth config providers` lists them.",
        show_default=False,
    ),
]


class ConfigFormat(StrEnum):
    """How a configuration is printed."""

    YAML = "yaml"
    JSON = "json"


@app.command("check")
def check(file: File, algorithm_provider: Provider = None, feature_gates: Gates = None) -> None:
    """Say everything that is wrong with a file (exit code 2), or that nothing is, and what in it means nothing here."""
    configuration = configured_for_services(file, algorithm_provider, feature_gates)
    for sentence in configuration.converted:
        say(f"{file}: {sentence}")
    for path in configuration.ignored:
        say(f"{file}: {path}: means nothing here")
    names = ", ".join(profile.scheduler_name for profile in configuration.profiles)
    say(f"{file}: fine, schedules pods of {names}")


@app.command("show")
def show(
    file: File,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    form: Annotated[ConfigFormat, typer.Option("-o", "--output", help="As what to print it.")] = ConfigFormat.YAML,
) -> None:
    """Print what a file becomes with every default, presets expanded: a file that means the same."""
    configuration = configured(file, algorithm_provider, feature_gates)
    document = as_document(configuration)
    hint = "" if configuration.release == CURRENT_RELEASE else _read_again_with(algorithm_provider, feature_gates)
    if hint:
        note(hint)
    if form is ConfigFormat.JSON:
        say(json.dumps(document, indent=2))
    else:
        comment = f"# {hint}\n" if hint else ""
        say(comment + yaml.safe_dump(document, sort_keys=False).rstrip())


def _read_again_with(provider: str | None, gates: str | None) -> str:
    """A file alone cannot name plugins that are gone from v1."""
    flags = f"--algorithm-provider={provider}{f' --feature-gates={gates}' if gates else ''}"
    return f"plugins here are those of an older release: a file with them is read with {flags}"


def configured_for_services(
    file: Path | None, provider: str | None, gates: str | None = None
) -> KubeSchedulerConfiguration:
    """The same, and nothing in it is refused by the services."""
    configuration = configured(file, provider, gates)
    problems = problems_in_services(configuration)
    if problems:
        _refuse(file, problems)
    return configuration


def configured(file: Path | None, provider: str | None, gates: str | None = None) -> KubeSchedulerConfiguration:
    """The configuration; what is wrong with it is said on standard error, a line each, and ends the command with 2.

    So is that the flag for the provider is an old one, where kube-scheduler said so of it.
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
        note(f"{file}: {problem}" if file else problem)
    raise typer.Exit(Exit.USAGE)


def kubeconfig_of(configuration: KubeSchedulerConfiguration) -> Path | None:
    """The kubeconfig that the file names, if it does."""
    named = configuration.client_connection.kubeconfig
    return Path(named).expanduser() if named else None
