"""`make release`: each thing that it puts into the folder is opened, and used as its readers use it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berth import __version__
from harness.servers.compose import IMAGE, ROOT, inspected, require_project
from harness.servers.control_plane import ControlPlane
from harness.servers.docker_engine import docker
from harness.worlds.cluster_user import ClusterUser
from harness.worlds.manifests import CHART, MAKE_SECRETS, add_custom_kinds, containers, helm, kubectl, pod_templates

pytestmark = [pytest.mark.timeout(1500), pytest.mark.requires("helm")]  # the image may have to be built first

REPOSITORY: Final = "registry.example.com/berth"
PRESETS: Final = sorted(path.stem for path in CHART.glob("presets/*.yaml"))
COMMITTED: Final = 1_700_000_000
"""SOURCE_DATE_EPOCH."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder, made of the image that the other tests here run."""
    require_project()
    folder = tmp_path_factory.mktemp("dist")
    (folder / "berth-0.0.9.tgz").write_text("of the release before")
    plain = {name: text for name, text in os.environ.items() if not name.startswith("MAKE") and name != "ARGS"}
    command = ["make", "release", f"DIST={folder}", f"IMAGE={IMAGE}", f"REPOSITORY={REPOSITORY}"]
    told = {**plain, "SOURCE_DATE_EPOCH": str(COMMITTED)}
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def named(release: Path, rest: str) -> Path:
    return release / f"berth-{__version__}{rest}"


def test_it_has_what_a_release_has_and_the_sums_of_it(release):
    parts = {path.parent.name.replace("-", "_") for path in ROOT.glob("s*/*/pyproject.toml")}
    distributions = {f"berth_{part}-{__version__}" for part in {*parts, "scheduler"}}
    assert {path.name for path in release.iterdir()} == {
        "SHA256SUMS",
        *(f"berth-{__version__}{rest}" for rest in (".oci.tar", ".cdx.json", ".tgz", ".md", "-make-secrets.sh")),
        *(f"berth-{__version__}-{preset}.yaml" for preset in PRESETS),
        *(f"{name}-py3-none-any.whl" for name in distributions),
        *(f"{name}.tar.gz" for name in distributions),
    }
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=release, check=True, capture_output=True)
    assert len((release / "SHA256SUMS").read_text().splitlines()) == len(list(release.iterdir())) - 1
    assert named(release, ".md").read_text().startswith("The first version.")


def test_its_wheels_install_into_an_environment_of_their_own(release, tmp_path):
    uv = str(Path(sys.executable).parent / "uv")
    site = ("pip", "install", "--quiet", "--python", str(tmp_path / "own"))
    ours = sorted(str(path) for path in release.glob("*.whl"))
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "own"], check=True, timeout=60)
    pins = ("--constraint", str(ROOT / "requirements.lock"))
    subprocess.run([uv, *site, *pins, *ours], cwd=tmp_path, check=True, timeout=300)
    berth = [tmp_path / "own/bin/berth", "config", "providers"]
    assert "DefaultProvider (1.18" in subprocess.run(berth, check=True, capture_output=True, text=True).stdout
    listed = subprocess.run([uv, "pip", "freeze", "--python", tmp_path / "own"], check=True, capture_output=True)
    from_files = [line for line in listed.stdout.decode().splitlines() if line.startswith("berth-")]
    assert all(f" @ file://{release}/" in line for line in from_files)
    assert len(from_files) == len(ours)
    (page,) = (tmp_path / "own").glob("lib/python3*/site-packages/berth_cli/console/page")
    assert {path.name for path in page.iterdir()} == {
        path.name for path in (ROOT / "shared/cli/src/berth_cli/console/page").iterdir()
    }


def test_its_archive_is_an_image_that_oci_tools_and_docker_read(release):
    with tarfile.open(named(release, ".oci.tar")) as tar:
        files = {entry.name: tar.extractfile(entry).read() for entry in tar}
    blobs = {name.rpartition("/")[2]: data for name, data in files.items() if name.startswith("blobs/sha256/")}
    assert [digest for digest, data in blobs.items() if hashlib.sha256(data).hexdigest() != digest] == []

    def described(by: dict[str, Any]) -> Any:
        data = blobs[by["digest"].removeprefix("sha256:")]
        assert len(data) == by["size"]
        return json.loads(data)

    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = described(entry)
    config = described(manifest["config"])
    assert entry["platform"] == {"architecture": config["architecture"], "os": "linux"}
    assert config["config"]["Entrypoint"] == ["/opt/berth/entrypoint"]
    assert len(manifest["layers"]) == len(config["rootfs"]["diff_ids"])

    name = f"{REPOSITORY}:{__version__}"
    try:
        assert name in docker("load", "--input", str(named(release, ".oci.tar")))
        (loaded,), (built,) = inspected(name), inspected(IMAGE)
        assert loaded["RootFS"] == built["RootFS"]
    finally:
        docker("image", "rm", name)


def test_its_bill_of_materials_has_every_package_of_the_image(release):
    program = "import importlib.metadata as m; print(*(f'{d.name.lower()}@{d.version}' for d in m.distributions()))"
    listed = docker("run", "--rm", "--network", "none", IMAGE, "python", "-c", program).split()
    components = json.loads(named(release, ".cdx.json").read_text())["components"]
    found = {each["purl"] for each in components}
    assert {f"pkg:pypi/{each.replace('_', '-')}" for each in listed} == {x for x in found if x.startswith("pkg:pypi/")}
    assert [each["version"] for each in components if each["purl"].startswith("pkg:deb/debian/libc6@")] != []
    assert [each["name"] for each in components if each["purl"].startswith("pkg:generic/")] == ["python"]


def test_its_chart_has_the_image_and_no_time_of_its_own(release):
    assert "0 chart(s) failed" in helm("lint", "--strict", str(named(release, ".tgz")))
    values = yaml.safe_load(helm("show", "values", str(named(release, ".tgz"))))
    assert values["image"]["repository"] == REPOSITORY
    with tarfile.open(named(release, ".tgz")) as tar:
        assert {entry.mtime for entry in tar} == {COMMITTED}


@pytest.mark.requires("kubectl", "kubebuilder_assets")
async def test_its_manifests_are_accepted(release: Path, own_control_plane: ControlPlane, cluster_outside: ClusterUser):
    add_custom_kinds(own_control_plane)
    await cluster_outside.api.post("/api/v1/namespaces", {"metadata": {"name": "berth"}})
    assert named(release, "-make-secrets.sh").read_bytes() == MAKE_SECRETS.read_bytes()
    for preset in PRESETS:
        kubectl(
            own_control_plane,
            "apply",
            "--server-side",
            "--dry-run=server",
            "-f",
            str(named(release, f"-{preset}.yaml")),
        )
        objects = [each for each in yaml.safe_load_all(named(release, f"-{preset}.yaml").read_text()) if each]
        images = {each["image"] for _, pod in pod_templates(objects) for each in containers(pod)}
        assert {image for image in images if not image.startswith("nats:")} == {f"{REPOSITORY}:{__version__}"}
