"""The ``berth`` command: its verbs, their flags, and the exit code of whatever goes wrong."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from berth.cli.commands import run as running
from berth.cli.commands.config import Gates, Provider, configured, configured_for_services, kubeconfig_of
from berth.cli.commands.config import app as config_app
from berth.cli.commands.plugin import app as plugin_app
from berth.cli.commands.providers import providers
from berth.cli.commands.simulate import SeveralFilesCommand, simulate
from berth.cli.commands.top import top
from berth.cli.commands.trace import trace
from berth.cli.commands.up import up as bring_up
from berth.cli.commands.why import why
from berth.cli.exits import finish
from berth.cli.pipeline.pipeline import ANY_PORT, DEFAULT_PORT, PipelineOptions
from berth.cli.pipeline.reachable import apply_bus
from berth.cli.rendering import note, say
from berth.process.exits import Exit
from berth.process.flags import go_forms

app = typer.Typer(
    help="A Kubernetes scheduler made of small services that meet on NATS.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
bus_app = typer.Typer(help="The bus: streams, buckets and consumers.", no_args_is_help=True)
app.add_typer(bus_app, name="bus")
app.add_typer(config_app, name="config")
app.add_typer(plugin_app, name="plugin")

Kubeconfig = Annotated[
    Path | None, typer.Option("--kubeconfig", help="The cluster; without it one is simulated.", show_default=False)
]
Nats = Annotated[
    str | None, typer.Option("--nats", help="Address of a NATS server; without it one is embedded.", show_default=False)
]
Config = Annotated[Path | None, typer.Option("--config", help="A KubeSchedulerConfiguration (v1).", show_default=False)]
Verbosity = Annotated[int, typer.Option("-v", "--v", help="How much the services say, 0-10.", min=0, max=10)]


@app.command()
def up(  # noqa: PLR0913, PLR0917 - one parameter a flag, given by name
    kubeconfig: Kubeconfig = None,
    nats: Nats = None,
    config: Config = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    nats_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the embedded NATS; without it 4222 when nobody has it, else any.",
            min=1,
            max=65_535,
            show_default=False,
        ),
    ] = None,
    scorers: Annotated[int, typer.Option(help="How many scorers.", min=1, max=256)] = 1,
    nodes: Annotated[int, typer.Option(help="Nodes of the simulated cluster.", min=0)] = 100,
    verbosity: Verbosity = 0,
    leader_elect: Annotated[
        str | None, typer.Option(metavar="[=true|false]", help="Lead by Lease; false for one alone.")
    ] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Written when pods are being scheduled.")] = None,
) -> None:
    """Run the whole pipeline in the foreground; Ctrl-C ends every process. Prints `ready` when it schedules."""
    chosen = configured_for_services(config, algorithm_provider, feature_gates)
    for sentence in chosen.converted:
        note(f"{config}: {sentence}")
    options = PipelineOptions(
        kubeconfig=kubeconfig or kubeconfig_of(chosen),
        nats=nats,
        nats_ports=(nats_port,) if nats_port is not None else (DEFAULT_PORT, ANY_PORT),
        config=config,
        algorithm_provider=algorithm_provider,
        feature_gates=feature_gates,
        scorers=scorers,
        nodes=nodes,
        verbosity=verbosity,
        leader_elect=leader_elect,
    )
    finish(bring_up(options, ready_file=ready_file))


@app.command()
def run(  # noqa: PLR0913, PLR0917 - one parameter a flag, given by name
    pods: Annotated[int, typer.Option(help="How many pods.", min=1)] = 1000,
    nodes: Annotated[int, typer.Option(help="How many nodes.", min=1)] = 100,
    scorers: Annotated[int, typer.Option(help="How many scorers.", min=1, max=256)] = 2,
    deadline: Annotated[float, typer.Option(help="Seconds after which to give up.", min=1)] = 300,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
) -> None:
    """See it work: pods on a simulated cluster, placed by the whole pipeline, under a live table."""
    configured(None, algorithm_provider, feature_gates)
    options = running.RunOptions(
        pods=pods,
        nodes=nodes,
        scorers=scorers,
        deadline=timedelta(seconds=deadline),
        algorithm_provider=algorithm_provider,
        feature_gates=feature_gates,
    )
    if not finish(running.run(options)):
        raise typer.Exit(Exit.NO)


config_app.command("providers")(providers)
app.command()(why)
app.command()(trace)
app.command()(top)
app.command(cls=SeveralFilesCommand)(simulate)


@bus_app.command("apply")
def bus_apply(nats: Annotated[str, typer.Option("--nats", help="Address of the NATS server.")]) -> None:
    """Create or update every stream, bucket and shared consumer that berth declares."""
    finish(apply_bus(nats))
    say(f"applied to {nats}")


def main() -> None:
    """The entry point."""
    app(args=go_forms(sys.argv[1:]))


if __name__ == "__main__":
    main()
