"""Contract of the API server, real and simulated: workloads, scales, dry runs, unknown fields, server-side apply."""

import pytest

from harness.worlds.kubernetes_api import Answer, KubernetesApi, minimal_pod

APPLY_PATCH = "application/apply-patch+yaml"
TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}}
SELECTING = {"selector": {"matchLabels": {"app": "web"}}, "template": TEMPLATE}
TEMPLATE_OF_JOB = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "nginx:1"}]}}
WORKLOADS = [
    pytest.param("apps", "deployments", SELECTING, id="deployment"),
    pytest.param("apps", "replicasets", SELECTING, id="replica set"),
    pytest.param("apps", "statefulsets", {**SELECTING, "serviceName": "web"}, id="stateful set"),
    pytest.param("batch", "jobs", {"template": TEMPLATE_OF_JOB}, id="job"),
]


def path_of(api: KubernetesApi, group: str, plural: str, name: str = "") -> str:
    return f"/apis/{group}/v1/namespaces/{api.namespace}/{plural}{f'/{name}' if name else ''}"


@pytest.mark.parametrize(("group", "plural", "spec"), WORKLOADS)
async def test_a_workload_gets_the_defaults_of_its_spec_and_template(
    kubernetes_api: KubernetesApi, group: str, plural: str, spec: dict
):
    created = await kubernetes_api.post(
        path_of(kubernetes_api, group, plural), {"metadata": {"name": "web"}, "spec": spec}
    )
    assert created.code == 201
    assert without_uid(created) == DEFAULTS[plural]


def without_uid(created: Answer) -> dict:
    """The spec and the status, with the object's uid as UID."""
    text = repr({part: created.body[part] for part in ("spec", "status")})
    return eval(text.replace(created.body["metadata"]["uid"], "UID"))  # noqa: S307 - of a dict of this test


POD_OF_TEMPLATE = {
    "containers": [
        {
            "name": "c",
            "image": "nginx:1",
            "imagePullPolicy": "IfNotPresent",
            "resources": {},
            "terminationMessagePath": "/dev/termination-log",
            "terminationMessagePolicy": "File",
        }
    ],
    "dnsPolicy": "ClusterFirst",
    "restartPolicy": "Always",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "terminationGracePeriodSeconds": 30,
}
DEFAULT_TEMPLATE = {"metadata": {"labels": {"app": "web"}}, "spec": POD_OF_TEMPLATE}
SELECTED = {"selector": {"matchLabels": {"app": "web"}}, "template": DEFAULT_TEMPLATE}
OF_A_JOB = {
    "batch.kubernetes.io/controller-uid": "UID",
    "batch.kubernetes.io/job-name": "web",
    "controller-uid": "UID",
    "job-name": "web",
}
DEFAULTS = {
    "deployments": {
        "spec": {
            **SELECTED,
            "replicas": 1,
            "progressDeadlineSeconds": 600,
            "revisionHistoryLimit": 10,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
        },
        "status": {},
    },
    "replicasets": {"spec": {**SELECTED, "replicas": 1}, "status": {"replicas": 0}},
    "statefulsets": {
        "spec": {
            **SELECTED,
            "replicas": 1,
            "serviceName": "web",
            "podManagementPolicy": "OrderedReady",
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
            "revisionHistoryLimit": 10,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        },
        "status": {"availableReplicas": 0, "replicas": 0},
    },
    "jobs": {
        "spec": {
            "backoffLimit": 6,
            "completionMode": "NonIndexed",
            "completions": 1,
            "manualSelector": False,
            "parallelism": 1,
            "podReplacementPolicy": "TerminatingOrFailed",
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "UID"}},
            "suspend": False,
            "template": {"metadata": {"labels": OF_A_JOB}, "spec": {**POD_OF_TEMPLATE, "restartPolicy": "Never"}},
        },
        "status": {},
    },
}


async def test_a_selector_that_does_not_select_the_template_is_refused(kubernetes_api: KubernetesApi):
    spec = {**SELECTING, "selector": {"matchLabels": {"app": "other"}}}
    body = {"metadata": {"name": "web"}, "spec": spec}
    refused = await kubernetes_api.post(path_of(kubernetes_api, "apps", "deployments"), body)
    assert (refused.code, refused.body["reason"]) == (422, "Invalid")
    assert refused.body["message"] == (
        'Deployment.apps "web" is invalid: spec.template.metadata.labels: Invalid value: {"app":"web"}: '
        "`selector` does not match template `labels`"
    )


async def test_the_scale_of_a_deployment_is_read_and_written(kubernetes_api: KubernetesApi):
    deployments = path_of(kubernetes_api, "apps", "deployments")
    await kubernetes_api.post(deployments, {"metadata": {"name": "web"}, "spec": SELECTING})
    scale = (await kubernetes_api.get(f"{deployments}/web/scale")).body
    assert (scale["kind"], scale["apiVersion"], scale["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 1})
    assert scale["status"] == {"replicas": 0, "selector": "app=web"}
    patched = await kubernetes_api.patch(f"{deployments}/web/scale", {"spec": {"replicas": 3}})
    assert (patched.code, patched.body["spec"]) == (200, {"replicas": 3})
    stale = await kubernetes_api.put(f"{deployments}/web/scale", {**scale, "spec": {"replicas": 5}})
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")
    below = await kubernetes_api.patch(f"{deployments}/web/scale", {"spec": {"replicas": -1}})
    assert (below.code, below.body["reason"]) == (422, "Invalid")
    stored = (await kubernetes_api.get(f"{deployments}/web")).body
    assert (stored["spec"]["replicas"], stored["metadata"]["generation"]) == (3, 2)


async def test_a_dry_run_keeps_nothing(kubernetes_api: KubernetesApi):
    pods = kubernetes_api.pods
    created = await kubernetes_api.call("POST", pods, minimal_pod("web"), query={"dryRun": "All"})
    assert (created.code, created.body["spec"]["priority"]) == (201, 0)
    assert (await kubernetes_api.get(f"{pods}/web")).code == 404
    await kubernetes_api.add_pod("web")
    labelled = await kubernetes_api.call(
        "PATCH",
        f"{pods}/web",
        {"metadata": {"labels": {"a": "b"}}},
        content_type="application/merge-patch+json",
        query={"dryRun": "All"},
    )
    assert labelled.body["metadata"]["labels"] == {"a": "b"}
    assert (await kubernetes_api.delete(f"{pods}/web", dryRun="All")).code == 200
    assert "labels" not in (await kubernetes_api.get(f"{pods}/web")).body["metadata"]


async def test_an_unknown_field_is_refused_where_the_client_asks_for_it(kubernetes_api: KubernetesApi):
    body = minimal_pod("web", nodeSelektor={"a": "b"})
    body["spec"]["containers"][0]["imag"] = "x"
    refused = await kubernetes_api.call("POST", kubernetes_api.pods, body, query={"fieldValidation": "Strict"})
    assert (refused.code, refused.body["reason"]) == (400, "BadRequest")
    for field in ('unknown field "spec.nodeSelektor"', 'unknown field "spec.containers[0].imag"'):
        assert field in refused.body["message"]
    assert (await kubernetes_api.call("POST", kubernetes_api.pods, body)).code == 201


WRONG_SPECS = [
    pytest.param("x", 400, id="no object"),
    pytest.param({**SELECTING, "template": "x"}, 400, id="template"),
    pytest.param({**SELECTING, "replicas": "many"}, 400, id="text for a number"),
    pytest.param({**SELECTING, "replicas": True}, 400, id="truth for a number"),
    pytest.param({**SELECTING, "strategy": []}, 400, id="list for an object"),
    pytest.param({**SELECTING, "replicas": -1}, 422, id="below zero"),
]


@pytest.mark.parametrize(("spec", "code"), WRONG_SPECS)
async def test_values_of_another_type_are_refused(kubernetes_api: KubernetesApi, spec: object, code: int):
    deployments = path_of(kubernetes_api, "apps", "deployments")
    refused = await kubernetes_api.post(deployments, {"metadata": {"name": "web"}, "spec": spec})
    assert refused.code == code, refused.body
    await kubernetes_api.post(deployments, {"metadata": {"name": "web"}, "spec": SELECTING})
    for scale in ([], {"spec": []}, {"spec": {"replicas": "two"}}):
        assert (await kubernetes_api.put(f"{deployments}/web/scale", scale)).code == 400
    config = deployment(**SELECTING, strategy="x")
    assert (await Applier(kubernetes_api, "one").apply(f"{deployments}/web", config)).code in (400, 500)


class Applier:
    """Applies configurations of one pod or Deployment under a name."""

    def __init__(self, api: KubernetesApi, name: str) -> None:
        self._api = api
        self._name = name

    async def apply(self, path: str, body: dict, **query: str) -> Answer:
        asked = {"fieldManager": self._name, **query}
        return await self._api.call("PATCH", path, body, content_type=APPLY_PATCH, query=asked)


def deployment(**spec: object) -> dict:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}


def with_containers(*containers: dict) -> dict:
    return {**TEMPLATE, "spec": {"containers": list(containers)}}


async def test_an_applier_adds_changes_and_drops_its_fields(kubernetes_api: KubernetesApi):
    path = path_of(kubernetes_api, "apps", "deployments", "web")
    one, other = (Applier(kubernetes_api, name) for name in ("one", "other"))
    sidecar = {"name": "sidecar", "image": "x:1"}
    template = with_containers({"name": "c", "image": "nginx:1"}, sidecar)
    created = await one.apply(
        path, deployment(**{**SELECTING, "template": template, "replicas": 2, "minReadySeconds": 7})
    )
    assert (created.code, created.body["spec"]["replicas"]) == (201, 2)
    same = await one.apply(path, deployment(**{**SELECTING, "template": template, "replicas": 2, "minReadySeconds": 7}))
    assert same.version == created.version
    labelled = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "labels": {"team": "a"}}}
    assert (await other.apply(path, labelled)).body["metadata"]["labels"] == {"team": "a"}
    changed = await one.apply(
        path, deployment(**{**SELECTING, "template": with_containers({"name": "c", "image": "nginx:2"})})
    )
    assert [(each["name"], each["image"]) for each in changed.body["spec"]["template"]["spec"]["containers"]] == [
        ("c", "nginx:2")
    ]
    assert "minReadySeconds" not in changed.body["spec"]
    assert changed.body["metadata"]["labels"] == {"team": "a"}


async def test_the_field_of_another_applier_is_taken_only_by_force(kubernetes_api: KubernetesApi):
    path = path_of(kubernetes_api, "apps", "deployments", "web")
    one, other = (Applier(kubernetes_api, name) for name in ("one", "other"))
    await one.apply(path, deployment(**SELECTING, replicas=2))
    assert (await other.apply(path, deployment(replicas=2))).code == 200, "the same value has two owners"
    refused = await other.apply(path, deployment(replicas=3))
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    assert refused.body["message"] == 'Apply failed with 1 conflict: conflict with "one": .spec.replicas'
    assert refused.body["details"]["causes"] == [
        {"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".spec.replicas"}
    ]
    forced = await other.apply(path, deployment(replicas=3), force="true")
    assert forced.body["spec"]["replicas"] == 3
    owners = {entry["manager"]: entry["fieldsV1"]["f:spec"] for entry in forced.body["metadata"]["managedFields"]}
    assert "f:replicas" in owners["other"]
    assert "f:replicas" not in owners["one"]


async def test_to_apply_needs_a_name(kubernetes_api: KubernetesApi):
    path = path_of(kubernetes_api, "apps", "deployments", "web")
    refused = await kubernetes_api.call("PATCH", path, deployment(**SELECTING), content_type=APPLY_PATCH)
    assert (refused.code, "fieldManager" in refused.body["message"]) == (422, True)
