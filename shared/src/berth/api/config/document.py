"""From text to one mapping: YAML, or JSON, which is YAML. A key stands in a mapping once.

PyYAML lets the last of several equal keys win, so that half a file could be lost without a word; kube-scheduler refuses
such a file too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import yaml

from berth.api.config.decode import Problems, join
from berth.api.config.types import KIND

SEVERAL: Final = f"want one {KIND}, got several documents (what stands between lines of ---): keep one in this file"


def parse(text: str, problems: Problems) -> dict[str, object] | None:
    """The file's mapping; ``None`` when the text is none."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_node() if loader.check_node() else None
        if loader.check_node():
            problems.append(SEVERAL)
            return None
        repeated = list(_repeated(node, "", set()))  # before construction, which writes merged keys into the nodes
        document = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, RecursionError) as exc:
        problems.append(f"not YAML: {' '.join(str(exc).split())}")
        return None
    finally:
        loader.dispose()
    if not isinstance(document, dict):
        problems.add("", f"a {KIND}", document)
        return None
    problems.extend(repeated)
    return document


def _repeated(node: yaml.Node | None, path: str, seen: set[int]) -> Iterator[str]:
    """Every key that stands more than once in its mapping; what an alias repeats is looked at once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        yield from _repeated_keys(node, path)
        for key, value in node.value:
            yield from _repeated(value, join(path, key.value), seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _repeated(item, f"{path}[{index}]", seen)


def _repeated_keys(node: yaml.MappingNode, path: str) -> Iterator[str]:
    lines: dict[object, list[int]] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            lines.setdefault(key.value, []).append(key.start_mark.line + 1)
    for name, where in lines.items():
        if len(where) > 1:
            yield f"{join(path, name)}: want it once, got it in lines {', '.join(map(str, where))}"
