"""The ``berth`` command: its verbs, their flags, and the exit code of whatever goes wrong."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from berth.api.errors import BerthError
from berth.cli import run as running
from berth.cli.config import Provider, configured, kubeconfig_of
from berth.cli.config import app as config_app
from berth.cli.console import note, say
from berth.cli.pipeline import PipelineOptions
from berth.cli.plugin import app as plugin_app
from berth.cli.reachable import apply_bus
from berth.cli.supervisor import ChildRefusedError
from berth.cli.up import up as bring_up
from berth.service.exits import Exit, exit_for
from berth.service.flags import go_forms

T = TypeVar("T")

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
    scorers: Annotated[int, typer.Option(help="How many scorers.", min=1, max=256)] = 1,
    nodes: Annotated[int, typer.Option(help="Nodes of the simulated cluster.", min=0)] = 100,
    verbosity: Verbosity = 0,
    leader_elect: Annotated[
        str | None, typer.Option(metavar="[=true|false]", help="Lead by Lease; false for one alone.")
    ] = None,
    ready_file: Annotated[Path | None, typer.Option(help="Written when pods are being scheduled.")] = None,
) -> None:
    """Run the whole pipeline in the foreground; Ctrl-C ends every process. Prints `ready` when it schedules."""
    chosen = configured(config, algorithm_provider)
    options = PipelineOptions(
        kubeconfig=kubeconfig or kubeconfig_of(chosen),
        nats=nats,
        config=config,
        algorithm_provider=algorithm_provider,
        scorers=scorers,
        nodes=nodes,
        verbosity=verbosity,
        leader_elect=leader_elect,
    )
    _await(bring_up(options, ready_file=ready_file))


@app.command()
def run(
    pods: Annotated[int, typer.Option(help="How many pods.", min=1)] = 1000,
    nodes: Annotated[int, typer.Option(help="How many nodes.", min=1)] = 100,
    scorers: Annotated[int, typer.Option(help="How many scorers.", min=1, max=256)] = 2,
    deadline: Annotated[float, typer.Option(help="Seconds after which to give up.", min=1)] = 300,
) -> None:
    """See it work: pods on a simulated cluster, placed by the whole pipeline, under a live table."""
    options = running.RunOptions(pods=pods, nodes=nodes, scorers=scorers, deadline=timedelta(seconds=deadline))
    if not _await(running.run(options)):
        raise typer.Exit(Exit.NO)


@bus_app.command("apply")
def bus_apply(nats: Annotated[str, typer.Option("--nats", help="Address of the NATS server.")]) -> None:
    """Create or update every stream, bucket and shared consumer that berth declares."""
    _await(apply_bus(nats))
    say(f"applied to {nats}")


def _await(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end; an error that berth raises on purpose is one line and an exit code."""
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        raise _told(_first(group)) from group
    except (BerthError, ChildRefusedError) as error:
        raise _told(error) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(Exit.NO) from error


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _told(error: BaseException) -> BaseException:
    if not isinstance(error, BerthError | ChildRefusedError):
        return error
    note(" ".join(str(error).split()))
    return typer.Exit(Exit.USAGE if isinstance(error, ChildRefusedError) else exit_for(error))


def main() -> None:
    """The entry point."""
    app(args=go_forms(sys.argv[1:]))


if __name__ == "__main__":
    main()
