"""NodeUnschedulable, NodeName, TaintToleration and NodeAffinity: their events, points and arguments."""

import numpy as np
import pytest

from berth.api.meta import SelectorRequirement
from berth.api.node import Taint
from berth.api.pod import (
    Affinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodSchedulingGate,
    PreferredNodeTerm,
    Toleration,
)
from berth.api.pod import NodeAffinity as PodNodeAffinity
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.interface import EnqueueExtensions
from berth.framework.status import CycleState
from berth.plugins.nodeaffinity import NodeAffinityArgs, NodeAffinityPlugin, validate
from berth.plugins.nodename import NodeName
from berth.plugins.nodeunschedulable import NodeUnschedulable
from berth.plugins.schedulinggates import SchedulingGates
from berth.plugins.tainttoleration import TaintToleration
from harness.builders.objects import a_node, a_pod


def helped(plugin: EnqueueExtensions, event: ClusterEvent, pod: Pod, old: object, new: object) -> bool:
    hints = [hint for hint in plugin.events() if hint.event.matches(event)]
    return any(hint.hint is None or hint.hint(pod, old, new) for hint in hints)


ADDED = ClusterEvent(Resource.NODE, Action.ADD)
TAINTED = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_TAINT)
LABELLED = ClusterEvent(Resource.NODE, Action.UPDATE_NODE_LABEL)
TOLERATIONS = ClusterEvent(Resource.POD, Action.UPDATE_POD_TOLERATIONS)
GATES_GONE = ClusterEvent(Resource.POD, Action.UPDATE_POD_SCHEDULING_GATES_ELIMINATED)
OPEN, CORDONED = a_node("n"), a_node("n", unschedulable=True)
DEDICATED = a_node("n", taints=[Taint(key="dedicated", effect="NoSchedule")])
TOLERANT = a_pod(tolerations=[Toleration(operator="Exists")])
SSD = a_node("n", labels={"disk": "ssd"})
WANTS_SSD = a_pod(node_selector={"disk": "ssd"})
PINNED = a_pod(node_name="n")


@pytest.mark.parametrize(
    ("plugin", "event", "pod", "old", "new", "expected"),
    [
        pytest.param(NodeUnschedulable(), TAINTED, a_pod(), CORDONED, OPEN, True, id="uncordoned"),
        pytest.param(NodeUnschedulable(), TAINTED, a_pod(), OPEN, OPEN, False, id="was not cordoned"),
        pytest.param(NodeUnschedulable(), ADDED, a_pod(), None, OPEN, True, id="an open node"),
        pytest.param(NodeUnschedulable(), ADDED, a_pod(), None, CORDONED, False, id="a cordoned node"),
        pytest.param(NodeUnschedulable(), LABELLED, a_pod(), CORDONED, OPEN, False, id="labels do not matter"),
        pytest.param(NodeUnschedulable(), TOLERATIONS, a_pod(), a_pod(), TOLERANT, True, id="it tolerates cordons now"),
        pytest.param(NodeUnschedulable(), TOLERATIONS, a_pod(), a_pod(), a_pod(), False, id="it still does not"),
        pytest.param(
            NodeUnschedulable(), TOLERATIONS, a_pod("other"), a_pod(), TOLERANT, False, id="another pod tolerates"
        ),
        pytest.param(NodeName(), ADDED, PINNED, None, OPEN, True, id="the node"),
        pytest.param(NodeName(), ADDED, PINNED, None, a_node("m"), False, id="another node"),
        pytest.param(TaintToleration(), TAINTED, a_pod(), DEDICATED, OPEN, True, id="the taint goes"),
        pytest.param(TaintToleration(), TAINTED, a_pod(), OPEN, OPEN, False, id="there was none"),
        pytest.param(TaintToleration(), ADDED, a_pod(), None, DEDICATED, False, id="a tainted node"),
        pytest.param(TaintToleration(), ADDED, TOLERANT, None, DEDICATED, True, id="a tainted node that it tolerates"),
        pytest.param(TaintToleration(), TOLERATIONS, a_pod(), a_pod(), TOLERANT, True, id="it tolerates more"),
        pytest.param(TaintToleration(), TOLERATIONS, a_pod(), a_pod("o"), a_pod("o"), False, id="another pod does"),
        pytest.param(NodeAffinityPlugin(NodeAffinityArgs()), LABELLED, WANTS_SSD, OPEN, SSD, True, id="it matches now"),
        pytest.param(
            NodeAffinityPlugin(NodeAffinityArgs()), LABELLED, WANTS_SSD, SSD, SSD, False, id="it matched before"
        ),
        pytest.param(
            NodeAffinityPlugin(NodeAffinityArgs()), ADDED, WANTS_SSD, None, OPEN, False, id="it does not match"
        ),
        pytest.param(
            NodeAffinityPlugin(NodeAffinityArgs()), ADDED, WANTS_SSD, None, SSD, True, id="a node that matches"
        ),
        pytest.param(SchedulingGates(), GATES_GONE, a_pod(), a_pod(), a_pod(), True, id="the gates are gone"),
        pytest.param(
            SchedulingGates(),
            GATES_GONE,
            a_pod(),
            a_pod(),
            a_pod(scheduling_gates=[PodSchedulingGate(name="g")]),
            False,
            id="one gate is left",
        ),
    ],
)
def test_events_that_help(plugin, event, pod, old, new, expected):
    assert helped(plugin, event, pod, old, new) is expected


def mild(*keys: str) -> list[Taint]:
    return [Taint(key=key, effect="PreferNoSchedule") for key in keys]


@pytest.mark.parametrize(
    ("pod", "points"),
    [
        # 0, 1 and 3 mild taints: 100 - 100*0/3, 100 - 33, 100 - 100
        pytest.param(a_pod(), [100, 67, 0], id="the fewer the better"),
        pytest.param(TOLERANT, [100, 100, 100], id="all tolerated"),
        # a tolerated: 0, 0 and 2
        pytest.param(a_pod(tolerations=[Toleration(key="a", operator="Exists")]), [100, 100, 0], id="some tolerated"),
    ],
)
def test_points_for_few_mild_taints(pod, points):
    snapshot, plugin = Snapshot(), TaintToleration()
    for name, taints in {"n0": [], "n1": mild("a"), "n2": mild("a", "b", "c")}.items():
        snapshot.set_node(a_node(name, taints=taints))
    state, nodes = CycleState(snapshot.class_of(pod)), Nodes(snapshot)
    raw = plugin.score_all(state, pod, nodes)
    assert plugin.normalize(state, pod, raw, nodes).tolist() == points


def term(key: str, operator: str, *values: str) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=[SelectorRequirement(key=key, operator=operator, values=list(values))])


def preferring(*weighted: tuple[int, NodeSelectorTerm]) -> PodNodeAffinity:
    terms = [PreferredNodeTerm(weight=weight, preference=preference) for weight, preference in weighted]
    return PodNodeAffinity(preferred_during_scheduling_ignored_during_execution=terms)


def requiring(*terms: NodeSelectorTerm) -> PodNodeAffinity:
    return PodNodeAffinity(
        required_during_scheduling_ignored_during_execution=NodeSelector(node_selector_terms=list(terms))
    )


ADDED_AFFINITY = preferring((30, term("zone", "In", "a")))


@pytest.mark.parametrize(
    ("added", "points"),
    [
        # weights that hold: 60 + 20 = 80, 20, 0; times 100/80
        pytest.param(None, [100, 25, 0], id="the pod's own"),
        # added 30 on zone a: 80, 50, 0
        pytest.param(ADDED_AFFINITY, [100, 62, 0], id="with added affinity"),
    ],
)
def test_points_for_preferred_terms(added, points):
    snapshot, plugin = Snapshot(), NodeAffinityPlugin(NodeAffinityArgs(added_affinity=added))
    for name, labels in {"n0": {"disk": "ssd", "tier": "3"}, "n1": {"zone": "a", "tier": "5"}, "n2": {}}.items():
        snapshot.set_node(a_node(name, labels=labels))
    pod = a_pod(
        affinity=Affinity(node_affinity=preferring((60, term("disk", "In", "ssd")), (20, term("tier", "Gt", "2"))))
    )
    state, nodes = CycleState(snapshot.class_of(pod)), Nodes(snapshot)
    raw = plugin.score_all(state, pod, nodes)
    assert plugin.normalize(state, pod, raw, nodes).tolist() == points


@pytest.mark.parametrize(
    ("preference", "points"),
    [
        pytest.param(term("tier", "Gt", "-1"), [100, 0], id="a number that is no label's value"),
        pytest.param(term("tier", "Gt", "much"), [0, 0], id="no number"),
        pytest.param(term("tier", "In", "a b"), [0, 0], id="a value that no label has"),
    ],
)
def test_a_preference_that_kube_scheduler_cannot_read_keeps_no_pod_from_a_node(preference, points):
    """The API server accepts such preferences; the pod waits in kube-scheduler 1.36.3 (docs/comparison.md)."""
    snapshot, plugin = Snapshot(), NodeAffinityPlugin(NodeAffinityArgs())
    for name, labels in {"n0": {"tier": "0"}, "n1": {}}.items():
        snapshot.set_node(a_node(name, labels=labels))
    pod = a_pod(affinity=Affinity(node_affinity=preferring((1, preference))))
    state, nodes = CycleState(snapshot.class_of(pod)), Nodes(snapshot)
    assert plugin.pre_score(state, pod, nodes).is_success
    assert plugin.normalize(state, pod, plugin.score_all(state, pod, nodes), nodes).tolist() == points


def test_without_preferred_terms_score_is_skipped():
    snapshot = Snapshot()
    state = CycleState(snapshot.class_of(a_pod()))
    assert NodeAffinityPlugin(NodeAffinityArgs()).pre_score(state, a_pod(), Nodes(snapshot)).is_skip
    added = NodeAffinityPlugin(NodeAffinityArgs(added_affinity=ADDED_AFFINITY))
    assert added.pre_score(state, a_pod(), Nodes(snapshot)).is_success


def test_added_affinity_is_required_of_every_pod_and_reported_first():
    snapshot = Snapshot()
    snapshot.set_node(a_node("n0", labels={"disk": "ssd"}))
    snapshot.set_node(a_node("n1"))
    plugin = NodeAffinityPlugin(NodeAffinityArgs(added_affinity=requiring(term("disk", "In", "ssd"))))
    pod = a_pod(node_selector={"zone": "a"})
    verdicts = plugin.filter_all(CycleState(snapshot.class_of(pod)), pod, Nodes(snapshot))
    assert [verdicts.statuses[code].reasons for code in verdicts.codes] == [
        ("node(s) didn't match Pod's node affinity/selector",),
        ("node(s) didn't match scheduler-enforced node affinity",),
    ]


VALID = "In or NotIn with values, Exists or DoesNotExist without any, or Gt or Lt with one value, a whole number"


def test_every_problem_of_added_affinity_has_its_path():
    added = PodNodeAffinity(
        required_during_scheduling_ignored_during_execution=NodeSelector(node_selector_terms=[term("a", "Like", "b")]),
        preferred_during_scheduling_ignored_during_execution=[
            PreferredNodeTerm(weight=101, preference=term("a", "Gt", "x"))
        ],
    )
    required = "args.addedAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "args.addedAffinity.preferredDuringSchedulingIgnoredDuringExecution"
    assert validate(NodeAffinityArgs(added_affinity=added), "args") == [
        f"{required}.nodeSelectorTerms[0].matchExpressions[0]: want {VALID}, got 'Like' with ['b']",
        f"{preferred}[0].preference.matchExpressions[0]: want {VALID}, got 'Gt' with ['x']",
        f"{preferred}[0].weight: want 1..100, got 101",
    ]
    assert validate(NodeAffinityArgs(), "args") == []


def test_many_different_taints_are_evaluated_only_for_the_given_rows():
    snapshot, plugin = Snapshot(), TaintToleration()
    for i in range(50):
        snapshot.set_node(a_node(f"n{i}", taints=[Taint(key=f"k{i}", effect="NoSchedule")]))
    pod = a_pod(tolerations=[Toleration(key="k7", operator="Exists")])
    some = Nodes(snapshot, np.array([6, 7, 8]))
    assert plugin.filter_all(CycleState(snapshot.class_of(pod)), pod, some).codes.tolist() == [1, 0, 1]
