"""``berth plugin``: the plugins that there are, and the start of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from berth.cli.console import note, say
from berth.cli.pluginlist import plugins
from berth.cli.pluginpackage import files_of, name_problem
from berth.service.exits import Exit

app = typer.Typer(help="Plugins: those that there are, and one's own.", no_args_is_help=True)
app.command("list")(plugins)


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="As a configuration will name it: FirstNode.", show_default=False)],
    folder: Annotated[Path | None, typer.Option(help="Where to write it; by default a new folder here.")] = None,
) -> None:
    """Write a package with a plugin that scores nodes, its entry point, and a test that passes."""
    problem = name_problem(name)
    if problem:
        note(problem)
        raise typer.Exit(Exit.USAGE)
    files = files_of(name)
    root = folder or Path(files.folder)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        note(f"writing plugin {name!r}: want a new or empty folder, got {str(root)!r}")
        raise typer.Exit(Exit.USAGE)
    for path, text in files.texts.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        say(str(target))
