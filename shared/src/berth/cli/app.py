"""The ``berth`` command: its subcommands, and how it ends."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final, cast

import typer

from berth.cli.rendering import OutputError, ReaderGoneError, StandardOutput, note
from berth.process.exits import Exit, open_closed_streams
from berth.process.sources import go_forms

COMMANDS: Final = ("up", "run", "why", "trace", "top", "queue", "dead", "drain", "simulate", "bus", "config", "plugin")
"""The modules of ``berth.cli.commands`` that have an ``app``, in the order of the help."""


def app_with(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command with these subcommands. To import all takes 0.7 s of CPU time, ``trace`` alone a third of it."""
    app = typer.Typer(
        help="A Kubernetes scheduler made of small services that meet on NATS.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )
    for name in names:
        app.add_typer(import_module(f"berth.cli.commands.{name}").app)
    return app


_WrongUsage: Final = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
"""What the parser raises. Its place differs: a newer Typer brings its own parser."""


def main(args: Sequence[str]) -> int:
    """Run the command; returns its exit code. Errors are one line on standard error."""
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = StandardOutput.of(sys.stdout)
    try:
        app = app_with(args[:1] if args and args[0] in COMMANDS else COMMANDS)
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
