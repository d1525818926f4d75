"""``berth bus``: declares streams, buckets and consumers; prints NATS's accounts."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

from berth.bus.interface import BusLostError
from berth.exits import UsageError
from berth.settings.readers import berth_prefix
from berth_cli.bus import PREFIX_VARIABLE, apply_bus
from berth_cli.options import reporting_errors, run_command
from berth_cli.pipeline.natsconf import nats_conf
from berth_cli.rendering import print_line, print_text

app = typer.Typer(name="bus", help="The bus: streams, buckets and consumers.", no_args_is_help=True)


@app.command("apply")
def apply(
    nats: Annotated[
        str, typer.Option("--nats", metavar="URL", help="Address of the NATS server.", envvar="BERTH_NATS_URL")
    ],
) -> None:
    """Create or update streams, buckets and shared consumers."""
    run_command(_apply(nats))
    print_line(f"applied to {nats}")


async def _apply(nats: str) -> None:
    try:
        await apply_bus(nats)
    except BusLostError as error:
        raise BusLostError(
            f"{error}: start a server with JetStream there (nats-server -js), or name another"
        ) from error


class Format(StrEnum):
    """The formats of ``berth bus permissions``."""

    NATS_CONF = "nats-conf"


@app.command("permissions")
def permissions(
    _: Annotated[Format, typer.Option("--format", help="A part of nats-server's configuration.")] = Format.NATS_CONF,
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            "--prefix",
            metavar="PREFIX",
            help="A berth's BERTH_NATS_PREFIX ('' for none), once for each berth on the server; by default this one's.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print NATS's accounts and users, and their permissions.

    Passwords are variables: $scorer_PASSWORD.
    """
    with reporting_errors():
        print_text(nats_conf(*_checked(prefix)).rstrip())


def _checked(prefixes: list[str] | None) -> list[str]:
    """Checked prefixes, by default the prefix of the environment.

    Raises:
        UsageError: a prefix is invalid.
    """
    try:
        return [berth_prefix(one) for one in ([os.environ.get(PREFIX_VARIABLE, "")] if prefixes is None else prefixes)]
    except ValueError as error:
        raise UsageError(f"--prefix or {PREFIX_VARIABLE}: {error}") from error
