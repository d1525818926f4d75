"""The files of berth simulate: each form that kubectl prints, and each error."""

import io
import json
import sys

import pytest
import yaml

from berth.api.volumes import PersistentVolumeClaim
from berth.api.workloads import ReplicaSet, Service
from berth.cluster.nodes import node_info
from berth.profiles.configuration import profiles_of, read_configuration
from berth_cli.simulate.inputs import InputError, read_inputs

PROFILES = dict(profiles_of(read_configuration(None)))


def pod(name="web", namespace="default", uid=None, status=None, **spec):
    metadata = {"name": name, "namespace": namespace, **({"uid": uid} if uid else {})}
    wanted = {"schedulerName": "berth", "containers": [{"name": "main"}], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": wanted, "status": status or {}}


POD = pod()


def node(name="n1"):
    allocatable = {"cpu": "4", "memory": "8Gi", "pods": "110"}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}


def priority_class(name, value, **more):
    head = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    return {**head, "value": value, **more}


def list_of(*items, kind="List"):
    return {"apiVersion": "v1", "kind": kind, "items": list(items)}


@pytest.fixture
def read(tmp_path):
    """Reads a cluster and pods, each given as a document or as text; each file has the name of its flag."""

    def inputs(cluster=None, pods=POD):
        files = (tmp_path / "cluster", node() if cluster is None else cluster), (tmp_path / "pods", pods)
        return read_inputs(*([put(path, content)] for path, content in files), PROFILES)

    return inputs


def put(path, content) -> str:
    data = content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content))
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


@pytest.fixture
def problems(read, tmp_path):
    def found(**files) -> list[str]:
        with pytest.raises(InputError) as caught:
            read(**files)
        return [problem.replace(f"{tmp_path}/", "") for problem in caught.value.problems]

    return found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(json.dumps(list_of(pod("a"), pod("b"))), id="a List"),
        pytest.param(json.dumps(pod("a")) + json.dumps(pod("b")), id="JSON objects one after another"),
        pytest.param(yaml.safe_dump_all([pod("a"), pod("b")]), id="YAML documents"),
        pytest.param(f"---\n---\n{yaml.safe_dump(list_of(pod('a'), pod('b')))}---\n", id="YAML with empty documents"),
        pytest.param(
            json.dumps(
                list_of(
                    *({k: v for k, v in pod(n).items() if k not in ("kind", "apiVersion")} for n in "ab"),
                    kind="PodList",
                )
            ),
            id="a PodList, whose pods have no kind",
        ),
    ],
)
def test_every_form_of_several_objects_is_read(read, text):
    assert [one.key for one in read(pods=text).pods] == ["default/a", "default/b"]


def test_empty_fields_are_absent(read):
    text = (
        "apiVersion: v1\nkind: Pod\nstatus:\n"
        "metadata:\n  name: a\n  namespace:\n  labels:\n  creationTimestamp: null\n"
        "spec:\n  schedulerName: berth\n  priorityClassName:\n  nodeSelector:\n"
        "  containers:\n  - name: main\n    resources:\n"
    )
    (one,) = read(pods=text).pods
    assert (one.key, one.spec.priority, one.spec.priority_class_name) == ("default/a", 0, "")


def test_times_in_yaml_are_text_as_in_json(read):
    metadata, spec = "{name: a, creationTimestamp: 2026-11-21T07:48:59Z}", "{schedulerName: berth, containers: [{}]}"
    text = f"kind: Pod\nmetadata: {metadata}\nspec: {spec}\n"
    (one,) = read(pods=text).pods
    assert one.metadata.creation_timestamp == "2026-11-21T07:48:59Z"


def test_objects_are_in_the_snapshot(read):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"a": "b"}}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"colour": "red"}}}
    files = list_of(
        node(),
        service,
        namespace,
        pod("there", nodeName="n1"),
        pod("done", nodeName="n1", status={"phase": "Succeeded"}),
    )
    snapshot = read(cluster=files).snapshot
    assert (snapshot.node_names(), snapshot.pods_on("n1")) == (["n1"], 1)
    assert snapshot.labels_of_namespace("team") == {"colour": "red", "kubernetes.io/metadata.name": "team"}
    assert [len(objects) for objects in snapshot._objects.values() if len(objects)] == [1]


def test_a_new_pod_on_a_node_gets_its_defaults_before_its_resize_counts(read):
    limited = {"name": "main", "resources": {"limits": {"cpu": "2", "memory": "1Gi"}}}
    reported = {"name": "main", "allocatedResources": {"cpu": "1"}, "resources": {"requests": {"memory": "2Gi"}}}
    there = pod("there", nodeName="n1", containers=[limited], status={"containerStatuses": [reported]})
    info = node_info(read(cluster=list_of(node(), there)).snapshot, "n1")
    assert (info.requested("cpu"), info.requested("memory")) == (2000, 2 * 2**30)


def test_nominated_pods_of_the_cluster_keep_their_nomination(read):
    waiting = pod("waits"), pod("nominated", status={"nominatedNodeName": "n1"})
    inputs = read(cluster=list_of(node(), *waiting))
    assert [one.node for one in inputs.snapshot.nominations()] == ["n1"]
    assert inputs.notes == ("--cluster: 2 pods on no node: not placed, since --pods does not name them",)


def test_a_pod_to_place_is_not_counted_on_its_node(read):
    inputs = read(cluster=list_of(node(), pod(nodeName="n1"), pod("other", nodeName="n1")))
    assert inputs.snapshot.pods_on("n1") == 1
    assert inputs.notes == ("--cluster: 1 pod on a node and in --pods too: not counted in the cluster",)


def test_objects_of_other_kinds_are_counted(read):
    knative = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "s"}}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    inputs = read(cluster=list_of(node(), knative, config_map, config_map), pods=list_of(pod(), node()))
    assert inputs.notes == (
        "--cluster: left out 3 objects, no cycle reads them: 2 ConfigMap, 1 Service.serving.knative.dev",
        "--pods: left out 1 object, neither pods nor objects that come with pods: 1 Node",
    )


def test_unreadable_quantities_of_the_cluster_are_noted(read):
    odd = node()
    odd["status"]["allocatable"]["cpu"] = "lots"
    (note,) = read(cluster=odd).notes
    assert note.startswith("--cluster: node n1: ")
    assert "'lots'" in note


def test_a_pod_gets_the_priority_of_its_class(read):
    classes = priority_class("high", 1000, preemptionPolicy="Never"), priority_class("usual", 5, globalDefault=True)
    pods = [
        pod("a", priorityClassName="high"),
        pod("b"),
        pod("d", priorityClassName="system-node-critical"),
    ]
    placed = read(cluster=list_of(node(), *classes), pods=list_of(*pods)).pods
    assert [one.spec.priority for one in placed] == [1000, 5, 2_000_001_000]
    assert [one.spec.preemption_policy for one in placed[:2]] == ["Never", "PreemptLowerPriority"]


def test_a_pod_that_was_created_stays_as_it_is(read):
    usual = priority_class("usual", 5, globalDefault=True)
    resources = {"limits": {"cpu": "2"}}
    spec = {"priority": 7, "containers": [{"name": "main", "resources": resources}], "tolerations": []}
    (one,) = read(cluster=list_of(node(), usual), pods=pod(uid="u-1", **spec)).pods
    assert (one.spec.priority, one.spec.tolerations, one.spec.containers[0].resources.requests) == (7, [], None)


def test_a_priority_without_a_class_is_used(read):
    assert read(pods=pod(priority=7)).pods[0].spec.priority == 7


def test_limits_are_requests_by_default(read):
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    (one,) = read(pods=pod(containers=[{"name": "main", "resources": resources}])).pods
    assert one.spec.containers[0].resources.requests == {"cpu": "1", "memory": "1Gi"}


def test_the_same_object_in_two_files_is_one(tmp_path):
    cluster = [put(tmp_path / "a", list_of(node(), node("n2"))), put(tmp_path / "b", node())]
    inputs = read_inputs(cluster, [put(tmp_path / "pods", pod())], PROFILES)
    assert inputs.snapshot.node_names() == ["n1", "n2"]


def claim(name="data", **spec):
    head = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
    return {**head, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}}


def storage_class(name, *, created="", mode="WaitForFirstConsumer", is_default=True):
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if is_default else {}
    metadata = {"name": name, "annotations": annotations, **({"creationTimestamp": created} if created else {})}
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata, "volumeBindingMode": mode}


def claims_of(inputs):
    found = inputs.snapshot.objects(PersistentVolumeClaim)
    return {one.metadata.name: one for one in found.in_namespace("default")}


def test_other_objects_in_pods_exist_before_the_pods(read):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"a": "b"}}}
    classes = priority_class("high", 1000)
    inputs = read(pods=list_of(pod(priorityClassName="high"), service, classes, claim(storageClassName="fast")))
    assert inputs.pods[0].spec.priority == 1000
    assert len(inputs.snapshot.objects(Service)) == 1
    assert claims_of(inputs)["data"].spec.storage_class_name == "fast"


def test_an_object_of_the_cluster_stays_as_it_is_there(read):
    inputs = read(
        cluster=list_of(node(), claim(volumeName="disk")), pods=list_of(pod(), claim(storageClassName="fast"))
    )
    assert claims_of(inputs)["data"].spec.volume_name == "disk"
    assert inputs.notes == ("--pods: 1 object in --cluster too: used as in --cluster",)


def test_a_claim_without_a_class_gets_the_newest_default(read):
    classes = (
        storage_class("new", created="2026-02-01T00:00:00Z"),
        storage_class("old", created="2026-01-01T00:00:00Z"),
        storage_class("other", created="2026-03-01T00:00:00Z", is_default=False),
    )
    inputs = read(cluster=list_of(node(), *classes), pods=list_of(pod(), claim(), claim("none", storageClassName="")))
    found = claims_of(inputs)
    assert (found["data"].spec.storage_class_name, found["none"].spec.storage_class_name) == ("new", "")


def test_workloads_become_their_pods(read):
    template = {"metadata": {"labels": {"app": "web"}}, "spec": POD["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    agents = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "agent"}}
    inputs = read(pods=list_of(deployment, agents))
    assert [one.key for one in inputs.pods] == ["default/web-0", "default/web-1"]
    (owner,) = inputs.snapshot.objects(ReplicaSet).in_namespace("default")
    assert {one.metadata.owner_references[0].uid for one in inputs.pods} == {owner.metadata.uid}
    assert inputs.notes == (
        "--pods: left out 1 object, neither pods nor objects that come with pods: 1 DaemonSet.apps",
        "--pods: no pods are created for 1 DaemonSet.apps: add their pods if they matter",
    )


def test_a_problem_of_a_template_is_reported_once(problems):
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"priorityClassName": "none", "containers": [{}]}}
    spec = {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec}
    assert problems(pods=deployment) == [f"pods (Deployment default/web): spec.template: {NO_CLASS}"]


def test_pending_pods_of_the_cluster_can_be_placed(tmp_path):
    waiting = pod("waits"), pod("theirs", schedulerName="other"), pod("bound", nodeName="n1")
    cluster = [put(tmp_path / "cluster", list_of(node(), *waiting))]
    inputs = read_inputs(
        cluster, [put(tmp_path / "pods", list_of(pod("new"), pod("waits")))], PROFILES, with_pending=True
    )
    assert [one.key for one in inputs.pods] == ["default/new", "default/waits"]
    assert inputs.notes == ("--cluster: 1 pod on no node: not placed, since no profile has their schedulerName",)
    assert [one.key for one in read_inputs(cluster, [], PROFILES, with_pending=True).pods] == ["default/waits"]


@pytest.mark.parametrize(
    ("kind", "version", "what"),
    [
        ("LimitRange", "v1", "a LimitRange may set requests"),
        ("RuntimeClass", "node.k8s.io/v1", "a RuntimeClass may add overhead and a node selector"),
        ("ResourceQuota", "v1", "a ResourceQuota may reject pods"),
        ("MutatingWebhookConfiguration", "admissionregistration.k8s.io/v1", "webhooks may change pods"),
    ],
)
def test_admission_that_is_not_simulated_is_noted(read, kind, version, what):
    other = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}}
    *_, note = read(cluster=list_of(node(), other)).notes
    assert note == f"results may differ for new pods, because {what}: `kubectl create --dry-run=server` applies it"
    assert note not in read(cluster=list_of(node(), other), pods=pod(uid="u-1")).notes


def test_pods_of_other_schedulers_are_placed_by_the_first_profile(read):
    others = [pod("b", schedulerName="x"), pod("c", schedulerName="x"), pod("d")]
    del others[2]["spec"]["schedulerName"]
    inputs = read(cluster=list_of(node()), pods=list_of(pod("a"), *others))
    assert [(one.key, one.spec.scheduler_name) for one in inputs.pods] == [
        (f"default/{name}", "berth") for name in "abcd"
    ]
    assert inputs.notes == (
        "--pods: 2 pods of schedulerName 'x', which no profile has: placed by the profile 'berth'",
        "--pods: 1 pod of schedulerName 'default-scheduler', which no profile has: placed by the profile 'berth'",
    )


def test_a_dash_is_standard_input(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(pod("piped")).encode())))
    inputs = read_inputs([put(tmp_path / "cluster", node())], ["-"], PROFILES)
    assert [one.key for one in inputs.pods] == ["default/piped"]


WANTED = "want what `kubectl get -o json` or `-o yaml` prints"
NO_OBJECT = f"not an object with `apiVersion` and `kind`: {WANTED}"
NO_CLASS = "spec.priorityClassName: the cluster has no PriorityClass 'none': add it to --pods, or correct the name"
NO_QUANTITY = "want a quantity such as 500m or 2Gi, got 'lots'"
TAKE_OUT = "remove it from the copy"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("", f": empty: {WANTED}", id="nothing"),
        pytest.param("---\n---\n", f": empty: {WANTED}", id="empty documents"),
        pytest.param('{"kind": ', ": not JSON: Expecting value: line 1 column 10 (char 9)", id="cut JSON"),
        pytest.param("a: [", ": not YAML: did not find expected node content: line 2 column 1", id="cut YAML"),
        pytest.param(
            "a: 1\n b: 2", ": not YAML: mapping values are not allowed in this context: line 2 column 3", id="no YAML"
        ),
        pytest.param("a: 2026-99-99", ": not YAML: month must be in 1..12", id="YAML with a date that is none"),
        pytest.param(
            "a: &a [*a]",
            ": not YAML: the alias 'a' stands inside the value that it repeats: line 1 column 8",
            id="YAML that holds itself",
        ),
        pytest.param(
            b"\xff\xfe",
            ": not YAML: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
            id="bytes",
        ),
        pytest.param("just words", f": {NO_OBJECT}", id="words"),
        pytest.param("[1, 2]", f": {NO_OBJECT}", id="a sequence"),
        pytest.param("metadata: {name: a}", f": kind: missing: {WANTED}", id="an object of no kind"),
        pytest.param(
            "kind:\nmetadata: {name: a}", f": kind: missing: {WANTED}", id="an object whose kind is left empty"
        ),
        pytest.param(
            "apiVersion: v1\nkind: Pod\nmetadata:",
            " (Pod): Object missing required field `metadata`",
            id="a pod without metadata",
        ),
        pytest.param(
            yaml.safe_dump(list_of(pod(), list_of())),
            ": items[1]: kind: 'List' in a List: lists in lists are not read; list its objects",
            id="a List in a List",
        ),
        pytest.param(
            yaml.safe_dump_all([pod(), {"kind": "Pod", "metadata": {"generateName": "web-"}}]),
            ": document 2 (Pod): metadata.name: missing: give it a name",
            id="a pod without a name",
        ),
        pytest.param(
            yaml.safe_dump(list_of(pod(), pod("b", priority="high"))),
            ": items[1] (Pod): spec.priority: Expected `int | null`, got `str`",
            id="a field of another type",
        ),
        pytest.param(
            json.dumps(list_of(pod(), pod())),
            ": items[1] (Pod default/web): is in pods: items[0] (Pod default/web) already: a pod is placed once",
            id="a pod twice",
        ),
        pytest.param(
            json.dumps(list_of(pod("a", uid="1"), pod("b", uid="1"))),
            f": items[1] (Pod default/b): metadata.uid: is the same in pods: items[0] (Pod default/a): {TAKE_OUT}",
            id="a copy that kept its uid",
        ),
        pytest.param(
            json.dumps(pod(nodeName="n1")),
            " (Pod default/web): spec.nodeName: is on 'n1' already: remove the field to place the pod",
            id="a pod on a node",
        ),
        pytest.param(
            json.dumps(pod(status={"phase": "Failed"})),
            " (Pod default/web): status.phase: 'Failed' means that the pod has finished: remove the status to place it",
            id="a finished pod",
        ),
        pytest.param(
            json.dumps({**POD, "metadata": {"name": "web", "deletionTimestamp": "2026-11-21T07:48:59Z"}}),
            " (Pod default/web): metadata.deletionTimestamp: a terminating pod is not placed: remove it from the file",
            id="a pod that is being deleted",
        ),
        pytest.param(
            "kind: pods\napiVersion: v1\nmetadata: {name: a}",
            ": kind: unknown kind 'pods', did you mean 'Pod'?",
            id="a kind in other letters",
        ),
        pytest.param(
            "kind: Pod\napiVersion: apps/v1\nmetadata: {name: a}",
            ": apiVersion: want 'v1' for a Pod, got 'apps/v1'",
            id="a version of another group",
        ),
        pytest.param(
            "kind: Pod\nmetadata: {name: a}\nspec:\n  priority: 1\n  priority: 2",
            ": not YAML: found the key 'priority' twice: line 5 column 3",
            id="a key twice",
        ),
        pytest.param(
            json.dumps(pod(priorityClassName="none")),
            f" (Pod default/web): {NO_CLASS}",
            id="a class that is not there",
        ),
        pytest.param(
            json.dumps(pod(containers=[{"resources": {"requests": {"cpu": "lots"}}}])),
            f" (Pod default/web): spec.containers[0].resources.requests.cpu: {NO_QUANTITY}",
            id="a quantity that is none",
        ),
    ],
)
def test_an_error_in_pods_is_reported_with_its_place(problems, text, problem):
    assert problems(pods=text) == [f"pods{problem}"]


def test_quantities_of_a_template_are_reported_once(problems):
    spec = pod(containers=[{"resources": {"requests": {"cpu": "lots", "memory": "lots"}}}])["spec"]
    web = {"kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 3, "template": {"spec": spec}}}
    template = "pods (Deployment default/web): spec.template: spec.containers[0].resources.requests"
    assert problems(pods=json.dumps(web)) == [f"{template}.cpu: {NO_QUANTITY}", f"{template}.memory: {NO_QUANTITY}"]


def test_quantities_of_a_pod_of_another_scheduler_are_checked(problems):
    lost = pod(schedulerName="nobody", containers=[{"resources": {"requests": {"cpu": "lots"}}}])
    (found,) = problems(pods=json.dumps(lost))
    assert found.startswith("pods (Pod default/web): spec.containers[0].resources.requests.cpu: ")


def test_two_states_of_one_object_are_an_error(problems):
    other = {**node(), "spec": {"unschedulable": True}}
    assert problems(cluster=list_of(node(), other)) == [
        "cluster: items[1] (Node n1): differs from cluster: items[0] (Node n1): keep only one of them"
    ]


def test_all_errors_are_reported_together(problems):
    assert len(problems(cluster="a: [", pods=list_of(pod(nodeName="x"), {"kind": "Pod"}, {"no": "kind"}))) == 4


@pytest.mark.parametrize(("name", "why"), [("absent", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, why):
    with pytest.raises(InputError) as caught:
        read_inputs([str(tmp_path / name)], [put(tmp_path / "pods", pod())], PROFILES)
    assert caught.value.problems == (f"{tmp_path / name}: reading: {why}",)


def test_standard_input_can_be_read_once():
    with pytest.raises(InputError, match="standard input can be read once"):
        read_inputs(["-"], ["-"], PROFILES)
