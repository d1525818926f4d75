"""The schema of the simulated API server, held to a real one: names and types, and the numbers in protobuf."""

import ssl
from typing import Any

import aiohttp
import pytest

from berth_sim.apiserver import protobuf, schema
from harness.apischema import documents_of, schema_of
from harness.servers.control_plane import ControlPlane
from harness.worlds.kubernetes_api import kubernetes_api, minimal_pod

NOTHING = ("", 0, False, [], {}, None)
POD: dict[str, Any] = {
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}],
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 7,
                    "preference": {"matchExpressions": [{"key": "k", "operator": "In", "values": ["x", "y"]}]},
                }
            ]
        }
    },
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    "terminationGracePeriodSeconds": 0,
    "volumes": [
        {"name": "empty", "emptyDir": {}},
        {"name": "map", "configMap": {"name": "settings", "items": [{"key": "a", "path": "b"}]}},
    ],
    "containers": [
        {
            "name": "c",
            "image": "x",
            "ports": [{"containerPort": 80, "hostPort": 8080}],
            "resources": {"requests": {"cpu": "100m"}, "limits": {"memory": "1Gi", "example.com/gpu": "2"}},
            "env": [{"name": "A", "value": "é"}],
            "readinessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 3},
            "livenessProbe": {"tcpSocket": {"port": 80}},
        }
    ],
}
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
BODIES = {
    "/api/v1/namespaces/{}/pods": minimal_pod("web", labels={"a": "b"}, **POD),
    "/apis/apps/v1/namespaces/{}/deployments": {
        "metadata": {"name": "web", "annotations": {"a": "b"}},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "web"}},
            "strategy": {"rollingUpdate": {"maxSurge": 3, "maxUnavailable": "10%"}},
            "template": TEMPLATE,
        },
    },
    "/apis/policy/v1/namespaces/{}/poddisruptionbudgets": {
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 0, "selector": {"matchLabels": {"app": "web"}}},
    },
    "/apis/coordination.k8s.io/v1/namespaces/{}/leases": {
        "metadata": {"name": "web"},
        "spec": {"holderIdentity": "me", "leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.000006Z"},
    },
}


@pytest.mark.requires("kubectl")
def test_the_types_are_those_of_the_api_server(real_control_plane: ControlPlane):
    """`python -m harness.apischema` makes the file anew."""
    present = schema_of(documents_of(str(real_control_plane.kubeconfig_path)))
    kept = schema.types()
    assert set(present) <= set(kept)
    for name, type_ in present.items():
        fields = {field: [of.type, dict(of.merging)] for field, of in kept[name].properties.items()}
        assert fields == {field: [*of, {}][:2] for field, of in type_["properties"].items()}, name


async def test_a_body_in_protobuf_is_what_it_is_in_json(real_control_plane: ControlPlane):
    trust = ssl.create_default_context(cafile=str(real_control_plane.ca_path))
    headers = {"Authorization": f"Bearer {real_control_plane.token}", "Accept": protobuf.CONTENT_TYPE}
    async with (
        kubernetes_api(real_control_plane.url, never, token=real_control_plane.token, trust=trust) as api,
        aiohttp.ClientSession(
            real_control_plane.url, headers=headers, connector=aiohttp.TCPConnector(ssl=trust)
        ) as session,
    ):
        for path, body in BODIES.items():
            place = path.format(api.namespace)
            created = await api.post(place, body)
            assert created.code == 201, created.body
            async with session.get(f"{place}/{body['metadata']['name']}") as answer:
                assert answer.content_type == protobuf.CONTENT_TYPE
                decoded = protobuf.decode(await answer.read(), "object")
            assert without_nothing(decoded) == without_nothing(created.body)
            replicas = decoded["spec"].get("replicas")
            assert replicas == created.body["spec"].get("replicas"), "zero replicas are no default"


async def never() -> None:
    raise AssertionError("no test here compacts the history")


def without_nothing(value: Any) -> Any:
    """The value without managedFields, and without empty values, which the API leaves out of some objects."""
    if isinstance(value, dict):
        kept = {name: without_nothing(inner) for name, inner in value.items() if name != "managedFields"}
        return {name: inner for name, inner in kept.items() if inner not in NOTHING}
    return [without_nothing(inner) for inner in value] if isinstance(value, list) else value
