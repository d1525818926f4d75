"""The archives of `kubectl berth` for krew: what is in one, its launcher, and the manifest with the checksums."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from berth import __version__

KREW = Path(__file__).parents[3] / "deploy" / "krew"


@pytest.fixture(scope="module")
def build():
    spec = importlib.util.spec_from_file_location("krew_build", KREW / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def unpacked(build, tmp_path: Path) -> Path:
    """An archive as krew unpacks it, and a link to its program on the PATH. The interpreter itself has berth here."""
    source, store = tmp_path / "source", tmp_path / "store"
    (source / "lib").mkdir(parents=True)
    (source / "lib" / "own.py").write_text("")
    shutil.copy(KREW / build.LAUNCHER, source)
    store.mkdir()
    subprocess.run(["tar", "-xz", "-C", store], input=build.packed(source), check=True)
    (tmp_path / "bin").mkdir()
    for name in ("kubectl-berth", "kubectl_complete-berth"):
        (tmp_path / "bin" / name).symlink_to(store / build.LAUNCHER)
    return tmp_path / "bin"


def run(program: Path, *words: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "BERTH_PYTHON": python}
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, timeout=60, env=environment)


def test_the_launcher_finds_its_folder_through_krews_link(unpacked):
    done = run(unpacked / "kubectl-berth", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"berth {__version__}\n", "")


def test_the_launcher_hands_words_over_as_they_are(unpacked):
    done = run(unpacked / "kubectl-berth", "why", "a b", "-n", "$HOME")
    assert done.returncode == 2
    assert "'a b'" in done.stderr


def test_the_launcher_completes_under_its_other_name(unpacked):
    lines = run(unpacked / "kubectl_complete-berth", "que").stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == ["queue", ":4"]


def test_a_missing_python_is_named(unpacked):
    done = run(unpacked / "kubectl-berth", "top", python="python0.0")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no python0.0 on the PATH" in done.stderr


def test_the_same_files_give_the_same_bytes(build, tmp_path):
    def archive(name: str, seconds: int) -> bytes:
        folder = tmp_path / name
        (folder / "lib").mkdir(parents=True)
        for path in (folder / "b", folder / "lib" / "a"):
            path.write_text(path.name)
            os.utime(path, (seconds, seconds))
        return build.packed(folder)

    assert archive("one", 10**9) == archive("two", 2 * 10**9)


def test_the_manifest_has_a_platform_with_a_checksum_for_each_archive(build, tmp_path):
    archives = {}
    for name in build.PLATFORMS:
        archives[name] = tmp_path / f"kubectl-berth_{name}.tar.gz"
        archives[name].write_bytes(name.encode())
    manifest = yaml.safe_load((KREW / "berth.yaml").read_text())
    build.fill(manifest, "1.2.3", "https://example.com/v1.2.3", archives)
    spec = manifest["spec"]
    assert (manifest["kind"], manifest["metadata"]["name"], spec["version"]) == ("Plugin", "berth", "v1.2.3")
    assert len(spec["platforms"]) == len(build.PLATFORMS) == 4
    first = spec["platforms"][0]
    assert first == {
        "selector": {"matchLabels": {"os": "linux", "arch": "amd64"}},
        "uri": "https://example.com/v1.2.3/kubectl-berth_linux_amd64.tar.gz",
        "sha256": hashlib.sha256(b"linux_amd64").hexdigest(),
        "bin": build.LAUNCHER,
    }


def test_the_launcher_and_the_archives_are_for_one_python(build):
    launcher = (KREW / build.LAUNCHER).read_text()
    assert set(re.findall(r"[Pp]ython ?(3\.\d+)", launcher)) == {build.PYTHON}
    assert f"Python {build.PYTHON}" in (KREW / "berth.yaml").read_text()
