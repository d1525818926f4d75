"""What the pages about Kubernetes and NATS tell people to write and to copy is rendered as they say."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth import __version__
from harness.worlds.manifests import ROOT, containers, named, pod_templates, rendered

pytestmark = pytest.mark.requires("kubectl")

PAGES = (ROOT / "docs/kubernetes.md", ROOT / "docs/nats.md")
ADDRESS = re.compile(r"\b10\.0\.0\.1([123])\b")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of what overlays are made of."""
    for folder in ("deploy", "docs/rights"):
        shutil.copytree(ROOT / folder, tmp_path / "berth" / folder)
    return tmp_path / "berth"


def blocks() -> list[dict[str, Any]]:
    """The pages' YAML."""
    pages = "\n".join(page.read_text() for page in PAGES)
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", pages, re.DOTALL | re.MULTILINE)]


def test_a_kustomization_of_ones_own_chooses_image_servers_and_configuration(repository: Path):
    own: dict[str, Any] = {}
    for block in blocks():
        if block.get("kind", "Kustomization") != "Kustomization":
            continue  # an object of its own, to be applied as it is
        for key, value in block.items():
            own[key] = [*own.get(key, []), *value] if isinstance(value, list) else value
    assert {"resources", "images", "configMapGenerator"} <= own.keys()
    folder = repository.parent
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(own))
    (folder / "scheduler.yaml").write_text("mine")

    objects = rendered(folder)

    images = {container["image"] for _, template in pod_templates(objects) for container in containers(template)}
    assert f"registry.example.com/berth:{__version__}" in images
    assert len(images) == 2, "that of berth and that of NATS"
    settings = named(objects, "ConfigMap", "berth-settings")["data"]
    assert settings["BERTH_NATS_URL"] == "tls://nats.example.com:4222"
    assert settings["BERTH_LOG_VERBOSITY"] == "2", "what is not written stays"
    configuration = named(objects, "ConfigMap", "berth-configuration")
    assert configuration["data"] == {"scheduler.yaml": "mine"}
    mounted = {
        volume["configMap"]["name"]
        for _, template in pod_templates(objects)
        for volume in template["spec"].get("volumes", [])
        if volume["name"] == "configuration" and "configMap" in volume
    }
    assert mounted == {configuration["metadata"]["name"]}


@pytest.mark.parametrize("name", ["only-scheduler", "static-pod"])
def test_a_copy_with_other_nodes_has_their_names_and_addresses_everywhere(repository: Path, name: str):
    overlays = repository / "deploy/kubernetes/overlays"
    shutil.copytree(overlays / name, overlays / "ours")
    nodes = overlays / "ours/nodes.yaml"
    nodes.write_text(ADDRESS.sub(r"192.0.2.\1", nodes.read_text()).replace("control-plane-", "master-"))

    text = yaml.safe_dump_all(rendered(overlays / "ours"))

    assert not ADDRESS.search(text)
    assert "of nodes.yaml" not in text
    assert {f"192.0.2.{number}" for number in (1, 2, 3)} <= set(re.findall(r"192\.0\.2\.\d", text))
    assert len(set(re.findall(r"nodeName: (\S+)", text))) == (3 if name == "only-scheduler" else 0)
    assert "control-plane-" not in text
