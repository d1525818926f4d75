"""``berth up``: the whole pipeline in the foreground until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.devices import MOST_DEVICES
from berth.api.pod import DEFAULT_SCHEDULER
from berth.bus.topology import Names
from berth.errors import BerthError
from berth.exits import Exit, ReadyFileError, UsageError, write_ready_file
from berth.leader.samepods import leases_of_others, warning_about
from berth.settings import readers
from berth.settings.file import file_values
from berth.settings.settings import NatsSettings
from berth.settings.sources import misspelt, read_settings
from berth_cli.bus import is_anonymous
from berth_cli.commands.config import configured_for_services, kubeconfig_of
from berth_cli.options import Gates, Provider, reporting_errors, run_command, until_stopped
from berth_cli.pipeline import access
from berth_cli.pipeline.pipeline import PipelineOptions, pipeline
from berth_cli.pipeline.programs import ShadowOptions
from berth_cli.pipeline.servers import ANY_PORT, DEFAULT_PORT, MOST_NODES
from berth_cli.rendering import note, print_line

app = typer.Typer()

NODES: Final = 100  # of a simulated cluster
MOST_SHADOWS: Final = 8  # connections that NATS takes of them (ADR 64); of scorers it takes 64

Kubeconfig = Annotated[
    Path | None,
    typer.Option("--kubeconfig", metavar="FILE", help="The cluster; by default a simulated one.", show_default=False),
]
Nats = Annotated[
    str | None,
    typer.Option(
        "--nats", metavar="URL", help="Address of a NATS server; by default an embedded one.", show_default=False
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="A KubeSchedulerConfiguration (v1).", show_default=False)
]
Verbosity = Annotated[
    int,
    typer.Option(
        "-v",
        "--v",
        metavar="N",
        help="How much the services log: 2 results, 4 steps, 6 messages, requests.",
        min=0,
        max=10,
    ),
]


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
            metavar="PORT",
            help="Port of the embedded NATS; by default 4222 if it is free, else any.",
            min=1,
            max=65_535,
            show_default=False,
        ),
    ] = None,
    scorers: Annotated[int, typer.Option(metavar="N", help="Number of scorers.", min=1, max=64)] = 1,
    shadow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="Compare another configuration with the live one, without binding pods; repeatable.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"Nodes of the simulated cluster; {NODES} if not given.",
            min=0,
            max=MOST_NODES,
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="GPUs of each node of the simulated cluster, from a played driver; none if not given.",
            min=0,
            max=MOST_DEVICES,
            show_default=False,
        ),
    ] = None,
    verbosity: Verbosity = 0,
    leader_elect: Annotated[
        str | None, typer.Option(metavar="[=true|false]", help="Elect leaders by Lease; false if nothing else runs.")
    ] = None,
    allow_other_scheduler: Annotated[
        str | None,
        typer.Option(metavar="[=true|false]", help="Schedule beside a live scheduler of the same pods."),
    ] = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A file that is written when all services are ready, and removed at the end."
        ),
    ] = None,
) -> None:
    """Run the whole pipeline in the foreground, until Ctrl-C.

    Prints `ready` when it schedules. Ctrl-C ends every process.
    """
    flags = {"allow_other_scheduler": allow_other_scheduler, "leader_election.leader_elect": leader_elect}
    given = {path: text for path, text in flags.items() if text is not None}
    configuration = configured_for_services(config, algorithm_provider, feature_gates, given)
    for sentence in configuration.converted:
        note(f"{config}: {sentence}")
    for sentence in misspelt(os.environ):
        note(sentence)
    shadows = _shadows(shadow or (), configuration, algorithm_provider, feature_gates, given)
    settings = read_settings(flags=given, file=file_values(configuration))
    cluster = kubeconfig or kubeconfig_of(configuration)
    with reporting_errors():
        _want_simulation({"--nodes": nodes, "--devices": devices}, cluster, kubeconfig)
    warning = warning_about(settings.leader_election, configuration.scheduler_names)
    if cluster is not None and warning is not None:
        note(f"warning: {warning}")
    options = PipelineOptions(
        kubeconfig=cluster,
        nats=nats,
        nats_ports=(nats_port,) if nats_port is not None else (DEFAULT_PORT, ANY_PORT),
        config=config,
        algorithm_provider=algorithm_provider,
        feature_gates=feature_gates,
        scorers=scorers,
        shadows=shadows,
        nodes=NODES if nodes is None else nodes,
        devices=devices or 0,
        default_scheduler=_for_pods_that_name_none(configuration),
        verbosity=verbosity,
        leader_elect=leader_elect,
        leases_of_others=leases_of_others(settings.leader_election, configuration.scheduler_names),
        allow_other_scheduler=settings.allow_other_scheduler,
    )
    run_command(_up(options, ready_file=ready_file), interrupted=Exit.DONE)


def _shadows(
    given: Sequence[str],
    live: KubeSchedulerConfiguration,
    provider: str | None,
    gates: str | None,
    flags: Mapping[str, str],
) -> tuple[ShadowOptions, ...]:
    """The shadows of the flags; each has at least one profile of the live configuration."""
    found: dict[str, ShadowOptions] = {}
    for text in given:
        with reporting_errors():
            shadow = _shadow_of(text)
            if shadow.name in found:
                raise UsageError(f"--shadow {text!r}: there are two shadows called {shadow.name!r}: rename one of them")
            if len(found) == MOST_SHADOWS:
                raise UsageError(f"--shadow {text!r}: NATS takes {MOST_SHADOWS} shadows: leave this one out")
        configuration = configured_for_services(shadow.config, provider, gates, flags)
        with reporting_errors():
            if not set(configuration.scheduler_names) & set(live.scheduler_names):
                names = ", ".join(live.scheduler_names)
                raise UsageError(f"--shadow {text!r}: it has no profile of the live configuration ({names}): add one")
        found[shadow.name] = shadow
    return tuple(found.values())


def _shadow_of(text: str) -> ShadowOptions:
    """Parse ``cheap=cheap.yaml``.

    Raises:
        UsageError: the text has another form.
    """
    name, equals, file = text.partition("=")
    if not equals or not file:
        raise UsageError(f"--shadow {text!r}: want NAME=FILE")
    try:
        return ShadowOptions(name=readers.shadow_name(name), config=Path(file))
    except ValueError as error:
        raise UsageError(f"--shadow {text!r}: its name: {error}") from error


def _want_simulation(numbers: Mapping[str, int | None], cluster: Path | None, flag: Path | None) -> None:
    """A given cluster has its own nodes and devices.

    Raises:
        UsageError: a number of them is given for it.
    """
    for name, number in numbers.items():
        if number is not None and cluster is not None:
            given = "--kubeconfig" if flag is not None else "clientConnection.kubeconfig of the configuration"
            raise UsageError(
                f"{name} {number}: it is for a simulated cluster, and {given} names another: leave one out"
            )


def _for_pods_that_name_none(configuration: KubeSchedulerConfiguration) -> str:
    """The default scheduler for the pods: a simulated cluster has no other scheduler."""
    names = [profile.scheduler_name for profile in configuration.profiles]
    return DEFAULT_SCHEDULER if DEFAULT_SCHEDULER in names else names[0]


async def _up(options: PipelineOptions, *, ready_file: Path | None) -> None:
    """Run the pipeline until it is stopped. Every process has ended on return."""
    if ready_file is not None:
        _remove_old(ready_file)
    await until_stopped(_run_pipeline(options, ready_file))


async def _run_pipeline(options: PipelineOptions, ready_file: Path | None) -> None:
    async with pipeline(options, note) as running:
        note(f"NATS at {running.nats}, cluster of {running.kubeconfig}")
        if running.options.users is not None:
            password, names = access.password_file(running.options.users, access.PEOPLE), Names(running.options.prefix)
            user = names.word(access.PEOPLE)
            client = f'nats --server {running.nats} --user {user} --password "$(cat {password})"'
            if names.prefix:
                client = f"{client} --inbox-prefix _INBOX_{user}"
            note(f"the NATS CLI: {client} sub '{names.subject('berth.>')}'")
        elif is_anonymous(read_settings().nats):
            note(f"warning: {running.nats} accepts berth without a user, and so everybody: see `berth bus permissions`")
        note("`berth console` shows it in a browser")
        if running.options.users is None or running.nats != NatsSettings().url:
            beside = "" if running.options.users is None else "beside another pipeline of yours, "
            note(f"{beside}berth why, trace, top and console find it with --nats {running.nats} (or BERTH_NATS_URL)")
        await running.ready()
        print_line("ready")
        with _announced(ready_file):
            await asyncio.Event().wait()


@contextmanager
def _announced(ready_file: Path | None) -> Iterator[None]:
    """The ready file exists in the block."""
    if ready_file is None:
        yield
        return
    try:
        write_ready_file(ready_file)
    except ReadyFileError as error:
        raise BerthError(str(error)) from error
    try:
        yield
    finally:
        ready_file.unlink(missing_ok=True)


def _remove_old(path: Path) -> None:
    """Remove the ready file of an earlier run.

    Raises:
        UsageError: its folder does not exist.
    """
    if not path.parent.is_dir():
        raise UsageError(f"--ready-file {str(path)!r}: there is no folder {str(path.parent)!r}")
    path.unlink(missing_ok=True)
