"""NetworkTraffic: its arithmetic, its two forms, unknown bandwidth, and no herding to one node."""

from __future__ import annotations

import math
from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.config.networktraffic import EGRESS_ANNOTATION, INGRESS_ANNOTATION, NetworkTrafficArgs, query_of
from berth.api.meta import ObjectMeta
from berth.cluster.nodes import Nodes, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.events import Action, ClusterEvent, LiveDataUpdate, Resource
from berth.framework.status import CycleState
from berth.messages.livedata import LiveSource, NodeSample, encode_sample
from berth.plugins.networktraffic import FACTORY, FilteringNetworkTraffic, NetworkTraffic
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import profile_of
from harness.worlds.queueing_hints import may_help

T0 = 1_700_000_000.0
"""Now, in Unix seconds."""
MEGA = 1e6
URL = "http://prometheus:9090"


def args(**more) -> NetworkTrafficArgs:
    return NetworkTrafficArgs(**{"url": URL, "range": timedelta(seconds=100), **more})


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)


def sampled(receive=None, *, transmit=None, capacity=None, ago=0.0) -> NodeSample:
    return NodeSample(receive=receive, transmit=transmit, capacity=capacity, sampled_at=at(T0 - ago))


def cluster(how: NetworkTrafficArgs, *, now=T0, **samples: NodeSample | None) -> Snapshot:
    """A Snapshot of these nodes with these samples."""
    snapshot = Snapshot()
    snapshot.live.observe_time(now)
    for name, sample in samples.items():
        snapshot.set_node(a_node(name))
        if sample is not None:
            snapshot.live.set_sample(query_of(how).token, name, sample)
    return snapshot


def points(how: NetworkTrafficArgs, snapshot: Snapshot) -> dict[str, int]:
    """The normalized score of every node, by the vector form."""
    plugin, pod, nodes = FACTORY.build(how), a_pod(), Nodes(snapshot)
    state = CycleState(snapshot.class_of(pod))
    scores = plugin.normalize(state, pod, plugin.score_all(state, pod, nodes), nodes)
    return dict(zip(nodes.names, scores.tolist(), strict=True))


ARITHMETIC = [
    # 100 - 20*100/80 = 75; 100 - 1*100/80 = 100 - 1 = 99; the busiest has 0
    pytest.param({}, {"a": 80, "b": 20, "c": 1}, {"a": 0, "b": 75, "c": 99}, id="as the article scores"),
    pytest.param({}, {"a": 0, "b": 0}, {"a": 100, "b": 100}, id="no traffic"),
    pytest.param({}, {"a": 7}, {"a": 0}, id="one node"),
    pytest.param({}, {"a": None, "b": None}, {"a": 0, "b": 0}, id="no samples"),
    pytest.param({"unknown_score": 40}, {"a": 80, "b": None}, {"a": 0, "b": 40}, id="an unknown node gets what is set"),
    pytest.param({}, {"a": 0.9, "b": 0.1}, {"a": 100, "b": 100}, id="less than a byte is nothing"),
    pytest.param({}, {"a": 1e300, "b": 1}, {"a": 0, "b": 100}, id="more than any link carries"),
]


@pytest.mark.parametrize(("more", "receive", "expected"), ARITHMETIC)
def test_scores_relative_to_the_busiest(more, receive, expected):
    how = args(**more)
    samples = {name: None if amount is None else sampled(float(amount)) for name, amount in receive.items()}
    assert points(how, cluster(how, **samples)) == expected


def test_directions_are_receive_transmit_or_the_sum():
    two = {"a": sampled(30.0, transmit=10.0), "b": sampled(10.0, transmit=40.0)}
    for direction, expected in [
        ("receive", {"a": 0, "b": 67}),  # 100 - 10*100/30 = 100 - 33
        ("transmit", {"a": 75, "b": 0}),  # 100 - 10*100/40
        ("both", {"a": 20, "b": 0}),  # 100 - 40*100/50
    ]:
        how = args(direction=direction)
        assert points(how, cluster(how, **two)) == expected


def test_scores_by_the_capacity_of_the_nodes_own_link():
    how = args(scoring="Capacity", direction="both", capacity="1600", unknown_score=33)  # 1600 bit/s = 200 byte/s
    samples = {
        "half": sampled(50.0, transmit=20.0, capacity=100.0),  # the fuller direction: 100 - 100*50/100 = 50
        "large": sampled(50.0, transmit=20.0, capacity=1000.0),  # 100 - 5 = 95
        "untold": sampled(50.0, transmit=20.0),  # 100 - 100*50/200 = 75
        "over": sampled(500.0, transmit=0.0, capacity=100.0),
        "unknown": None,
    }
    expected = {"half": 50, "large": 95, "untold": 75, "over": 0, "unknown": 33}
    assert points(how, cluster(how, **samples)) == expected
    without = args(scoring="Capacity", unknown_score=33)
    assert points(without, cluster(without, untold=sampled(50.0))) == {"untold": 33}


def test_a_sample_older_than_the_maximum_age_is_ignored():
    how = args(maximum_age=timedelta(seconds=60), unknown_score=7)
    snapshot = cluster(how, fresh=sampled(50.0, ago=60), stale=sampled(1.0, ago=61))
    assert points(how, snapshot) == {"fresh": 0, "stale": 7}
    snapshot.live.observe_time(T0 + 1)
    assert points(how, snapshot) == {"fresh": 7, "stale": 7}


def test_the_estimate_of_recently_placed_pods_fades():
    how = args(pod_bandwidth="8M")  # 1 MB/s
    snapshot = cluster(how, a=sampled(0.0, ago=10))
    for name, since in [("whole", T0 - 5), ("half", T0 - 60), ("none", T0 - 110), ("proposed", None)]:
        # sampled at T0 - 10: bound after it: 1; 50 s of 100 before it: 1/2; 100 s before it: 0; not bound yet: 1
        snapshot.place(a_pod(name), "a", bound_at=since)
    plugin, pod = NetworkTraffic(how), a_pod()
    state = CycleState(snapshot.class_of(pod))
    assert plugin.score(state, pod, node_info(snapshot, "a")) == 2_500_000
    snapshot.remove_pod("uid-whole")
    assert plugin.score(state, pod, node_info(snapshot, "a")) == 1_500_000
    snapshot.live.set_sample(query_of(how).token, "a", sampled(0.0, ago=-40))
    # sampled at T0 + 40: 'half' is 100 s old by then and in the average; the proposed one still counts whole
    assert plugin.score(state, pod, node_info(snapshot, "a")) == 1_000_000


def test_a_pod_counts_by_its_annotation():
    snapshot = cluster(how := args(pod_bandwidth="8M", direction="both"), a=sampled(0.0, transmit=0.0))
    loud = a_pod("loud")
    metadata = msgspec.structs.replace(
        loud.metadata, annotations={INGRESS_ANNOTATION: "80M", EGRESS_ANNOTATION: "nonsense"}
    )
    snapshot.place(msgspec.structs.replace(loud, metadata=metadata), "a")
    pod = a_pod()
    # 80 Mbit/s in = 10 MB/s; an invalid annotation counts as the default: 8 Mbit/s out = 1 MB/s
    assert NetworkTraffic(how).score(CycleState(snapshot.class_of(pod)), pod, node_info(snapshot, "a")) == 11_000_000


@pytest.mark.parametrize("quietest", [10.0, 9.0, 5.0], ids=["equal", "one is a little quieter", "one is quieter"])
def test_500_pods_between_two_samples_give_no_node_more_than_twice_its_share(quietest):
    how = args()
    samples = {f"n{number}": sampled(10 * MEGA) for number in range(19)}
    snapshot = cluster(how, quiet=sampled(quietest * MEGA), **samples)
    profile = profile_of(NetworkTraffic(how))
    placed: Counter[str] = Counter()
    for number in range(500):
        pod = a_pod(f"web-{number}")
        best = rank(pod, snapshot, profile, attempt=first_attempt(pod)).candidates[0].node
        snapshot.place(pod, best)
        placed[best] += 1
    assert max(placed.values()) <= 2 * 500 / 20
    assert len(placed) == 20


def test_without_an_estimate_all_go_to_the_quiet_node():
    how = args(pod_bandwidth="0")
    snapshot = cluster(how, quiet=sampled(9 * MEGA), busy=sampled(10 * MEGA))
    profile = profile_of(NetworkTraffic(how))
    for number in range(50):
        pod = a_pod(f"web-{number}")
        best = rank(pod, snapshot, profile, attempt=first_attempt(pod)).candidates[0].node
        assert best == "quiet"
        snapshot.place(pod, best)


def test_the_explanation_has_value_age_and_estimate():
    how = args(pod_bandwidth="8M", maximum_age=timedelta(seconds=60))
    snapshot = cluster(how, a=sampled(80.04 * MEGA, ago=12), b=None, c=sampled(1.0 * MEGA, ago=70))
    for name in ("x", "y"):
        snapshot.place(a_pod(name), "a")
    profile, pod = profile_of(NetworkTraffic(how)), a_pod()
    details = {c.node: c.details for c in rank(pod, snapshot, profile, attempt=first_attempt(pod)).candidates}
    assert details == {
        "a": {"NetworkTraffic": "80.04 MB/s receive, sampled 12 s ago, 2 MB/s estimated for 2 pods placed lately"},
        "b": {"NetworkTraffic": "unknown: no sample"},
        "c": {"NetworkTraffic": "unknown, too old: 1 MB/s receive, sampled 70 s ago"},
    }


def test_the_filter_rejects_saturated_links_and_passes_unknown_ones():
    how = args(saturation_percent=90)
    snapshot = cluster(
        how,
        full=sampled(90.0, capacity=100.0),
        room=sampled(89.0, capacity=100.0),
        untold=sampled(1e9),
        stale=sampled(99.0, capacity=100.0, ago=1000),
        unknown=None,
    )
    profile, pod = profile_of(FACTORY.build(how)), a_pod()
    ranking = rank(pod, snapshot, profile, attempt=first_attempt(pod))
    assert {candidate.node for candidate in ranking.candidates} == {"room", "untold", "stale", "unknown"}
    assert check(pod, "full", snapshot, profile).reasons == ("node(s) had a saturated network link",)
    assert check(pod, "room", snapshot, profile).is_success
    assert profile.live_sources_of_filters == profile.live_sources != frozenset()


def test_proposed_and_assumed_pods_fill_a_link_too():
    how = args(saturation_percent=90, pod_bandwidth="80")  # 10 byte/s
    snapshot, pod = cluster(how, a=sampled(75.0, capacity=100.0)), a_pod()
    profile = profile_of(FACTORY.build(how))
    assert check(pod, "a", snapshot, profile).is_success
    snapshot.place(a_pod("x"), "a")
    snapshot.place(a_pod("y"), "a")
    assert not check(pod, "a", snapshot, profile).is_success


HALF = sampled(50.0, transmit=95.0, capacity=100.0)
OWN, OTHER = query_of(args()).token, query_of(args(range=timedelta(seconds=50))).token


def news(sample: NodeSample | None, *, query: str = OWN, node: str = "n") -> LiveDataUpdate:
    data = None if sample is None else encode_sample(sample)
    return LiveDataUpdate(source=LiveSource(bucket="bandwidth", name=query), node=node, data=data)


@pytest.mark.parametrize(
    ("more", "update", "helps"),
    [
        pytest.param({}, news(HALF), True, id="half of the link"),
        pytest.param({}, news(sampled(90.0, capacity=100.0)), False, id="as much as saturates it"),
        pytest.param({"direction": "both"}, news(HALF), False, id="the other direction is full"),
        pytest.param({}, news(HALF, query=OTHER), False, id="an answer to another question"),
        pytest.param({}, news(sampled(90.0)), True, id="a link without capacity is not rejected"),
        pytest.param({"capacity": "800"}, news(sampled(90.0)), False, id="the capacity of the arguments"),
        pytest.param({}, news(None), True, id="a removed sample: unknown nodes pass"),
    ],
)
def test_a_sample_below_the_limit_helps(more, update, helps):
    profile = profile_of(FACTORY.build(args(saturation_percent=90, **more)))
    event = ClusterEvent(Resource.BANDWIDTH, Action.UPDATE)
    assert may_help(profile, ["NetworkTraffic"], event, a_pod(), None, update) is helps


@pytest.mark.parametrize(
    ("resource", "action", "old", "new", "helps"),
    [
        pytest.param(Resource.NODE, Action.ADD, None, a_node("n"), True, id="a node without a sample"),
        pytest.param(Resource.NODE, Action.UPDATE_NODE_LABEL, a_node("n"), a_node("n"), False, id="a label"),
        pytest.param(Resource.POD, Action.DELETE, a_pod("o", node_name="n"), None, True, id="a pod that was on a node"),
        pytest.param(Resource.POD, Action.DELETE, a_pod("o"), None, False, id="a pod that was on none"),
        pytest.param(Resource.FACTS, Action.UPDATE, None, None, False, id="other live data"),
    ],
)
def test_other_events_that_help(resource, action, old, new, helps):
    profile = profile_of(FACTORY.build(args(saturation_percent=90)))
    assert may_help(profile, ["NetworkTraffic"], ClusterEvent(resource, action), a_pod(), old, new) is helps


def test_no_filter_unless_configured():
    plugin = FACTORY.build(args())
    assert not isinstance(plugin, FilteringNetworkTraffic)
    assert profile_of(plugin).live_sources_of_filters == frozenset()


# Both forms, compared with a fresh computation, after random histories.

NAMES = ["n0", "n1", "n2", "n3"]
amounts = st.none() | st.sampled_from([0.0, 1.5, 40.0, 1e3, 1e12])
histories = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.sampled_from(NAMES)),
        st.tuples(st.just("no node"), st.sampled_from(NAMES)),
        st.tuples(st.just("pod"), st.sampled_from(NAMES), st.integers(0, 5), st.none() | st.integers(-150, 0)),
        st.tuples(st.just("no pod"), st.integers(0, 5)),
        st.tuples(st.just("sample"), st.sampled_from(NAMES), amounts, amounts, amounts, st.integers(-100, 0)),
        st.tuples(st.just("no sample"), st.sampled_from(NAMES)),
        st.tuples(st.just("look")),
    ),
    max_size=30,
)
variants = st.builds(
    args,
    direction=st.sampled_from(["receive", "transmit", "both"]),
    scoring=st.sampled_from(["Relative", "Capacity"]),
    capacity=st.sampled_from(["", "8k"]),
    maximum_age=st.sampled_from([None, timedelta(seconds=50)]),
    saturation_percent=st.just(50),
    pod_bandwidth=st.just("800"),
)


class FreshTraffic:
    """The result of a history, in plain dicts."""

    def __init__(self, how: NetworkTrafficArgs) -> None:
        self.how = how
        self.pods: dict[int, tuple[str, int | None]] = {}
        self.samples: dict[str, NodeSample] = {}

    def score(self, node: str) -> int:
        sample = self.samples.get(node)
        oldest = (self.how.maximum_age or timedelta(minutes=5)).total_seconds()
        if sample is None or T0 - sample.sampled_at.timestamp() > oldest:
            return -1
        wanted = ("receive", "transmit") if self.how.direction == "both" else (self.how.direction,)
        loads = [getattr(sample, direction) for direction in wanted]
        if None in loads:
            return -1
        loads = [load + self.estimate(node, sample) for load in loads]
        if self.how.scoring == "Relative":
            return math.floor(sum(loads))
        capacity = sample.capacity if sample.capacity is not None else 1000.0 if self.how.capacity else 0.0
        return math.floor(100 * (max(loads) / capacity)) if capacity else -1

    def estimate(self, node: str, sample: NodeSample) -> float:
        shares = [
            1.0 if since is None else min(1.0, max(0.0, 1 - (sample.sampled_at.timestamp() - (T0 + since)) / 100))
            for where, since in self.pods.values()
            if where == node
        ]
        return math.fsum(share * 100.0 for share in shares)


@given(how=variants, history=histories)
def test_both_forms_agree_with_a_fresh_computation_after_any_history(how, history):
    snapshot, fresh = Snapshot(), FreshTraffic(how)
    snapshot.live.observe_time(T0)
    plugin, pod = FACTORY.build(how), a_pod("asks")
    for event in [*history, ("look",)]:
        happen(event, snapshot, fresh)
        if event == ("look",):
            agree(plugin, pod, snapshot, fresh)


def happen(event, snapshot: Snapshot, fresh: FreshTraffic) -> None:
    match event:
        case ("node", name):
            snapshot.set_node(a_node(name))
        case ("no node", name):
            snapshot.remove_node(name)
        case ("pod", name, number, since):
            fresh.pods[number] = (name, since)
            snapshot.remove_pod(f"uid-p{number}")
            snapshot.place(a_pod(f"p{number}"), name, bound_at=None if since is None else T0 + since)
        case ("no pod", number):
            fresh.pods.pop(number, None)
            snapshot.remove_pod(f"uid-p{number}")
        case ("sample", name, receive, transmit, capacity, since):
            sample = NodeSample(receive=receive, transmit=transmit, capacity=capacity, sampled_at=at(T0 + since))
            fresh.samples[name] = sample
            snapshot.live.set_sample(query_of(fresh.how).token, name, sample)
        case ("no sample", name):
            fresh.samples.pop(name, None)
            snapshot.live.set_sample(query_of(fresh.how).token, name, None)


def agree(plugin, pod, snapshot: Snapshot, fresh: FreshTraffic) -> None:
    state, nodes = CycleState(snapshot.class_of(pod)), Nodes(snapshot)
    vector = plugin.score_all(state, pod, nodes)
    verdicts = plugin.filter_all(state, pod, nodes)
    assert vector.dtype == np.int64
    for info, points_, code in zip(nodes.infos(), vector.tolist(), verdicts.codes.tolist(), strict=True):
        if info is not None:
            assert plugin.score(state, pod, info) == points_ == fresh.score(info.name), info.name
            assert plugin.filter(state, pod, info) == verdicts.statuses[code]


def test_a_pod_without_annotations_is_valid():
    snapshot = cluster(how := args(), a=sampled(1.0))
    snapshot.place(msgspec.structs.replace(a_pod("bare"), metadata=ObjectMeta(uid="bare")), "a")
    assert points(how, snapshot) == {"a": 0}
