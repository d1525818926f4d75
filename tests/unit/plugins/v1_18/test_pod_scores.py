"""Scores by where other pods are, as 1.18 had them: affinity, constraints, services and controllers."""

from collections.abc import Mapping

import msgspec
import pytest

from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.pod import (
    Affinity,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from berth.api.workloads import LabelsSpec, ReplicaSet, ReplicationController, SelectorSpec, Service, StatefulSet
from berth.cluster.snapshot import Snapshot
from berth.plugins.interpodaffinity.plugin import InterPodAffinityArgs
from berth_plugins_1_18.scores import InterPodAffinityV118, PodTopologySpreadArgsV118, PodTopologySpreadV118
from berth_plugins_1_18.selectorspread import DefaultPodTopologySpread
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import points

ZONE, BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION, BETA_REGION = "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"
APP = {"app": "web"}


def cluster(nodes: Mapping[str, Mapping[str, str]], counts: Mapping[str, int], labels: Mapping[str, str] = APP):
    """Nodes by name with their labels, and how many pods with these labels each has."""
    snapshot = Snapshot()
    for name, given in nodes.items():
        snapshot.set_node(a_node(name, labels=dict(given)))
    for name, count in counts.items():
        for number in range(count):
            snapshot.place(a_pod(f"{name}-{number}", labels=dict(labels)), name)
    return snapshot


def wishing(together: int = 0, apart: int = 0) -> Pod:
    """A pod that would rather be with web, or without it, zone by zone."""
    term = PodAffinityTerm(topology_key="zone", label_selector=LabelSelector(match_labels=APP))

    def preferring(weight: int) -> PodAffinity | None:
        weighted = WeightedPodAffinityTerm(weight=weight, pod_affinity_term=term)
        return PodAffinity(preferred_during_scheduling_ignored_during_execution=[weighted]) if weight else None

    return a_pod(affinity=Affinity(pod_affinity=preferring(together), pod_anti_affinity=preferring(apart)))


@pytest.mark.parametrize(
    ("pod", "counts", "expected"),
    [
        # raw 50, 29, 29: measured from 0, 29 / 50 is .58 and 57.99... in floats; today the least is 0
        pytest.param(
            wishing(together=1), {"a": 50, "b": 29, "c": 29}, {"a": 100, "b": 57, "c": 57}, id="all wished for"
        ),
        # raw -3, -1, -2: measured up to 0, so that no node has 100
        pytest.param(wishing(apart=1), {"a": 3, "b": 1, "c": 2}, {"a": 0, "b": 66, "c": 33}, id="all unwished for"),
        pytest.param(wishing(together=5), {"a": 2, "b": 1}, {"a": 100, "b": 50, "c": 0}, id="one with nothing"),
        pytest.param(wishing(together=5), {"a": 1, "b": 1, "c": 1}, {"a": 100, "b": 100, "c": 100}, id="all alike"),
        pytest.param(wishing(together=5), {}, None, id="no matching pod"),
    ],
)
def test_affinity_is_measured_from_0(pod, counts, expected):
    nodes = cluster({name: {"zone": name} for name in "abc"}, counts)
    assert points(InterPodAffinityV118(InterPodAffinityArgs()), pod, nodes) == expected


def spreading(*keys: str, selector: LabelSelector | None = None, skew: int = 1) -> Pod:
    selector = selector or LabelSelector(match_labels=APP)
    constraints = [
        TopologySpreadConstraint(
            max_skew=skew, topology_key=key, when_unsatisfiable="ScheduleAnyway", label_selector=selector
        )
        for key in keys
    ]
    return a_pod(topology_spread_constraints=constraints)


IN_ZONES = {"a": {"zone": "x", "host": "a"}, "b": {"zone": "y", "host": "b"}}


@pytest.mark.parametrize(
    ("pod", "nodes", "counts", "expected"),
    [
        # raw 1 and 3: sum 4, least 1; 100 * 3 / 3 and 100 * 1 / 3
        pytest.param(spreading("zone"), IN_ZONES, {"a": 1, "b": 3}, {"a": 100, "b": 33}, id="two zones"),
        pytest.param(
            spreading("zone", skew=5), IN_ZONES, {"a": 1, "b": 3}, {"a": 100, "b": 33}, id="whatever the skew"
        ),
        # raw 1+1 and 3+3: sum 8, least 2; 100 * 6 / 6 and 100 * 2 / 6
        pytest.param(spreading("zone", "host"), IN_ZONES, {"a": 1, "b": 3}, {"a": 100, "b": 33}, id="two constraints"),
        # x has 1 + 2 and y 4: raw 3, 3, 4; sum 10, least 3; 100 * 7 / 7 and 100 * 6 / 7
        pytest.param(
            spreading("zone"),
            {"a": {"zone": "x"}, "c": {"zone": "x"}, "b": {"zone": "y"}},
            {"a": 1, "c": 2, "b": 4},
            {"a": 100, "c": 100, "b": 85},
            id="a zone's pods count on each of its nodes",
        ),
        # raw 2 and 3 (c is not counted): sum 5, least 2; 100 * 3 / 3 and 100 * 2 / 3
        pytest.param(
            spreading("zone"),
            {**IN_ZONES, "c": {}},
            {"a": 2, "b": 3, "c": 9},
            {"a": 100, "b": 66, "c": 0},
            id="a node without the label gets 0",
        ),
        # sum = least = 2: nothing to divide by
        pytest.param(
            spreading("zone"),
            {"a": {"zone": "x"}, "c": {}},
            {"a": 2},
            {"a": 100, "c": 100},
            id="one node with the label",
        ),
        pytest.param(spreading("zone"), {"a": {}, "b": {}}, {"a": 2}, {"a": 0, "b": 0}, id="no node with the label"),
        pytest.param(spreading("zone"), IN_ZONES, {}, {"a": 100, "b": 100}, id="no pods at all"),
        pytest.param(
            spreading("zone", selector=LabelSelector()),
            IN_ZONES,
            {"a": 1, "b": 3},
            {"a": 100, "b": 33},
            id="an empty selector",
        ),
        pytest.param(a_pod(), IN_ZONES, {"a": 1, "b": 3}, None, id="no constraints"),
    ],
)
def test_constraints_are_scored_by_the_plain_number_of_pods(pod, nodes, counts, expected):
    assert points(PodTopologySpreadV118(PodTopologySpreadArgsV118()), pod, cluster(nodes, counts)) == expected


def selected_by(snapshot: Snapshot, *things) -> Snapshot:
    for number, thing in enumerate(things):
        snapshot.objects(type(thing)).set(f"u{number}", thing)
    return snapshot


def a_service(selector: dict[str, str] | None, namespace: str = "default") -> Service:
    return Service(metadata=ObjectMeta(name="s", namespace=namespace), spec=LabelsSpec(selector=selector))


def a_set(kind: type, labels: dict[str, str]):
    spec = SelectorSpec(selector=LabelSelector(match_labels=labels))
    return kind(metadata=ObjectMeta(name="s", namespace="default"), spec=spec)


WEB = a_pod(labels=APP)


@pytest.mark.parametrize(
    ("nodes", "counts", "expected"),
    [
        # node: 0, 100, 50; zones: x 2 of 2, y 1 of 2: 0, 0, 50; a third and two thirds
        pytest.param(
            {"a": {ZONE: "x"}, "b": {ZONE: "x"}, "c": {ZONE: "y"}},
            {"a": 2, "c": 1},
            {"a": 0, "b": 33, "c": 50},
            id="two zones",
        ),
        # 100 * (3 - raw) / 3
        pytest.param({"a": {}, "b": {}, "c": {}}, {"a": 3, "b": 1}, {"a": 0, "b": 66, "c": 100}, id="no zones"),
        # c is in no zone: its node part only; x 3 of 3: 0
        pytest.param(
            {"a": {ZONE: "x"}, "b": {ZONE: "x"}, "c": {}},
            {"a": 2, "b": 1, "c": 1},
            {"a": 0, "b": 16, "c": 50},
            id="a node in no zone",
        ),
        pytest.param({"a": {ZONE: "x"}, "b": {ZONE: "y"}}, {}, {"a": 100, "b": 100}, id="no pods"),
        # the beta label comes first: both are in x, which has 1 of 1
        pytest.param(
            {"a": {BETA_ZONE: "x", ZONE: "y"}, "b": {ZONE: "x"}}, {"a": 1}, {"a": 0, "b": 33}, id="old labels first"
        ),
        # x of r1 and x of r2 are two zones: 1 of 1 and 0 of 1
        pytest.param(
            {"a": {BETA_REGION: "r1", ZONE: "x"}, "b": {REGION: "r2", ZONE: "x"}},
            {"a": 1},
            {"a": 0, "b": 100},
            id="a zone is one of its region",
        ),
        # only regions: r1 1 of 1, r2 0 of 1
        pytest.param({"a": {REGION: "r1"}, "b": {REGION: "r2"}}, {"a": 1}, {"a": 0, "b": 100}, id="regions alone"),
    ],
)
def test_matching_pods_are_spread_over_nodes_and_zones(nodes, counts, expected):
    snapshot = selected_by(cluster(nodes, counts), a_service(APP))
    assert points(DefaultPodTopologySpread(), WEB, snapshot) == expected


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        pytest.param(a_service(APP), 0, id="a service"),
        pytest.param(a_service({"app": "other"}), 100, id="another service"),
        pytest.param(a_service({}), 100, id="a service without a selector"),
        pytest.param(a_service(APP, "other"), 100, id="a service of another namespace"),
        pytest.param(
            ReplicationController(metadata=ObjectMeta(name="r", namespace="default"), spec=LabelsSpec(selector=APP)),
            0,
            id="a replication controller",
        ),
        pytest.param(a_set(ReplicaSet, APP), 0, id="a replica set, though it does not own the pod"),
        pytest.param(a_set(StatefulSet, APP), 0, id="a stateful set"),
        pytest.param(a_set(ReplicaSet, {"app": "other"}), 100, id="another replica set"),
        pytest.param(a_set(ReplicaSet, {}), 100, id="a replica set that selects everything"),
    ],
)
def test_every_selector_of_the_pod_counts(thing, expected):
    snapshot = selected_by(cluster({"a": {}, "b": {}}, {"a": 1}), thing)
    assert points(DefaultPodTopologySpread(), WEB, snapshot) == {"a": expected, "b": 100}


def test_matching_pods_satisfy_all_selectors_together():
    snapshot = cluster({"a": {}, "b": {}}, {"a": 1})
    snapshot.place(a_pod("both", labels={**APP, "tier": "front"}), "b")
    selected_by(snapshot, a_service(APP), a_set(ReplicaSet, {"tier": "front"}))
    pod = a_pod(labels={**APP, "tier": "front"})
    assert points(DefaultPodTopologySpread(), pod, snapshot) == {"a": 100, "b": 0}


def test_terminating_pods_and_other_namespaces_do_not_count():
    snapshot = selected_by(cluster({"a": {}, "b": {}}, {"b": 1}), a_service(APP))
    for name, change in (("old", {"deletion_timestamp": "2026-01-01T00:00:00Z"}), ("else", {"namespace": "other"})):
        pod = a_pod(name, labels=APP)
        pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, **change))
        snapshot.place(pod, "a")
    assert points(DefaultPodTopologySpread(), WEB, snapshot) == {"a": 100, "b": 0}


def test_a_pod_with_constraints_of_its_own_is_not_scored():
    pod = msgspec.structs.replace(spreading("zone"), metadata=WEB.metadata)
    snapshot = selected_by(cluster(IN_ZONES, {"a": 1}), a_service(APP))
    assert points(DefaultPodTopologySpread(), pod, snapshot) is None


def test_a_new_service_counts():
    snapshot, plugin = cluster({"a": {}, "b": {}}, {"a": 1}), DefaultPodTopologySpread()
    assert points(plugin, WEB, snapshot) == {"a": 100, "b": 100}
    selected_by(snapshot, a_service(APP))
    assert points(plugin, WEB, snapshot) == {"a": 0, "b": 100}
