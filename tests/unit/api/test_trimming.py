"""What is left out of objects: as they are read, and when they are too large for the bus."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.api.devices import ResourceClaim
from berth.api.meta import LabelSelector, ObjectMeta, OwnerReference
from berth.api.node import Node
from berth.api.pod import (
    Affinity,
    Container,
    ContainerPort,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodCondition,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    Toleration,
    is_marked_for_preemption,
)
from berth.api.resources import pod_limits, pod_requests
from berth.api.trimming import (
    ANNOTATION_BYTES,
    CONDITION_BYTES,
    LAST_APPLIED,
    smaller_forms,
    trim,
    with_whole,
    without_whole,
)
from berth.api.workloads import Service
from berth.cluster.columns import host_ports
from harness.builders.random_clusters import pods
from harness.plugins.long_runs import often

SMALL = 48 * 1024


def web(**metadata: object) -> Pod:
    return Pod(metadata=ObjectMeta(name="web", **metadata))


def test_kubectls_copy_of_the_object_is_dropped_and_other_annotations_stay():
    assert trim(web(annotations={LAST_APPLIED: "{}", "a": "b"})).metadata.annotations == {"a": "b"}


def test_annotations_that_were_nothing_else_are_as_if_there_had_been_none():
    assert trim(web(annotations={LAST_APPLIED: "{}"})) == trim(web())


def test_only_the_controller_stays_among_the_owners():
    controller = OwnerReference(kind="ReplicaSet", name="web-1", uid="u1", controller=True)
    other = OwnerReference(kind="ConfigMap", name="web", uid="u2")
    assert trim(web(owner_references=[other, controller])).metadata.owner_references == [controller]
    assert trim(web(owner_references=[other])).metadata.owner_references is None


def foreign(number: int) -> list[PodCondition]:
    return [PodCondition(type=f"example.com/{each}", message="m" * 1000) for each in range(number)]


READ = [
    PodCondition(type="PodScheduled", status="True", last_transition_time="2026-01-01T00:00:00Z"),
    PodCondition(type="berth/fence", status="True", message="7"),
    PodCondition(type="DisruptionTarget", status="True", reason="PreemptionByScheduler"),
    PodCondition(type="PodResizePending", status="True", reason="Infeasible"),
]


def test_conditions_that_berth_reads_stay_behind_any_number_of_others():
    status = PodStatus(conditions=[*foreign(17), *READ], nominated_node_name="n1")
    pod = msgspec.structs.replace(web(annotations={"a": "b"}), status=status)
    kept = msgspec.structs.replace(status, conditions=READ)
    assert trim(pod) == trim(trim(pod)) == msgspec.structs.replace(pod, status=kept)
    assert is_marked_for_preemption(trim(pod))


def test_conditions_of_usual_size_all_stay():
    pod = msgspec.structs.replace(web(), status=PodStatus(conditions=[*foreign(14), *READ]))
    assert CONDITION_BYTES - 2000 < sum(map(size, pod.status.conditions)) <= CONDITION_BYTES
    assert trim(pod) is pod


def test_conditions_that_berth_reads_count_once_and_with_the_start_of_their_texts():
    conditions = [PodCondition(type="DisruptionTarget", status="True", message=text * 9000) for text in "abc"]
    pod = msgspec.structs.replace(web(), status=PodStatus(conditions=conditions))
    assert trim(pod).status.conditions == [msgspec.structs.replace(conditions[0], message="a" * 1024)]


def test_object_without_any_of_these_is_not_copied():
    pod = web(annotations={"a": "b"}, owner_references=[OwnerReference(name="x", controller=True)])
    assert trim(pod) is pod


def test_trimming_twice_is_trimming_once():
    once = trim(web(annotations={LAST_APPLIED: "{}"}, owner_references=[OwnerReference(name="x")]))
    assert trim(once) is once


def test_the_longest_annotations_are_left_out_where_there_are_too_many():
    short = {"kubernetes.io/ingress-bandwidth": "10M", "team": "a" * 200}
    long = {"status": "x" * 9_000, "history": "x" * 200_000, "more": "x" * 8_000}
    pod = web(annotations={**long, **short})
    assert trim(pod).metadata.annotations == {"more": long["more"], **short}
    assert trim(trim(pod)) == trim(pod)
    assert trim(Service(metadata=pod.metadata)).metadata.annotations == trim(pod).metadata.annotations


def test_which_annotations_are_left_out_does_not_depend_on_their_order():
    annotations = {f"note-{number:03}": "x" * 250 for number in range(200)}
    trimmed = trim(web(annotations=annotations)).metadata.annotations
    assert trimmed == trim(web(annotations=dict(reversed(annotations.items())))).metadata.annotations
    assert ANNOTATION_BYTES - 300 < len(msgspec.json.encode(trimmed)) <= ANNOTATION_BYTES


def test_annotations_count_as_they_are_written():
    quotes = web(annotations={"json": '"' * (ANNOTATION_BYTES * 2 // 3)})
    assert trim(quotes).metadata.annotations is None


def test_annotations_that_fit_beside_kubectls_stay_and_are_not_counted_in_a_small_object():
    pod = web(annotations={"a": "x" * 15_000, LAST_APPLIED: "x" * 100_000})
    assert trim(pod).metadata.annotations == {"a": "x" * 15_000}
    long = web(annotations={"a": "x" * 20_000})
    assert trim(long, ANNOTATION_BYTES) is long


def test_a_nodes_annotations_stay_however_long():
    node = Node(metadata=ObjectMeta(name="n1", annotations={"preferAvoidPods": "x" * 30_000}))
    assert trim(node) is node


RAW = b"""{"kind": "X", "apiVersion": "v1", "metadata": {"name": "web", "managedFields": [1]},
    "spec": {"x": 1}, "whole": 2}"""


def test_a_whole_pod_is_as_kube_scheduler_sends_it():
    pod = with_whole(web(), RAW)
    assert msgspec.json.decode(bytes(pod.whole)) == {"metadata": {"name": "web"}, "spec": {"x": 1}}
    assert msgspec.json.decode(msgspec.json.encode(pod), type=Pod) == pod
    assert msgspec.json.encode(pod).endswith(b',"whole":' + bytes(pod.whole) + b"}")  # what quotes a message cuts here
    assert without_whole(pod) == web()
    assert b"whole" not in msgspec.json.encode(without_whole(pod))


def test_a_whole_node_keeps_its_managed_fields_and_is_the_first_to_be_left_out():
    node = Node(metadata=ObjectMeta(name="web"))
    whole = with_whole(node, RAW)
    assert msgspec.json.decode(bytes(whole.whole))["metadata"]["managedFields"] == [1]
    assert next(smaller_forms(whole)) == ("what only extenders read", node)


def size(thing) -> int:
    return len(msgspec.json.encode(thing))


def last_form(pod: Pod) -> Pod:
    return list(smaller_forms(pod))[-1][1]


def bound(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name="n1"))


TERM = PodAffinityTerm(topology_key="zone", label_selector=LabelSelector(match_labels={"app": "web"}))
REQUIRED = PodAffinity(required_during_scheduling_ignored_during_execution=[TERM])
POD = Pod(
    metadata=ObjectMeta(
        name="web", namespace="a", uid="u", labels={"app": "web"}, annotations={"s": "1", "l": "x" * 999}
    ),
    spec=PodSpec(
        node_name="n1",
        priority=7,
        containers=[
            Container(
                name=f"c{i}",
                image="i" * 200,
                resources=ResourceRequirements(
                    requests={"cpu": "250m", "memory": "1Gi", "example.com/gpu": 1},
                    limits={"cpu": "1", "memory": "2Gi", "example.com/gpu": 1},
                ),
                ports=[ContainerPort(container_port=80), ContainerPort(container_port=81, host_port=9000 + i)],
            )
            for i in range(2)
        ],
        overhead={"cpu": "10m"},
        tolerations=[Toleration(key="k")],
        node_selector={"disk": "ssd"},
        affinity=Affinity(pod_affinity=REQUIRED, pod_anti_affinity=REQUIRED),
    ),
    status=PodStatus(start_time="2026-01-01T00:00:00Z"),
)


def test_each_form_is_smaller_and_says_what_it_lacks():
    forms = list(smaller_forms(POD))
    sizes = [size(POD), *(size(form) for _, form in forms)]
    assert sizes == sorted(sizes, reverse=True)
    assert all(left_out for left_out, _ in forms)


def test_the_first_form_has_all_that_counts_on_a_node():
    form = next(smaller_forms(POD))[1]
    assert pod_requests(form.spec) == pod_requests(POD.spec)
    assert pod_limits(form.spec) == {"cpu": 2010, "memory": 4 * 2**30}, "by which its use is estimated"
    assert host_ports(form.spec) == host_ports(POD.spec)
    assert form.spec.affinity == POD.spec.affinity
    assert form.metadata.annotations == {"s": "1"}
    assert (form.spec.tolerations, form.spec.node_selector) == (None, None)


@settings(max_examples=often(20))
@given(pods, st.data())
def test_requests_ports_and_labels_count_in_every_form(pod, data):
    pod = bound(pod)
    left_out, form = data.draw(st.sampled_from(list(smaller_forms(pod))))
    assert pod_requests(form.spec).amounts == pod_requests(pod.spec).amounts, left_out
    assert set(host_ports(form.spec)) == set(host_ports(pod.spec))
    assert (form.metadata.labels or {}) == (pod.metadata.labels or {})
    assert (form.uid, form.key, form.spec.node_name, form.spec.priority) == (pod.uid, pod.key, "n1", pod.spec.priority)


def test_the_last_form_of_any_pod_fits():
    long = "x" * 253 + "/" + "y" * 63
    containers = [
        Container(
            resources=ResourceRequirements(requests={f"{long[:-6]}{i:06}": 2**60 for i in range(900)} | {"cpu": 1}),
            ports=[ContainerPort(host_port=i, host_ip="2001:db8::" + "f" * 30) for i in range(1, 60_000)],
        )
    ]
    metadata = ObjectMeta(
        name="n" * 253,
        namespace="s" * 63,
        uid="u" * 36,
        labels={f"{long[:-6]}{i:06}": "v" * 63 for i in range(4_000)},
        annotations={str(i): "a" * 200 for i in range(2_000)},
    )
    anti = PodAffinity(required_during_scheduling_ignored_during_execution=[TERM] * 20_000)
    spec = PodSpec(node_name="n" * 253, containers=containers, affinity=Affinity(pod_anti_affinity=anti))
    status = PodStatus(conditions=[PodCondition(type="DisruptionTarget", status="True", message="m" * 300_000)])
    form = last_form(Pod(metadata=metadata, spec=spec, status=status))
    assert size(form) < SMALL
    assert pod_requests(form.spec).amounts["cpu"] == 1000


def test_a_node_loses_its_images_and_any_other_object_its_long_annotations():
    metadata = ObjectMeta(name="n1", annotations={"short": "1", "long": "x" * 257})
    for thing in (Node(metadata=metadata), Service(metadata=metadata)):
        [(_, form)] = smaller_forms(thing)
        assert form.metadata.annotations == {"short": "1"}


def test_a_claim_loses_its_spec_last_and_keeps_its_devices():
    status = {"allocation": {"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "gpu-0"}]}}}
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu"}}]
    body = {"metadata": {"name": "c"}, "spec": {"devices": {"requests": requests}}, "status": status}
    claim = msgspec.convert(body, ResourceClaim)
    (_, whole), (left_out, form) = smaller_forms(claim)
    assert (whole, left_out, form.status) == (claim, "its spec", claim.status)
    assert msgspec.json.decode(msgspec.json.encode(form), type=ResourceClaim).spec.left_out
