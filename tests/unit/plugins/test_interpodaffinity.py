"""InterPodAffinity: required and preferred affinity and anti-affinity."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.pod import Affinity, Pod, PodAffinity, PodAffinityTerm, WeightedPodAffinityTerm
from berth.api.workloads import Namespace
from berth.cluster.nodes import Nodes, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.status import CycleState
from berth.plugins.interpodaffinity.plugin import (
    AFFINITY_NOT_MATCHED,
    ANTI_AFFINITY_NOT_MATCHED,
    EXISTING_ANTI_AFFINITY_NOT_MATCHED,
    InterPodAffinity,
    InterPodAffinityArgs,
    validate,
)
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile
from harness.builders.random_clusters import pods, snapshots
from harness.builders.random_objects import NODE_NAMES
from harness.worlds.queueing_hints import may_help

ZONES = {"n0": "a", "n1": "a", "n2": "b", "n3": None}
"""Nodes and their zones; the last one is in none."""


def term(app: str, **fields) -> PodAffinityTerm:
    return PodAffinityTerm(topology_key="zone", label_selector=LabelSelector(match_labels={"app": app}), **fields)


def requiring(*terms: PodAffinityTerm) -> PodAffinity:
    return PodAffinity(required_during_scheduling_ignored_during_execution=list(terms))


def preferring(**weights: int) -> PodAffinity:
    given = [WeightedPodAffinityTerm(weight=weight, pod_affinity_term=term(app)) for app, weight in weights.items()]
    return PodAffinity(preferred_during_scheduling_ignored_during_execution=given)


def wanting(name: str, app: str = "", together: PodAffinity | None = None, apart: PodAffinity | None = None) -> Pod:
    return a_pod(name, labels={"app": app}, affinity=Affinity(pod_affinity=together, pod_anti_affinity=apart))


def cluster(**placed: list[Pod]) -> Snapshot:
    snapshot = Snapshot()
    for name, zone in ZONES.items():
        snapshot.set_node(a_node(name, labels={"zone": zone} if zone else {}))
    for name, there in placed.items():
        for pod in there:
            snapshot.place(pod, name)
    return snapshot


def refused(pod: Pod, snapshot: Snapshot) -> dict[str, object]:
    """The rejected nodes with their reasons."""
    plugin, state = InterPodAffinity(InterPodAffinityArgs()), CycleState(snapshot.class_of(pod))
    if plugin.pre_filter(state, pod, snapshot).status.is_skip:
        return {}
    verdicts = plugin.filter_all(state, pod, Nodes(snapshot))
    statuses = [verdicts.statuses[code] for code in verdicts.codes]
    return {name: status for name, status in zip(ZONES, statuses, strict=True) if not status.is_success}


def points(pod: Pod, snapshot: Snapshot, **args: object) -> list[int] | None:
    """Normalized; None when the plugin skips the pod."""
    plugin, state = InterPodAffinity(InterPodAffinityArgs(**args)), CycleState(snapshot.class_of(pod))
    nodes = Nodes(snapshot)
    if plugin.pre_score(state, pod, nodes).is_skip:
        return None
    return plugin.normalize(state, pod, plugin.score_all(state, pod, nodes), nodes).tolist()


WEB, DB = wanting("web", "web"), wanting("db", "db")


@pytest.mark.parametrize(
    ("pod", "snapshot", "expected"),
    [
        pytest.param(WEB, cluster(n0=[DB]), {}, id="no terms anywhere"),
        pytest.param(
            wanting("p", together=requiring(term("web"))),
            cluster(n0=[WEB]),
            {"n2": AFFINITY_NOT_MATCHED, "n3": AFFINITY_NOT_MATCHED},
            id="only the zone of the matching pod, and no node outside all zones",
        ),
        pytest.param(
            wanting("p", together=requiring(term("web"), term("db"))),
            cluster(n0=[WEB], n1=[DB]),
            dict.fromkeys(ZONES, AFFINITY_NOT_MATCHED),
            id="one pod has to satisfy all terms",
        ),
        pytest.param(
            wanting("p", "web", together=requiring(term("web"))),
            cluster(n0=[DB]),
            {"n3": AFFINITY_NOT_MATCHED},
            id="the first of a group may go anywhere in the topology",
        ),
        pytest.param(
            wanting("p", "db", together=requiring(term("web"))),
            cluster(),
            dict.fromkeys(ZONES, AFFINITY_NOT_MATCHED),
            id="a pod that does not match its own term needs a matching pod",
        ),
        pytest.param(
            wanting("p", apart=requiring(term("web"))),
            cluster(n0=[WEB]),
            {"n0": ANTI_AFFINITY_NOT_MATCHED, "n1": ANTI_AFFINITY_NOT_MATCHED},
            id="apart from a pod is outside its zone",
        ),
        pytest.param(
            WEB,
            cluster(n2=[wanting("single", apart=requiring(term("web")))]),
            {"n2": EXISTING_ANTI_AFFINITY_NOT_MATCHED},
            id="a placed pod keeps others out",
        ),
        pytest.param(
            WEB, cluster(n3=[wanting("single", apart=requiring(term("web")))]), {}, id="but not outside all zones"
        ),
    ],
)
def test_nodes_are_rejected_by_their_pods(pod, snapshot, expected):
    assert refused(pod, snapshot) == expected


@pytest.mark.parametrize(
    ("fields", "met"),
    [
        pytest.param({}, False, id="only the pod's own namespace"),
        pytest.param({"namespaces": ["other"]}, True, id="namespaces by name"),
        pytest.param({"namespace_selector": LabelSelector(match_labels={"team": "red"})}, True, id="by label"),
        pytest.param({"namespace_selector": LabelSelector(match_labels={"team": "blue"})}, False, id="by another"),
        pytest.param({"namespace_selector": LabelSelector()}, True, id="all of them"),
    ],
)
def test_terms_match_pods_of_their_namespaces(fields, met):
    there = msgspec.structs.replace(WEB, metadata=msgspec.structs.replace(WEB.metadata, namespace="other"))
    snapshot = cluster(n0=[there])
    snapshot.set_namespace(Namespace(metadata=ObjectMeta(name="other", labels={"team": "red"})))
    assert ("n0" not in refused(wanting("p", together=requiring(term("web", **fields))), snapshot)) is met


def test_namespace_labels_change_the_matching_pods():
    pod = wanting("p", apart=requiring(term("web", namespace_selector=LabelSelector(match_labels={"team": "red"}))))
    snapshot, seen = cluster(n0=[WEB]), []
    for team in ("red", "blue", "red"):
        snapshot.set_namespace(Namespace(metadata=ObjectMeta(name="default", labels={"team": team})))
        seen.append("n0" in refused(pod, snapshot))
    assert seen == [True, False, True]


@pytest.mark.parametrize(
    ("pod", "placed", "args", "expected"),
    [
        # zone a: 30 + 30, zone b: 20, outside: 0; times 100/60
        pytest.param(
            wanting("p", together=preferring(web=30, db=20)),
            {"n0": [WEB], "n1": [wanting("web2", "web")], "n2": [DB]},
            {},
            [100, 100, 33, 0],
            id="its own preferences",
        ),
        # zone a: -50, zone b: 0
        pytest.param(wanting("p", apart=preferring(web=50)), {"n0": [WEB]}, {}, [0, 0, 100, 100], id="rather apart"),
        # a: 1 for the required term, b: 10 preferred, outside 0; 100 * (1 - 0) / 10
        pytest.param(
            WEB,
            {"n0": [wanting("x", together=requiring(term("web")))], "n2": [wanting("y", together=preferring(web=10))]},
            {},
            [10, 10, 100, 0],
            id="what placed pods want",
        ),
        # a: 50, b: 10
        pytest.param(
            WEB,
            {"n0": [wanting("x", together=requiring(term("web")))], "n2": [wanting("y", together=preferring(web=10))]},
            {"hard_pod_affinity_weight": 50},
            [100, 100, 20, 0],
            id="a required term counts with the hard weight",
        ),
        pytest.param(
            WEB,
            {"n2": [wanting("y", together=preferring(web=10))]},
            {"ignore_preferred_terms_of_existing_pods": True},
            None,
            id="preferred terms of existing pods can be ignored",
        ),
        pytest.param(WEB, {"n0": [DB]}, {}, None, id="no terms"),
        pytest.param(wanting("p", together=preferring(web=30)), {"n3": [WEB]}, {}, None, id="no pod in a domain"),
        # a: 10 - 10 = 0, all 0: they are equal
        pytest.param(
            wanting("p", together=preferring(web=10), apart=preferring(db=10)),
            {"n0": [WEB, DB]},
            {},
            [0, 0, 0, 0],
            id="weights that cancel out are scored",
        ),
    ],
)
def test_scores_follow_preferred_terms(pod, placed, args, expected):
    assert points(pod, cluster(**placed), **args) == expected


def test_points_are_divided_before_they_are_multiplied():
    plugin, state = InterPodAffinity(InterPodAffinityArgs()), CycleState(Snapshot().class_of(WEB))
    # 100 * (29 / 50) is 57.99999999999999
    assert plugin.normalize(state, WEB, np.array([0, 29, 50]), Nodes(Snapshot())).tolist() == [0, 57, 100]


@given(snapshot=snapshots(), pod=pods, other=pods, node=st.sampled_from(NODE_NAMES))
def test_add_pod_and_remove_pod_equal_a_fresh_pre_filter(snapshot, pod, other, node):
    info = node_info(snapshot, node)
    if info is None or snapshot.node_of(other.uid) is not None:
        return
    plugin = InterPodAffinity(InterPodAffinityArgs())
    state = CycleState(snapshot.class_of(pod))
    if plugin.pre_filter(state, pod, snapshot).status.is_skip:
        return
    before, changed = answers(plugin, state, pod, snapshot), state.clone()
    with snapshot.supposing(placed=[(other, node)]):
        plugin.add_pod(changed, pod, other, info)
        fresh = CycleState(snapshot.class_of(pod))
        if not plugin.pre_filter(fresh, pod, snapshot).status.is_skip:
            assert answers(plugin, changed, pod, snapshot) == answers(plugin, fresh, pod, snapshot)
    plugin.remove_pod(changed, pod, other, info)
    assert answers(plugin, changed, pod, snapshot) == before == answers(plugin, state, pod, snapshot)


def answers(plugin, state, pod, snapshot) -> dict[str, object]:
    return {name: plugin.filter(state, pod, node_info(snapshot, name)) for name in snapshot.node_names()}


WITH_WEB, APART_FROM_WEB = wanting("p", together=requiring(term("web"))), wanting("p", apart=requiring(term("web")))


@pytest.mark.parametrize(
    ("pod", "resource", "action", "old", "new", "expected"),
    [
        pytest.param(WITH_WEB, Resource.POD, Action.ADD, None, WEB, True, id="a matching pod is added"),
        pytest.param(WITH_WEB, Resource.POD, Action.ADD, None, DB, False, id="another pod is added"),
        pytest.param(WITH_WEB, Resource.POD, Action.UPDATE_POD_LABEL, DB, WEB, True, id="a pod gets the label"),
        pytest.param(WITH_WEB, Resource.POD, Action.DELETE, WEB, None, False, id="a matching pod is deleted"),
        pytest.param(APART_FROM_WEB, Resource.POD, Action.DELETE, WEB, None, True, id="who stood in the way goes"),
        pytest.param(APART_FROM_WEB, Resource.POD, Action.DELETE, DB, None, False, id="another pod is deleted"),
        pytest.param(WEB, Resource.POD, Action.DELETE, APART_FROM_WEB, None, True, id="who kept it out goes"),
        pytest.param(WITH_WEB, Resource.NODE, Action.ADD, None, a_node("n"), False, id="a node outside the topology"),
        pytest.param(
            WITH_WEB, Resource.NODE, Action.ADD, None, a_node("n", labels={"zone": "z"}), True, id="a node of a zone"
        ),
        pytest.param(
            WITH_WEB,
            Resource.NODE,
            Action.UPDATE_NODE_LABEL,
            a_node("n", labels={"zone": "a"}),
            a_node("n", labels={"zone": "b"}),
            True,
            id="a node comes to another zone",
        ),
        pytest.param(
            WITH_WEB,
            Resource.NODE,
            Action.UPDATE_NODE_LABEL,
            a_node("n", labels={"zone": "a"}),
            a_node("n", labels={"zone": "a", "disk": "ssd"}),
            False,
            id="another label changes",
        ),
    ],
)
def test_events_that_help(pod, resource, action, old, new, expected):
    assert may_help(default_profile(), {"InterPodAffinity"}, ClusterEvent(resource, action), pod, old, new) is expected


def test_the_hard_weight_must_be_within_0_and_100():
    assert validate(InterPodAffinityArgs(hard_pod_affinity_weight=101), "args") == [
        "args.hardPodAffinityWeight: want 0..100, got 101"
    ]
