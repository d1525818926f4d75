"""The pods of a release: what controllers would make of its workloads."""

import json

import pytest

from berth.simulate.documents import documents
from berth.simulate.workloads import with_pods

CONTAINERS = [{"name": "main", "image": "pause"}]
NOT_ITS_OWN = "spec.selector: does not match the labels of spec.template: its pods would not be its own"
SELECTOR = {"matchLabels": {"app": "web"}}


def workload(kind="Deployment", *, labels=None, template=None, metadata=None, **spec):
    template = {
        "metadata": {"labels": labels or {"app": "web"}},
        "spec": {"containers": CONTAINERS, **(template or {})},
    }
    version = "batch/v1" if kind == "Job" else "apps/v1"
    selector = {} if kind == "Job" else {"selector": SELECTOR}
    metadata = {"name": "web", "namespace": "shop", **(metadata or {})}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": metadata,
        "spec": {**selector, "template": template, **spec},
    }


def made(thing):
    problems: list[str] = []
    found = list(with_pods(documents("f", json.dumps(thing).encode(), problems), problems))
    assert problems == []
    return [(document.kind, json.loads(document.raw)) for document in found]


def of_kind(thing, kind):
    return [value for found, value in made(thing) if found == kind]


def names(thing):
    return [pod["metadata"]["name"] for pod in of_kind(thing, "Pod")]


def problems_of(thing):
    problems: list[str] = []
    assert list(with_pods(documents("f", json.dumps(thing).encode(), problems), problems)) == []
    return problems


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        pytest.param(workload(), ["web-0"], id="one replica when nothing is said"),
        pytest.param(workload(replicas=3), ["web-0", "web-1", "web-2"], id="a Deployment"),
        pytest.param(workload("ReplicaSet", replicas=2), ["web-0", "web-1"], id="a ReplicaSet"),
        pytest.param(workload("StatefulSet", replicas=2), ["web-0", "web-1"], id="a StatefulSet"),
        pytest.param(workload("StatefulSet", replicas=2, ordinals={"start": 5}), ["web-5", "web-6"], id="ordinals"),
        pytest.param(workload("Job"), ["web-0"], id="a Job"),
        pytest.param(workload("Job", parallelism=3), ["web-0", "web-1", "web-2"], id="a Job that anybody completes"),
        pytest.param(workload("Job", parallelism=3, completions=2), ["web-0", "web-1"], id="fewer completions"),
        pytest.param(workload("Job", parallelism=2, completions=9), ["web-0", "web-1"], id="as many as run at once"),
        pytest.param(workload("Job", suspend=True), [], id="a Job that is suspended"),
        pytest.param(workload(replicas=0), [], id="no replicas"),
        pytest.param(
            workload(
                "ReplicaSet", metadata={"ownerReferences": [{"kind": "Deployment", "name": "web", "controller": True}]}
            ),
            [],
            id="a Deployment's own ReplicaSet, which is told of by the Deployment",
        ),
    ],
)
def test_as_many_pods_as_the_controller_would_make(thing, expected):
    assert names(thing) == expected


def test_a_deployments_pods_belong_to_a_replica_set_that_selects_them():
    (owner,) = of_kind(workload(replicas=2), "ReplicaSet")
    first, _ = of_kind(workload(replicas=2), "Pod")
    labels = first["metadata"]["labels"]
    assert owner["spec"]["selector"]["matchLabels"] == labels
    assert labels == {"app": "web", "pod-template-hash": labels["pod-template-hash"]}
    assert owner["metadata"]["name"] == f"web-{labels['pod-template-hash']}"
    assert first["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
    ]


def test_another_template_has_another_hash():
    hashes = {
        of_kind(thing, "Pod")[0]["metadata"]["labels"]["pod-template-hash"]
        for thing in (workload(), workload(template={"x": 1}))
    }
    assert len(hashes) == 2


def test_pods_of_a_stateful_set_have_its_labels_and_claims():
    template = {"volumes": [{"name": "data", "emptyDir": {}}, {"name": "more", "emptyDir": {}}]}
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}
    thing = workload("StatefulSet", template=template, volumeClaimTemplates=[claim])
    (pod,) = of_kind(thing, "Pod")
    assert pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "web-0"
    assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "0"
    assert pod["spec"]["volumes"] == [
        {"name": "more", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}},
    ]
    (made_claim,) = of_kind(thing, "PersistentVolumeClaim")
    assert (made_claim["metadata"]["name"], made_claim["spec"]) == ("data-web-0", claim["spec"])


def test_a_stateful_set_that_a_cluster_has_keeps_its_uid():
    thing = workload("StatefulSet", metadata={"uid": "u-1"})
    assert of_kind(thing, "StatefulSet")[0]["metadata"]["uid"] == "u-1"
    assert of_kind(thing, "Pod")[0]["metadata"]["ownerReferences"][0]["uid"] == "u-1"


def test_jobs_of_others_are_left_alone():
    theirs = {**workload("Job"), "apiVersion": "batch.volcano.sh/v1alpha1"}
    assert made(theirs) == [("Job", theirs)]


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (workload(replicas="3"), "(Deployment): spec.replicas: want a whole number, -2147483648..2147483647, got '3'"),
        (workload(replicas=-1), "(Deployment shop/web): spec.replicas: want 0 or more, got -1"),
        (workload("Job", parallelism=-1), "(Job shop/web): spec.parallelism: want 0 or more, got -1"),
        (workload(selector=None), "(Deployment shop/web): spec.selector: missing: name the labels of its pods"),
        (
            workload(labels={"app": "other"}),
            f"(Deployment shop/web): {NOT_ITS_OWN}",
        ),
        (workload(metadata={"name": ""}), "(Deployment): metadata.name: missing: give it a name"),
    ],
    ids=["text", "negative", "negative parallelism", "no selector", "another selector", "no name"],
)
def test_what_is_wrong_with_a_workload_is_said(thing, said):
    assert problems_of(thing) == [f"f {said}"]
