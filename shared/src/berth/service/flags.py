"""The flags of every service, in kube-scheduler's names and forms.

``--config F``, ``--config=F``, ``--leader-elect``, ``--leader-elect=false``, ``-v 4``, ``--v=4``. What they say is text
still: settings are read in one place, all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Final

import typer
from typer.core import TyperCommand

from berth.plugins.presets import PRESETS
from berth.service.variables import help_text

Flags = Mapping[str, str]
"""The flags that were given, by the path of their setting (``kube.kubeconfig``)."""
Given = str | None

BOOLEANS: Final = ("--leader-elect",)
"""Flags that take a value only behind ``=``, and mean true alone."""


class KubeCommand(TyperCommand):
    """A command that takes flags as Kubernetes' programs do."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # typer hands its own Context
        """Parse what was typed."""
        return super().parse_args(ctx, go_forms(args))


def go_forms(args: list[str]) -> list[str]:
    """Write Go's forms as the parser here knows them: a boolean alone is true, ``-v=4`` is ``--v=4``."""
    end = args.index("--") if "--" in args else len(args)
    return [*(_go_form(arg) for arg in args[:end]), *args[end:]]


def _go_form(arg: str) -> str:
    if arg in BOOLEANS:
        return f"{arg}=true"
    return f"-{arg}" if arg.startswith("-v=") else arg


def service_command(name: str, *, about: str, start: Callable[[Flags], int]) -> Callable[[], None]:
    """The ``main`` of a service: parse the flags, call ``start``, end the process with its exit code."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.command(name, help=about, epilog=help_text(), cls=KubeCommand)
    def command(  # noqa: PLR0913, PLR0917 - one parameter a flag, given by name
        config: Annotated[Given, typer.Option(metavar="FILE", help="KubeSchedulerConfiguration.")] = None,
        algorithm_provider: Annotated[
            Given, typer.Option(metavar="NAME", help=f"Plugins that a file starts from: {', '.join(PRESETS)}.")
        ] = None,
        feature_gates: Annotated[
            Given, typer.Option(metavar="A=true,B=false", help="Gates of the provider; `berth config providers`.")
        ] = None,
        kubeconfig: Annotated[Given, typer.Option(metavar="FILE", help="How to reach the API server.")] = None,
        nats: Annotated[Given, typer.Option(metavar="URL", help="Where NATS is.")] = None,
        leader_elect: Annotated[
            Given, typer.Option(metavar="[=true|false]", help="Lead by Lease; false for one alone.")
        ] = None,
        leader_elect_lease_duration: Annotated[Given, typer.Option(metavar="DURATION", help="Default 15s.")] = None,
        leader_elect_renew_deadline: Annotated[Given, typer.Option(metavar="DURATION", help="Default 10s.")] = None,
        leader_elect_retry_period: Annotated[Given, typer.Option(metavar="DURATION", help="Default 2s.")] = None,
        leader_elect_resource_name: Annotated[
            Given, typer.Option(metavar="NAME", help="Leases are NAME-watcher and NAME-binder; default berth.")
        ] = None,
        leader_elect_resource_namespace: Annotated[
            Given, typer.Option(metavar="NAMESPACE", help="Where the Leases are; default kube-system.")
        ] = None,
        kube_api_qps: Annotated[Given, typer.Option(metavar="NUMBER", help="Requests per second; no limit.")] = None,
        kube_api_burst: Annotated[Given, typer.Option(metavar="NUMBER", help="Requests at once under the qps.")] = None,
        verbosity: Annotated[Given, typer.Option("--v", "-v", metavar="LEVEL", help="Say more: 0 to 10.")] = None,
        logging_format: Annotated[
            Given, typer.Option(metavar="json|text", help="Default: text at a terminal, else JSON.")
        ] = None,
        health_port: Annotated[
            Given, typer.Option(metavar="PORT", help="/livez, /readyz, /metrics; 0 is any that is free.")
        ] = None,
        identity: Annotated[Given, typer.Option(metavar="NAME", help="Default: host name and a uuid.")] = None,
        ready_file: Annotated[Given, typer.Option(metavar="FILE", help="Written when it first works.")] = None,
    ) -> None:
        given = {
            "config": config,
            "algorithm_provider": algorithm_provider,
            "feature_gates": feature_gates,
            "kube.kubeconfig": kubeconfig,
            "kube.qps": kube_api_qps,
            "kube.burst": kube_api_burst,
            "nats.url": nats,
            "leader_election.leader_elect": leader_elect,
            "leader_election.lease_duration": leader_elect_lease_duration,
            "leader_election.renew_deadline": leader_elect_renew_deadline,
            "leader_election.retry_period": leader_elect_retry_period,
            "leader_election.resource_name": leader_elect_resource_name,
            "leader_election.resource_namespace": leader_elect_resource_namespace,
            "log.verbosity": verbosity,
            "log.format": logging_format,
            "health.port": health_port,
            "identity": identity,
            "ready_file": ready_file,
        }
        raise typer.Exit(start({path: value for path, value in given.items() if value is not None}))

    return app
