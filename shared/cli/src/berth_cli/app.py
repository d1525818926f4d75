"""The ``berth`` command: its subcommands and exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer import completion
from typer.core import TyperGroup

from berth import __version__
from berth.exits import Exit, open_closed_streams
from berth.settings.commandline import HELP_FLAGS, WrongUsage, go_forms, usage_problem
from berth_cli.examples import epilog
from berth_cli.options import KubectlPlugin
from berth_cli.rendering import OutputError, ReaderGoneError, StandardOutput, note, print_line, print_text

# Modules of ``berth_cli.commands`` with an ``app``, and the first line of their help, in the order of the help.
# Importing all of them takes 0.7 s of CPU time, ``trace`` alone a third of that; the help and unknown commands import
# none.
GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "Look": {
        "why": "Print why a pod is on its node, or on no node.",
        "trace": "Print a pod's messages in order, with the times between them.",
        "top": "Print queues, services, nodes, and problems.",
        "queue": "List waiting pods, or explain why a pod waits.",
        "groups": "List PodGroups: what is bound of each, and why it waits.",
        "devices": "List the devices of the cluster, and the pods that use them.",
        "console": "Serve a page that shows the cluster live.",
    },
    "Try": {
        "run": "See berth work: it places pods on a simulated cluster.",
        "up": "Run the whole pipeline in the foreground, until Ctrl-C.",
        "simulate": "Print where pods would go.",
        "export": "Write a cluster's objects into a file, for berth simulate.",
    },
    "Operate": {
        "dead": "Dead letters: messages that could not be decoded, or failed.",
        "drain": "Stop publishing pods, and end when no pod is under way.",
        "record": "Write the messages on the bus into a file, for berth replay.",
        "replay": "Make the rankings of a recording again, and compare.",
        "bus": "The bus: streams, buckets and consumers.",
    },
    "Develop": {
        "config": "Configuration files (KubeSchedulerConfiguration).",
        "plugin": "List plugins, or write the package of a new one.",
        "completion": "Print a script that completes commands and flags.",
    },
}
COMMANDS: Final = {name: text for group in GROUPS.values() for name, text in group.items()}
# Subcommands of ``kubectl berth``: questions about pods of a running cluster.
KUBECTL_COMMANDS: Final = ("why", "trace", "top", "queue", "dead")
COMPLETE: Final = "_BERTH_COMPLETE"  # the variable by which a shell asks for completions
WORDS: Final = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")  # the words typed so far: in bash, in other shells


class GroupedCommands(TyperGroup):
    """A command whose help groups the subcommands by task."""

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # noqa: ARG002 - typer's
        width = max(map(len, self.commands))
        for group, commands in GROUPS.items():
            if rows := [(name.ljust(width), text) for name, text in commands.items() if name in self.commands]:
                with formatter.section(group):
                    formatter.write_dl(rows)


def app_with(names: Iterable[str] = COMMANDS, *, listed: Iterable[str] = ()) -> typer.Typer:
    """The app with these subcommands. ``listed`` subcommands appear in its help and completions only."""
    app = typer.Typer(
        help="A Kubernetes scheduler made of small services that meet on NATS.",
        epilog="berth COMMAND --help has examples.",
        cls=GroupedCommands,
        no_args_is_help=True,
        context_settings=HELP_FLAGS,
        pretty_exceptions_enable=False,
        add_completion=False,
        rich_markup_mode=None,
    )
    app.callback()(root)
    for name in names:
        _add(app, name)
    for name in listed:
        app.command(name, help=COMMANDS[name])(_nothing)
    return app


def _add(app: typer.Typer, name: str) -> None:
    added: typer.Typer = import_module(f"berth_cli.commands.{name}").app
    is_group = added.info.name == name
    words = [f"{name} {command.name}" if is_group else name for command in added.registered_commands]
    for command, of in zip(added.registered_commands, words, strict=True):
        command.epilog = epilog(of)
    app.add_typer(added, epilog=epilog(*words) if is_group else None)


def _nothing() -> None:
    # Stands in for commands that are listed only.
    pass


def _print_version(value: bool) -> None:  # noqa: FBT001 - typer hands it so
    if value:
        print_line(f"berth {__version__}")
        raise typer.Exit


def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    del version  # its callback has printed it


def needed(words: Sequence[str], commands: Iterable[str]) -> Sequence[str]:
    # Only flags that run no command can come before the command.
    return words[:1] if words and words[0] in commands else ()


def completed(commands: Iterable[str], environment: Mapping[str, str] = os.environ) -> Sequence[str]:
    """Subcommands to import for a completion: a shell waits at every Tab."""
    typed = next((environment[name].split() for name in WORDS if name in environment), [])[1:]
    if len(typed) == 1:  # maybe incomplete
        return [name for name in commands if name.startswith(typed[0])]
    return needed(typed, commands)


def main(args: Sequence[str], *, kubectl: bool = False) -> int:
    """Run the command and return its exit code. An error is one line on standard error.

    ``kubectl``: run as kubectl's plugin, which reads names as kubectl does.
    """
    commands, name = (KUBECTL_COMMANDS, "kubectl berth") if kubectl else (COMMANDS, "berth")
    open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = StandardOutput.of(sys.stdout)
    try:
        return _run(args, commands, name, KubectlPlugin() if kubectl else None)
    except OutputError as error:
        note(str(error))
        return Exit.UNREACHABLE
    except ReaderGoneError:
        return Exit.READER_GONE


def _remedy(args: Sequence[str], commands: Collection[str], command: str) -> str:
    # kubectl's plugin has fewer commands; people look for the others there too.
    first = next((word for word in args if not word.startswith("-")), "")
    return f"`berth {first}` is one" if first in {*COMMANDS} - {*commands} else f"see {command} --help"


def _run(args: Sequence[str], commands: Collection[str], name: str, obj: KubectlPlugin | None) -> int:
    if COMPLETE in os.environ:
        completion.completion_init()  # type: ignore[attr-defined]  # typer has no public name for it
        named = completed(commands)
    else:
        named = needed(args, commands)
    app = app_with(named, listed=() if named else commands)
    try:
        code = app(args=go_forms([*args]), prog_name=name, complete_var=COMPLETE, standalone_mode=False, obj=obj)
    except WrongUsage as error:
        if error.ctx is not None and error.message == error.ctx.get_help():  # no words were given
            print_text(error.message)
            return Exit.USAGE
        command = error.ctx.command_path if error.ctx else name
        note(f"{usage_problem(error)}: {_remedy(args, commands, command)}", by=command)
        return Exit.USAGE
    return code if isinstance(code, int) else Exit.DONE
