"""Builds the archives of `kubectl berth` for krew, and its manifest with their checksums: make krew URL=...

An archive has a launcher, and berth with everything that it imports, from deploy/requirements.lock. Some of that is
compiled for one system and one version of Python, so there is an archive for each system, and all are for the version
that the launcher names. The same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = "3.11"
PLATFORMS = {
    "linux_amd64": "x86_64-manylinux_2_28",
    "linux_arm64": "aarch64-manylinux_2_28",
    "darwin_amd64": "x86_64-apple-darwin",
    "darwin_arm64": "aarch64-apple-darwin",
}
"""krew's name of each system, and uv's."""
LAUNCHER = "kubectl-berth"
EARLIEST = 315_532_800
"""1980, the earliest time that archives of all kinds can have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where the archives will be, without their names")
    parser.add_argument("--out", type=Path, default=ROOT / "dist" / "krew")
    parser.add_argument("--platforms", nargs="+", choices=PLATFORMS, default=list(PLATFORMS))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        wheels = build_wheels(Path(folder))
        version = wheels[0].name.split("-")[1]
        archives = {name: build_archive(name, wheels, given.out, version) for name in given.platforms}
    manifest = yaml.safe_load((HERE / "berth.yaml").read_text())
    fill(manifest, version, given.url.rstrip("/"), archives)
    (given.out / "berth.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))


def build_wheels(folder: Path) -> list[Path]:
    """The wheels of the command and what it imports, built from a copy: building writes into the sources."""
    copy = folder / "shared"
    shutil.copytree(ROOT / "shared", copy, ignore=shutil.ignore_patterns("__pycache__"))
    for project in sorted(path.parent for path in copy.glob("*/pyproject.toml")):
        uv(
            "build",
            "--quiet",
            "--wheel",
            "--no-build-isolation",
            "--python",
            sys.executable,
            "--out-dir",
            folder,
            project,
        )
    return sorted(folder.glob("*.whl"))


def build_archive(platform: str, wheels: list[Path], out: Path, version: str) -> Path:
    with tempfile.TemporaryDirectory() as folder:
        install(platform, wheels, Path(folder) / "lib")
        shutil.copy(HERE / LAUNCHER, folder)
        shutil.copy(ROOT / "LICENSE", folder)
        archive = out / f"kubectl-berth_{version}_{platform}.tar.gz"
        archive.write_bytes(packed(Path(folder)))
    return archive


def install(platform: str, wheels: list[Path], target: Path) -> None:
    common = ("--quiet", "--no-deps", "--only-binary", ":all:", "--target", target, "--python", sys.executable)
    system = ("--python-version", PYTHON, "--python-platform", PLATFORMS[platform])
    lock = ROOT / "deploy" / "requirements.lock"
    uv("pip", "install", *common, *system, "--require-hashes", "--requirement", lock)
    uv("pip", "install", *common, *system, *wheels)
    shutil.rmtree(target / "bin", ignore_errors=True)
    for name in ("direct_url.json", "uv_cache.json", "RECORD", "INSTALLER", "REQUESTED"):
        for path in target.glob(f"*.dist-info/{name}"):  # how and from where it was installed
            path.unlink()
    (target / ".lock").unlink(missing_ok=True)


def packed(folder: Path) -> bytes:
    """All files in order, without times and owners."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=EARLIEST) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
                entry.size, entry.mtime = path.stat().st_size, EARLIEST
                entry.mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
                tar.addfile(entry, io.BytesIO(path.read_bytes()))
    return buffer.getvalue()


def fill(manifest: dict[str, Any], version: str, url: str, archives: dict[str, Path]) -> None:
    """The manifest's version and platforms; what it says of each platform comes from its one example."""
    manifest["spec"]["version"] = f"v{version}"
    (common,) = manifest["spec"]["platforms"]
    manifest["spec"]["platforms"] = [
        {
            "selector": {"matchLabels": dict(zip(("os", "arch"), name.split("_"), strict=True))},
            "uri": f"{url}/{archive.name}",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            **common,
        }
        for name, archive in archives.items()
    ]


def uv(*words: object) -> None:
    program = Path(sys.executable).parent / "uv"
    subprocess.run([program, *words], check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(EARLIEST)})


if __name__ == "__main__":
    main()
