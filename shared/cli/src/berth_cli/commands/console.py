"""``berth console``: serves a page that shows the cluster live in a browser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.exits import Exit
from berth.profiles.configuration import profiles_of
from berth_cli.bus import NatsContext, NatsServer, NatsUrl
from berth_cli.commands.config import configured
from berth_cli.console.askagain import AskAgain
from berth_cli.console.feed import Feed
from berth_cli.console.guard import Guard, guard_of
from berth_cli.console.pages import serve
from berth_cli.console.server import ConsoleServer
from berth_cli.options import (
    Gates,
    Provider,
    ServicesConfig,
    reporting_errors,
    run_command,
    until_stopped,
)
from berth_cli.remedies.asking import sources_of_filters

app = typer.Typer()

PORT: Final = 8090

Host = Annotated[
    str,
    typer.Option("--host", metavar="ADDRESS", help="Where to listen; others than 127.0.0.1 need a token or a proxy."),
]
Port = Annotated[
    int, typer.Option("--port", metavar="PORT", help="The port; 0 is any that is free.", min=0, max=65_535)
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", metavar="FILE", help="A file with the token that opens the page.", show_default=False),
]
ProxyHeader = Annotated[
    str | None,
    typer.Option(
        "--proxy-header", metavar="NAME", help="A header in which a reverse proxy names the person.", show_default=False
    ),
]
ProxyAddresses = Annotated[
    list[str] | None,
    typer.Option(
        "--proxy-address", metavar="ADDRESS", help="A proxy's address or network; repeatable.", show_default=False
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host", metavar="NAME", help="A name under which browsers ask; repeatable.", show_default=False
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="`Ask again now` reads pods from this cluster; by default from NATS alone.",
        show_default=False,
    ),
]


@app.command()
def console(  # noqa: PLR0913 - one parameter a flag, given by name
    *,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    token_file: TokenFile = None,
    proxy_header: ProxyHeader = None,
    proxy_address: ProxyAddresses = None,
    allowed_host: AllowedHosts = None,
    config: ServicesConfig = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    kubeconfig: Kubeconfig = None,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Serve a page that shows the cluster live.

    Nodes, Decisions, placements with their reasons, and the queue.
    """
    configuration = configured(config, algorithm_provider, feature_gates)
    with reporting_errors():
        guard = guard_of(host, token_file, proxy_header, proxy_address, allowed_host)
    flags = {
        "--nats": nats,
        "--context": nats_context,
        "--config": config,
        "--algorithm-provider": algorithm_provider,
        "--feature-gates": feature_gates,
    }
    given = tuple(str(word) for flag, value in flags.items() if value is not None for word in (flag, value))
    listening = _Console(
        server=NatsServer(nats, nats_context),
        guard=guard,
        port=port,
        ask_again=AskAgain(given, kubeconfig=kubeconfig),
        configuration=configuration,
    )
    run_command(until_stopped(listening.run()), interrupted=Exit.DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Console:
    server: NatsServer
    guard: Guard
    port: int
    ask_again: AskAgain
    configuration: KubeSchedulerConfiguration

    async def run(self) -> None:
        """Serve until cancelled. Raises as :meth:`Feed.run` and :func:`serve`."""
        profiles = profiles_of(self.configuration).values()
        feed = Feed(self.server, sources_of_filters(profiles))
        answers = ConsoleServer(feed, self.guard, self.ask_again, self.configuration)
        await serve(answers.application(), self.guard, self.port, "console", feed.run)
