"""What docs/plugins.md says that `pod`, `node`, `nodes` and `state` offer is there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from berth.cluster.nodes import Nodes, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import FilterPlugin
from berth.framework.status import CycleState
from harness.builders.objects import a_node, a_pod

PAGE = (Path(__file__).parents[3] / "docs/plugins.md").read_text()
TABLES = PAGE.split("\n## What `pod`, `node` and `state` offer\n")[1].split("\n## Read live data\n")[0]
NAMED = re.compile(r"\b(pod|node|nodes|state)((?:\.[a-z_]+)+)")


def offered() -> dict[str, object]:
    pod, snapshot = a_pod(), Snapshot()
    snapshot.set_node(a_node("node-1"))
    return {
        "pod": pod,
        "node": node_info(snapshot, "node-1"),
        "nodes": Nodes(snapshot),
        "state": CycleState(snapshot.class_of(pod)),
    }


def names() -> list[str]:
    code = " ".join(re.findall(r"`([^`]+)`", TABLES))
    return sorted({of + path for of, path in NAMED.findall(code)})


@pytest.mark.parametrize("name", names())
def test_what_the_page_names_exists(name: str):
    of, *path = name.split(".")
    found = offered()[of]
    for part in path:
        assert hasattr(found, part), name
        found = getattr(found, part)


def test_the_page_names_all_that_plugins_use_most():
    assert {"pod.spec.node_selector", "state.pod_class.requests.amounts", "node.labels", "nodes.names"} <= set(names())


def test_the_filter_of_the_page_is_a_plugin_and_passes_the_test_of_the_page(monkeypatch: pytest.MonkeyPatch):
    text, test = (
        text for text in re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE) if "Licenses" in text
    )
    module, of_test = ModuleType("licenses"), ModuleType("test_licenses")
    exec(compile(text, "docs/plugins.md", "exec"), vars(module))  # noqa: S102 the page is ours
    assert isinstance(module.FACTORY.build(None), FilterPlugin)
    monkeypatch.setitem(sys.modules, "licenses", module)
    exec(compile(test, "docs/plugins.md", "exec"), vars(of_test))  # noqa: S102 the page is ours
    of_test.test_a_node_without_a_free_license_is_rejected()
