"""What the commands print is readable in a terminal of 80 columns: no line is longer, no name and no word is cut."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from berth.cli.app import COMMANDS, app_with

WIDTH = 80


def commands() -> Iterator[tuple[str, Any]]:
    """Every command, as typed, with its subcommands."""
    yield from _below("berth", typer.main.get_command(app_with(COMMANDS)))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _below(f"{path} {name}", inner)


ALL = dict(commands())


def help_of(path: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    command = ALL[path]
    return command.get_help(command.make_context(path, [], resilient_parsing=True))


@pytest.mark.parametrize("path", ALL)
def test_help_fits_and_cuts_nothing(path: str, monkeypatch: pytest.MonkeyPatch):
    text = help_of(path, monkeypatch)
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert "…" not in text
    words = set(text.split())
    for param in ALL[path].params:
        assert set((getattr(param, "help", "") or "").split()) <= words, param.name
        assert {name for name in param.opts if name.startswith("-")} <= {word.rstrip(",") for word in words}
        if param.envvar:
            assert f"{param.envvar}]" in words


@pytest.mark.parametrize("path", [path for path in ALL if hasattr(ALL[path], "commands")])
def test_the_list_of_commands_has_whole_sentences(path: str, monkeypatch: pytest.MonkeyPatch):
    text = " ".join(help_of(path, monkeypatch).split())
    for name, inner in ALL[path].commands.items():
        first = re.split(r"(?<=[.])\s", " ".join(inspect.cleandoc(inner.help).split()), maxsplit=1)[0]
        assert f" {name} {first}" in text


@pytest.mark.parametrize("path", ALL)
def test_a_flags_value_is_named_for_what_it_is(path: str, monkeypatch: pytest.MonkeyPatch):
    """FILE, URL or N, and not a type of Python."""
    assert re.findall(r"--\S+ <(?:str|path|int|float)[^|>]*>", help_of(path, monkeypatch)) == []
