"""The help of every command: its groups, its examples, and the flags that it shows."""

import shlex
from collections.abc import Iterator

import pytest
import typer

from berth.settings.commandline import go_forms
from berth_cli.app import COMMANDS, GROUPS, KUBECTL_COMMANDS, app_with
from berth_cli.examples import EXAMPLES

APP = typer.main.get_command(app_with())
WITH_PRESETS = {"config check", "config show", "config providers"}


def commands(of=APP, words=()) -> Iterator[tuple[str, typer.core.TyperCommand]]:
    for name, command in of.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


ALL = dict(commands())


def shown(*words: str) -> str:
    """The text of ``berth WORDS --help``."""
    command, context = APP, typer.Context(APP, info_name="berth", **APP.context_settings)
    for word in words:
        command = command.commands[word]
        context = typer.Context(command, info_name=word, parent=context)
    return command.get_help(context)


def test_the_help_lists_every_command_once_in_its_group():
    text = shown()
    assert [group for group in GROUPS if f"\n{group}:\n" in text] == list(GROUPS)
    lines = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line.strip()]
    assert [name for name in lines if name in COMMANDS] == list(COMMANDS)
    in_kubectl = typer.main.get_command(app_with((), listed=KUBECTL_COMMANDS))
    text = in_kubectl.get_help(typer.Context(in_kubectl, info_name="kubectl berth"))
    assert "Try:" not in text
    assert all(f"  {name}" in text for name in KUBECTL_COMMANDS)


def test_every_command_has_examples():
    assert set(EXAMPLES) == set(ALL)
    for words in ALL:
        text = shown(*words.split())
        assert all(f"\n    {example}" in text for example in EXAMPLES[words]), words
    for group in ("queue", "dead", "bus", "config", "plugin"):
        assert f"Examples:\n    berth {group}" in shown(group)


@pytest.mark.parametrize(
    ("words", "example"), [(words, example) for words, examples in EXAMPLES.items() for example in examples]
)
def test_an_example_is_understood_by_its_command(words, example):
    berth = next(part for part in example.replace("<(", "|").replace(")", "").split("|") if "berth " in part)
    program, *args = shlex.split(berth.partition(" > ")[0])
    assert program == "berth"
    command, context = APP, APP.make_context("berth", go_forms(args), resilient_parsing=False)
    reached = []
    while getattr(command, "commands", None) and context._protected_args + context.args:
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        reached.append(name)
        context = command.make_context(name, rest, parent=context)
    assert words in {" ".join(reached), f"{' '.join(reached)} list"}


def test_flags_of_presets_are_shown_only_where_a_preset_is_chosen():
    def has(words: str) -> bool:
        return "--algorithm-provider" in shown(*words.split())

    assert {words for words in ALL if has(words)} == WITH_PRESETS
    assert all("--feature-gates" in shown(*words.split()) for words in WITH_PRESETS)


@pytest.mark.parametrize("words", ["", *ALL])
def test_h_is_help(words):
    assert "-h, --help" in shown(*words.split())
