"""Workloads become the pods that their controllers would make."""

import json

import pytest

from berth_cli.simulate import workloads
from berth_cli.simulate.documents import documents
from berth_cli.simulate.workloads import with_pods

CONTAINERS = [{"name": "main", "image": "pause"}]
SELECTOR = {"matchLabels": {"app": "web"}}


def workload(kind="Deployment", *, template=None, metadata=None, **spec):
    template = {
        "metadata": {"labels": {"app": "web"}},
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
    list(with_pods(documents("f", json.dumps(thing).encode(), problems), problems))
    return problems


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        pytest.param(workload(), ["web-0"], id="one replica by default"),
        pytest.param(workload(replicas=3), ["web-0", "web-1", "web-2"], id="a Deployment"),
        pytest.param(workload("ReplicaSet", replicas=2), ["web-0", "web-1"], id="a ReplicaSet"),
        pytest.param(workload("StatefulSet", replicas=2), ["web-0", "web-1"], id="a StatefulSet"),
        pytest.param(workload("StatefulSet", replicas=2, ordinals={"start": 5}), ["web-5", "web-6"], id="ordinals"),
        pytest.param(workload("Job"), ["web-0"], id="a Job"),
        pytest.param(
            workload("Job", parallelism=3), ["web-0", "web-1", "web-2"], id="a Job without a number of completions"
        ),
        pytest.param(workload("Job", parallelism=3, completions=2), ["web-0", "web-1"], id="fewer completions"),
        pytest.param(workload("Job", parallelism=2, completions=9), ["web-0", "web-1"], id="as many as run at once"),
        pytest.param(workload("Job", suspend=True), [], id="a Job that is suspended"),
        pytest.param(workload(replicas=0), [], id="no replicas"),
        pytest.param(
            workload(
                "ReplicaSet", metadata={"ownerReferences": [{"kind": "Deployment", "name": "web", "controller": True}]}
            ),
            [],
            id="the ReplicaSet of a Deployment",
        ),
    ],
)
def test_a_workload_has_as_many_pods_as_its_controller_would_make(thing, expected):
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
    ("thing", "problem"),
    [
        (workload(replicas="3"), "spec.replicas: Expected `int`, got `str`"),
        (workload(replicas=-1), "spec.replicas: Expected `int` >= 0"),
        (workload(metadata={"name": ""}), "metadata.name: missing: give it a name"),
    ],
    ids=["text", "negative", "no name"],
)
def test_a_workload_that_cannot_be_decoded_is_reported(thing, problem):
    assert problems_of(thing) == [f"f (Deployment): {problem}"]


def test_a_workload_without_a_selector_has_pods_and_no_owner_to_read():
    assert [kind for kind, _ in made(workload(selector=None))] == ["Pod"]


@pytest.mark.parametrize(
    ("thing", "problem"),
    [
        pytest.param(workload(replicas=2**31 - 1), "got 2147483647 more: lower spec.replicas", id="a Deployment"),
        pytest.param(
            workload("StatefulSet", replicas=150_001, ordinals={"start": 2**31 - 1}),
            "got 150001 more: lower spec.replicas",
            id="a StatefulSet",
        ),
        pytest.param(workload("Job", parallelism=2**31 - 1), "lower spec.parallelism", id="a Job"),
        pytest.param(
            workload(template={"hostname": "x" * 40_000}, replicas=15_000), "and 536870912 bytes together", id="bytes"
        ),
    ],
)
def test_too_many_pods_are_refused_before_they_are_made(thing, problem):
    (found,) = problems_of(thing)
    assert problem in found
    assert found.startswith("f")


def test_workloads_are_counted_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workloads, "_MOST_PODS", 3)
    two = workload(metadata={"name": "two"}, replicas=2)
    (found,) = problems_of({"kind": "List", "items": [workload(replicas=2), two, workload(replicas=1)]})
    assert "shop/two" in found
    assert "want workloads of at most 3 pods and 536870912 bytes together, got 2 more: lower spec.replicas" in found
