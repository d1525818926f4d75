"""``berth bus``: declares streams, buckets and consumers, prints the accounts of NATS."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from berth.bus.accounts import nats_conf
from berth.cli.bus import apply_bus
from berth.cli.options import run_command
from berth.cli.rendering import print_line, print_text

app = typer.Typer(name="bus", help="The bus: streams, buckets and consumers.", no_args_is_help=True)


@app.command("apply")
def apply(nats: Annotated[str, typer.Option("--nats", help="Address of the NATS server.")]) -> None:
    """Create or update every stream, bucket and shared consumer that berth declares."""
    run_command(apply_bus(nats))
    print_line(f"applied to {nats}")


class Format(StrEnum):
    """The forms of ``berth bus permissions``."""

    NATS_CONF = "nats-conf"


@app.command("permissions")
def permissions(
    _: Annotated[Format, typer.Option("--format", help="A part of nats-server's configuration.")] = Format.NATS_CONF,
) -> None:
    """Print the accounts of NATS, their users, and what each may do. Passwords are variables: $scorer_PASSWORD."""
    print_text(nats_conf().rstrip())
