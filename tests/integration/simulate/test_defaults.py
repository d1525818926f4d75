"""Defaults: berth simulate takes new pods as a real API server stores them."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator

import msgspec
import pytest

from berth.api.pod import Pod
from berth.api.resources import milli_value
from berth_cli.simulate.admission import StoredObjects, stored
from berth_cli.simulate.documents import documents
from berth_cli.simulate.objects import ObjectReader, as_pod
from harness.servers.control_plane import ControlPlane
from harness.worlds.kubernetes_api import KubernetesApi, kubernetes_api

pytestmark = pytest.mark.requires("kubebuilder_assets")

SELECTOR = {"matchLabels": {"app": "web"}}
TERM = {"topologyKey": "zone", "labelSelector": SELECTOR, "matchLabelKeys": ["track", "none"]}
APART = {**TERM, "mismatchLabelKeys": ["tier"]}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR}
NOT_READY = "node.kubernetes.io/not-ready"
QUANTITIES = ("requests", "limits", "overhead")
DRY = {"dryRun": "All"}


def container(name="main", **more):
    return {"name": name, "image": "pause", **more}


def limited(**limits):
    return container(resources={"limits": limits})


def requesting(**requests):
    return container(resources={"requests": requests})


def required(term, kind="podAffinity"):
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def preferred(weight, term=APART):
    weighted = {"weight": weight, "podAffinityTerm": term}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}}


IMPORTANT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "important"},
    "value": 1000,
    "preemptionPolicy": "Never",
}

PODS = [
    pytest.param({}, id="nothing"),
    pytest.param({"containers": [limited(cpu="2", memory="1Gi")]}, id="limits without requests"),
    pytest.param(
        {"containers": [container()], "initContainers": [{**limited(cpu="0.0001"), "name": "first"}]},
        id="limits of an init container",
    ),
    pytest.param(
        {
            "hostNetwork": True,
            "containers": [container(ports=[{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}])],
            "initContainers": [container("beside", restartPolicy="Always", ports=[{"containerPort": 82}])],
        },
        id="ports with hostNetwork",
    ),
    pytest.param({"resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}, id="limits of the pod alone"),
    pytest.param(
        {
            "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
            "containers": [
                requesting(cpu="100m"),
                container("more", resources={"requests": {"cpu": "1"}, "limits": {"memory": "50Mi"}}),
            ],
        },
        id="limits of the pod and requests of its containers",
    ),
    pytest.param(
        {
            "resources": {"requests": {"cpu": "2"}},
            "containers": [limited(cpu="1", memory="1Gi")],
        },
        id="requests of the pod alone",
    ),
    pytest.param(
        {"topologySpreadConstraints": [{**SPREAD, "matchLabelKeys": ["track", "none"]}]}, id="keys of a spread"
    ),
    pytest.param({"affinity": required(TERM)}, id="keys of an affinity"),
    pytest.param({"affinity": preferred(5)}, id="keys of a preference to be apart"),
    pytest.param({"affinity": required({"topologyKey": "zone"})}, id="an affinity without a selector"),
    pytest.param({"tolerations": [{"key": "x", "operator": "Exists"}]}, id="a toleration"),
    pytest.param(
        {"tolerations": [{"key": NOT_READY, "operator": "Exists", "effect": "NoSchedule"}]}, id="of NoSchedule"
    ),
    pytest.param({"tolerations": [{"key": NOT_READY, "value": "x"}]}, id="of one of the two problems"),
    pytest.param({"tolerations": [{"operator": "Exists"}]}, id="of everything"),
    pytest.param({"priorityClassName": "important"}, id="a class"),
    pytest.param({"priorityClassName": "important", "priority": 1000}, id="a class and its priority"),
    pytest.param({"priorityClassName": "system-node-critical"}, id="a class of every cluster"),
    pytest.param(
        {"nodeName": "", "priorityClassName": None, "affinity": None, "nodeSelector": {"zone": None}}, id="nulls"
    ),
    pytest.param({"terminationGracePeriodSeconds": 5, "schedulerName": ""}, id="a shorter end"),
]


@pytest.fixture
async def api(real_control_plane: ControlPlane) -> AsyncIterator[KubernetesApi]:
    """The real API server, where a PriorityClass is."""
    trust = ssl.create_default_context(cafile=str(real_control_plane.ca_path))
    compact = lambda: asyncio.to_thread(real_control_plane.compact)  # noqa: E731 - a name for what follows
    async with kubernetes_api(real_control_plane.url, compact, token=real_control_plane.token, trust=trust) as api:
        assert (await api.post("/apis/scheduling.k8s.io/v1/priorityclasses", IMPORTANT)).code in (201, 409)
        yield api


def manifest(api: KubernetesApi, spec: dict) -> dict:
    metadata = {"name": "web", "namespace": api.namespace, "labels": {"app": "web", "track": "new", "tier": "front"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container()], **spec}}


def taken(pod: dict) -> StoredObjects:
    """The pod as berth simulate takes it."""
    reader = ObjectReader()

    def found(*objects):
        problems: list[str] = []
        return list(
            reader.read(one for thing in objects for one in documents("f", json.dumps(thing).encode(), problems))
        )

    objects = stored(found(IMPORTANT), [pod for one in found(pod) if (pod := as_pod(one))])
    objects.problems += reader.problems
    return objects


def in_one_form(value, *, is_quantity=False):
    """Every field of a spec, quantities as numbers, and what is empty as if it were not there."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    if isinstance(value, dict):
        plain = {key: in_one_form(below, is_quantity=is_quantity or key in QUANTITIES) for key, below in value.items()}
        return {key: below for key, below in plain.items() if below not in ({}, [], None)}
    if isinstance(value, list):
        return [in_one_form(below, is_quantity=is_quantity) for below in value]
    return milli_value(value) if is_quantity and value is not None else value


@pytest.mark.parametrize("spec", PODS)
async def test_a_pod_has_the_defaults_that_would_be_stored(api, spec):
    pod = manifest(api, spec)
    answer = await api.call("POST", api.pods, pod, query=DRY)
    assert answer.code == 201, answer.body["message"]
    objects = taken(pod)
    assert objects.problems == []
    (ours,) = objects.to_place
    assert in_one_form(ours.spec) == in_one_form(msgspec.convert(answer.body, Pod).spec)
    (admitted,) = taken(answer.body).to_place
    assert admitted.spec == msgspec.convert(answer.body, Pod).spec, "what --dry-run=server prints is changed"
