"""PodTopologySpread: by how much a domain may exceed the emptiest one, and the scores of emptier ones."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.meta import LabelSelector, ObjectMeta, OwnerReference
from berth.api.node import Taint
from berth.api.pod import Pod, TopologySpreadConstraint
from berth.api.workloads import LabelsSpec, ReplicaSet, SelectorSpec, Service
from berth.cluster.nodes import AnotherPod, Nodes, NodesWithAnother, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.status import CycleState
from berth.plugins.podtopologyspread.plugin import (
    CONSTRAINTS_NOT_MATCHED,
    LIST,
    NODE_LABEL_NOT_MATCHED,
    PodTopologySpread,
    PodTopologySpreadArgs,
    validate,
)
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile
from harness.builders.random_clusters import pods, snapshots
from harness.builders.random_objects import NODE_NAMES
from harness.worlds.queueing_hints import may_help

ZONES = {"n0": "a", "n1": "a", "n2": "b", "n3": None}
"""Nodes and their zones; the last one is in none."""
WEB = LabelSelector(match_labels={"app": "web"})
HARD, SOFT = "DoNotSchedule", "ScheduleAnyway"


def constraint(action: str = HARD, max_skew: int = 1, key: str = "zone", **fields) -> TopologySpreadConstraint:
    given = {"label_selector": WEB, **fields}
    return TopologySpreadConstraint(max_skew=max_skew, topology_key=key, when_unsatisfiable=action, **given)


def web(name: str, *constraints: TopologySpreadConstraint, **spec) -> Pod:
    return a_pod(name, labels={"app": "web"}, topology_spread_constraints=list(constraints), **spec)


def cluster(**counts: int) -> Snapshot:
    """So many pods of the kind on each node."""
    snapshot = Snapshot()
    for name, zone in ZONES.items():
        snapshot.set_node(a_node(name, labels={"kubernetes.io/hostname": name, **({"zone": zone} if zone else {})}))
    for name, count in counts.items():
        for number in range(count):
            snapshot.place(web(f"{name}-{number}"), name)
    return snapshot


def refused(pod: Pod, snapshot: Snapshot, args: PodTopologySpreadArgs | None = None) -> dict[str, object]:
    """The rejected nodes with their reasons."""
    plugin, state = PodTopologySpread(args or PodTopologySpreadArgs()), CycleState(snapshot.class_of(pod))
    if plugin.pre_filter(state, pod, snapshot).status.is_skip:
        return {}
    verdicts = plugin.filter_all(state, pod, Nodes(snapshot))
    statuses = [verdicts.statuses[code] for code in verdicts.codes]
    return {name: status for name, status in zip(ZONES, statuses, strict=True) if not status.is_success}


def points(pod: Pod, snapshot: Snapshot, args: PodTopologySpreadArgs | None = None) -> tuple[list[int], list[int]]:
    """Raw and normalized; both empty when the plugin skips the pod."""
    plugin, state = PodTopologySpread(args or PodTopologySpreadArgs()), CycleState(snapshot.class_of(pod))
    nodes = Nodes(snapshot)
    if plugin.pre_score(state, pod, nodes).is_skip:
        return [], []
    raw = plugin.score_all(state, pod, nodes)
    return raw.tolist(), plugin.normalize(state, pod, raw, nodes).tolist()


def test_one_more_pod_costs_nothing_where_an_absent_selector_counts_none():
    pod, snapshot = web("p", constraint(SOFT, label_selector=None)), cluster(n0=2)
    plugin, state = PodTopologySpread(PodTopologySpreadArgs()), CycleState(snapshot.class_of(pod))
    assert not plugin.pre_score(state, pod, Nodes(snapshot)).is_skip
    with_another = NodesWithAnother(snapshot, None, AnotherPod(pod, snapshot))
    assert plugin.score_with_another(state, pod, with_another).tolist() == points(pod, snapshot)[0]


OUTSIDE = {"n3": NODE_LABEL_NOT_MATCHED}
ZONE_A = {"n0": CONSTRAINTS_NOT_MATCHED, "n1": CONSTRAINTS_NOT_MATCHED, **OUTSIDE}


@pytest.mark.parametrize(
    ("pod", "counts", "expected"),
    [
        # zone a: 1 + 1 - 0 > 1
        pytest.param(web("p", constraint()), {"n0": 1}, ZONE_A, id="one ahead already"),
        # 1 + 1 - 0 > 2 is not so
        pytest.param(web("p", constraint(max_skew=2)), {"n0": 1}, OUTSIDE, id="a larger skew"),
        # 1 + 1 - 1, 1 + 1 - 1
        pytest.param(web("p", constraint()), {"n1": 1, "n2": 1}, OUTSIDE, id="even"),
        # the pod is not of its own kind: 1 + 0 - 0
        pytest.param(
            a_pod("p", topology_spread_constraints=[constraint()]), {"n0": 1}, OUTSIDE, id="itself of another kind"
        ),
        # two zones, three wanted: the emptiest counts as 0, 1 + 1 - 0
        pytest.param(
            web("p", constraint(min_domains=3)),
            {"n0": 1, "n2": 1},
            {**ZONE_A, "n2": CONSTRAINTS_NOT_MATCHED},
            id="fewer domains than there are to be",
        ),
        # zone b does not count where the pod may not go: 1 + 1 - 1
        pytest.param(
            web("p", constraint(), node_selector={"zone": "a"}), {"n0": 1}, OUTSIDE, id="by its node affinity"
        ),
        # and it does when the constraint says so: 1 + 1 - 0
        pytest.param(
            web("p", constraint(node_affinity_policy="Ignore"), node_selector={"zone": "a"}),
            {"n0": 1},
            ZONE_A,
            id="whatever its node affinity",
        ),
        pytest.param(web("p", constraint(SOFT)), {"n0": 9}, {}, id="ScheduleAnyway rejects no node"),
    ],
)
def test_a_domain_may_exceed_the_minimum_by_max_skew(pod, counts, expected):
    assert refused(pod, cluster(**counts)) == expected


@pytest.mark.parametrize(("policy", "expected"), [(None, ZONE_A), ("Honor", OUTSIDE)])
def test_tainted_nodes_count_unless_the_constraint_honors_taints(policy, expected):
    snapshot = cluster(n0=1)
    taints = [Taint(key="k", effect="NoSchedule")]
    snapshot.set_node(a_node("n2", labels={"kubernetes.io/hostname": "n2", "zone": "b"}, taints=taints))
    assert refused(web("p", constraint(node_taints_policy=policy)), snapshot) == expected


def test_terminating_pods_and_other_namespaces_do_not_count():
    snapshot, pod = cluster(), web("x")
    leaving = msgspec.structs.replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    elsewhere = msgspec.structs.replace(pod.metadata, namespace="other", uid="uid-y")
    for metadata in (leaving, elsewhere):
        snapshot.place(msgspec.structs.replace(pod, metadata=metadata), "n0")
    assert refused(web("p", constraint()), snapshot) == OUTSIDE


def test_match_label_keys_count_only_pods_with_the_same_value():
    snapshot = cluster()
    snapshot.place(a_pod("old", labels={"app": "web", "hash": "1"}), "n0")
    given = constraint(match_label_keys=["hash", "lacking"])
    pod = a_pod("p", labels={"app": "web", "hash": "2"}, topology_spread_constraints=[given])
    assert refused(pod, snapshot) == OUTSIDE


@pytest.mark.parametrize(
    ("pod", "counts", "raw", "normalized"),
    [
        # 2 zones: a 1 * ln 4, b 3 * ln 4 = 1.39, 4.16; 100 * (4 + 1 - 1) / 4, 100 * (4 + 1 - 4) / 4; no zone: 0
        pytest.param(web("p", constraint(SOFT)), {"n0": 1, "n2": 3}, [1, 1, 4, 0], [100, 100, 25, 0], id="by zone"),
        # and maxSkew - 1 is added: 3.39, 6.16
        pytest.param(
            web("p", constraint(SOFT, 3)), {"n0": 1, "n2": 3}, [3, 3, 6, 0], [100, 100, 50, 0], id="with a larger skew"
        ),
        # 4 host names: 2 * ln 6 = 3.58, 1 * ln 6 = 1.79; 100 * (4 + 0 - raw) / 4
        pytest.param(
            web("p", constraint(SOFT, key="kubernetes.io/hostname")),
            {"n0": 2, "n3": 1},
            [4, 0, 0, 2],
            [0, 100, 100, 50],
            id="by host",
        ),
        pytest.param(web("p", constraint(SOFT)), {}, [0, 0, 0, 0], [100, 100, 100, 0], id="no pods"),
        pytest.param(web("p", constraint(HARD)), {}, [], [], id="what must hold is not scored"),
        pytest.param(web("p"), {"n0": 5}, [], [], id="no constraints and no owner"),
    ],
)
def test_emptier_domains_score_higher(pod, counts, raw, normalized):
    assert points(pod, cluster(**counts)) == (raw, normalized)


SERVICE = Service(metadata=ObjectMeta(name="s", namespace="default"), spec=LabelsSpec(selector={"app": "web"}))
SET = ReplicaSet(metadata=ObjectMeta(name="rs", namespace="default"), spec=SelectorSpec(selector=WEB))
OWNER = OwnerReference(kind="ReplicaSet", name="rs", api_version="apps/v1", controller=True)
BY_ZONE = PodTopologySpreadArgs(
    defaulting_type=LIST, default_constraints=[constraint(HARD, label_selector=None), constraint(SOFT)]
)


def owned(name: str) -> Pod:
    pod = web(name)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=[OWNER]))


@pytest.mark.parametrize(
    ("pod", "objects", "applies"),
    [
        pytest.param(web("p"), [SERVICE], True, id="a service's pod"),
        pytest.param(owned("p"), [SET], True, id="a replica set's pod"),
        pytest.param(web("p"), [SET], False, id="another replica set"),
        pytest.param(owned("p"), [], False, id="a replica set that is gone"),
        pytest.param(a_pod("p", labels={"app": "db"}), [SERVICE], False, id="not the service's pod"),
    ],
)
def test_pods_without_constraints_get_the_default_constraints(pod, objects, applies):
    snapshot = cluster(n0=1)
    for thing in objects:
        snapshot.objects(type(thing)).set("uid", thing)
    assert refused(pod, snapshot, BY_ZONE) == (ZONE_A if applies else {})
    # hosts, maxSkew 3, ln 6: n0 1.79 + 2; zones are of another key, so no node has one; maximum 4, minimum 2
    assert points(pod, snapshot)[0] == ([4, 2, 2, 2] if applies else [])


def test_default_selectors_follow_the_objects():
    snapshot, seen = cluster(n0=1), []
    services = snapshot.objects(Service)
    for step in (lambda: None, lambda: services.set("s", SERVICE), lambda: services.remove("s")):
        step()
        seen.append(bool(refused(web("p"), snapshot, BY_ZONE)))
    assert seen == [False, True, False]


@given(snapshot=snapshots(), pod=pods, other=pods, node=st.sampled_from(NODE_NAMES))
def test_add_pod_and_remove_pod_equal_a_fresh_pre_filter(snapshot, pod, other, node):
    info = node_info(snapshot, node)
    plugin, state = PodTopologySpread(PodTopologySpreadArgs()), CycleState(snapshot.class_of(pod))
    if info is None or snapshot.node_of(other.uid) is not None:
        return
    if plugin.pre_filter(state, pod, snapshot).status.is_skip:
        return
    before, changed = answers(plugin, state, pod, snapshot), state.clone()
    with snapshot.supposing(placed=[(other, node)]):
        plugin.add_pod(changed, pod, other, info)
        fresh = CycleState(snapshot.class_of(pod))
        plugin.pre_filter(fresh, pod, snapshot)
        assert answers(plugin, changed, pod, snapshot) == answers(plugin, fresh, pod, snapshot)
    plugin.remove_pod(changed, pod, other, info)
    assert answers(plugin, changed, pod, snapshot) == before == answers(plugin, state, pod, snapshot)


def answers(plugin, state, pod, snapshot) -> dict[str, object]:
    return {name: plugin.filter(state, pod, node_info(snapshot, name)) for name in snapshot.node_names()}


SPREAD = web("p", constraint())


@pytest.mark.parametrize(
    ("resource", "action", "old", "new", "expected"),
    [
        pytest.param(Resource.POD, Action.DELETE, web("o"), None, True, id="one of the kind goes"),
        pytest.param(Resource.POD, Action.ADD, None, web("o"), True, id="one comes, to another domain"),
        pytest.param(Resource.POD, Action.DELETE, a_pod("o"), None, False, id="another goes"),
        pytest.param(Resource.POD, Action.UPDATE_POD_LABEL, web("o"), a_pod("o"), True, id="it is of the kind no more"),
        pytest.param(Resource.NODE, Action.ADD, None, a_node("n", labels={"zone": "c"}), True, id="a new zone"),
        pytest.param(Resource.NODE, Action.ADD, None, a_node("n"), False, id="a node outside all zones"),
        pytest.param(Resource.NODE, Action.DELETE, a_node("n", labels={"zone": "c"}), None, True, id="a zone goes"),
    ],
)
def test_events_that_help(resource, action, old, new, expected):
    event = ClusterEvent(resource, action)
    assert may_help(default_profile(), {"PodTopologySpread"}, event, SPREAD, old, new) is expected


def test_arguments_are_checked():
    given = [constraint(max_skew=0, key="", action="Never"), constraint(label_selector=None)]
    args = PodTopologySpreadArgs(defaulting_type=LIST, default_constraints=[*given, given[1]])
    assert validate(args, "args") == [
        "args.defaultConstraints[0].topologyKey: want a label key such as disk or example.com/disk, got ''",
        "args.defaultConstraints[0].maxSkew: want more than 0, got 0",
        "args.defaultConstraints[0].whenUnsatisfiable: want DoNotSchedule or ScheduleAnyway, got 'Never'",
        "args.defaultConstraints[0].labelSelector: want none, it follows from the pod's services and its controller",
        "args.defaultConstraints[2]: want a constraint of its own, got 'zone' with 'DoNotSchedule' once more",
    ]
    assert validate(PodTopologySpreadArgs(default_constraints=[constraint(label_selector=None)]), "args") == [
        "args.defaultingType: want List where there are defaultConstraints, got 'System'"
    ]
