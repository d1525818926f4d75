"""NodeLoad: its arithmetic, newcomers, unknown nodes, its filter, and what it says."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from berth.api.config.nodeload.args import NodeLoadArgs, reading_of
from berth.api.config.nodeload.trimaran import (
    LoadVariationRiskBalancingArgs,
    TargetLoadPackingArgs,
    balancing_readings,
    packing_readings,
)
from berth.api.meta import OwnerReference
from berth.api.pod import Container, Pod, ResourceRequirements
from berth.cluster.nodes import AnotherPod, NodeInfoWithAnother, Nodes, NodesWithAnother, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.events import Action, ClusterEvent, LiveDataUpdate, Resource
from berth.framework.status import CycleState
from berth.messages.livedata import LiveSource, MeasuredUsage, NodeSample, encode_sample
from berth.plugins.nodeload.loads import RowSums
from berth.plugins.nodeload.plugin import FACTORY, FilteringNodeLoad, NodeLoad
from berth.plugins.nodeload.trimaran import LoadVariationRiskBalancing, TargetLoadPacking
from berth.plugins.noderesources.balancedallocation import NAME as BALANCED
from berth.plugins.nodeunschedulable import NodeUnschedulable
from berth.plugins.registry import BUILT_IN
from berth_cli.remedies.rejections import remedies_of
from harness.builders.loads import NOW, measured, percents, points, using
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import profile_of
from harness.worlds.queueing_hints import may_help

SMALL = using(cpu="10m", memory="1Mi")
WEB = using(cpu="1", memory="1Gi")  # estimated at 850 millicores and 0.7 GiB: 8.5 % and 7 % of a node
SHORT = timedelta(seconds=100)


def args(**more) -> NodeLoadArgs:
    return NodeLoadArgs(**{"range": SHORT, **more})


def cluster(how: NodeLoadArgs, **samples: NodeSample | None) -> Snapshot:
    return measured(samples, reading_of(how))


ARITHMETIC = [
    # free with the pod: CPU 100 - 50 - 8.5 = 41.5, memory 100 - 20 - 7 = 73; mean 57.25
    pytest.param({}, percents(50, 20), 57, id="the mean of CPU and memory"),
    # (3 x 41.5 + 73) / 4 = 49.375
    pytest.param({"resource_weights": {"cpu": 3, "memory": 1}}, percents(50, 20), 49, id="weights"),
    pytest.param({"resource_weights": {"cpu": 1}}, percents(50, 20), 41, id="CPU alone"),
    # balance 100 - |58.5 - 27| = 68.5; (41.5 + 73 + 68.5) / 3 = 61
    pytest.param({"balance_weight": 1}, percents(50, 20), 61, id="balance"),
    # of a busy node nothing is free: (0 + 73) / 2 = 36.5
    pytest.param({}, percents(120, 20), 36, id="more in use than allocatable"),
    # 100 % of the requests: CPU 100 - 50 - 10 = 40, memory 100 - 20 - 10 = 70
    pytest.param({"estimated_scaling_factors": {"cpu": 100, "memory": 100}}, percents(50, 20), 55, id="factors"),
    # CPU 100 - 70 - 8.5
    pytest.param({"statistic": "p95", "resource_weights": {"cpu": 1}}, percents(50, p95=7000.0), 21, id="a percentile"),
]


@pytest.mark.parametrize(("more", "sample", "expected"), ARITHMETIC)
def test_points_are_what_stays_free(more, sample, expected):
    how = args(**more)
    assert points(NodeLoad(how), cluster(how, a=sample), WEB) == {"a": expected}


def beside_a_proxy(**requests: str) -> Pod:
    """A pod without limits but that of a small container."""
    (main,) = using(**requests).spec.containers
    proxy = ResourceRequirements(requests={"cpu": "100m"}, limits={"cpu": "100m"})
    return a_pod(containers=[main, Container(name="proxy", resources=proxy)])


ESTIMATES = [
    pytest.param(using(cpu="1"), 91, id="85 % of the request"),
    # 85 % of 2 cores
    pytest.param(using(cpu="1", limits={"cpu": "2"}), 83, id="of the limit where it is larger"),
    pytest.param(using(limits={"cpu": "4"}), 66, id="a limit alone"),
    pytest.param(using(), 97, id="250 millicores without either"),
    # 85 % of 4.1 cores
    pytest.param(beside_a_proxy(cpu="4"), 65, id="the request where a limit is the proxy's alone"),
    pytest.param(beside_a_proxy(), 99, id="the proxy's limit alone"),
]


@pytest.mark.parametrize(("pod", "expected"), ESTIMATES)
def test_a_pod_is_estimated_by_its_requests_and_limits(pod, expected):
    how = args(resource_weights={"cpu": 1})
    assert points(NodeLoad(how), cluster(how, a=percents(0)), pod) == {"a": expected}


def test_a_pod_is_estimated_with_its_memory():
    how = args(resource_weights={"memory": 1}, estimated_scaling_factors={"memory": 50})
    assert points(NodeLoad(how), cluster(how, a=percents(0, 20)), using(memory="1Gi")) == {"a": 75}


def test_the_estimate_of_a_newcomer_fades_as_the_sample_takes_it_in():
    how = args(resource_weights={"cpu": 1}, estimated_scaling_factors={"cpu": 100})
    snapshot, plugin, pod = cluster(how, a=percents(0, ago=10)), NodeLoad(how), using(cpu="1")
    for name, since in [("whole", NOW - 5), ("half", NOW - 60), ("none", NOW - 110), ("proposed", None)]:
        # sampled at NOW - 10: bound after it: 1; 50 s of 100 before it: 1/2; 100 s before it: 0; not bound yet: 1
        snapshot.place(using(name, cpu="1"), "a", bound_at=since)
    assert points(plugin, snapshot, pod) == {"a": 65}  # 100 - 25 - 10 of the pod itself
    snapshot.remove_pod("uid-whole")
    assert points(plugin, snapshot, pod) == {"a": 75}
    snapshot.live.observe_time(NOW + 40)
    snapshot.live.set_sample(reading_of(how).query.token, "a", percents(0, ago=-40))
    # sampled at NOW + 40: 'half' is 100 s old by then and in the mean; the proposed one still counts whole
    assert points(plugin, snapshot, pod) == {"a": 80}


def test_an_unknown_node_is_the_mean_of_the_others():
    how = args(resource_weights={"cpu": 1}, maximum_age=timedelta(seconds=60))
    snapshot = cluster(how, low=percents(10), high=percents(50), old=percents(1, ago=61), none=None)
    pod = using(cpu="1", limits={"cpu": "1"})  # 8.5 %
    assert points(NodeLoad(how), snapshot, pod) == {"low": 81, "high": 41, "old": 61, "none": 61}


def test_a_node_that_reports_more_than_it_has_counts_in_the_mean_as_full():
    how = args(resource_weights={"cpu": 1})
    snapshot = cluster(how, low=percents(10), impossible=percents(25_000), none=None)
    pod = using(cpu="1", limits={"cpu": "1"})  # 8.5 %
    assert points(NodeLoad(how), snapshot, pod) == {"low": 81, "impossible": 0, "none": 36}


def test_newcomers_count_on_unknown_nodes_and_fade_with_the_clock():
    how = args(resource_weights={"cpu": 1}, estimated_scaling_factors={"cpu": 100})
    snapshot, plugin, pod = cluster(how, known=percents(30), none=None), NodeLoad(how), using(cpu="1")
    snapshot.place(using("proposed", cpu="1"), "none")
    snapshot.place(using("bound", cpu="2"), "none", bound_at=NOW - 50)  # 20 % x 1/2
    assert points(plugin, snapshot, pod) == {"known": 60, "none": 40}
    snapshot.live.observe_time(NOW + 25)  # 20 % x 1/4
    assert points(plugin, snapshot, pod) == {"known": 60, "none": 45}


def test_with_fewer_than_half_of_the_nodes_known_it_abstains():
    how = args(maximum_age=timedelta(seconds=60))
    snapshot = cluster(how, a=percents(10, 10), b=percents(90, 90, ago=61), c=None)
    plugin = NodeLoad(how)
    assert points(plugin, snapshot, WEB) == {"a": 0, "b": 0, "c": 0}
    told = plugin.explain(CycleState(snapshot.class_of(WEB)), WEB, node_info(snapshot, "a"))
    assert told == (
        "CPU abstains: 1 of 3 nodes have a recent sample; memory abstains: 1 of 3 nodes have a recent sample"
    )


def test_a_resource_that_is_not_measured_is_left_out():
    how = args()
    snapshot = cluster(how, a=percents(10), b=percents(30, 50), c=percents(50))
    assert points(NodeLoad(how), snapshot, WEB) == {"a": 81, "b": 61, "c": 41}


def explained(how: NodeLoadArgs, snapshot: Snapshot) -> dict[str, str]:
    profile = profile_of(NodeLoad(how))
    candidates = rank(WEB, snapshot, profile, attempt=first_attempt(WEB)).candidates
    return {candidate.node: candidate.details["NodeLoad"] for candidate in candidates}


def test_the_explanation_has_use_age_and_newcomers():
    how = args(resource_weights={"cpu": 1}, maximum_age=timedelta(seconds=60))
    snapshot = cluster(how, a=percents(71, ago=12), b=percents(31), c=percents(5, ago=400), d=None)
    for name in ("x", "y"):
        snapshot.place(using(name, cpu="235m"), "a")  # 200 millicores each
    snapshot.place(using("z", cpu="1"), "d")
    assert explained(how, snapshot) == {
        "a": "71 % of CPU used, sample 12 s old, 2 newcomers estimated at 4 %",
        "b": "31 % of CPU used, sample 0 s old",
        "c": "CPU counted as the mean: 51 % of CPU used, sample 400 s old",
        "d": "CPU counted as the mean: 51 % of CPU used, no sample, 1 newcomer estimated at 8 %",
    }


def test_the_explanation_has_both_resources():
    how = args()
    snapshot = cluster(how, a=percents(71, 40), b=percents(None, 20), c=percents(31))
    assert explained(how, snapshot) == {
        "a": "71 % of CPU and 40 % of memory used, sample 0 s old",
        "b": "CPU counted as the mean: 51 % of CPU and 20 % of memory used, sample 0 s old",
        "c": "memory counted as the mean: 31 % of CPU and 30 % of memory used, sample 0 s old",
    }
    only = args(maximum_age=timedelta(seconds=60))
    without = cluster(only, a=percents(71), b=percents(31))
    assert explained(only, without)["a"] == (
        "71 % of CPU used, sample 0 s old; memory left out: 0 of 2 nodes have a recent sample"
    )


def test_the_explanation_names_a_statistic_other_than_the_average():
    how = args(resource_weights={"cpu": 1}, statistic="p95")
    snapshot = cluster(how, a=percents(10, p95=5000.0), b=None)
    snapshot.place(using("x", cpu="235m"), "a")
    assert explained(how, snapshot) == {
        "a": "50 % of CPU used (p95), sample 0 s old, 1 newcomer estimated at 2 %",
        "b": "CPU counted as the mean: 50 % of CPU used (p95), no sample",
    }


def test_a_proposed_pod_that_is_bound_changes_scores_only_if_a_sample_shows_it():
    how = args()
    snapshot = cluster(how, b=percents(50), **{f"n{number}": percents(50) for number in range(9)})
    plugin, pod = NodeLoad(how), using("web", cpu="1")
    snapshot.place(pod, "b")
    version, _ = plugin.row_changes(snapshot, -1)
    snapshot.place(pod, "b", bound_at=NOW + 1)
    assert plugin.row_changes(snapshot, version) == (version, ())
    snapshot.place(pod, "b", bound_at=NOW - 50)  # half of it is in the sample
    assert plugin.row_changes(snapshot, version) == (version + 1, {snapshot.rows.of("b")})


@pytest.mark.parametrize("is_last_known", [True, False], ids=["all are known", "another is not"])
def test_a_new_sample_changes_its_node_and_the_mean_of_unknown_ones(is_last_known):
    how = args()
    samples = {f"n{number}": percents(50, 50) for number in range(30)}
    snapshot = cluster(how, a=percents(50, 50), z=percents(50, 50) if is_last_known else None, **samples)
    plugin = NodeLoad(how)
    points(plugin, snapshot, WEB)
    version, _ = plugin.row_changes(snapshot, -1)
    snapshot.live.set_sample(reading_of(how).query.token, "a", percents(80, 50))
    changed = {"a"} if is_last_known else {"a", "z"}
    assert plugin.row_changes(snapshot, version) == (version + 1, set(snapshot.rows.of_all(sorted(changed))))
    assert points(plugin, snapshot, WEB) == points(NodeLoad(how), snapshot, WEB)


def test_newcomers_count_after_pods_on_nodes_that_are_not_there():
    how = args()
    snapshot, plugin = cluster(how, a=percents(50), b=percents(50)), NodeLoad(how)
    points(plugin, snapshot, WEB)
    for number in range(snapshot.columns.capacity):  # the columns grow
        snapshot.place(using(f"early-{number}"), f"late-{number}")
    points(plugin, snapshot, WEB)
    snapshot.place(using("web", cpu="4"), "a")
    state, info = CycleState(snapshot.class_of(WEB)), node_info(snapshot, "a")
    # 100 - 50 - 8.5 of the pod itself - 34 of the newcomer
    assert plugin.score(state, WEB, info) == NodeLoad(how).score(state, WEB, info) == 7


def test_the_loss_of_another_pod_is_its_whole_estimate():
    how = args(resource_weights={"cpu": 1}, estimated_scaling_factors={"cpu": 100})
    snapshot, pod = cluster(how, a=percents(50)), using(cpu="1")
    state, another = CycleState(snapshot.class_of(pod)), AnotherPod(pod, snapshot)
    assert NodeLoad(how).score_all(state, pod, NodesWithAnother(snapshot, None, another)).tolist() == [30]


@pytest.mark.parametrize("quietest", [30.0, 29.0, 20.0], ids=["equal", "one is a little quieter", "one is quieter"])
def test_200_pods_between_two_samples_are_spread(quietest):
    how = args()
    samples = {f"n{number}": percents(30, 30) for number in range(19)}
    snapshot = cluster(how, quiet=percents(quietest, quietest), **samples)
    profile = profile_of(NodeLoad(how))
    placed: Counter[str] = Counter()
    for number in range(200):
        pod = using(f"web-{number}", cpu="250m", memory="256Mi")
        best = rank(pod, snapshot, profile, attempt=first_attempt(pod)).candidates[0].node
        snapshot.place(pod, best)
        placed[best] += 1
    assert max(placed.values()) <= 2 * 200 / 20
    assert len(placed) == 20


# Filter.

LIMITS = {"cpu": 60, "memory": 90}


def test_the_filter_refuses_what_the_pod_would_bring_above_a_threshold_and_passes_unknown_nodes():
    how = args(usage_thresholds=LIMITS, maximum_age=timedelta(seconds=60))
    snapshot = cluster(
        how,
        fits=percents(51, 20),  # 51 + 8.5 = 59.5, rounded 60
        cpu=percents(53, 20),
        memory=percents(10, 84),
        both=percents(99, 99),
        old=percents(99, 99, ago=61),
        none=None,
        partly=percents(None, 20),
    )
    profile = profile_of(FACTORY.build(how))
    told = {name: check(WEB, name, snapshot, profile).reasons for name in snapshot.node_names()}
    cpu, memory = "node(s) had too much CPU in use", "node(s) had too much memory in use"
    assert told == {
        "fits": (),
        "cpu": (cpu,),
        "memory": (memory,),
        "both": (cpu, memory),
        "old": (),
        "none": (),
        "partly": (),
    }
    assert profile.live_sources_of_filters == profile.live_sources != frozenset()


def test_promised_pods_fill_a_node_too():
    how = args(usage_thresholds=LIMITS)
    snapshot, profile = cluster(how, a=percents(40, 0)), profile_of(FACTORY.build(how))
    assert check(WEB, "a", snapshot, profile).is_success
    snapshot.place(using("x", cpu="1"), "a")
    assert check(WEB, "a", snapshot, profile).is_success  # 40 + 8.5 + 8.5 = 57
    snapshot.place(using("y", cpu="1"), "a")
    assert not check(WEB, "a", snapshot, profile).is_success


def test_pods_of_daemon_sets_pass():
    how = args(usage_thresholds=LIMITS)
    snapshot, profile = cluster(how, a=percents(99, 99)), profile_of(FACTORY.build(how))
    owner = OwnerReference(kind="DaemonSet", name="agent", uid="1", controller=True)
    assert check(a_pod(metadata={"owner_references": [owner]}), "a", snapshot, profile).is_success


def test_pods_of_daemon_sets_pass_beside_equal_ones_that_do_not():
    how = args(usage_thresholds=LIMITS)
    snapshot, profile = cluster(how, a=percents(99, 99), b=percents(99, 99)), profile_of(FACTORY.build(how))
    owner = OwnerReference(kind="DaemonSet", name="agent", uid="1", controller=True)
    plain, agent = a_pod("plain"), a_pod("agent", metadata={"owner_references": [owner]})
    assert not rank(plain, snapshot, profile, attempt=first_attempt(plain)).candidates
    assert rank(agent, snapshot, profile, attempt=first_attempt(agent)).candidates


def test_no_filter_unless_configured():
    assert not isinstance(FACTORY.build(args()), FilteringNodeLoad)


OWN, OTHER = reading_of(args()).query.token, reading_of(NodeLoadArgs()).query.token


def news(sample: NodeSample | None, *, query: str = OWN) -> LiveDataUpdate:
    data = None if sample is None else encode_sample(sample)
    return LiveDataUpdate(source=LiveSource(bucket="bandwidth", name=query), node="n", data=data)


UNTOLD = NodeSample(cpu=MeasuredUsage(average=9999.0), sampled_at=datetime(2026, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("update", "helps"),
    [
        pytest.param(news(percents(55, 85)), True, id="5 points below"),
        pytest.param(news(percents(55.1, 20)), False, id="less than 5 points below"),
        pytest.param(news(percents(20, 85.1)), False, id="the other resource is not"),
        pytest.param(news(percents(20, 20), query=OTHER), False, id="another query"),
        pytest.param(news(None), True, id="a removed sample: unknown nodes pass"),
        pytest.param(news(percents(None, 20)), True, id="an unknown resource passes"),
        pytest.param(news(UNTOLD), True, id="nobody knows of how much"),
    ],
)
def test_a_sample_well_below_the_thresholds_helps(update, helps):
    profile = profile_of(FACTORY.build(args(usage_thresholds=LIMITS)))
    event = ClusterEvent(Resource.BANDWIDTH, Action.UPDATE)
    assert may_help(profile, ["NodeLoad"], event, SMALL, None, update) is helps


@pytest.mark.parametrize(
    ("pod", "cpu", "helps"),
    [
        pytest.param(using(cpu="4", memory="1Mi"), 30, False, id="30 + 34 = 64"),
        pytest.param(using(cpu="4", memory="1Mi"), 25, True, id="25 + 34 = 59"),
        pytest.param(using(cpu="100m", memory="1Mi", limits={"cpu": "400"}), 1, False, id="a limit beyond every node"),
    ],
)
def test_a_sample_that_leaves_no_room_for_the_pod_does_not_help(pod, cpu, helps):
    profile = profile_of(FACTORY.build(args(usage_thresholds=LIMITS)))
    event = ClusterEvent(Resource.BANDWIDTH, Action.UPDATE)
    assert may_help(profile, ["NodeLoad"], event, pod, None, news(percents(cpu, 20))) is helps


@given(cpu=st.integers(1, 12_000), used=st.integers(0, 12_000))
def test_a_sample_helps_every_pod_that_then_fits_and_is_well_below(cpu, used):
    how = args(usage_thresholds={"cpu": 60})
    profile, pod, sample = profile_of(FACTORY.build(how)), using(cpu=f"{cpu}m"), percents(used / 100)
    fits = check(pod, "a", cluster(how, a=sample), profile).is_success
    event = ClusterEvent(Resource.BANDWIDTH, Action.UPDATE)
    assert may_help(profile, ["NodeLoad"], event, pod, None, news(sample)) >= (fits and used <= 5500)


def test_pods_of_many_sizes_have_few_keys():
    (by_sample, *_) = FACTORY.build(args(usage_thresholds=LIMITS)).events()
    keys = {by_sample.key(using(cpu=f"{cpu}m", memory="1Gi")) for cpu in range(1, 4000)}
    assert len(keys) < 100


@pytest.mark.parametrize(
    ("samples", "least_used"),
    [
        pytest.param({"a": percents(80), "b": percents(57)}, "the least used of 2 nodes, b, has 57 %", id="two nodes"),
        pytest.param({"a": percents(80)}, "a has 80 %", id="one"),
    ],
)
def test_what_would_help_names_the_node_that_is_least_used_with_the_pod(samples, least_used):
    how = args(usage_thresholds={"cpu": 60})
    snapshot, profile = cluster(how, **samples), profile_of(FACTORY.build(how))
    (found,) = remedies_of(using(cpu="2"), snapshot, profile)
    assert found.text == f"would bring CPU above 60 %: {least_used} in use, and the pod is estimated at 17 %"


def test_what_would_help_names_a_node_without_another_obstacle_if_there_is_one():
    how = args(usage_thresholds={"cpu": 60})
    snapshot = cluster(how, a=percents(80), b=percents(57))
    snapshot.set_node(a_node("b", cpu="10", memory="10Gi", unschedulable=True))
    profile = profile_of(FACTORY.build(how), NodeUnschedulable())
    texts = [found.text for found in remedies_of(using(cpu="2"), snapshot, profile)]
    assert "would bring CPU above 60 %: a has 80 % in use, and the pod is estimated at 17 %" in texts


def test_a_rejection_ends_with_the_maximum_age_of_samples():
    profile = profile_of(FACTORY.build(args(usage_thresholds=LIMITS, maximum_age=timedelta(seconds=90))))
    assert profile.rejects_for == {"NodeLoad": 90.0}


@pytest.mark.parametrize(("used", "helps"), [(2, True), (2.1, False)])
def test_of_a_threshold_below_10_percent_a_sample_of_the_half_helps(used, helps):
    profile = profile_of(FACTORY.build(args(usage_thresholds={"cpu": 4})))
    event = ClusterEvent(Resource.BANDWIDTH, Action.UPDATE)
    assert may_help(profile, ["NodeLoad"], event, SMALL, None, news(percents(used))) is helps


@pytest.mark.parametrize(
    ("resource", "action", "old", "new", "helps"),
    [
        pytest.param(Resource.NODE, Action.ADD, None, a_node("n"), True, id="a node without a sample"),
        pytest.param(Resource.NODE, Action.UPDATE_NODE_LABEL, a_node("n"), a_node("n"), False, id="a label"),
        pytest.param(Resource.POD, Action.DELETE, a_pod("o", node="n"), None, True, id="a pod that was on a node"),
        pytest.param(Resource.POD, Action.DELETE, a_pod("o"), None, False, id="a pod that was on none"),
    ],
)
def test_other_events_that_help(resource, action, old, new, helps):
    profile = profile_of(FACTORY.build(args(usage_thresholds=LIMITS)))
    assert may_help(profile, ["NodeLoad"], ClusterEvent(resource, action), WEB, old, new) is helps


# Both forms, compared with a fresh computation, after random histories.

NAMES = ["n0", "n1", "n2", "n3"]
amounts = st.none() | st.sampled_from([0.0, 15.0, 40.0, 90.0])
histories = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.sampled_from(NAMES)),
        st.tuples(st.just("no node"), st.sampled_from(NAMES)),
        st.tuples(st.just("pod"), st.sampled_from(NAMES), st.integers(0, 5), st.none() | st.integers(-150, 0)),
        st.tuples(st.just("no pod"), st.integers(0, 5)),
        st.tuples(st.just("sample"), st.sampled_from(NAMES), amounts, amounts, st.integers(-100, 0)),
        st.tuples(st.just("no sample"), st.sampled_from(NAMES)),
        st.tuples(st.just("time"), st.integers(1, 4)),
        st.tuples(st.just("look")),
    ),
    max_size=30,
)
HOW = args(
    maximum_age=timedelta(seconds=50),
    usage_thresholds={"cpu": 50},
    estimated_scaling_factors={"cpu": 100, "memory": 100},
)
PACKING = TargetLoadPackingArgs()
BALANCING = LoadVariationRiskBalancingArgs()
READINGS = (reading_of(HOW), *packing_readings(PACKING), *balancing_readings(BALANCING))
TOKENS = {reading.query.token for reading in READINGS}


class FreshLoads:
    """The result of a history, in plain dicts; shares in percent."""

    def __init__(self) -> None:
        self.now = 0.0
        self.nodes: set[str] = set()
        self.pods: dict[int, tuple[str, int | None]] = {}
        self.samples: dict[str, tuple[float | None, float | None, int]] = {}

    def recent(self, node: str) -> tuple[float | None, float | None, float]:
        sample = self.samples.get(node)
        if sample is not None and self.now - sample[2] <= 50:
            return sample
        step = 100 / 12  # of the range
        return None, None, math.floor((NOW + self.now) / step) * step - NOW

    def used(self, node: str, index: int) -> float | None:
        """With the pod, which is 10 % of a node; None if fewer than half are known."""
        known = [share for name in self.nodes if (share := self.recent(name)[index]) is not None]
        if 2 * len(known) < len(self.nodes):
            return None
        own = self.recent(node)[index]
        return (math.fsum(known) / len(known) if own is None else own) + 10 * self.missing(node) + 10

    def missing(self, node: str) -> float:
        as_of = self.recent(node)[2]
        return math.fsum(
            1.0 if since is None else math.floor(1024 * min(1.0, max(0.0, 1 - (as_of - since) / 100))) / 1024
            for where, since in self.pods.values()
            if where == node
        )

    def score(self, node: str) -> float:
        used = [share for index in (0, 1) if (share := self.used(node, index)) is not None]
        return sum(100 - min(share, 100) for share in used) / len(used) if used else 0.0

    def refuses(self, node: str) -> bool:
        used = self.recent(node)[0]
        return used is not None and math.floor(used + 10 * self.missing(node) + 10.5) > 50


@given(history=histories)
def test_both_forms_agree_with_a_fresh_computation_after_any_history(history):
    snapshot, fresh = measured({}), FreshLoads()
    plugin = FACTORY.build(HOW)
    for event in [*history, ("time", 10), ("look",)]:
        happen(event, snapshot, fresh)
        if event == ("look",):
            agree(plugin, snapshot, fresh)


KEPT = [
    NodeLoad(HOW),
    FilteringNodeLoad(HOW),
    TargetLoadPacking(PACKING),
    LoadVariationRiskBalancing(BALANCING),
]


def test_a_cycle_evaluates_only_rows_that_have_changed():
    for plugin in KEPT:
        assert plugin.is_row_local, plugin.name


@pytest.mark.parametrize("plugin", KEPT, ids=["NodeLoad", "with a filter", "TargetLoadPacking", "balancing"])
@given(history=histories)
def test_what_is_kept_of_rows_never_changes_a_ranking(plugin, history):
    snapshot = measured(dict.fromkeys(NAMES, percents(30, 30)), reading_of(HOW), *packing_readings(PACKING))
    profile, pod = profile_of(plugin), using("asks", cpu="1", memory="1Gi")
    for event in history:
        kept, new = (rank(pod, each, profile, attempt=first_attempt(pod)) for each in (snapshot, snapshot.copied()))
        assert kept == new
        happen(event, snapshot, FreshLoads())


ON_BEST = st.one_of(
    *[st.just(("come",))] * 6,
    st.tuples(st.just("bound"), st.sampled_from([-150, -33, -7, 1])),
    st.just(("leave",)),
    st.just(("other",)),
    st.tuples(st.just("sample"), st.integers(-40, 1), st.sampled_from([3, 30])),
    st.tuples(st.just("time"), st.sampled_from([1, 9, 60])),
)


@pytest.mark.parametrize("plugin", KEPT, ids=["NodeLoad", "with a filter", "TargetLoadPacking", "balancing"])
@example(history=[[("come",)], [("come",), ("bound", -150)], [("come",)]])
@example(history=[[("come",)], [("come",)], [("come",), ("bound", -7)], [("come",)]])
@example(history=[[("come",)], [("come",)], [("come",), ("sample", 1, 30)], [("come",)]])
@given(history=st.lists(st.lists(ON_BEST, min_size=1, max_size=3), max_size=25))
def test_what_is_foreseen_of_the_best_node_never_changes_a_ranking(plugin, history):
    """One node is the best for long, and gets pods of the class between other changes."""
    samples = {f"n{number}": percents(45 + number, 45) for number in range(20)}
    snapshot = measured({"quiet": percents(3, 3), **samples}, *READINGS)
    profile = profile_of(plugin, *(BUILT_IN[name].build(None) for name in ("NodeResourcesFit", BALANCED)))
    for number, changes in enumerate(history):
        pod = using(f"p{number}", cpu="100m", memory="100Mi")
        kept, new = (rank(pod, each, profile, attempt=first_attempt(pod)) for each in (snapshot, snapshot.copied()))
        assert kept == new
        for place, (kind, *how) in enumerate(changes):
            there = snapshot.newest_on_row(snapshot.rows.of("quiet"), 1)
            match kind:
                case "come":
                    snapshot.place(using(f"p{number}-{place}", cpu="100m", memory="100Mi"), "quiet")
                case "other":
                    snapshot.place(using(f"other{number}-{place}", cpu="300m", memory="1Gi"), "quiet")
                case "bound" if there:
                    snapshot.place(there[0].pod, "quiet", bound_at=snapshot.live.now + how[0])
                case "leave" if there:
                    snapshot.remove_pod(there[0].pod.uid)
                case "sample":
                    since, percent = how
                    since += round(snapshot.live.now - NOW)
                    happen(("sample", "quiet", float(percent), 3.0, since), snapshot, FreshLoads())
                case "time":
                    snapshot.live.observe_time(snapshot.live.now + how[0])


CHANGES = st.one_of(
    st.tuples(st.just("pod"), st.integers(0, 5), st.none() | st.sampled_from([-150, -90, -33, -7, 0])),
    st.tuples(st.just("no pod"), st.integers(0, 5)),
)


@example(history=[([("pod", 0, None), ("pod", 1, None)], False), ([("no pod", 1), ("pod", 2, None)], False)])
@example(history=[([("no pod", 0)], False), *(([("pod", number, -33 - number)], False) for number in range(6))])
@example(history=[([("pod", number, -33 if number < 4 else 0)], False) for number in range(6)])
@given(history=st.lists(st.tuples(st.lists(CHANGES, min_size=1, max_size=4), st.booleans()), max_size=8))
def test_sums_of_pods_that_come_and_leave_are_those_of_the_pods_there(history):
    """To the last digit, or two processes would rank apart."""
    how = args()
    snapshot, plugin = cluster(how, n0=percents(30, 30), n1=percents(30, 30)), NodeLoad(how)
    row = snapshot.rows.of("n0")
    for changes, is_sampled in history:
        for kind, number, *since in changes:
            if kind == "no pod":
                snapshot.remove_pod(f"uid-p{number}")
                continue
            pod = using(f"p{number}", cpu=f"{number + 1}", memory=f"{number + 3}Pi")  # beyond exact sums
            snapshot.place(pod, "n0", bound_at=None if since[0] is None else NOW + since[0])
        if is_sampled:
            snapshot.live.set_sample(reading_of(how).query.token, "n0", percents(30, 30, ago=-snapshot.live.now % 7))
        copied = snapshot.copied()
        kept, new = plugin.loads_for(WEB, snapshot), plugin.loads_for(WEB, copied)
        for resource in ("cpu", "memory"):
            assert kept.newcomers(resource).item(row) == new.newcomers(resource).item(row)
        assert kept.newcomers_on(row) == new.newcomers_on(row)


def test_the_estimate_of_a_pod_that_came_after_its_binding_fades():
    how = args()
    snapshot, plugin = cluster(how, a=percents(30, 30)), NodeLoad(how)
    points(plugin, snapshot, WEB)
    snapshot.place(using("web", cpu="4"), "a", bound_at=NOW)
    before = points(plugin, snapshot, WEB)
    snapshot.live.observe_time(NOW + 50)
    snapshot.live.set_sample(reading_of(how).query.token, "a", percents(30, 30, ago=-50))
    assert before != points(plugin, snapshot, WEB) == points(NodeLoad(how), snapshot, WEB)


def test_nodes_are_scored_once_the_columns_have_grown_for_one_without_pods():
    how = args()
    snapshot, plugin = cluster(how, a=percents(30, 30), b=percents(60, 30)), NodeLoad(how)
    points(plugin, snapshot, WEB)
    for number in range(snapshot.columns.capacity):
        snapshot.set_node(a_node(f"n{number}"))
        snapshot.live.set_sample(reading_of(how).query.token, f"n{number}", percents(30, 30))
    assert points(plugin, snapshot, WEB) == points(NodeLoad(how), snapshot, WEB)


def test_a_failure_between_two_nodes_counts_no_pod_twice(monkeypatch):
    how, add = args(), RowSums.add
    snapshot, plugin = cluster(how, n0=percents(30, 30), n1=percents(30, 30)), NodeLoad(how)
    points(plugin, snapshot, WEB)
    for name in ("n0", "n1"):
        snapshot.place(using(f"on-{name}", cpu="4"), name)

    def failing(self, row, count):
        if row == snapshot.rows.of("n1"):
            raise TimeoutError
        return add(self, row, count)

    monkeypatch.setattr(RowSums, "add", failing)
    with pytest.raises(TimeoutError):
        plugin.loads_for(WEB, snapshot)
    monkeypatch.undo()
    assert points(plugin, snapshot, WEB) == points(NodeLoad(how), snapshot, WEB)


def test_a_row_whose_newcomers_have_faded_is_not_summed_again_at_each_sample(monkeypatch):
    how, summed = args(), []
    snapshot, plugin = cluster(how, n0=percents(30, 30), n1=percents(30, 30)), NodeLoad(how)
    snapshot.place(using("web", cpu="1"), "n0")
    plugin.loads_for(WEB, snapshot)
    snapshot.place(using("web", cpu="1"), "n0", bound_at=NOW - 150)
    plugin.loads_for(WEB, snapshot)
    monkeypatch.setattr(RowSums, "refresh", lambda _, rows: summed.extend(rows) or [])
    snapshot.live.set_sample(reading_of(how).query.token, "n0", percents(30, 30, ago=-1))
    plugin.loads_for(WEB, snapshot)
    assert not summed


def test_what_counts_on_an_unknown_node_is_the_same_in_every_process():
    snapshot = measured({"a": percents(30), "b": percents(30), "c": None}, *packing_readings(PACKING))
    profile, pod = profile_of(TargetLoadPacking(PACKING)), using("asks", cpu="1", memory="1Gi")
    snapshot.place(using("newcomer", cpu="2", memory="1Gi"), "c", bound_at=NOW - 60)
    rank(pod, snapshot, profile, attempt=first_attempt(pod))
    snapshot.live.observe_time(NOW + 20)  # in the same step of 75 s, of a range of 15 min
    kept, new = (rank(pod, each, profile, attempt=first_attempt(pod)) for each in (snapshot, snapshot.copied()))
    assert kept == new


STEADY = LoadVariationRiskBalancingArgs(safe_variance_margin=2.0, safe_variance_sensitivity=3.0)
EXTREME = LoadVariationRiskBalancingArgs(safe_variance_sensitivity=0.0)


@pytest.mark.parametrize(
    "plugin",
    [
        TargetLoadPacking(PACKING),
        TargetLoadPacking(TargetLoadPackingArgs(target_utilization=100)),
        *map(LoadVariationRiskBalancing, (BALANCING, STEADY, EXTREME)),
    ],
    ids=["packing", "packing to 100 %", "balancing", "balancing by cube roots", "balancing by whole deviations"],
)
@given(history=histories)
def test_one_node_is_scored_as_all_are(plugin, history):
    snapshot, pod = measured(dict.fromkeys(NAMES, percents(30, 30)), *READINGS), using("asks", cpu="1", memory="1Gi")
    for event in history:
        happen(event, snapshot, FreshLoads())
        state, nodes, another = CycleState(snapshot.class_of(pod)), Nodes(snapshot), AnotherPod(pod, snapshot)
        alone = plugin.score_all(state, pod, nodes).tolist()
        beside = plugin.score_all(state, pod, NodesWithAnother(snapshot, None, another, np.full(len(nodes), 3.0)))
        for info in filter(None, nodes.infos()):
            assert plugin.score(state, pod, info) == alone[info.row]
            with_3 = NodeInfoWithAnother(snapshot, info.row, info.node, another, 3)
            assert plugin.score(state, pod, with_3) == beside[info.row]


def happen(event, snapshot: Snapshot, fresh: FreshLoads) -> None:
    match event:
        case ("node", name):
            fresh.nodes.add(name)
            snapshot.set_node(a_node(name, cpu="10", memory="10Gi"))
        case ("no node", name):
            fresh.nodes.discard(name)
            snapshot.remove_node(name)
        case ("pod", name, number, since):
            fresh.pods[number] = (name, since)
            snapshot.remove_pod(f"uid-p{number}")
            pod = using(f"p{number}", cpu="1", memory="1Gi")
            snapshot.place(pod, name, bound_at=None if since is None else NOW + since)
        case ("no pod", number):
            fresh.pods.pop(number, None)
            snapshot.remove_pod(f"uid-p{number}")
        case ("sample", name, cpu, memory, since):
            fresh.samples[name] = (cpu, memory, since)
            for token in TOKENS:
                sample = percents(cpu, memory, ago=-since, deviation=100.0 * (since % 7))
                snapshot.live.set_sample(token, name, sample)
        case ("no sample", name):
            fresh.samples.pop(name, None)
            for token in TOKENS:
                snapshot.live.set_sample(token, name, None)
        case ("time", seconds):
            fresh.now += 10 * seconds  # more than a step, after which estimates on unknown nodes are computed again
            snapshot.live.observe_time(max(NOW, snapshot.live.now) + 10 * seconds)


def agree(plugin, snapshot: Snapshot, fresh: FreshLoads) -> None:
    pod = using("asks", cpu="1", memory="1Gi")
    state, nodes = CycleState(snapshot.class_of(pod)), Nodes(snapshot)
    vector, verdicts = plugin.score_all(state, pod, nodes), plugin.filter_all(state, pod, nodes)
    assert vector.dtype == np.int64
    another = AnotherPod(pod, snapshot)
    beside = plugin.score_all(state, pod, NodesWithAnother(snapshot, None, another, np.full(len(nodes), 3.0)))
    for info, points_, code in zip(nodes.infos(), vector.tolist(), verdicts.codes.tolist(), strict=True):
        if info is not None:
            assert plugin.score(state, pod, info) == points_
            with_3 = NodeInfoWithAnother(snapshot, info.row, info.node, another, 3)
            assert plugin.score(state, pod, with_3) == beside[info.row]
            assert math.floor(fresh.score(info.name) - 1e-6) <= points_ <= math.floor(fresh.score(info.name) + 1e-6)
            assert plugin.filter(state, pod, info) == verdicts.statuses[code]
            assert bool(code) is fresh.refuses(info.name)
