"""What of nats-py the bus stands on."""

from __future__ import annotations

import ast
from pathlib import Path

import berth.bus

MODULES = sorted(Path(berth.bus.__file__).parent.glob("*.py"))


def names_of_nats(tree: ast.Module) -> set[str]:
    """What a module has imported from nats-py."""
    found = [
        node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nats")
    ]
    return {each.asname or each.name for node in found for each in node.names}


def test_nats_py_is_used_by_its_public_names_and_none_of_its_classes_is_derived_from():
    imported: set[str] = set()
    for module in MODULES:
        tree = ast.parse(module.read_text())
        imported |= (mine := names_of_nats(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                assert not mine & {base.id for base in node.bases if isinstance(base, ast.Name)}, (
                    module.name,
                    node.name,
                )
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                assert isinstance(node.value, ast.Name), (module.name, node.lineno)
                assert node.value.id == "self", (module.name, node.lineno)
    assert {"Client", "Msg"} <= imported
