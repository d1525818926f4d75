"""Pods that nobody created yet, as berth simulate takes them and as a real API server stores them: the same."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator

import msgspec
import pytest

from berth.api.pod import Pod
from berth.api.quantity import milli_value
from berth.simulate.created import Creation, created
from berth.simulate.documents import documents
from berth.simulate.objects import ObjectReader, as_pod
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


def asking(**requests):
    return container(resources={"requests": requests})


def required(term, kind="podAffinity"):
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def preferred(weight, term=APART):
    weighted = {"weight": weight, "podAffinityTerm": term}
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}}


def node_terms(*terms):
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}}


def expression(operator, *values):
    return {"matchExpressions": [{"key": "zone", "operator": operator, "values": list(values)}]}


RUNTIME = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "sandboxed"},
    "handler": "sandboxed",
    "overhead": {"podFixed": {"cpu": "250m", "memory": "120Mi"}},
    "scheduling": {"nodeSelector": {"sandbox": "yes"}, "tolerations": [{"key": "sandbox", "operator": "Exists"}]},
}
LIMITS = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "usual"},
    "spec": {
        "limits": [
            {
                "type": "Container",
                "default": {"cpu": "500m"},
                "defaultRequest": {"cpu": "200m"},
                "min": {"cpu": "100m", "ephemeral-storage": "1Mi"},
                "max": {"cpu": "1", "memory": "1Gi"},
                "maxLimitRequestRatio": {"memory": "2"},
            },
            {"type": "Pod", "max": {"cpu": "2"}},
        ]
    },
}
IMPORTANT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "important"},
    "value": 1000,
    "preemptionPolicy": "Never",
}

ACCEPTED = [
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
                asking(cpu="100m"),
                container(
                    "more", resources={"requests": {"cpu": "1"}, "limits": {"hugepages-2Mi": "4Mi", "memory": "50Mi"}}
                ),
            ],
        },
        id="limits of the pod and requests of its containers",
    ),
    pytest.param(
        {
            "resources": {"requests": {"cpu": "2"}},
            "containers": [limited(**{"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"})],
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
    pytest.param({"runtimeClassName": "sandboxed", "nodeSelector": {"disk": "fast"}}, id="a runtime"),
    pytest.param(
        {"runtimeClassName": "sandboxed", "overhead": {"cpu": "0.25", "memory": "120Mi"}},
        id="overhead as its runtime's",
    ),
    pytest.param({"priorityClassName": "important"}, id="a class"),
    pytest.param({"priorityClassName": "important", "priority": 1000}, id="a class and its priority"),
    pytest.param({"priorityClassName": "system-node-critical"}, id="a class of every cluster"),
    pytest.param(
        {"nodeName": "", "priorityClassName": None, "affinity": None, "nodeSelector": {"zone": None}}, id="nulls"
    ),
    pytest.param({"terminationGracePeriodSeconds": 5, "schedulerName": ""}, id="a shorter end"),
]
REFUSED = [
    pytest.param({"containers": []}, "spec.containers", id="no containers"),
    pytest.param(
        {"containers": [asking(cpu="-1")]}, "spec.containers[0].resources.requests.cpu", id="less than nothing"
    ),
    pytest.param({"containers": [limited(cpu="x")]}, "spec.containers[0].resources.limits.cpu", id="no quantity"),
    pytest.param(
        {"containers": [container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}})]},
        "spec.containers[0].resources.requests.cpu",
        id="more than the limit",
    ),
    pytest.param({"priorityClassName": "none"}, "spec.priorityClassName", id="no such class"),
    pytest.param({"priorityClassName": "important", "priority": 5}, "spec.priority", id="another priority"),
    pytest.param({"priority": 10**30}, "spec.priority", id="a priority that no number holds"),
    pytest.param({"priority": "high"}, "spec.priority", id="a priority of another type"),
    pytest.param({"preemptionPolicy": "Sometimes"}, "spec.preemptionPolicy", id="another policy"),
    pytest.param({"runtimeClassName": "none"}, "spec.runtimeClassName", id="no such runtime"),
    pytest.param({"overhead": {"cpu": "1"}}, "spec.overhead", id="overhead without a runtime"),
    pytest.param({"runtimeClassName": "sandboxed", "overhead": {"cpu": "1"}}, "spec.overhead", id="another overhead"),
    pytest.param(
        {"runtimeClassName": "sandboxed", "nodeSelector": {"sandbox": "no"}},
        "spec.nodeSelector.sandbox",
        id="other nodes",
    ),
    pytest.param(
        {"topologySpreadConstraints": [{**SPREAD, "maxSkew": 0}]},
        "spec.topologySpreadConstraints[0].maxSkew",
        id="no skew",
    ),
    pytest.param(
        {"topologySpreadConstraints": [{**SPREAD, "maxSkew": 10**30}]},
        "spec.topologySpreadConstraints[0].maxSkew",
        id="a wide skew",
    ),
    pytest.param(
        {"topologySpreadConstraints": [{**SPREAD, "whenUnsatisfiable": "Never"}]},
        "spec.topologySpreadConstraints[0].whenUnsatisfiable",
        id="another whenUnsatisfiable",
    ),
    pytest.param(
        {"topologySpreadConstraints": [{**SPREAD, "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}]},
        "spec.topologySpreadConstraints[0].minDomains",
        id="domains of a preference",
    ),
    pytest.param(
        {"topologySpreadConstraints": [{**SPREAD, "labelSelector": None, "matchLabelKeys": ["app"]}]},
        "spec.topologySpreadConstraints[0].matchLabelKeys",
        id="keys without a selector",
    ),
    pytest.param(
        {"tolerations": [{"operator": "Is", "key": "x"}]}, "spec.tolerations[0].operator", id="another operator"
    ),
    pytest.param({"tolerations": [{"value": "x"}]}, "spec.tolerations[0].key", id="a toleration of nothing"),
    pytest.param(
        {"tolerations": [{"key": "x", "operator": "Exists", "value": "1"}]},
        "spec.tolerations[0].value",
        id="a value too many",
    ),
    pytest.param({"tolerations": [{"key": "x", "effect": "Never"}]}, "spec.tolerations[0].effect", id="another effect"),
    pytest.param({"affinity": node_terms()}, "spec.affinity.nodeAffinity", id="no terms"),
    pytest.param(
        {"affinity": node_terms(expression("Near"))}, "spec.affinity.nodeAffinity", id="another operator of nodes"
    ),
    pytest.param({"affinity": node_terms(expression("In"))}, "spec.affinity.nodeAffinity", id="In nothing"),
    pytest.param(
        {"affinity": node_terms(expression("Exists", "a"))}, "spec.affinity.nodeAffinity", id="Exists with a value"
    ),
    pytest.param({"affinity": node_terms(expression("Gt", "1", "2"))}, "spec.affinity.nodeAffinity", id="Gt of two"),
    pytest.param(
        {"affinity": node_terms({"matchFields": [{"key": "spec.x", "operator": "In", "values": ["a"]}]})},
        "spec.affinity.nodeAffinity",
        id="another field",
    ),
    pytest.param({"affinity": preferred(101)}, "spec.affinity.podAntiAffinity", id="a weight above 100"),
    pytest.param({"affinity": preferred(1e20)}, "spec.affinity.podAntiAffinity", id="a weight that is no whole number"),
    pytest.param({"affinity": required({**TERM, "topologyKey": ""})}, "spec.affinity.podAffinity", id="no topology"),
    pytest.param(
        {"affinity": required({**TERM, "matchLabelKeys": ["app"]})}, "spec.affinity.podAffinity", id="a key twice"
    ),
    pytest.param(
        {"affinity": required({**TERM, "mismatchLabelKeys": ["track"]})},
        "spec.affinity.podAffinity",
        id="a key of both kinds",
    ),
    pytest.param(
        {"topologySpreadConstraints": [{**SPREAD, "matchLabelKeys": ["app"]}]},
        "spec.topologySpreadConstraints[0].matchLabelKeys",
        id="a key of a spread twice",
    ),
    pytest.param({"nodeSelector": {"a b": "c"}}, "spec.nodeSelector", id="no label"),
    pytest.param(
        {"containers": [container(ports=[{"containerPort": 70_000}])]},
        "spec.containers[0].ports[0].containerPort",
        id="no port",
    ),
    pytest.param(
        {"hostNetwork": True, "containers": [container(ports=[{"containerPort": 80, "hostPort": 81}])]},
        "spec.containers[0].ports[0].hostPort",
        id="another port of the host",
    ),
    pytest.param(
        {"containers": [container(ports=[{"containerPort": 80, "protocol": "IP"}])]},
        "spec.containers[0].ports[0].protocol",
        id="another protocol",
    ),
    pytest.param({"schedulingGates": [{"name": "a b"}]}, "spec.schedulingGates[0].name", id="no gate"),
    pytest.param({"schedulingGates": [{"name": "a"}], "nodeName": "n"}, "spec.nodeName", id="a gate and a node"),
]
LIMITED = [
    pytest.param({"initContainers": [container("first")]}, id="nothing"),
    pytest.param({"containers": [asking(cpu="300m")]}, id="a request"),
    pytest.param({"containers": [limited(cpu="400m", memory="10Mi")]}, id="limits"),
    pytest.param({"containers": [asking(memory="10Mi")]}, id="a limit too far from its request"),
    pytest.param({"containers": [limited(cpu="50m")]}, id="too little"),
    pytest.param(
        {"containers": [limited(**{"cpu": "3", "memory": "2Gi", "ephemeral-storage": "1Ki"})]},
        id="too much and too little",
    ),
    pytest.param(
        {"containers": [container(name, resources={"limits": {"cpu": "1"}}) for name in "abc"]}, id="too much together"
    ),
    pytest.param({"resources": {"limits": {"cpu": "3"}}}, id="too much of the pod"),
]


@pytest.fixture
async def api(real_control_plane: ControlPlane) -> AsyncIterator[KubernetesApi]:
    """The real API server, where a RuntimeClass and a PriorityClass are."""
    trust = ssl.create_default_context(cafile=str(real_control_plane.ca_path))
    compact = lambda: asyncio.to_thread(real_control_plane.compact)  # noqa: E731 - a name for what follows
    async with kubernetes_api(real_control_plane.url, compact, token=real_control_plane.token, trust=trust) as api:
        for path, thing in (
            ("node.k8s.io/v1/runtimeclasses", RUNTIME),
            ("scheduling.k8s.io/v1/priorityclasses", IMPORTANT),
        ):
            assert (await api.post(f"/apis/{path}", thing)).code in (201, 409)
        yield api


def manifest(api: KubernetesApi, spec: dict) -> dict:
    metadata = {"name": "web", "namespace": api.namespace, "labels": {"app": "web", "track": "new", "tier": "front"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container()], **spec}}


def taken(pod: dict, *others: dict) -> Creation:
    """What berth simulate makes of the pod in a cluster that has the others."""
    reader = ObjectReader()

    def found(*objects):
        problems: list[str] = []
        return list(
            reader.read(one for thing in objects for one in documents("f", json.dumps(thing).encode(), problems))
        )

    creation = created(found(RUNTIME, IMPORTANT, *others), [pod for one in found(pod) if (pod := as_pod(one))])
    creation.problems += reader.problems
    return creation


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


@pytest.mark.parametrize("spec", ACCEPTED)
async def test_a_pod_is_taken_as_it_would_be_stored(api, spec):
    pod = manifest(api, spec)
    answer = await api.call("POST", api.pods, pod, query=DRY)
    assert answer.code == 201, answer.body["message"]
    creation = taken(pod)
    assert creation.problems == []
    (ours,) = creation.wanted
    stored = msgspec.convert(answer.body, Pod)
    assert in_one_form(ours.spec) == in_one_form(stored.spec)


@pytest.mark.parametrize(("spec", "path"), REFUSED)
async def test_a_pod_that_would_be_refused_is_refused_with_the_field(api, spec, path):
    pod = manifest(api, spec)
    answer = await api.call("POST", api.pods, pod, query=DRY)
    assert answer.code in (400, 403, 422), answer.body
    problems = [problem.split(": ", 1)[1] for problem in taken(pod).problems]
    assert len(problems) == 1
    assert problems[0].startswith(path)


@pytest.mark.parametrize("spec", LIMITED)
async def test_limits_of_a_namespace_count_and_refuse_as_on_the_api_server(api, spec):
    pod, limits = manifest(api, spec), {**LIMITS, "metadata": {"name": "usual", "namespace": api.namespace}}
    assert (await api.post(f"/api/v1/namespaces/{api.namespace}/limitranges", limits)).code == 201
    answer = await api.call("POST", api.pods, pod, query=DRY)
    creation = taken(pod, limits)
    if answer.code == 201:
        assert creation.problems == []
        assert in_one_form(creation.wanted[0].spec) == in_one_form(msgspec.convert(answer.body, Pod).spec)
    else:
        said = [problem.split(": ", 1)[1] for problem in creation.problems]
        assert said
        for one in said:
            assert one in answer.body["message"]
        assert answer.body["message"].count(" usage per ") + answer.body["message"].count(" ratio per ") == len(said)


@pytest.mark.parametrize(
    "metadata",
    [
        {"name": "Web"},
        {"name": "web_1"},
        {"labels": {"app": "a b"}},
        {"labels": {"-": "a"}},
        {"labels": {"a/b/c": "d"}},
    ],
    ids=str,
)
async def test_names_and_labels_are_refused_alike(api, metadata):
    pod = manifest(api, {})
    pod["metadata"] |= metadata
    assert (await api.call("POST", api.pods, pod, query=DRY)).code == 422
    assert len(taken(pod).problems) == 1
