"""What berth simulate makes of its files: of every form that kubectl prints, and of everything that can be wrong."""

import io
import json
import sys

import pytest
import yaml

from berth.cli.simulateinput import InputError, read_question
from berth.service.configuration import profiles_of, read_configuration

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
def ask(tmp_path):
    """Asks about pods on a cluster, each a document or a file's text; a file's name is that of its flag."""

    def asked(cluster=None, pods=POD):
        files = (tmp_path / "cluster", node() if cluster is None else cluster), (tmp_path / "pods", pods)
        return read_question(*([put(path, content)] for path, content in files), PROFILES)

    return asked


def put(path, content) -> str:
    data = content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content))
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


@pytest.fixture
def problems(ask, tmp_path):
    def found(**files) -> list[str]:
        with pytest.raises(InputError) as caught:
            ask(**files)
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
            id="a PodList, whose pods do not say what they are",
        ),
    ],
)
def test_every_form_of_several_objects_is_read(ask, text):
    assert [one.key for one in ask(pods=text).pods] == ["default/a", "default/b"]


def test_times_in_yaml_are_text_as_in_json(ask):
    metadata, spec = "{name: a, creationTimestamp: 2026-11-21T07:48:59Z}", "{schedulerName: berth, containers: [{}]}"
    text = f"kind: Pod\nmetadata: {metadata}\nspec: {spec}\n"
    (asked,) = ask(pods=text).pods
    assert asked.metadata.creation_timestamp == "2026-11-21T07:48:59Z"


def test_objects_land_in_the_snapshot(ask):
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": {"a": "b"}}}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {"colour": "red"}}}
    files = list_of(
        node(),
        service,
        namespace,
        pod("there", nodeName="n1"),
        pod("done", nodeName="n1", status={"phase": "Succeeded"}),
    )
    snapshot = ask(cluster=files).snapshot
    assert (snapshot.node_names(), snapshot.pods_on("n1")) == (["n1"], 1)
    assert snapshot.labels_of_namespace("team") == {"colour": "red", "kubernetes.io/metadata.name": "team"}
    assert [len(snapshot.objects(kind)) for kind in snapshot._objects] == [1]


def test_pods_that_wait_in_the_cluster_keep_the_room_they_are_nominated_to(ask):
    waiting = pod("waits"), pod("nominated", status={"nominatedNodeName": "n1"})
    question = ask(cluster=list_of(node(), *waiting))
    assert [one.node for one in question.snapshot.nominations()] == ["n1"]
    assert question.notes == ("--cluster: 2 pods on no node: not placed, since --pods does not name them",)


def test_a_pod_that_is_asked_about_does_not_count_where_it_is(ask):
    question = ask(cluster=list_of(node(), pod(nodeName="n1"), pod("other", nodeName="n1")))
    assert question.snapshot.pods_on("n1") == 1
    assert question.notes == ("--cluster: 1 pod on a node and in --pods too: asked as if not there",)


def test_what_is_left_out_is_counted(ask):
    knative = {"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "s"}}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    question = ask(cluster=list_of(node(), knative, config_map, config_map), pods=list_of(pod(), node()))
    assert question.notes == (
        "--cluster: left out 3 objects, no cycle reads them: 2 ConfigMap, 1 Service.serving.knative.dev",
        "--pods: left out 1 object, neither pods nor what a cycle reads of a release: 1 Node",
    )


def test_odd_quantities_of_the_cluster_are_said(ask):
    odd = node()
    odd["status"]["allocatable"]["cpu"] = "lots"
    (said,) = ask(cluster=odd).notes
    assert said.startswith("--cluster: node n1: ")
    assert "'lots'" in said


def test_a_pod_gets_the_priority_of_its_class(ask):
    classes = priority_class("high", 1000, preemptionPolicy="Never"), priority_class("usual", 5, globalDefault=True)
    pods = [
        pod("a", priorityClassName="high"),
        pod("b"),
        pod("d", priorityClassName="system-node-critical"),
    ]
    asked = ask(cluster=list_of(node(), *classes), pods=list_of(*pods)).pods
    assert [one.spec.priority for one in asked] == [1000, 5, 2_000_001_000]
    assert [one.spec.preemption_policy for one in asked[:2]] == ["Never", "PreemptLowerPriority"]


def test_limits_are_requests_where_none_are_named(ask):
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    (asked,) = ask(pods=pod(containers=[{"name": "main", "resources": resources}])).pods
    assert asked.spec.containers[0].resources.requests == {"cpu": "1", "memory": "1Gi"}


def test_the_same_object_in_two_files_is_one(tmp_path):
    cluster = [put(tmp_path / "a", list_of(node(), node("n2"))), put(tmp_path / "b", node())]
    question = read_question(cluster, [put(tmp_path / "pods", pod())], PROFILES)
    assert question.snapshot.node_names() == ["n1", "n2"]


def test_a_dash_is_standard_input(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(pod("piped")).encode())))
    question = read_question([put(tmp_path / "cluster", node())], ["-"], PROFILES)
    assert [one.key for one in question.pods] == ["default/piped"]


WANTED = "want what `kubectl get -o json` or `-o yaml` prints"
NO_OBJECT = f"not an object with `apiVersion` and `kind`: {WANTED}"
STRANGER = (
    "spec.schedulerName: no profile has the name 'x', there are berth: name a configuration that has it with --config"
)
NO_QUANTITY = "want a quantity such as 500m or 2Gi, got 'lots'"
TAKE_OUT = "take it out where the pod is a copy"


@pytest.mark.parametrize(
    ("text", "said"),
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
            ": not YAML: maximum recursion depth exceeded while serializing an object",
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
            ": items[1] (Pod): spec.priority: want a whole number, -2147483648..2147483647, got 'high'",
            id="a field of another type",
        ),
        pytest.param(
            json.dumps(pod(schedulerName="x")),
            f" (Pod default/web): {STRANGER}",
            id="a pod of another scheduler",
        ),
        pytest.param(
            json.dumps(list_of(pod("a", schedulerName="x"), pod("b", schedulerName="x"))),
            f": items[0] (Pod default/a) and 1 more: {STRANGER}",
            id="many of another scheduler, in a line",
        ),
        pytest.param(
            json.dumps(list_of(pod(), pod())),
            ": items[1] (Pod default/web): is in pods: items[0] (Pod default/web) already: a pod is placed once",
            id="a pod twice",
        ),
        pytest.param(
            json.dumps(list_of(pod("a", uid="1"), pod("b", uid="1"))),
            f": items[1] (Pod default/b): metadata.uid: is that of pods: items[0] (Pod default/a) too: {TAKE_OUT}",
            id="a copy that kept its uid",
        ),
        pytest.param(
            json.dumps(pod(nodeName="n1")),
            " (Pod default/web): spec.nodeName: is on 'n1' already: take the field out to ask where it would go",
            id="a pod on a node",
        ),
        pytest.param(
            json.dumps(pod(status={"phase": "Failed"})),
            " (Pod default/web): status.phase: 'Failed' is the end of a pod: take the status out to ask about it anew",
            id="a finished pod",
        ),
        pytest.param(
            json.dumps({**POD, "metadata": {"name": "web", "deletionTimestamp": "2026-11-21T07:48:59Z"}}),
            " (Pod default/web): metadata.deletionTimestamp: a pod that is being deleted is not placed: leave it out",
            id="a pod that is being deleted",
        ),
        pytest.param(
            json.dumps(pod(priorityClassName="none")),
            " (Pod default/web): spec.priorityClassName: no PriorityClass 'none' in the files: add it to --cluster",
            id="a class that is not there",
        ),
        pytest.param(
            json.dumps(pod(containers=[{"resources": {"requests": {"cpu": "lots"}}}])),
            f" (Pod default/web): spec.containers[0].resources.requests.cpu: {NO_QUANTITY}",
            id="a quantity that is none",
        ),
    ],
)
def test_what_is_wrong_with_pods_is_said_with_its_place(problems, text, said):
    assert problems(pods=text) == [f"pods{said}"]


def test_two_states_of_one_object_are_refused(problems):
    other = {**node(), "spec": {"unschedulable": True}}
    assert problems(cluster=list_of(node(), other)) == [
        "cluster: items[1] (Node n1): differs from cluster: items[0] (Node n1): keep the one that is to count"
    ]


def test_everything_wrong_is_said_at_once(problems):
    assert len(problems(cluster="a: [", pods=list_of(pod(nodeName="x"), {"kind": "Pod"}, {"no": "kind"}))) == 4


@pytest.mark.parametrize(("name", "why"), [("absent", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, why):
    with pytest.raises(InputError) as caught:
        read_question([str(tmp_path / name)], [put(tmp_path / "pods", pod())], PROFILES)
    assert caught.value.problems == (f"{tmp_path / name}: reading: {why}",)


def test_standard_input_can_be_read_once():
    with pytest.raises(InputError, match="standard input can be read once"):
        read_question(["-"], ["-"], PROFILES)
