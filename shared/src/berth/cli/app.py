"""The ``berth`` command: its subcommands, and how it ends."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final, cast

import typer

from berth.bus.accounts import nats_conf
from berth.cli.commands.config import app as config_app
from berth.cli.commands.plugin import app as plugin_app
from berth.cli.commands.run import run
from berth.cli.commands.simulate import SeveralFilesCommand, simulate
from berth.cli.commands.top import top
from berth.cli.commands.trace import trace
from berth.cli.commands.up import up
from berth.cli.commands.why import why
from berth.cli.options import run_command
from berth.cli.pipeline.servers import apply_bus
from berth.cli.rendering import OutputError, ReaderGoneError, StandardOutput, note, print_line, print_text
from berth.process.exits import Exit
from berth.process.start import go_forms, open_closed_streams

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
app.command()(up)
app.command()(run)
app.command()(why)
app.command()(trace)
app.command()(top)
app.command(cls=SeveralFilesCommand)(simulate)


@bus_app.command("apply")
def bus_apply(nats: Annotated[str, typer.Option("--nats", help="Address of the NATS server.")]) -> None:
    """Create or update every stream, bucket and shared consumer that berth declares."""
    run_command(apply_bus(nats))
    print_line(f"applied to {nats}")


class Format(StrEnum):
    """The forms of ``berth bus permissions``."""

    NATS_CONF = "nats-conf"


@bus_app.command("permissions")
def bus_permissions(
    _: Annotated[Format, typer.Option("--format", help="A part of nats-server's configuration.")] = Format.NATS_CONF,
) -> None:
    """Print the accounts of NATS, their users, and what each may do. Passwords are variables: $scorer_PASSWORD."""
    print_text(nats_conf().rstrip())


_WrongUsage: Final = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
"""What the parser raises. Its place differs: a newer Typer brings its own parser."""


def main(args: Sequence[str]) -> int:
    """Run the command; returns its exit code. Errors are one line on standard error."""
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = StandardOutput.of(sys.stdout)
    try:
        code = app(args=go_forms([*args]), prog_name="berth", standalone_mode=False)
    except _WrongUsage as error:
        command = error.ctx.command_path if error.ctx else "berth"
        what = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
        if what:  # else the command has printed its help
            note(f"{what[:1].lower()}{what[1:]}: see {command} --help", by=command)
        return Exit.USAGE
    except OutputError as error:
        note(str(error))
        return Exit.UNREACHABLE
    except ReaderGoneError:
        return Exit.READER_GONE
    return code if isinstance(code, int) else Exit.DONE
