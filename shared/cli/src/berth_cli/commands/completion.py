"""``berth completion``: prints a script that completes commands and flags in a shell."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined]  # typer has no public name for it

from berth_cli.rendering import print_text

app = typer.Typer()


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command("completion")
def completion(shell: Annotated[Shell, typer.Argument(help="The shell.", show_default=False)]) -> None:
    """Print a script that completes commands and flags.

    For example: `source <(berth completion bash)`.
    """
    print_text(get_completion_script(prog_name="berth", complete_var="_BERTH_COMPLETE", shell=shell.value))
