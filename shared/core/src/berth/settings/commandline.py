"""The forms of flags that commands and services have in common, and the parser's errors."""

from __future__ import annotations

from typing import Final, cast

import typer

BOOLEANS: Final = ("--leader-elect", "--allow-other-scheduler")  # take a value only after ``=``; alone they mean true


HELP_FLAGS: Final = {"help_option_names": ["-h", "--help"]}  # of the parser, whose own default has no -h


# The parser's exception. A newer Typer brings its own parser.
WrongUsage: Final = cast("type[typer.BadParameter]", typer.BadParameter.__base__)


def usage_problem(error: typer.BadParameter) -> str:
    """The parser's sentence on one line, as a part of one: ``no such option: --foo``."""
    what = " ".join(error.format_message().replace("Value error, ", "").split()).rstrip(".")
    what = what.replace(". Did you mean", ", did you mean").removesuffix("?")
    return f"{what[:1].lower()}{what[1:]}"


def go_forms(args: list[str]) -> list[str]:
    """Convert Go's forms to the parser's: a boolean alone is true, ``-v=4`` is ``--v=4``."""
    end = args.index("--") if "--" in args else len(args)
    return [*(_go_form(arg) for arg in args[:end]), *args[end:]]


def _go_form(arg: str) -> str:
    if arg in BOOLEANS:
        return f"{arg}=true"
    return f"-{arg}" if arg.startswith("-v=") else arg
