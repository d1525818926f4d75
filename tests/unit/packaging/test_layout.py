"""The code stays easy to find one's way in: few modules to a package, short chains of imports, one class of a name."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]
SOURCES = sorted([*(ROOT / "shared").glob("*/src/**/*.py"), *(ROOT / "services").glob("*/src/**/*.py")])
PACKAGES = (
    "berth",
    "berth_cli",
    "berth_sim",
    "berth_plugins_1_18",
    "berth_watcher",
    "berth_scorer",
    "berth_binder",
    "berth_metrics_collector",
)
MOST_MODULES = 12
OF_ONE_KIND = {
    "shared/cli/src/berth_cli/commands": 19,  # one a command
    "shared/core/src/berth/plugins": 16,  # one a plugin
}
"""Larger packages, whose modules a reader never holds together."""
LONGEST_CHAINS = {"berth.framework": 6, "berth_watcher": 9, "berth_binder": 9}
"""By package, how many of its modules may be in one chain of imports."""

Imports = dict[str, set[str]]


@pytest.fixture(scope="module")
def imports() -> Imports:
    """By module, what it imports of berth; imports for types count."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def longest_chain(package: str, imports: Imports) -> list[str]:
    inside = {module for module in imports if f"{module}.".startswith(f"{package}.")}
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter({module: imports[module] & inside for module in inside}).static_order():
        below = max((chains[imported] for imported in imports[module] & inside), key=len, default=[])
        chains[module] = [module, *below]
    return max(chains.values(), key=len)


@pytest.mark.parametrize("package", LONGEST_CHAINS)
def test_chain_of_imports_is_short(package, imports):
    chain = longest_chain(package, imports)
    assert len(chain) <= LONGEST_CHAINS[package], " -> ".join(chain)


def test_no_module_imports_itself_through_others(imports):
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as exc:
        pytest.fail(" <- ".join(exc.args[1]))


def test_no_two_classes_have_one_name():
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert places
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_package_has_few_modules():
    counts = Counter(path.parent.relative_to(ROOT).as_posix() for path in SOURCES if path.name != "__init__.py")
    assert {package: count for package, count in counts.items() if count > OF_ONE_KIND.get(package, MOST_MODULES)} == {}
