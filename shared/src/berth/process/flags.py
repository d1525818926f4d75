"""The flags of every service, in kube-scheduler's names and forms.

``--config F``, ``--config=F``, ``--leader-elect``, ``--leader-elect=false``, ``-v 4``, ``--v=4``. Values stay text;
``sources`` parses all settings at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Annotated, Final

import typer
from typer.core import TyperCommand

from berth.plugins.presets import PRESETS
from berth.process.sources import help_text

Flags = Mapping[str, str]
"""The flags that were given, by the path of their setting (``kube.kubeconfig``)."""
Given = str | None

BOOLEANS: Final = ("--leader-elect",)
"""Boolean flags: a value only after ``=``; without one they mean true."""


class KubeCommand(TyperCommand):
    """A command with flags in the forms of Kubernetes' programs."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer hands its own Context
        return super().parse_args(ctx, go_forms(args))


def go_forms(args: list[str]) -> list[str]:
    """Convert Go's forms to those of the parser: a boolean alone is true, ``-v=4`` is ``--v=4``."""
    end = args.index("--") if "--" in args else len(args)
    return [*(_go_form(arg) for arg in args[:end]), *args[end:]]


def _go_form(arg: str) -> str:
    if arg in BOOLEANS:
        return f"{arg}=true"
    return f"-{arg}" if arg.startswith("-v=") else arg


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A flag: its setting, and its entry in ``--help``."""

    path: str
    names: tuple[str, ...]
    value: str
    about: str

    @property
    def argument(self) -> str:
        """The name of the function's parameter."""
        return self.path.replace(".", "__")

    def parameter(self) -> Parameter:
        """The parameter for the parser; its value stays text."""
        option = Annotated[Given, typer.Option(*self.names, metavar=self.value, help=self.about)]
        return Parameter(self.argument, Parameter.KEYWORD_ONLY, default=None, annotation=option)


def _flag(name: str, path: str, value: str, about: str) -> Flag:
    return Flag(path=path, names=tuple(name.split()), value=value, about=about)


FLAGS: Final = (
    _flag("--config", "config", "FILE", "KubeSchedulerConfiguration."),
    _flag(
        "--algorithm-provider",
        "algorithm_provider",
        "NAME",
        f"Plugins that a file starts from: {', '.join(PRESETS)}.",
    ),
    _flag("--feature-gates", "feature_gates", "A=true,B=false", "Gates of the provider; `berth config providers`."),
    _flag("--nats", "nats.url", "URL", "Address of NATS."),
    _flag("-v --v", "log.verbosity", "LEVEL", "Log verbosity, 0 to 10."),
    _flag("--logging-format", "log.format", "json|text", "Default: text at a terminal, else JSON."),
    _flag("--health-port", "health.port", "PORT", "/livez, /readyz, /metrics; 0: any free port."),
    _flag("--identity", "identity", "NAME", "Default: host name and a uuid."),
    _flag("--ready-file", "ready_file", "FILE", "Written when first ready."),
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
)
"""Every service has all flags, so that one command line works for all; the last flags concern the API server."""


def service_command(name: str, *, about: str, start: Callable[[Flags], int]) -> Callable[[], None]:
    """The ``main`` of a service: parse the flags, call ``start``, end the process with its exit code."""

    def run(**given: Given) -> None:
        said = {flag.path: value for flag in FLAGS if (value := given[flag.argument]) is not None}
        raise typer.Exit(start(said))

    run.__signature__ = Signature([flag.parameter() for flag in FLAGS])  # type: ignore[attr-defined]  # read by typer
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(name, help=about, epilog=help_text(), cls=KubeCommand)(run)
    return app
