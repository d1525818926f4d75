"""Random nodes, pods and events, small enough that everything meets everything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from berth.api.meta import LabelSelector, ObjectMeta, SelectorRequirement
from berth.api.namespace import Namespace
from berth.api.node import ContainerImage, Node, NodeCondition, NodeSpec, NodeStatus, Taint
from berth.api.pod import (
    Affinity,
    Container,
    ContainerPort,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    PreferredNodeTerm,
    ResourceRequirements,
    Toleration,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from berth.api.workloads import LabelsSpec, Service
from berth.cluster.hostports import EVERY_ADDRESS
from berth.cluster.snapshot import Snapshot

NODE_NAMES = [f"n{i}" for i in range(6)]
UIDS = [f"u{i}" for i in range(8)]
_EFFECTS = ["NoSchedule", "NoExecute", "PreferNoSchedule"]
_GPU = "example.com/gpu"

cpu = st.sampled_from(["0", "100m", "1", "1500m", "2", "64"])
memory = st.sampled_from(["0", "128Mi", "1Gi", "3G", "1e9", "256Gi"])
labels = st.dictionaries(
    st.sampled_from(["zone", "disk", "tier", "kubernetes.io/hostname"]), st.sampled_from(["a", "b", "1", "5", "x9"])
)
taints = st.lists(
    st.builds(
        Taint, key=st.sampled_from(["k", "l"]), value=st.sampled_from(["", "v"]), effect=st.sampled_from(_EFFECTS)
    ),
    max_size=2,
)
tolerations = st.lists(
    st.builds(
        Toleration,
        key=st.sampled_from(["", "k", "l", "node.kubernetes.io/unschedulable"]),
        operator=st.sampled_from(["", "Equal", "Exists"]),
        value=st.sampled_from(["", "v"]),
        effect=st.sampled_from(["", *_EFFECTS]),
    ),
    max_size=2,
)
image_names = st.sampled_from(["app", "app:latest", "reg:5000/db", "reg:5000/db:latest", "db:v2"])
node_images = st.builds(
    ContainerImage,
    names=st.lists(image_names, max_size=2),
    size_bytes=st.sampled_from([0, 30 << 20, 250 << 20, (700 << 20) + 1, 5 << 30]),
)
ports = st.builds(
    ContainerPort,
    host_port=st.sampled_from([0, 80, 443]),
    host_ip=st.sampled_from(["", EVERY_ADDRESS, "10.0.0.1", "10.0.0.2"]),
    protocol=st.sampled_from(["TCP", "TCP", "UDP"]),
)


def quantities(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some resources, each there or not."""
    optional = {"cpu": cpu, "memory": memory, "ephemeral-storage": memory, _GPU: st.sampled_from(["0", "1", "4"])}
    return st.fixed_dictionaries({}, optional={**optional, **more})


nodes = st.builds(
    lambda name, given, taint_list, cordoned, allocatable, ready, images: Node(
        metadata=ObjectMeta(name=name, labels=given),
        spec=NodeSpec(unschedulable=cordoned, taints=taint_list or None),
        status=NodeStatus(
            allocatable=allocatable,
            conditions=[NodeCondition(type="Ready", status=ready)] if ready else None,
            images=images,
        ),
    ),
    st.sampled_from(NODE_NAMES),
    labels,
    taints,
    st.sampled_from([False, False, False, True]),
    quantities(pods=st.sampled_from(["0", "2", "110"])) | st.just({"cpu": "abc", "pods": "3"}) | st.none(),
    st.sampled_from(["", "True", "False", "Unknown"]),
    st.none() | st.lists(node_images, max_size=2),
)
expressions = st.builds(
    SelectorRequirement,
    key=st.sampled_from(["zone", "disk", "tier", "nowhere"]),
    operator=st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Odd"]),
    values=st.none() | st.lists(st.sampled_from(["a", "b", "1", "3", "x9"]), max_size=2),
)
fields = st.builds(
    SelectorRequirement,
    key=st.just("metadata.name"),
    operator=st.sampled_from(["In", "NotIn"]),
    values=st.lists(st.sampled_from(NODE_NAMES), min_size=1, max_size=1),
)
terms = st.builds(
    NodeSelectorTerm,
    match_expressions=st.none() | st.lists(expressions, max_size=2),
    match_fields=st.none() | st.lists(fields, max_size=1),
)
node_affinities = st.builds(
    NodeAffinity,
    required_during_scheduling_ignored_during_execution=st.none()
    | st.builds(NodeSelector, node_selector_terms=st.lists(terms, max_size=2)),
    preferred_during_scheduling_ignored_during_execution=st.none()
    | st.lists(st.builds(PreferredNodeTerm, weight=st.sampled_from([1, 7, 100]), preference=terms), max_size=2),
)
containers = st.builds(
    lambda requests, policy, image, taken: Container(
        name="c",
        image=image,
        resources=ResourceRequirements(requests=requests),
        restart_policy=policy,
        ports=taken,
    ),
    quantities(),
    st.sampled_from([None, None, "Always"]),
    image_names,
    st.none() | st.lists(ports, max_size=2),
)
selectors = st.none() | st.builds(
    LabelSelector,
    match_labels=st.none() | labels,
    match_expressions=st.none() | st.lists(expressions, max_size=1),
)
pod_terms = st.builds(
    PodAffinityTerm,
    topology_key=st.sampled_from(["zone", "disk", "nowhere"]),
    label_selector=selectors,
    namespaces=st.none() | st.lists(st.sampled_from(["default", "other"]), max_size=2),
    namespace_selector=selectors,
)
pod_affinities = st.builds(
    PodAffinity,
    required_during_scheduling_ignored_during_execution=st.none() | st.lists(pod_terms, max_size=2),
    preferred_during_scheduling_ignored_during_execution=st.none()
    | st.lists(
        st.builds(WeightedPodAffinityTerm, weight=st.sampled_from([1, 7, 100]), pod_affinity_term=pod_terms),
        max_size=2,
    ),
)
affinities = st.builds(
    Affinity,
    node_affinity=st.none() | node_affinities,
    pod_affinity=st.none() | pod_affinities,
    pod_anti_affinity=st.none() | pod_affinities,
)
constraints = st.builds(
    TopologySpreadConstraint,
    max_skew=st.integers(1, 3),
    topology_key=st.sampled_from(["zone", "disk", "kubernetes.io/hostname"]),
    when_unsatisfiable=st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
    label_selector=selectors,
    min_domains=st.sampled_from([None, None, 2]),
    node_affinity_policy=st.sampled_from([None, "Honor", "Ignore"]),
    node_taints_policy=st.sampled_from([None, "Honor", "Ignore"]),
    match_label_keys=st.sampled_from([None, ["tier"]]),
)
specs = st.builds(
    PodSpec,
    scheduler_name=st.just("berth"),
    node_name=st.sampled_from(["", "", "", "n1"]),
    priority=st.sampled_from([None, 0, 10]),
    containers=st.lists(containers, min_size=1, max_size=2),
    init_containers=st.none() | st.lists(containers, max_size=2),
    node_selector=st.none() | labels,
    affinity=st.none() | affinities,
    tolerations=st.none() | tolerations,
    topology_spread_constraints=st.none() | st.lists(constraints, max_size=2),
)
pods = st.builds(
    lambda uid, namespace, deleted, given, spec: Pod(
        metadata=ObjectMeta(name=uid, namespace=namespace, uid=uid, deletion_timestamp=deleted, labels=given), spec=spec
    ),
    st.sampled_from(UIDS),
    st.sampled_from(["default", "default", "other"]),
    st.sampled_from([None, None, None, "2026-01-01T00:00:00Z"]),
    st.none() | labels,
    specs,
)
services = st.builds(
    lambda namespace, selector: Service(
        metadata=ObjectMeta(name="s", namespace=namespace), spec=LabelsSpec(selector=selector)
    ),
    st.sampled_from(["default", "other"]),
    st.none() | labels,
)

Event = Callable[[Snapshot], None]
_names = st.sampled_from(NODE_NAMES)
namespaces = st.builds(
    lambda name, given: Namespace(metadata=ObjectMeta(name=name, labels=given)),
    st.sampled_from(["default", "other"]),
    labels,
)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(lambda node: lambda snapshot: snapshot.set_node(node), nodes),
    st.builds(lambda name: lambda snapshot: snapshot.remove_node(name), _names),
    st.builds(lambda pod, name: lambda snapshot: snapshot.place(pod, name), pods, _names),
    st.builds(lambda pod, name: lambda snapshot: snapshot.place(pod, name), pods, _names),
    st.builds(lambda uid: lambda snapshot: snapshot.remove_pod(uid), st.sampled_from(UIDS)),
    st.builds(lambda pod, name: lambda snapshot: snapshot.nominate(pod, name), pods, _names),
    st.builds(lambda uid: lambda snapshot: snapshot.end_nomination(uid), st.sampled_from(UIDS)),
    st.builds(lambda namespace: lambda snapshot: snapshot.set_namespace(namespace), namespaces),
    st.builds(lambda service: lambda snapshot: snapshot.objects(Service).set("s", service), services),
)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    """A state after some nodes were added and some events happened."""
    snapshot = Snapshot()
    for node in draw(st.lists(nodes, min_size=1, max_size=6)):
        snapshot.set_node(node)
    for event in draw(st.lists(events, max_size=8)):
        event(snapshot)
    return snapshot
