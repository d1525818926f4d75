"""NodeFailures: points, the filter, and what people read about it."""

from datetime import timedelta

import msgspec
import pytest

from berth.cluster.nodes import Nodes, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.framework.events import Action, ClusterEvent, LiveDataUpdate, Resource
from berth.framework.status import CycleState
from berth.messages.encoding import encode
from berth.messages.livedata import POD_FAILURES, FailuresOnNode, LiveSource, WorkloadFailure, utc_time
from berth.plugins.additional.nodefailures import FACTORY, FilteringNodeFailures, NodeFailures, NodeFailuresArgs
from berth_cli.remedies.rejections import remedies_of
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.owners import owned_by
from harness.builders.profiles import profile_of
from harness.worlds.queueing_hints import may_help

NOW = 1_700_000_000.0
POD = owned_by("web", a_pod("web-new"))
SECONDS = timedelta(seconds=1)


def plugin(back_off: float | None = None) -> NodeFailures:
    args = NodeFailuresArgs(remember=300 * SECONDS, back_off=None if back_off is None else back_off * SECONDS)
    built = FACTORY.build(args)
    assert isinstance(built, NodeFailures)
    return built


def fact(age: float, workload: str = "uid-of-web", written_at: float = NOW) -> bytes:
    """A fact about one failure that was so old when it was written."""
    failure = WorkloadFailure(pod="default/web-abc", reason="OutOfcpu", at=utc_time(written_at - age))
    return encode(FailuresOnNode(written_at=utc_time(written_at), workloads={workload: failure}))


def cluster(**facts: bytes) -> Snapshot:
    """Nodes a, b and c, with these facts by node."""
    snapshot = Snapshot()
    snapshot.live.observe_time(NOW)
    for name in ("a", "b", "c"):
        snapshot.set_node(a_node(name))
    for node, data in facts.items():
        put(snapshot, node, data)
    return snapshot


def put(snapshot: Snapshot, node: str, data: bytes | None) -> None:
    raw = None if data is None else msgspec.Raw(data)
    snapshot.live.set_fact(POD_FAILURES.name, node, raw, stored_at=snapshot.live.now)


def points(snapshot: Snapshot, of: NodeFailures, pod=POD) -> dict[str, int]:
    nodes = Nodes(snapshot)
    scores = of.score_all(CycleState(snapshot.class_of(pod)), pod, nodes)
    return dict(zip(nodes.names, scores.tolist(), strict=True))


def test_a_node_that_failed_the_workload_of_late_scores_0():
    snapshot = cluster(a=fact(40), b=fact(300), c=fact(40, "uid-of-other"))
    assert points(snapshot, plugin()) == {"a": 0, "b": 100, "c": 100}
    assert points(snapshot, plugin(), a_pod("without-a-controller")) == {"a": 100, "b": 100, "c": 100}


def test_the_age_of_a_failure_is_as_of_its_fact():
    snapshot = cluster(a=fact(40))
    snapshot.live.observe_time(NOW + 299)
    assert points(snapshot, plugin())["a"] == 0


def test_changed_removed_and_ended_facts_count_as_they_are():
    snapshot = cluster(a=fact(40), b=fact(40))
    assert points(snapshot, plugin()) == {"a": 0, "b": 0, "c": 100}
    put(snapshot, "a", fact(40, "uid-of-other"))
    put(snapshot, "b", None)
    put(snapshot, "c", fact(299))
    put(snapshot, "gone", fact(1))
    assert points(snapshot, plugin()) == {"a": 100, "b": 100, "c": 0}
    snapshot.live.observe_time(NOW + 301)  # a fact ends 300 s after it was stored
    assert points(snapshot, plugin()) == {"a": 100, "b": 100, "c": 100}


@pytest.mark.parametrize("data", [b"1", b"{}", b'{"schema": 1}', b'{"schema": 99, "written_at": 1}'])
def test_a_fact_that_is_not_the_watchers_is_left_out(data):
    assert points(cluster(a=data, b=fact(1)), plugin(60)) == {"a": 100, "b": 0, "c": 100}


def test_why_says_which_pod_failed():
    snapshot = cluster(a=fact(40))
    state = CycleState(snapshot.class_of(POD))
    texts = [plugin().explain(state, POD, node_info(snapshot, name)) for name in ("a", "b")]
    assert texts == ["failed default/web-abc 40 s ago (OutOfcpu): score 0 of 100 for this workload", ""]


def test_without_a_back_off_there_is_no_filter_and_the_binder_reads_no_facts():
    assert not isinstance(plugin(), FilteringNodeFailures)
    assert profile_of(plugin()).live_sources_of_filters == frozenset()
    assert profile_of(plugin(60)).live_sources_of_filters == {POD_FAILURES}


def test_the_filter_refuses_a_node_until_the_back_off_ends():
    snapshot = cluster(a=fact(59), b=fact(60))
    ranking = rank(POD, snapshot, profile_of(plugin(60)), attempt=first_attempt(POD))
    assert {each.node: each.total for each in ranking.candidates} == {"b": 0, "c": 100}

    for node in ("b", "c"):
        put(snapshot, node, fact(1))
    [refused] = rank(POD, snapshot, profile_of(plugin(60)), attempt=first_attempt(POD)).rejections
    assert (refused.reason, refused.nodes) == ("node(s) failed a pod of this workload lately", 3)
    assert not refused.resolvable  # evictions change nothing


def test_a_pod_that_fits_nowhere_is_told_why():
    snapshot = cluster(a=fact(59), b=fact(10), c=fact(1))
    [remedy] = remedies_of(POD, snapshot, profile_of(plugin(60)))
    assert remedy.text == (
        "3 nodes (a, b, c) have failed a pod of this workload in the last 60 s:"
        " failed default/web-abc 1 s ago (OutOfcpu); nothing else refuses it there"
    )


FACTS = ClusterEvent(Resource.FACTS, Action.UPDATE)


@pytest.mark.parametrize(
    ("event", "news", "helps"),
    [
        pytest.param(FACTS, fact(60), True, id="its back-off ended"),
        pytest.param(FACTS, fact(59), False, id="it goes on"),
        pytest.param(FACTS, fact(60, "uid-of-other"), False, id="another workload's ended"),
        pytest.param(FACTS, None, True, id="the fact is removed"),
        pytest.param(FACTS, b"nonsense", True, id="nobody knows"),
    ],
)
def test_a_fact_requeues_the_pods_whose_back_off_ends(event, news, helps):
    update = LiveDataUpdate(source=POD_FAILURES, node="a", data=news)
    assert may_help(profile_of(plugin(60)), ["NodeFailures"], event, POD, None, update) is helps


def test_other_facts_requeue_nothing_and_a_new_node_does():
    profile, other = profile_of(plugin(60)), LiveSource(bucket="facts", name="power")
    update = LiveDataUpdate(source=other, node="a", data=None)
    assert not may_help(profile, ["NodeFailures"], FACTS, POD, None, update)
    new = ClusterEvent(Resource.NODE, Action.ADD)
    assert may_help(profile, ["NodeFailures"], new, POD, None, a_node("d"))


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"remember": 0 * SECONDS}, "p.remember: want 1s..1h, got 0s"),
        ({"remember": 3601 * SECONDS}, "p.remember: want 1s..1h, got 3601s"),
        ({"back_off": 301 * SECONDS}, "p.backOff: want 1s..300s, which is remember, got 301s"),
        ({"back_off": 0.5 * SECONDS}, "p.backOff: want 1s..300s, which is remember, got 0.5s"),
    ],
)
def test_times_that_make_no_sense_are_refused(args, problem):
    assert FACTORY.validate(NodeFailuresArgs(**args), "p") == [problem]
