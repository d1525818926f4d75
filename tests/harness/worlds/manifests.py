"""The objects of deploy/kubernetes and deploy/chart as `kubectl kustomize` and helm render them."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml

from harness.servers.control_plane import ControlPlane

ROOT: Final = Path(__file__).parents[3]
KUBERNETES: Final = ROOT / "deploy/kubernetes"
CHART: Final = ROOT / "deploy/chart"
PUT_TOGETHER: Final = ROOT / "tests/data/kubernetes"
MAKE_SECRETS: Final = KUBERNETES / "components/nats/make-secrets.sh"
SECONDS: Final = 60

Object = Mapping[str, Any]


def _objects(text: str) -> tuple[Object, ...]:
    # In a tenth of the time of yaml.safe_load_all.
    return tuple(each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each)


RIGHTS: Final[Sequence[Object]] = _objects((ROOT / "docs/rights/berth.yaml").read_text(encoding="utf-8"))
"""What docs/rights/berth.yaml has applied."""
METRICS_RIGHTS: Final[Sequence[Object]] = _objects(
    (KUBERNETES / "components/metrics-api/rights.yaml").read_text(encoding="utf-8")
)
"""What the component metrics-api has applied beside."""
CUSTOM_KINDS: Final[Sequence[Object]] = _objects((ROOT / "tests/data/kubernetes/crds.yaml").read_text(encoding="utf-8"))
"""Kinds of KEDA and the Prometheus operator."""


def overlays() -> list[str]:
    """The names of the overlays, and of what tests put together of the components."""
    return sorted(_folders())


@cache
def overlay(name: str) -> tuple[Object, ...]:
    """The objects of one of them."""
    return rendered(_folders()[name])


def rendered(folder: Path) -> tuple[Object, ...]:
    """The objects of a kustomization."""
    command = ["kubectl", "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return _objects(done.stdout)


def _folders() -> dict[str, Path]:
    files = [*KUBERNETES.glob("overlays/*/kustomization.yaml"), *PUT_TOGETHER.glob("*/kustomization.yaml")]
    return {file.parent.name: file.parent for file in files}


def charted(values: Mapping[str, Any], *, namespace: str = "berth") -> tuple[Object, ...]:
    """The objects of deploy/chart with these values.

    Raises:
        AssertionError: helm refuses the values; the text says why.
    """
    done = helm("template", "berth", str(CHART), "--namespace", namespace, "--values", "-", given=json.dumps(values))
    return _objects(done)


def helm(*arguments: str, given: str = "") -> str:
    """Run helm; returns what it prints."""
    command = ["helm", *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def preset(name: str) -> dict[str, Any]:
    """The values of one of the chart's presets."""
    return dict(yaml.safe_load((CHART / f"presets/{name}.yaml").read_text(encoding="utf-8")) or {})


@cache
def secrets(*arguments: str) -> tuple[Object, ...]:
    """The Secrets that the operator makes with the documented script; `arguments` are its own."""
    command = ["sh", str(MAKE_SECRETS), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return _objects(done.stdout)


def decoded(secret: Object) -> dict[str, str]:
    """A Secret's data as texts."""
    return {key: base64.b64decode(value).decode() for key, value in secret["data"].items()}


def of_kind(objects: Iterable[Object], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def named(objects: Iterable[Object], kind: str, name: str) -> Object:
    """The object of this kind; a name may lack the hash that a generator adds."""
    found = [each for each in of_kind(objects, kind) if name in (each["metadata"]["name"], unhashed(each))]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def unhashed(generated: Object) -> str:
    """The name that a generator's object has in its kustomization."""
    return generated["metadata"]["name"].rpartition("-")[0]


def name_of(each: Object) -> str:
    return f"{each['kind']}/{each['metadata']['name']}"


def pod_templates(objects: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    """Metadata and spec of the pods that workloads make, and of pods, each with the name of its object."""
    for each in objects:
        if each["kind"] in ("Deployment", "StatefulSet"):
            template = each["spec"]["template"]
            claims = [claim["metadata"]["name"] for claim in each["spec"].get("volumeClaimTemplates", [])]
            volumes = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
            spec = {**template["spec"], "volumes": [*template["spec"].get("volumes", []), *volumes]}
            yield name_of(each), {**template, "spec": spec}
        elif each["kind"] == "Pod":
            yield name_of(each), each


def containers(pod: Object) -> list[Object]:
    """All containers of a pod template, those before the start too."""
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def sources(volume: Object) -> Iterator[tuple[str, list[Object] | None]]:
    """The objects of which a volume is made, each with the items that it takes of it: None is all."""
    if "projected" in volume:
        for source in volume["projected"]["sources"]:
            yield from sources(source)
    if "configMap" in volume:
        yield f"ConfigMap/{volume['configMap']['name']}", volume["configMap"].get("items")
    if "secret" in volume:
        given = volume["secret"]
        yield f"Secret/{given.get('secretName') or given['name']}", given.get("items")


def apply(plane: ControlPlane, objects: Iterable[Object], *flags: str) -> None:
    """Apply on the server's side, as the documented command does.

    Raises:
        AssertionError: the API server refuses an object; the text says why.
    """
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    kubectl(plane, "apply", "--server-side", *flags, "-f", "-", given=text)


def add_custom_kinds(plane: ControlPlane) -> None:
    """Make the API server know the kinds of KEDA and the Prometheus operator."""
    apply(plane, CUSTOM_KINDS)
    kubectl(plane, "wait", "crd", "--all", "--for=condition=Established", f"--timeout={SECONDS}s")


def kubectl(plane: ControlPlane, *arguments: str, given: str = "") -> str:
    """Run it as the administrator; returns what it prints."""
    command = ["kubectl", "--kubeconfig", str(plane.kubeconfig_path), *arguments]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
