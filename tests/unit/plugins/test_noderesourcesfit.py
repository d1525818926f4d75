"""NodeResourcesFit: requests that must be free, and the scoring strategies."""

import pytest

from berth.api.pod import Container, Pod, ResourceRequirements
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.status import Code, CycleState, Status
from berth.plugins.noderesources.fit import NodeResourcesFit, NodeResourcesFitArgs, validate
from berth.plugins.noderesources.scoringstrategy import (
    RequestedToCapacityRatio,
    ResourceWeight,
    ScoringStrategy,
    Shape,
    ShapePoint,
)
from harness.builders.objects import a_container, a_node, a_pod, pod_requesting

GPU = "example.com/gpu"


def filtered(pod: Pod, node, *placed: Pod, args: NodeResourcesFitArgs | None = None) -> Status:
    snapshot, plugin = Snapshot(), NodeResourcesFit(args or NodeResourcesFitArgs())
    snapshot.set_node(node)
    for other in placed:
        snapshot.place(other, node.metadata.name)
    state = CycleState(snapshot.class_of(pod))
    plugin.pre_filter(state, pod, snapshot)
    verdicts = plugin.filter_all(state, pod, Nodes(snapshot))
    return verdicts.statuses[verdicts.codes[0]]


@pytest.mark.parametrize(
    ("pod", "node", "reasons", "code"),
    [
        pytest.param(pod_requesting(cpu="4"), a_node("n"), (), Code.SUCCESS, id="just fits"),
        pytest.param(
            pod_requesting(cpu="4001m"),
            a_node("n"),
            ("Insufficient cpu",),
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            id="more than there is",
        ),
        pytest.param(
            pod_requesting(cpu="9", memory="9Gi", **{"ephemeral-storage": "1Ti"}),
            a_node("n", pods="0"),
            ("Too many pods", "Insufficient cpu", "Insufficient memory", "Insufficient ephemeral-storage"),
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            id="every reason",
        ),
        pytest.param(
            pod_requesting(), a_node("n", pods="0"), ("Too many pods",), Code.UNSCHEDULABLE, id="no pod at all"
        ),
        pytest.param(
            pod_requesting(**{GPU: "1"}),
            a_node("n"),
            (f"Insufficient {GPU}",),
            Code.UNSCHEDULABLE_AND_UNRESOLVABLE,
            id="no gpu",
        ),
        pytest.param(pod_requesting(**{GPU: "0"}), a_node("n"), (), Code.SUCCESS, id="none of what is not there"),
    ],
)
def test_requests_must_fit(pod, node, reasons, code):
    status = filtered(pod, node)
    assert (status.reasons, status.code) == (reasons, code)


def test_requests_of_other_pods_are_not_free_but_resolvable():
    status = filtered(pod_requesting(cpu="2"), a_node("n"), pod_requesting("other", cpu="3"))
    assert (status.reasons, status.code) == (("Insufficient cpu",), Code.UNSCHEDULABLE)


def test_a_pod_without_requests_fits_an_overcommitted_node():
    assert filtered(pod_requesting(), a_node("n", cpu="1"), pod_requesting("other", cpu="3")).is_success


def test_pods_are_counted():
    status = filtered(pod_requesting(), a_node("n", pods="1"), pod_requesting("other"))
    assert (status.reasons, status.code) == (("Too many pods",), Code.UNSCHEDULABLE)


@pytest.mark.parametrize("count", [9, 20, 60, 61, 90])
def test_many_extended_resources_each_have_their_reason(count):
    resources = {f"example.com/r{i:02}": "1" for i in range(count)}
    assert filtered(pod_requesting(**resources), a_node("n")).reasons == tuple(
        f"Insufficient {name}" for name in resources
    )


@pytest.mark.parametrize(
    "args",
    [NodeResourcesFitArgs(ignored_resources=[GPU]), NodeResourcesFitArgs(ignored_resource_groups=["example.com"])],
)
def test_ignored_resources_need_not_be_free(args):
    assert filtered(pod_requesting(**{GPU: "1"}), a_node("n"), args=args).is_success


def scored(pod: Pod, strategy: ScoringStrategy, node, *placed: Pod) -> int:
    snapshot, plugin = Snapshot(), NodeResourcesFit(NodeResourcesFitArgs(scoring_strategy=strategy))
    snapshot.set_node(node)
    for other in placed:
        snapshot.place(other, node.metadata.name)
    return int(plugin.score_all(CycleState(snapshot.class_of(pod)), pod, Nodes(snapshot))[0])


LEAST, MOST = ScoringStrategy(type="LeastAllocated"), ScoringStrategy(type="MostAllocated")
RATIO = ScoringStrategy(
    type="RequestedToCapacityRatio",
    requested_to_capacity_ratio=Shape(
        shape=[ShapePoint(utilization=0, score=0), ShapePoint(utilization=100, score=10)]
    ),
)
THREE_QUARTERS = (pod_requesting(cpu="3", memory="5000"), a_node("n", cpu="4", memory="10000"))


@pytest.mark.parametrize(
    ("strategy", "pod", "node", "points"),
    [
        # cpu (4000-3000)*100/4000 = 25; memory (10000-5000)*100/10000 = 50; mean 37.5, down
        pytest.param(LEAST, *THREE_QUARTERS, 37, id="LeastAllocated"),
        # cpu 75; memory 50; mean 62.5, down
        pytest.param(MOST, *THREE_QUARTERS, 62, id="MostAllocated"),
        # the same 62.5, half up
        pytest.param(RATIO, *THREE_QUARTERS, 63, id="RequestedToCapacityRatio"),
        # cpu request above allocatable: 0; memory 50; mean 25
        pytest.param(LEAST, pod_requesting(cpu="9", memory="5000"), THREE_QUARTERS[1], 25, id="least, over"),
        # cpu counts as full: 100; memory 50
        pytest.param(MOST, pod_requesting(cpu="9", memory="5000"), THREE_QUARTERS[1], 75, id="most, over"),
        # nothing named: cpu 100m of 4000m: 97; memory 200Mi of 400Mi: 50; mean 73.5, down
        pytest.param(LEAST, pod_requesting(), a_node("n", memory="400Mi"), 73, id="defaults where nothing is named"),
        # a node without cpu: memory 50 alone
        pytest.param(
            LEAST, pod_requesting(memory="5000"), a_node("n", cpu="0", memory="10000"), 50, id="a resource of 0"
        ),
        pytest.param(LEAST, pod_requesting(), a_node("n", cpu="0", memory="0"), 0, id="nothing at all"),
        # cpu 25 x 3, gpu (4-1)*100/4 = 75 x 1; (75 + 75) / 4 = 37.5, down
        pytest.param(
            ScoringStrategy(
                type="LeastAllocated", resources=[ResourceWeight(name="cpu", weight=3), ResourceWeight(name=GPU)]
            ),
            pod_requesting(cpu="3", **{GPU: "1"}),
            a_node("n", **{GPU: "4"}),
            37,
            id="weights and extended resources",
        ),
        # the pod requests no gpu: cpu 25 alone
        pytest.param(
            ScoringStrategy(type="LeastAllocated", resources=[ResourceWeight(name="cpu"), ResourceWeight(name=GPU)]),
            pod_requesting(cpu="3"),
            a_node("n", **{GPU: "4"}),
            25,
            id="an extended resource that is not requested",
        ),
        # ephemeral storage counts as requested: (100-25)*100/100 = 75
        pytest.param(
            ScoringStrategy(type="LeastAllocated", resources=[ResourceWeight(name="ephemeral-storage")]),
            pod_requesting(**{"ephemeral-storage": "25Gi"}),
            a_node("n"),
            75,
            id="ephemeral storage",
        ),
    ],
)
def test_points(strategy, pod, node, points):
    assert scored(pod, strategy, node) == points


def test_pods_on_the_node_count_with_defaults_too():
    # cpu (4000 - 100 - 100)*100/4000 = 95; memory (8192 - 200 - 200)*100/8192 = 95
    assert scored(a_pod(), LEAST, a_node("n"), a_pod("other")) == 95


def test_a_falling_segment_of_a_shape_is_divided_toward_zero():
    # (0 - 100) * 7 / 30 = -23.3, toward zero -23: 77
    strategy = RequestedToCapacityRatio([(0, 100), (30, 0)])
    assert strategy.of_node([(1, 7, 100)]) == 77
    assert strategy.of_node([(1, 50, 100)]) == 0


@pytest.mark.parametrize(("strategy", "packs"), [(LEAST, False), (MOST, True), (RATIO, True)])
def test_which_strategies_fill_nodes_up(strategy, packs):
    assert NodeResourcesFit(NodeResourcesFitArgs(scoring_strategy=strategy)).packs is packs


def helped(pod: Pod, resource: Resource, action: Action, old: object, new: object) -> bool:
    happened = ClusterEvent(resource, action)
    hints = [hint for hint in NodeResourcesFit(NodeResourcesFitArgs()).events() if hint.event.matches(happened)]
    return any(hint.hint is None or hint.hint(pod, old, new) for hint in hints)


WAITING = pod_requesting(cpu="2")
BOUND = a_pod("other", containers=[a_container(cpu="1")], node_name="n0")
SMALLER = a_pod("other", containers=[a_container(cpu="500m")], node_name="n0")
LESS_MEMORY = (
    a_pod("other", containers=[a_container(memory="2Gi")], node_name="n0"),
    a_pod("other", containers=[a_container(memory="1Gi")], node_name="n0"),
)


@pytest.mark.parametrize(
    ("action", "old", "new", "expected"),
    [
        pytest.param(Action.DELETE, BOUND, None, True, id="a pod on a node goes"),
        pytest.param(Action.DELETE, pod_requesting("other", cpu="1"), None, False, id="a pod without a node goes"),
        pytest.param(Action.UPDATE_POD_SCALE_DOWN, BOUND, SMALLER, True, id="a pod needs less of what is wanted"),
        pytest.param(Action.UPDATE_POD_SCALE_DOWN, *LESS_MEMORY, False, id="a pod needs less of something else"),
        pytest.param(
            Action.UPDATE_POD_SCALE_DOWN, WAITING, pod_requesting(cpu="1"), True, id="the pod itself needs less"
        ),
        pytest.param(
            Action.UPDATE_POD_SCALE_DOWN,
            pod_requesting("x", cpu="2"),
            pod_requesting("x", cpu="1"),
            False,
            id="one without a node",
        ),
        pytest.param(Action.UPDATE_POD_LABEL, BOUND, BOUND, False, id="labels do not matter"),
    ],
)
def test_pod_events_that_help(action, old, new, expected):
    assert helped(WAITING, Resource.POD, action, old, new) is expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param(None, a_node("n"), True, id="a node that is large enough"),
        pytest.param(None, a_node("n", cpu="1"), False, id="a node that is too small"),
        pytest.param(None, a_node("n", pods="0"), False, id="a node for no pods"),
        pytest.param(a_node("n"), a_node("n", cpu="8"), True, id="more cpu"),
        pytest.param(a_node("n"), a_node("n", memory="16Gi"), False, id="more of what is not wanted"),
        pytest.param(a_node("n", pods="1"), a_node("n", pods="2"), True, id="more pods"),
    ],
)
def test_node_events_that_help(old, new, expected):
    action = Action.ADD if old is None else Action.UPDATE_NODE_ALLOCATABLE
    assert helped(WAITING, Resource.NODE, action, old, new) is expected


def test_a_cleared_nomination_helps():
    assert helped(WAITING, Resource.NOMINATION, Action.DELETE, None, None)


def test_sidecars_and_init_containers_must_fit_too():
    sidecar = Container(resources=ResourceRequirements(requests={"cpu": "3"}), restart_policy="Always")
    pod = a_pod(containers=[a_container(cpu="2")], init_containers=[sidecar])
    assert filtered(pod, a_node("n")).reasons == ("Insufficient cpu",)


def test_every_problem_of_the_arguments_has_its_path():
    args = NodeResourcesFitArgs(
        ignored_resources=["cpu", "a gpu"],
        ignored_resource_groups=["a/b"],
        scoring_strategy=ScoringStrategy(
            type="RequestedToCapacityRatio",
            resources=[ResourceWeight(name="cpu", weight=101), ResourceWeight(name="cpu"), ResourceWeight(name="pods")],
            requested_to_capacity_ratio=Shape(
                shape=[ShapePoint(utilization=50, score=11), ShapePoint(utilization=50), ShapePoint(utilization=101)]
            ),
        ),
    )
    assert validate(args, "args") == [
        "args.ignoredResources[1]: want a resource such as example.com/gpu, got 'a gpu'",
        "args.ignoredResourceGroups[0]: want a group such as example.com, without '/', got 'a/b'",
        "args.scoringStrategy.resources[0].weight: want 1..100, got 101",
        (
            "args.scoringStrategy.resources[2].name: "
            "want cpu, memory, ephemeral-storage or an extended resource, got 'pods'"
        ),
        "args.scoringStrategy.requestedToCapacityRatio.shape[2].utilization: want 0..100, got 101",
        "args.scoringStrategy.requestedToCapacityRatio.shape[0].score: want 0..10, got 11",
        (
            "args.scoringStrategy.requestedToCapacityRatio.shape[1].utilization: "
            "want more than that of the point before (50), got 50"
        ),
    ]


@pytest.mark.parametrize(
    ("strategy", "problem"),
    [
        (
            ScoringStrategy(type="Best"),
            "a.scoringStrategy.type: want LeastAllocated, MostAllocated or RequestedToCapacityRatio, got 'Best'",
        ),
        (
            ScoringStrategy(),
            "a.scoringStrategy.type: want LeastAllocated, MostAllocated or RequestedToCapacityRatio, got ''",
        ),
        (
            ScoringStrategy(type="MostAllocated", requested_to_capacity_ratio=Shape()),
            (
                "a.scoringStrategy.requestedToCapacityRatio: "
                "want it only where type is RequestedToCapacityRatio, got it with 'MostAllocated'"
            ),
        ),
        (
            ScoringStrategy(type="RequestedToCapacityRatio"),
            "a.scoringStrategy.requestedToCapacityRatio.shape: want at least one point, got none",
        ),
    ],
)
def test_an_unknown_strategy_or_one_without_a_shape_is_rejected(strategy, problem):
    assert validate(NodeResourcesFitArgs(scoring_strategy=strategy), "a") == [problem]


def test_the_default_arguments_are_valid():
    assert validate(NodeResourcesFitArgs(), "a") == []
