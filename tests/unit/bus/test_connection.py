"""What of nats-py the bus stands on."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import berth.bus

MODULES = sorted(Path(berth.bus.__file__).parent.glob("*.py"))


def names_of_nats(tree: ast.Module) -> set[str]:
    """What a module has imported from nats-py."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return {alias.name for node in imports if (node.module or "").startswith("nats.") for alias in node.names}


def private_names(tree: ast.Module) -> Iterator[str]:
    """Private attributes of anything but `self`."""
    for node in ast.walk(tree):
        is_private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if is_private and ast.unparse(node.value) != "self":
            yield ast.unparse(node)


ALLOWED = {"ReadingClient": {"super()._process_headers", "super()._build_message"}}
"""What keeps the library reading malformed messages; docs/adr/0008 says why."""


@pytest.mark.parametrize("module", MODULES, ids=[module.stem for module in MODULES])
def test_nats_py_is_used_by_its_public_names_but_for_the_two_that_keep_it_reading(module):
    tree = ast.parse(module.read_text())
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    derived = {one.name for one in classes if {ast.unparse(base) for base in one.bases} & names_of_nats(tree)}
    assert derived <= ALLOWED.keys()
    assert set(private_names(tree)) <= set().union(*ALLOWED.values())


def test_there_is_something_to_look_at():
    assert "Client" in set().union(*(names_of_nats(ast.parse(module.read_text())) for module in MODULES))
