"""What the commands print is readable in a terminal of 80 columns: no line is longer, no name and no word is cut."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from rich.measure import Measurement

from berth.messages.attempts import Candidate
from berth_cli.app import COMMANDS, app_with
from berth_cli.pods.explain import candidates_table
from berth_cli.rendering import fitting_widths, new_table, plain
from harness.worlds.printed import on_terminal, printed

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
    for param in (each for each in ALL[path].params if not getattr(each, "hidden", False)):
        assert set((getattr(param, "help", "") or "").split()) <= words, param.name
        assert {name for name in param.opts if name.startswith("-")} <= {word.rstrip(",") for word in words}
        if param.envvar:
            assert param.envvar in {word.rstrip(";]") for word in words}


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


@pytest.mark.slow
@pytest.mark.parametrize("command", [("plugin", "list"), ("config", "providers")])
def test_a_table_fits_and_cuts_no_word(command: tuple[str, ...]):
    narrow, wide = (on_terminal(command, columns) for columns in (WIDTH, 240))
    assert max(map(len, narrow)) <= WIDTH < max(map(len, wide))
    assert _distinct_words(narrow) == _distinct_words(wide)


def _distinct_words(lines: list[str]) -> set[str]:
    return {word for line in lines for word in line.split()}


def test_sentences_are_broken_first_then_gaps_and_numbers_and_names_at_last():
    table = new_table("POD", "AGE", "NODE", "WHY", numbers=("AGE",))
    table.add_row(*map(plain, ("default/web-5d59d67564-abcde", "1 min 3 s", "node-17", "1 Insufficient cpu, 2 taints")))
    assert printed(table, width=72) == [
        "POD                                 AGE  NODE     WHY",
        "default/web-5d59d67564-abcde  1 min 3 s  node-17  1 Insufficient cpu, 2",
        "                                                  taints",
    ]
    assert printed(table, width=56) == [
        "POD                             AGE NODE    WHY",
        "default/web-5d59d67564-abcde  1 min node-17 1",
        "                                3 s         Insufficient",
        "                                            cpu, 2",
        "                                            taints",
    ]
    assert printed(table, width=50)[1:3] == [
        "default/web-5d59d67564-ab   1 node-17 1",
        "cde                       min         Insufficient",
    ]


@pytest.mark.parametrize(
    ("room", "widths"),
    [
        pytest.param(60, [20, 30], id="all fits"),
        pytest.param(44, [20, 24], id="the widest gives"),
        pytest.param(30, [15, 15], id="both give alike"),
        pytest.param(22, [12, 10], id="down to the longest words"),
        pytest.param(16, [8, 8], id="words are cut where they do not fit"),
        pytest.param(1, [1, 1], id="there is no room"),
    ],
)
def test_columns_share_the_room(room: int, widths: list[int]):
    assert fitting_widths([Measurement(12, 20), Measurement(9, 30)], room) == widths


WEIGHTS = {
    "ImageLocality": 1,
    "InterPodAffinity": 2,
    "NetworkTraffic": 1,
    "NodeAffinity": 2,
    "NodeResourcesBalancedAllocation": 1,
    "NodeResourcesFit": 1,
    "PodTopologySpread": 2,
    "TaintToleration": 3,
}


@pytest.mark.parametrize("width", [WIDTH, 120])
@pytest.mark.parametrize("count", range(1, len(WEIGHTS) + 1))
def test_points_of_many_plugins_are_whole_below_whole_names(count: int, width: int):
    weights = dict(list(WEIGHTS.items())[:count])
    scores = {plugin: 100 * weight for plugin, weight in weights.items()}
    known = {"total": 505, "scores": scores, "pods": 7, "loss": 1.75, "newcomers": 1}
    nodes = [Candidate(node=f"node-{number}", **known) for number in range(8)]
    lines = printed(candidates_table(nodes, weights=weights), width=width)
    assert max(map(len, lines)) <= width
    first = next(at for at, line in enumerate(lines) if "node-0" in line)
    assert [line.split()[1] for line in lines[first : first + 8]] == [each.node for each in nodes]
    text = " ".join(" ".join(lines[first + 8 :]).split())
    is_narrow = all(re.search(rf"\b[A-H] {plugin}\b", text) for plugin in weights)
    is_wide = all(f"100 x {weight}" in lines[first] for weight in weights.values())
    assert is_narrow != is_wide
    assert is_wide == (width == 120 or count <= 5)
