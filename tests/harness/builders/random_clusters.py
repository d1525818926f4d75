"""Random nodes, pods and events, few enough that they often affect each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import strategies as st

from berth.api.config.networktraffic import (
    EGRESS_ANNOTATION,
    INGRESS_ANNOTATION,
    LINK_CAPACITY_ANNOTATION,
    BandwidthQuery,
)
from berth.api.config.nodeload.queries import LoadQuery
from berth.api.meta import ObjectMeta, OwnerReference
from berth.api.node import ContainerImage, Node, NodeCondition, NodeSpec, NodeStatus, Taint
from berth.api.pod import (
    Affinity,
    Container,
    ContainerPort,
    ContainerRestartRule,
    NodeAffinity,
    NodeSelector,
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
from berth.api.workloads import Namespace
from berth.cluster.columns import EVERY_ADDRESS
from berth.cluster.snapshot import Snapshot
from berth.messages.encoding import encode
from berth.messages.livedata import (
    POD_FAILURES,
    FailuresOnNode,
    MeasuredUsage,
    NodeSample,
    WorkloadFailure,
    utc_time,
)
from berth.plugins.nodedeclaredfeatures import RESTART_ALL, USERS_WITH_HOST_NETWORK
from harness.builders.random_objects import (
    HOSTNAME,
    NODE_NAMES,
    OWNERS,
    UIDS,
    Known,
    disks_of_a_kind,
    labels,
    node_labels,
    node_selector_terms,
    objects,
    pod_labels,
    pod_volumes,
    selectors,
    some_namespace,
    some_of_each_kind,
    the_claim,
)

SOURCE = "disks"
# The plugins that read CPU and memory ask this by default.
LOAD_QUERY = LoadQuery(time_range=timedelta(minutes=5))
QUERY = BandwidthQuery(url="http://prometheus.example.com", time_range=timedelta(minutes=5))
"""The source of facts and the query of bandwidth that random clusters have data for."""
NOW = datetime(2026, 1, 1, 0, 21, tzinfo=UTC).timestamp()
_EFFECTS = ["NoSchedule", "NoExecute", "PreferNoSchedule"]
_GPU = "example.com/gpu"

cpu = st.sampled_from(["0", "100m", "1", "1500m", "2", "64"])
memory = st.sampled_from(["0", "128Mi", "1Gi", "3G", "1e9", "256Gi"])
taints = st.lists(
    st.builds(
        Taint,
        key=st.sampled_from(["k", "l"]),
        value=st.sampled_from(["", "v", "7", "-3"]),
        effect=st.sampled_from(_EFFECTS),
    ),
    max_size=2,
)
tolerations = st.lists(
    st.builds(
        Toleration,
        key=st.sampled_from(["", "k", "l", "node.kubernetes.io/unschedulable"]),
        operator=st.sampled_from(["", "Equal", "Exists", "Gt", "Lt"]),
        value=st.sampled_from(["", "v", "5"]),
        effect=st.sampled_from(["", *_EFFECTS]),
    ),
    max_size=2,
)
image_names = st.sampled_from(["app", "app:latest", "reg:5000/db", "reg:5000/db:latest", "db:v2"])
node_images = st.builds(
    ContainerImage,
    names=st.lists(image_names, min_size=1, max_size=2),
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


declared_features = st.sampled_from([None, [RESTART_ALL], [RESTART_ALL, USERS_WITH_HOST_NETWORK], ["Other"]])
restart_rules = st.lists(
    st.builds(ContainerRestartRule, action=st.sampled_from(["Restart", "RestartAllContainers"])), max_size=2
)
allocatable = st.one_of(
    st.fixed_dictionaries({"cpu": cpu, "memory": memory, "pods": st.just("110"), _GPU: st.sampled_from(["0", "4"])}),
    st.fixed_dictionaries({"cpu": cpu, "memory": memory, "pods": st.just("110")}),
    quantities(pods=st.sampled_from(["0", "2", "110"])),
    st.just({"cpu": "abc", "pods": "3"}) | st.none(),
)
_AVOIDED = '{"preferAvoidPods":[{"podSignature":{"podController":{"kind":"ReplicaSet","uid":"o0"}}}]}'
node_annotations = st.sampled_from(
    [
        None,
        {LINK_CAPACITY_ANNOTATION: "400M"},
        {"scheduler.alpha.kubernetes.io/preferAvoidPods": _AVOIDED},
        {"scheduler.alpha.kubernetes.io/preferAvoidPods": "odd"},
    ]
)
nodes = st.builds(
    lambda name, given, annotations, taint_list, cordoned, allocatable, ready, images, features: Node(
        metadata=ObjectMeta(name=name, labels=given, annotations=annotations),
        spec=NodeSpec(unschedulable=cordoned, taints=taint_list or None),
        status=NodeStatus(
            allocatable=allocatable,
            conditions=[NodeCondition(type="Ready", status=ready)] if ready else None,
            images=images,
            declared_features=features,
        ),
    ),
    st.sampled_from(NODE_NAMES),
    node_labels,
    node_annotations,
    taints,
    st.sampled_from([False, False, False, True]),
    allocatable,
    st.sampled_from(["", "True", "False", "Unknown"]),
    st.none() | st.lists(node_images, min_size=1, max_size=2),
    declared_features,
)
node_affinities = st.builds(
    NodeAffinity,
    required_during_scheduling_ignored_during_execution=st.none()
    | st.builds(NodeSelector, node_selector_terms=st.lists(node_selector_terms, max_size=2)),
    preferred_during_scheduling_ignored_during_execution=st.none()
    | st.lists(
        st.builds(PreferredNodeTerm, weight=st.sampled_from([1, 7, 100]), preference=node_selector_terms),
        min_size=1,
        max_size=2,
    ),
)
containers = st.builds(
    lambda requests, limits, policy, image, taken: Container(
        name="c",
        image=image,
        resources=ResourceRequirements(requests=requests, limits=limits),
        restart_policy=policy,
        ports=taken,
    ),
    quantities(),
    st.none() | st.fixed_dictionaries({"cpu": cpu, "memory": memory}),
    st.sampled_from([None, None, "Always"]),
    image_names,
    st.none() | st.lists(ports, max_size=2),
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
    topology_key=st.sampled_from(["zone", "disk", HOSTNAME]),
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
    volumes=st.none() | pod_volumes,
)
_small = [Container(name="c", image="app", resources=ResourceRequirements(requests={"cpu": "100m"}))]
_plain = PodSpec(scheduler_name="berth", containers=_small)


def _with(**spec: st.SearchStrategy[Any]) -> st.SearchStrategy[PodSpec]:
    """A pod that is special in one field only, so that this field decides."""
    return st.fixed_dictionaries(spec).map(lambda given: msgspec.structs.replace(_plain, **given))


any_specs = st.one_of(
    specs,
    _with(containers=st.lists(st.builds(Container, ports=st.lists(ports, min_size=1)), min_size=1, max_size=1)),
    _with(
        containers=st.lists(
            st.builds(Container, restart_policy_rules=st.none() | restart_rules), min_size=1, max_size=2
        ),
        host_network=st.booleans(),
        host_users=st.sampled_from([None, True, False]),
    ),
    _with(volumes=pod_volumes),
    _with(volumes=disks_of_a_kind),
    _with(volumes=the_claim),
    _with(affinity=affinities),
    _with(affinity=st.builds(Affinity, node_affinity=node_affinities)),
    _with(topology_spread_constraints=st.lists(constraints, min_size=1, max_size=2)),
    st.just(_plain),
    st.just(_plain),
)
owners = st.builds(
    OwnerReference,
    kind=st.sampled_from(["ReplicaSet", "StatefulSet", "ReplicationController", "Job"]),
    name=st.sampled_from(OWNERS),
    uid=st.sampled_from(["o0", "o1"]),
    api_version=st.sampled_from(["apps/v1", "v1"]),
    controller=st.just(value=True),
)
bandwidths = st.dictionaries(
    st.sampled_from([INGRESS_ANNOTATION, EGRESS_ANNOTATION]), st.sampled_from(["1M", "80M", "odd"])
)
metadata = st.builds(
    lambda uid, namespace, deleted, given, owner, annotations: ObjectMeta(
        name=uid,
        namespace=namespace,
        uid=uid,
        deletion_timestamp=deleted,
        labels=given,
        owner_references=[owner] if owner else None,
        annotations=annotations,
    ),
    st.sampled_from(UIDS),
    some_namespace,
    st.sampled_from([None, None, None, "2026-01-01T00:00:00Z"]),
    pod_labels,
    st.none() | owners,
    st.none() | bandwidths,
)
pods = st.builds(Pod, metadata=metadata, spec=any_specs)
cpu_uses = st.builds(
    MeasuredUsage,
    average=st.none() | st.sampled_from([0.0, 700.0, 1900.0, 70_000.0]),
    deviation=st.none() | st.sampled_from([0.0, 300.0]),
    p95=st.none() | st.sampled_from([1200.0, 4100.0]),
)
memory_uses = st.builds(MeasuredUsage, average=st.none() | st.sampled_from([0.0, 2.0**28, 2.0**31]))
samples = st.builds(
    NodeSample,
    cpu=st.none() | cpu_uses,
    memory=st.none() | memory_uses,
    receive=st.none() | st.sampled_from([0.0, 1e6, 2.5e7]),
    transmit=st.none() | st.sampled_from([0.0, 3e6]),
    capacity=st.none() | st.sampled_from([1.25e7, 1.25e8]),
    sampled_at=st.sampled_from([datetime(2026, 1, 1, 0, minute, tzinfo=UTC) for minute in (0, 3, 20)]),
)
facts = st.none() | st.sampled_from([msgspec.Raw(b'{"free":1}'), msgspec.Raw(b'{"free":2}')])
failures = st.builds(
    lambda workload, seconds: msgspec.Raw(
        encode(
            FailuresOnNode(
                written_at=utc_time(NOW),
                workloads={workload: WorkloadFailure(pod="default/p", reason="OutOfcpu", at=utc_time(NOW - seconds))},
            )
        )
    ),
    st.sampled_from(["o0", "o1"]),
    st.sampled_from([10, 100, 1000]),
)
times = st.none() | st.sampled_from([datetime(2026, 1, 1, 0, m, tzinfo=UTC).timestamp() for m in (1, 2, 15)])

Event = Callable[[Snapshot], None]
_names = st.sampled_from(NODE_NAMES)
namespaces = st.builds(
    lambda name, given: Namespace(metadata=ObjectMeta(name=name, labels=given)),
    st.sampled_from(["default", "other"]),
    st.sampled_from([None, {"tier": "1"}, {"tier": "a"}, {"zone": "b"}]),
)


def setting(node: Node) -> Event:
    return lambda snapshot: snapshot.set_node(node)


def placing(pod: Pod, node: str, since: float | None) -> Event:
    return lambda snapshot: snapshot.place(pod, node, bound_at=since)


def _having(known: Known) -> Event:
    return lambda snapshot: snapshot.objects(known.struct).set(known.key, known.thing)


def _sampling(node: str, sample: NodeSample | None) -> Event:
    def sampled(snapshot: Snapshot) -> None:
        snapshot.live.observe_time(NOW)
        for query in (QUERY, LOAD_QUERY):
            snapshot.live.set_sample(query.token, node, sample)

    return sampled


def _stating(node: str, fact: msgspec.Raw | None, stored_at: float) -> Event:
    return lambda snapshot: snapshot.live.set_fact(SOURCE, node, fact, stored_at=stored_at)


def _failing(node: str, fact: msgspec.Raw | None) -> Event:
    return lambda snapshot: snapshot.live.set_fact(POD_FAILURES.name, node, fact, stored_at=NOW)


def _heard_again(snapshot: Snapshot, uid: str, since: float | None) -> None:
    """A placed pod is placed on the same node at another time, as a proposal that is bound."""
    placed = snapshot.placed(uid)
    if placed is not None:
        snapshot.place(placed.pod, snapshot.rows.names[placed.row], bound_at=since)


events: st.SearchStrategy[Event] = st.one_of(
    st.builds(setting, nodes),
    st.builds(setting, nodes),
    st.builds(lambda name: lambda snapshot: snapshot.remove_node(name), _names),
    st.builds(placing, pods, _names, times),
    st.builds(placing, pods, _names, times),
    st.builds(lambda uid: lambda snapshot: snapshot.remove_pod(uid), st.sampled_from(UIDS)),
    st.builds(lambda uid, since: lambda snapshot: _heard_again(snapshot, uid, since), st.sampled_from(UIDS), times),
    st.builds(lambda pod, name: lambda snapshot: snapshot.nominate(pod, name), pods, _names),
    st.builds(lambda uid: lambda snapshot: snapshot.end_nomination(uid), st.sampled_from(UIDS)),
    st.builds(lambda namespace: lambda snapshot: snapshot.set_namespace(namespace), namespaces),
    st.builds(lambda name: lambda snapshot: snapshot.remove_namespace(name), some_namespace),
    objects.map(_having),
    objects.map(_having),
    objects.map(lambda known: lambda snapshot: snapshot.objects(known.struct).remove(known.key)),
    st.builds(_sampling, _names, st.none() | samples),
    st.builds(_stating, _names, facts, st.sampled_from((NOW, NOW - 400.0))),
    st.builds(_failing, _names, st.none() | failures),
)

_shown = st.sampled_from([1200.0, 4100.0, 2.0**31])
_recent = st.builds(
    NodeSample,
    cpu=st.builds(MeasuredUsage, average=_shown, p95=_shown),
    memory=st.builds(MeasuredUsage, average=_shown, p95=_shown),
    sampled_at=st.just(datetime(2026, 1, 1, 0, 20, tzinfo=UTC)),
)
live_data: st.SearchStrategy[list[Event]] = st.lists(
    st.builds(_sampling, _names, _recent) | st.builds(_failing, _names, failures), min_size=6, max_size=6
)
"""Recent samples of any statistic, and failures of pods: in a history both are rare."""


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Add nodes, with samples and with pods on most of them, then objects of further kinds, then any events."""
    there = draw(st.lists(nodes, min_size=2, max_size=6, unique_by=lambda node: node.metadata.name))
    names = st.sampled_from([node.metadata.name for node in there])
    return [
        *(setting(node) for node in there),
        *(_sampling(node.metadata.name, draw(samples)) for node in there),
        *(placing(each, draw(names), draw(times)) for each in draw(st.lists(pods, min_size=2, max_size=6))),
        *(_having(known) for known in draw(some_of_each_kind)),
        *draw(st.lists(events, max_size=4)),
    ]


def replayed(history: Iterable[Event]) -> Snapshot:
    """A Snapshot after these events."""
    snapshot = Snapshot()
    for event in history:
        event(snapshot)
    return snapshot


def snapshots() -> st.SearchStrategy[Snapshot]:
    """Snapshots after random histories."""
    return histories().map(replayed)
