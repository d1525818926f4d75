"""Puts the files of a release into one folder, with checksums: make release.

Wheels and sdists, the image as an OCI archive, the chart, a manifest for each of its presets, the script that makes
their Secrets, the list of the image's packages (CycloneDX), and the notes from CHANGELOG.md. The same commit and
image give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, Any, Final

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "deploy/chart"
SECRETS: Final = ROOT / "deploy/kubernetes/components/nats/make-secrets.sh"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
COMPRESSION: Final = 3  # 5 s for 240 MB; 6 takes twice as long for a result that is smaller by 7 %
INDEX: Final = "application/vnd.oci.image.index.v1+json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--repository", default="berth", help="the image's name in chart and manifests")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--image", help="an image that the Docker engine has")
    source.add_argument("--archive", type=Path, help="an OCI archive that buildx wrote")
    given = parser.parse_args()
    version = re.findall(r'__version__ = "(.+)"', (ROOT / "shared/core/src/berth/__init__.py").read_text())[0]
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct"))
    os.environ["SOURCE_DATE_EPOCH"] = str(seconds)
    given.out.mkdir(parents=True, exist_ok=True)
    for path in given.out.iterdir():
        if path.is_file():  # of the release before
            path.unlink()

    archive = given.out / f"berth-{version}.oci.tar"
    if given.archive:
        shutil.copy(given.archive, archive)
    else:
        write_archive(given.image, f"{given.repository}:{version}", archive)
    contents = contained(archive, version, seconds)
    (given.out / f"berth-{version}.cdx.json").write_text(json.dumps(contents, indent=1) + "\n")
    run(Path(sys.executable).parent / "uv", "build", "--quiet", "--all-packages", "--no-build-isolation",
        "--no-create-gitignore", "--out-dir", given.out)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        write_chart(Path(folder), given.repository, version, seconds, given.out)
    shutil.copy(SECRETS, given.out / f"berth-{version}-make-secrets.sh")
    (given.out / f"berth-{version}.md").write_text(notes(version, (ROOT / "CHANGELOG.md").read_text()))
    files = sorted(path for path in given.out.iterdir() if path.is_file())
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (given.out / "SHA256SUMS").write_text("".join(sums))
    for path in files:
        sys.stdout.write(f"{path.stat().st_size:>11,}  {path}\n")


# The image.


def write_archive(image: str, name: str, target: Path) -> None:
    """Save an image of the engine as an OCI archive, which docker load reads too, whichever version the engine has."""
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    with tempfile.NamedTemporaryFile() as saved:
        run("docker", "save", "--output", saved.name, image)
        with tarfile.open(saved.name) as tar:
            (described,) = json.loads(content(tar, "manifest.json"))
            config = blob(CONFIG, content(tar, described["Config"]))
            layers = [
                blob(LAYER, gzip.compress(content(tar, path), COMPRESSION, mtime=0)) for path in described["Layers"]
            ]
    manifest = blob(MANIFEST, encoded({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}))
    about = json.loads(blobs[path_of(config)])
    manifest["platform"] = {"architecture": about["architecture"], "os": about["os"]}
    manifest["annotations"] = {
        "io.containerd.image.name": name if "/" in name else f"docker.io/library/{name}",
        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
    }
    blobs["index.json"] = encoded({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]})
    blobs["oci-layout"] = encoded({"imageLayoutVersion": "1.0.0"})
    paths = [path_of(layer) for layer in layers]
    blobs["manifest.json"] = encoded([{"Config": path_of(config), "RepoTags": [name], "Layers": paths}])
    with tarfile.open(target, "w") as tar:
        for path, data in sorted(blobs.items()):
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))


def contained(archive: Path, version: str, seconds: int) -> dict[str, Any]:
    """What an OCI archive contains, for all of its platforms: Python, its packages and Debian's."""
    found = {part["purl"]: part for part in _parts(archive)}
    when = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    of = {"type": "container", "name": "berth", "version": version, "licenses": [{"license": {"id": "Apache-2.0"}}]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": when, "component": of},
        "components": [found[purl] for purl in sorted(found)],
    }


def _parts(archive: Path) -> Iterator[dict[str, str]]:
    with tarfile.open(archive) as tar:
        manifests = list(_manifests(tar, json.loads(content(tar, "index.json"))))
        for layer in (layer for manifest in manifests for layer in manifest["layers"]):
            with opened(tar, path_of(layer)) as blob, tarfile.open(fileobj=blob, mode="r|*") as files:
                for entry in files:
                    if entry.isfile() and re.search(
                        r"\.dist-info/METADATA$|/pyvenv\.cfg$|lib/dpkg/status$", entry.name
                    ):
                        file = files.extractfile(entry)
                        yield from _described(entry.name, file.read().decode(errors="replace") if file else "")


def _manifests(tar: tarfile.TarFile, index: Any) -> Iterator[Any]:
    for each in index["manifests"]:
        found = json.loads(content(tar, path_of(each)))
        if "manifests" in found:
            yield from _manifests(tar, found)
        elif each.get("platform", {}).get("os") != "unknown":  # buildx's attestations
            yield found


def _described(path: str, text: str) -> Iterator[dict[str, str]]:
    if path.endswith("METADATA"):
        header = HeaderParser().parsestr(text)
        yield component("pypi", re.sub(r"[-_.]+", "-", header["Name"]).lower(), header["Version"])
    elif path.endswith("pyvenv.cfg"):
        yield from (
            component("generic", "python", found) for found in re.findall(r"^version = (\S+)", text, re.MULTILINE)
        )
    else:
        for paragraph in text.split("\n\n"):
            header = HeaderParser().parsestr(paragraph)
            if header["Status"] == "install ok installed":
                yield component("deb", f"debian/{header['Package']}", header["Version"])


def component(kind: str, name: str, version: str) -> dict[str, str]:
    purl = f"pkg:{kind}/{name}@{version.replace('+', '%2B').replace(':', '%3A')}"
    return {"type": "library", "name": name.rpartition("/")[2], "version": version, "purl": purl, "bom-ref": purl}


def opened(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(name)
    if file is None:
        raise ValueError(f"reading {name}: want a file")
    return file


def content(tar: tarfile.TarFile, name: str) -> bytes:
    with opened(tar, name) as file:
        return file.read()


def path_of(described: Any) -> str:
    return f"blobs/{described['digest'].replace(':', '/')}"


def encoded(value: object) -> bytes:
    return json.dumps(value).encode()


# The chart, and its manifests.


def write_chart(folder: Path, repository: str, version: str, seconds: int, out: Path) -> None:
    """Pack the chart with the image's name, and render its presets."""
    chart = folder / "berth"
    shutil.copytree(CHART, chart)
    values = (chart / "values.yaml").read_text()
    (chart / "values.yaml").write_text(values.replace("\n  repository: berth\n", f"\n  repository: {repository}\n", 1))
    run("helm", "package", chart, "--destination", folder)
    repack(folder / f"berth-{version}.tgz", out / f"berth-{version}.tgz", seconds)
    for preset in sorted(chart.glob("presets/*.yaml")):
        values = ("--values", preset, "--set", "namespace.create=true,nats.secrets.create=false,podGroups.define=false")
        text = run("helm", "template", "berth", chart, "--namespace", "berth", *values)
        target = out / f"berth-{version}-{preset.stem}.yaml"
        target.write_text("".join(header(target.name, repository, version)) + text)


def header(name: str, repository: str, version: str) -> Iterator[str]:
    """What who applies a manifest has to know."""
    yield f"# kubectl apply --server-side -f {name}\n"
    yield f"# sh berth-{version}-make-secrets.sh berth | kubectl create -f -    once: its pods wait for passwords\n"
    if "/" not in repository:
        archive = f"berth-{version}.oci.tar"
        yield f"# Image {repository}:{version}, on each node: kind load image-archive, or k3s ctr images import, with\n"
        yield f"# {archive}; any other cluster: push it, and write that name in place of this one.\n"


def repack(source: Path, target: Path, seconds: int) -> None:
    """Helm writes the present time into its archive."""
    with (
        tarfile.open(source) as old,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, seconds) as packed,
        tarfile.open(fileobj=packed, mode="w") as new,
    ):
        for entry in sorted(old.getmembers(), key=lambda each: each.name):
            entry.mtime = seconds
            new.addfile(entry, old.extractfile(entry))


def notes(version: str, changes: str) -> str:
    """A version's section of the changelog.

    Raises:
        ValueError: it has none.
    """
    found = re.search(rf"^## \[{re.escape(version)}\].*\n(?P<text>(?:(?!## ).*\n)+)", changes, re.MULTILINE)
    if found is None:
        raise ValueError(f"reading CHANGELOG.md: want a section [{version}]")
    return found["text"].strip() + "\n"


def run(*words: object) -> str:
    """Run a program; returns what it prints. A program that fails ends this one with its message."""
    done = subprocess.run([str(word) for word in words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{words[0]}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    main()
