"""From the command line to a running service: the part of the composition root that all services share.

    main = service_command("watcher", about=..., read=read_configuration, serve=serve)

Flags have kube-scheduler's names and forms: ``--config F``, ``--config=F``, ``--leader-elect``,
``--leader-elect=false``, ``-v 4``, ``--v=4``. Values stay text; ``sources`` parses all settings at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Final, Protocol

import typer
from typer.core import TyperCommand

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.config.encode import digests
from berth.api.config.load import ConfigurationError
from berth.api.config.presets import DEFAULT_NAME, PRESETS, GateError
from berth.exits import Exit, open_closed_streams
from berth.lifecycle.process import Process, run
from berth.safetext import one_line, without_passwords
from berth.settings import readers
from berth.settings.commandline import HELP_FLAGS, WrongUsage, go_forms, usage_problem
from berth.settings.file import file_values, public_configuration
from berth.settings.presets import UnknownPresetError, deprecation_warning
from berth.settings.settings import Settings
from berth.settings.sources import SettingsError, help_text, misspelt, read_settings

Serve = Callable[[Process, KubeSchedulerConfiguration], Awaitable[None]]  # returns when the service has stopped
Flags = Mapping[str, str]  # given flags by the path of their setting (kube.kubeconfig)
Given = str | None


class ReadConfiguration(Protocol):
    """Reads the configuration file as a service needs it; raises as ``berth.settings.file.read_file``."""

    def __call__(self, path: Path | None, *, provider: str, gates: str) -> KubeSchedulerConfiguration:
        """Read the configuration; ``None``: the defaults of the provider."""
        ...


class KubeCommand(TyperCommand):
    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer hands its own Context
        return super().parse_args(ctx, go_forms(args))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A setting, and its entry in ``--help``."""

    path: str  # of its setting; empty for a flag without effect
    names: tuple[str, ...]
    value: str
    about: str
    # The difference from kube-scheduler's flag of that name. Written to standard error when it is given.
    note: str = ""

    @property
    def argument(self) -> str:
        return self.names[-1].strip("-").replace("-", "_")

    def parameter(self) -> Parameter:
        """The flag's parameter, whose value stays text."""
        option = Annotated[Given, typer.Option(*self.names, metavar=self.value, help=self.about)]
        return Parameter(self.argument, Parameter.KEYWORD_ONLY, default=None, annotation=option)


def _flag(name: str, path: str, value: str, about: str, note: str = "") -> Flag:
    return Flag(path=path, names=tuple(name.split()), value=value, about=about, note=f"{name}: {note}" if note else "")


# Instead of delegated authentication and authorization, which kube-scheduler has for /metrics and /configz.
_ANYBODY: Final = "anybody who reaches the health port can read it: limit that by --bind-address or a NetworkPolicy"

# Every service has all flags, so that one command line works for all; the last ones concern the API server, and
# kubeadm's manifest of kube-scheduler.
FLAGS: Final = (
    _flag("--config", "config", "FILE", "KubeSchedulerConfiguration."),
    _flag(
        "--algorithm-provider",
        "algorithm_provider",
        "NAME",
        f"Plugins that a file starts from: {', '.join(PRESETS)}, or an installed provider; `berth config providers`.",
    ),
    _flag("--feature-gates", "feature_gates", "A=true,B=false", "Gates of the provider; `berth config providers`."),
    _flag("--nats", "nats.url", "URL", "Address of NATS."),
    _flag(
        "-v --v", "log.verbosity", "LEVEL", "Log verbosity, 0 to 10: 2 results, 4 steps of pods, 6 messages, requests."
    ),
    _flag("--logging-format", "log.format", "json|text", "Default: text at a terminal, else JSON."),
    _flag("--health-port", "health.port", "PORT", "/livez, /readyz, /metrics, /configz; 0: any free port."),
    _flag("--identity", "identity", "NAME", "Default: host name and a uuid."),
    _flag("--ready-file", "ready_file", "FILE", "Written when first ready."),
    _flag("--shadow", "shadow", "NAME", "Of a scorer: compare its rankings with live ones, and publish none."),
    _flag("--kubeconfig", "kube.kubeconfig", "FILE", "Configuration for the API server."),
    _flag("--kube-api-qps", "kube.qps", "NUMBER", "Requests per second; no limit."),
    _flag("--kube-api-burst", "kube.burst", "NUMBER", "Requests at once under the qps."),
    _flag("--leader-elect", "leader_election.leader_elect", "[=true|false]", "False: no standby, no election."),
    _flag("--leader-elect-lease-duration", "leader_election.lease_duration", "DURATION", "Default 15s."),
    _flag("--leader-elect-renew-deadline", "leader_election.renew_deadline", "DURATION", "Default 10s."),
    _flag("--leader-elect-retry-period", "leader_election.retry_period", "DURATION", "Default 2s."),
    _flag(
        "--leader-elect-resource-name",
        "leader_election.resource_name",
        "NAME",
        "Leases are NAME-watcher and NAME-binder; default berth.",
    ),
    _flag(
        "--leader-elect-resource-namespace",
        "leader_election.resource_namespace",
        "NAMESPACE",
        "Where the Leases are; default berth.",
    ),
    _flag(
        "--allow-other-scheduler",
        "allow_other_scheduler",
        "[=true|false]",
        "Lead beside a live scheduler of the same pods.",
    ),
    _flag(
        "--group-earmark-seconds",
        "group_earmark_seconds",
        "SECONDS",
        "Until nodes are earmarked for a group that waits; default 0: never.",
    ),
    _flag(
        "--bind-address",
        "health.host",
        "ADDRESS",
        "Address of the health port; default 127.0.0.1.",
        f"there is no authentication; {_ANYBODY}",
    ),
    _flag(
        "--secure-port",
        "health.port",
        "PORT",
        "As --health-port, and like it without TLS.",
        "served by HTTP without TLS: give probes and scrapers `scheme: HTTP`; 0 is any free port, not none",
    ),
    *(
        _flag(name, "", "FILE", "Taken and not read: the health port asks nobody.", f"not read; {_ANYBODY}")
        for name in ("--authentication-kubeconfig", "--authorization-kubeconfig")
    ),
)


_FLAG_NAMES: Final = {flag.path: flag.names[-1] for flag in reversed(FLAGS)}  # of two flags of a setting, the first


def service_command(name: str, *, about: str, read: ReadConfiguration, serve: Serve) -> Callable[[], None]:
    """The ``main`` of the service ``berth-<name>``: parse the flags, run it, end the process with its exit code."""

    def run_with(**values: Given) -> None:
        given = [(flag, value) for flag in FLAGS if (value := values[flag.argument]) is not None]
        flags = _by_path(given)
        notes = [flag.note for flag, _ in given if flag.note]
        raise typer.Exit(start(flags, name=name, read=read, serve=serve, notes=notes))

    run_with.__signature__ = Signature([flag.parameter() for flag in FLAGS])  # type: ignore[attr-defined]  # read by typer
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    command = app.command(f"berth-{name}", help=about, epilog=help_text(), cls=KubeCommand, context_settings=HELP_FLAGS)
    command(run_with)

    def main() -> None:
        command = f"berth-{name}"
        try:
            code = app(prog_name=command, standalone_mode=False)
        except WrongUsage as error:
            sys.stderr.write(f"{command}: {one_line(usage_problem(error))}: see {command} --help\n")
            code = Exit.USAGE
        sys.exit(code)

    return main


def _by_path(given: Iterable[tuple[Flag, str]]) -> Flags:
    """The flags by their setting.

    Raises:
        typer.BadParameter: two flags of one setting are given.
    """
    by_path: dict[str, str] = {}
    names: dict[str, str] = {}
    for flag, value in given:
        if not flag.path:
            continue
        name = flag.names[-1]
        if flag.path in by_path:
            raise typer.BadParameter(f"{names[flag.path]} and {name} are one setting: give one of them")
        by_path[flag.path], names[flag.path] = value, name
    return by_path


def start(  # noqa: PLR0913 - all but the flags are named
    flags: Flags,
    *,
    name: str,
    read: ReadConfiguration,
    serve: Serve,
    environment: Mapping[str, str] | None = None,
    notes: Iterable[str] = (),
) -> int:
    """Read settings and configuration and run the service; returns the exit code.

    All errors of both are written to standard error before any connection; ``notes`` before them.
    """
    open_closed_streams()
    for note in notes:
        sys.stderr.write(f"berth-{name}: {note}\n")
    given = os.environ if environment is None else environment
    try:
        settings, configuration = read_all(flags, given, read)
    except SettingsError as error:
        for problem in error.problems:
            sys.stderr.write(f"berth-{name}: {without_passwords(one_line(problem))}\n")
        return Exit.USAGE
    if settings.parent_pid is None:  # Otherwise the parent has printed it already.
        for sentence in (*old_ways(settings, configuration), *misspelt(given)):
            sys.stderr.write(f"berth-{name}: {one_line(sentence)}\n")
    return run(
        lambda process: serve(process, configuration),
        settings,
        name=name,
        digests=digests(configuration),
        configuration=public_configuration(configuration, settings),
    )


def old_ways(settings: Settings, configuration: KubeSchedulerConfiguration) -> list[str]:
    """A sentence for each deprecated form in flags or file, and for what is read otherwise than written."""
    deprecation = deprecation_warning(settings.algorithm_provider)
    converted = [f"{settings.config}: {sentence}" for sentence in configuration.converted]
    return [*([deprecation] if deprecation else []), *converted]


def read_all(
    flags: Flags, environment: Mapping[str, str], read: ReadConfiguration
) -> tuple[Settings, KubeSchedulerConfiguration]:
    """Read settings and configuration. Settings without flag or variable come from the configuration.

    Raises:
        SettingsError: with every problem of both.
    """
    named = flags.get("config") or environment.get("BERTH_CONFIG")
    provider = flags.get("algorithm_provider") or environment.get("BERTH_ALGORITHM_PROVIDER") or DEFAULT_NAME
    gates = flags.get("feature_gates") or environment.get("BERTH_FEATURE_GATES") or ""
    problems: list[str] = []
    configuration = None
    try:
        configuration = read(readers.path(named) if named else None, provider=provider, gates=gates)
    except ConfigurationError as error:
        problems += [f"{named}: {problem}" for problem in error.problems]
    except UnknownPresetError:
        pass  # the reader of the setting says so
    except GateError as error:
        problems.append(str(error))
    try:
        settings = read_settings(
            flags=flags,
            environment=environment,
            file=file_values(configuration),
            flag_names=_FLAG_NAMES,
            file_name=named or "",
        )
    except SettingsError as error:
        problems += error.problems
    if problems or configuration is None:
        raise SettingsError(list(dict.fromkeys(problems)))
    return settings, configuration
