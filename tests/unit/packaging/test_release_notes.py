"""deploy/release.py: what a manifest's first lines say, the notes, and packages of an archive of several platforms."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[3] / "deploy/release.py"


@pytest.fixture(scope="module")
def release():
    spec = importlib.util.spec_from_file_location("release", PROGRAM)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_manifest_whose_image_is_in_no_registry_says_how_nodes_get_it(release):
    text = "".join(release.header("berth-1.2.3-minimal.yaml", "berth", "1.2.3"))
    assert "kind load image-archive" in text
    assert "berth-1.2.3.oci.tar" in text
    pulled = "".join(release.header("berth-1.2.3-minimal.yaml", "registry.example.com/berth", "1.2.3"))
    assert text.startswith(pulled)
    assert "oci.tar" not in pulled
    assert all(line.startswith("# ") for line in text.splitlines())


def test_notes_are_the_section_of_the_version(release):
    changes = "# Changelog\n\n## [2.0.0] - 2027-01-01\n\nNew.\n\n### More\n\nAnd more.\n\n## [1.0.0]\n\nOld.\n"
    assert release.notes("2.0.0", changes) == "New.\n\n### More\n\nAnd more.\n"
    assert release.notes("1.0.0", changes) == "Old.\n"
    with pytest.raises(ValueError, match=r"want a section \[0\.2\.0\]"):
        release.notes("0.2.0", changes)


def packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def test_packages_of_every_platform_are_listed_once_and_attestations_are_none(release, tmp_path):
    """As buildx writes it: an index of an index, whose last manifest has no layer that is an archive."""
    blobs: dict[str, bytes] = {}

    def described(data: bytes, **more: object) -> dict[str, object]:
        digest = sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}", **more}

    def manifest(system: str, *layers: bytes) -> dict[str, object]:
        body = {"layers": [described(layer) for layer in layers]}
        return described(json.dumps(body).encode(), platform={"os": system})

    metadata = b"Metadata-Version: 2.4\nName: Py_YAML\nVersion: 6.0+own\n"
    status = b"Package: libc6\nStatus: install ok installed\nVersion: 1:2.36\n\nPackage: old\nStatus: deinstall ok\n"
    files = {
        "opt/site-packages/pyyaml-6.0.dist-info/METADATA": metadata,
        "var/lib/dpkg/status": status,
        "opt/berth/pyvenv.cfg": b"home = /usr/bin\nversion = 3.11.2\n",
    }
    manifests = [
        manifest("linux", gzip.compress(packed(files))),
        manifest("linux", gzip.compress(packed({"opt/berth/pyvenv.cfg": b"version = 3.11.2\n"}))),
        manifest("unknown", b"{}"),
    ]
    outer = {"manifests": [described(json.dumps({"manifests": manifests}).encode())]}
    (tmp_path / "image.tar").write_bytes(packed({"index.json": json.dumps(outer).encode(), **blobs}))
    bill = release.contained(tmp_path / "image.tar", "1.2.3", 0)
    assert [each["purl"] for each in bill["components"]] == [
        "pkg:deb/debian/libc6@1%3A2.36",
        "pkg:generic/python@3.11.2",
        "pkg:pypi/py-yaml@6.0%2Bown",
    ]
    assert bill["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
