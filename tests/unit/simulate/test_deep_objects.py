"""Objects that the API server takes and Python's readers do not: deeper than a thousand levels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from berth.kube.client import KubeClient
from berth.kube.http1 import Response
from berth.profiles.configuration import profiles_of, read_configuration
from berth_cli.simulate.engine import Simulation
from berth_cli.simulate.inputs import InputError, read_inputs
from berth_cli.simulate.live import read_cluster

PROFILES = dict(profiles_of(read_configuration(None)))
DEEP = '{"a":' * 1400 + "1" + "}" * 1400
MANAGED = f'"managedFields":[{{"manager":"m","fieldsV1":{DEEP}}}]'
NODE = (
    f'{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"n1",{MANAGED}}},'
    '"status":{"allocatable":{"pods":"9"}}}'
)
CLASS = '{"apiVersion":"resource.k8s.io/v1","kind":"DeviceClass","metadata":{"name":"gpu"}}'
POD = (
    '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s"},"spec":{"schedulerName":"berth",'
    '"containers":[{"name":"c","image":"i"}],"resourceClaims":[%s]}}'
)
SPEC = (
    '{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"gpu"}}],'
    f'"config":[{{"opaque":{{"driver":"d","parameters":{DEEP}}}}}]}}}}'
)
CLAIM = f'{{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{{"name":"c"}},"spec":{SPEC}}}'
TEMPLATE = (
    '{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaimTemplate","metadata":{"name":"t"},'
    f'"spec":{{"spec":{SPEC}}}}}'
)


def listed(*objects: str) -> str:
    return f'{{"apiVersion":"v1","kind":"List","items":[{",".join(objects)}]}}'


def together(*objects: str) -> str:
    return "\n".join(objects)


@pytest.mark.parametrize("form", [listed, together])
def test_deep_objects_of_files_are_read_and_a_claim_with_deep_parameters_keeps_its_pod_waiting(form, tmp_path: Path):
    cluster, pods = tmp_path / "cluster.json", tmp_path / "pods.json"
    cluster.write_text(form(NODE, CLASS))
    named, made = '{"name":"g","resourceClaimName":"c"}', '{"name":"g","resourceClaimTemplateName":"t"}'
    pods.write_text(form(CLAIM, TEMPLATE, POD % ("named", named), POD % ("made", made), POD % ("plain", "")))
    inputs = read_inputs([str(cluster)], [str(pods)], list(PROFILES))
    reports = {
        each.pod: each for each in Simulation(snapshot=inputs.snapshot, profiles=PROFILES).independently(inputs.pods)
    }
    assert reports["default/plain"].bound == "n1"
    for name in ("named", "made"):
        assert "its parameters are nested more than 500 levels deep" in reports[f"default/{name}"].message


def test_deep_yaml_is_an_error_of_one_line(tmp_path: Path):
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(f"{CLASS}\n---\n{NODE}\n")
    with pytest.raises(InputError) as caught:
        read_inputs([str(cluster)], [str(cluster)], list(PROFILES))
    assert "want at most 64 mappings and lists inside each other" in str(caught.value)


async def test_deep_objects_of_a_cluster_are_exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    async def request(_: KubeClient, __: str, path: str, *, params: Mapping[str, str], largest: int) -> Response:
        found = {"/api/v1/nodes": NODE, "/apis/resource.k8s.io/v1/resourceclaims": CLAIM}.get(path)
        return (
            Response(status=404, body=b"")
            if found is None
            else Response(status=200, body=f'{{"items":[{found}]}}'.encode())
        )

    monkeypatch.setattr(KubeClient, "request", request)
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": ""}}],
        "current-context": "x",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(kubeconfig))
    exported = await read_cluster(path, None)
    assert [each["kind"] for each in json.loads(exported.objects)["items"]] == ["Node", "ResourceClaim"]
