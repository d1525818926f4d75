"""`berth plugin new`, the tutorial's plugin followed exactly, and the remedy of docs/plugins.md."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from berth.cluster.snapshot import Snapshot
from berth_cli.pluginpackage import files_of, name_problem
from berth_cli.remedies.rejections import remedies_of
from berth_cli.remedies.remedy import remedy_lines
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile
from harness.worlds.printed import printed

ROOT = Path(__file__).parents[3]
TUTORIAL = (ROOT / "docs/getting-started.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
TIMEOUT = 100


def berth(*words: str, folder: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    return ran("-m", "berth_cli", *words, folder=folder, path=path)


def ran(*words: str, folder: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(part for part in (path, inherited) if part)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def own_tests(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the package's own tests as the tutorial does."""
    words = ("-m", "pytest", "-p", "no:cacheprovider", "-c", "first-node/pyproject.toml", "first-node")
    return ran(*words, folder=folder, path=str(folder / "first-node"))


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder in which `berth plugin new FirstNode` was typed."""
    done = berth("plugin", "new", "FirstNode", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_a_new_package_has_a_test_that_passes(package: Path):
    done = own_tests(package)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


def test_an_installed_package_is_found_by_its_entry_point(package: Path):
    site = package / "site"
    flags = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--target", str(site))
    done = ran("-m", "pip", "install", *flags, "./first-node", folder=package)
    assert done.returncode == 0, done.stderr
    found = berth("config", "check", "first-node/scheduler.yaml", folder=package, path=str(site))
    assert (found.returncode, found.stdout) == (0, "first-node/scheduler.yaml: fine, schedules pods of first-node\n")
    missing = berth("config", "check", "first-node/scheduler.yaml", folder=package)
    assert missing.returncode == 2
    assert "unknown plugin 'FirstNode'" in missing.stderr


def test_the_plugin_of_the_tutorial_passes_its_test(package: Path):
    module, test = re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)
    (package / "first-node/first_node.py").write_text(module)
    path = package / "first-node/test_first_node.py"
    before = path.read_text().replace(", FirstNodeArgs", "")
    path.write_text(before[: before.index("def test_")] + test)
    done = own_tests(package)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_the_remedy_of_the_guide_is_shown_as_there():
    *_, text, _ = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    module = ModuleType("licenses")
    exec(text, vars(module))  # noqa: S102 - the guide's own code
    profile, snapshot = default_profile(), Snapshot()
    snapshot.set_node(a_node("node-1"))
    snapshot.set_node(a_node("node-2", unschedulable=True))
    licensed = replace(profile, filters=(*profile.filters, module.Licenses()))
    lines = printed(*remedy_lines(remedies_of(a_pod(), snapshot, licensed)), width=200)
    assert "\n".join(["```", *lines, "```"]) in GUIDE


def test_a_folder_that_is_not_empty_is_left_alone(package: Path):
    done = berth("plugin", "new", "FirstNode", folder=package)
    assert done.returncode == 2
    assert "want a new or empty folder, got 'first-node'" in done.stderr


@pytest.mark.parametrize("name", ["firstnode", "First-Node", "", "First Node", "../X", "1st"])
def test_an_invalid_name_is_an_error(name: str):
    assert (
        name_problem(name)
        == f"naming the plugin {name!r}: want capitalized words without separators, such as FirstNode"
    )


@pytest.mark.parametrize(
    ("name", "folder", "module"),
    [
        pytest.param("FirstNode", "first-node", "first_node.py", id="words"),
        pytest.param("GPUShare", "gpu-share", "gpu_share.py", id="capitals"),
        pytest.param("Spread2", "spread2", "spread2.py", id="a number"),
    ],
)
def test_files_are_named_after_the_plugin(name: str, folder: str, module: str):
    files = files_of(name)
    assert files.folder == folder
    assert set(files.texts) == {"pyproject.toml", module, f"test_{module}", "scheduler.yaml"}
