"""``bandwidth`` and ``facts`` are event sources: what plugins read of them requeues pods that they rejected."""

from datetime import timedelta

import msgspec
import pytest

from berth.api.config.networktraffic import NetworkTrafficArgs, query_of
from berth.framework.events import Action, ClusterEvent, EventHint, LiveDataUpdate, Resource
from berth.framework.interface import EnqueueExtensions, FilterPlugin
from berth.framework.status import SUCCESS, Status
from berth.messages.attempts import Outcome, Positions
from berth.messages.livedata import FACTS, LiveSource, NodeSample, encode_sample, utc_time
from berth.plugins.networktraffic import FACTORY
from berth_watcher.queue.requeue import MAX_EVENTS
from harness.builders.profiles import profile_of
from harness.worlds.watcher_world import WatcherUnderTest, a_pod

AGE = timedelta(seconds=270)
ARGS = NetworkTrafficArgs(
    url="http://prometheus:9090", range=timedelta(minutes=1), maximum_age=AGE, saturation_percent=90
)
QUERY = query_of(ARGS).token
POWER = LiveSource(bucket=FACTS, name="power")


class PowerBudget(FilterPlugin, EnqueueExtensions):
    """An out-of-tree plugin: rejects nodes whose power supply is at its limit."""

    name = "PowerBudget"
    live_sources = frozenset({POWER})

    def filter(self, state, pod, node):
        fact = node.snapshot.live.fact(POWER.name, node.name)
        return SUCCESS if fact is None or fact["watts"] < 500 else Status.unschedulable("node(s) had no power left")

    def events(self):
        return (EventHint(ClusterEvent(Resource.FACTS, Action.UPDATE), self._has_power_now),)

    @staticmethod
    def _has_power_now(_, __, news):
        if not isinstance(news, LiveDataUpdate) or news.source != POWER:
            return False
        return news.data is None or msgspec.json.decode(news.data)["watts"] < 500


def unschedulable_pod(*, blocker: str, seen: int = 0) -> WatcherUnderTest:
    """A pod that a plugin has rejected at positions of both buckets, with its back-off over."""
    watcher = WatcherUnderTest(profiles={"berth": profile_of(FACTORY.build(ARGS), PowerBudget())}).lead(a_pod("web"))
    positions = Positions(cluster=watcher.sequence, bandwidth=seen, facts=seen)
    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=positions, blockers=[blocker])
    watcher.advance(2)
    return watcher


def traffic(bytes_per_second: float) -> bytes:
    return encode_sample(NodeSample(receive=bytes_per_second, capacity=100.0, sampled_at=utc_time(1.7e9)))


def test_watcher_reads_the_buckets_that_plugins_registered_for():
    assert unschedulable_pod(blocker="PowerBudget").core.live_buckets() == ["bandwidth", "facts"]
    assert WatcherUnderTest().lead().core.live_buckets() == []


def test_sample_of_a_free_link_requeues_a_pod_that_saturated_links_rejected():
    watcher = unschedulable_pod(blocker="NetworkTraffic")
    watcher.put_live_data("bandwidth", f"{QUERY}.n1", traffic(95.0), sequence=1)
    assert watcher.stage("web") == "unschedulable"

    watcher.put_live_data("bandwidth", f"{QUERY}.n1", traffic(40.0), sequence=2)

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_pod_that_a_sample_rejected_is_tried_again_once_the_sample_is_too_old():
    """No event says so, and a pod that comes then is placed: samples that are too old reject nothing."""
    watcher, age = unschedulable_pod(blocker="NetworkTraffic"), AGE.total_seconds()
    watcher.advance(age - 3)
    assert watcher.stage("web") == "unschedulable"
    watcher.advance(1)
    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_fact_that_may_help_requeues_the_pod():
    watcher = unschedulable_pod(blocker="PowerBudget")
    watcher.put_live_data("facts", "power.n1", b'{"watts": 600, "sampled_at": "2026-01-01T00:00:00Z"}', sequence=1)
    assert watcher.stage("web") == "unschedulable"

    watcher.put_live_data("facts", "power.n1", b'{"watts": 100, "sampled_at": "2026-01-01T00:00:00Z"}', sequence=2)

    assert watcher.attempt_of("web") == "uid-web.7.2"


@pytest.mark.parametrize(
    ("bucket", "key"),
    [
        pytest.param("facts", "weather.n1", id="another source"),
        pytest.param("bandwidth", f"{QUERY}.n1", id="another bucket"),
        pytest.param("facts", "power", id="a key without a node"),
    ],
)
def test_live_data_that_the_plugin_does_not_read_is_ignored(bucket, key):
    watcher = unschedulable_pod(blocker="PowerBudget")
    watcher.put_live_data(bucket, key, b'{"watts": 1}', sequence=1)
    assert watcher.stage("web") == "unschedulable"


def test_undecodable_fact_counts_as_one_that_helps():
    watcher = unschedulable_pod(blocker="PowerBudget")
    watcher.put_live_data("facts", "power.n1", b"half a wa", sequence=1)
    assert watcher.attempt_of("web") == "uid-web.7.2"


@pytest.mark.parametrize(("seen", "stage"), [(4, "in flight"), (5, "unschedulable")])
def test_live_data_during_the_flight_requeues_unless_the_ranking_had_seen_it(seen, stage):
    watcher = WatcherUnderTest(profiles={"berth": profile_of(FACTORY.build(ARGS), PowerBudget())}).lead(a_pod("web"))
    watcher.put_live_data("facts", "power.n1", b'{"watts": 100}', sequence=5)

    positions = Positions(cluster=watcher.sequence, bandwidth=0, facts=seen)
    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=positions, blockers=["PowerBudget"])

    assert watcher.stage("web") == stage


def passed_by(blocker: str, seen: int) -> WatcherUnderTest:
    """While a pod is ranked a collector writes more samples than are kept: the first says that a link is free."""
    watcher = WatcherUnderTest(profiles={"berth": profile_of(FACTORY.build(ARGS), PowerBudget())}).lead(a_pod("web"))
    for sequence in range(1, MAX_EVENTS + 3):
        rate = 40.0 if sequence == 1 else 95.0
        watcher.put_live_data("bandwidth", f"{QUERY}.n{sequence}", traffic(rate), sequence=10 + sequence)
    positions = Positions(cluster=watcher.sequence, bandwidth=seen, facts=seen)
    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=positions, blockers=[blocker])
    return watcher


def test_sample_that_fell_out_of_the_log_counts_as_missed():
    watcher = passed_by("NetworkTraffic", seen=10)
    assert watcher.stage("web") == "backoff"
    watcher.advance(2)
    assert watcher.attempt_of("web") == "uid-web.7.2"


@pytest.mark.parametrize(
    ("blocker", "seen"),
    [
        pytest.param("PowerBudget", 10, id="no plugin that rejected the pod reads samples"),
        pytest.param("NetworkTraffic", 12, id="the ranking had read all that is lost"),
        pytest.param("NetworkTraffic", 0, id="the scorer reads none"),
    ],
)
def test_samples_that_fell_out_of_the_log_leave_other_pods_asleep(blocker, seen):
    assert passed_by(blocker, seen).stage("web") == "unschedulable"


def test_passes_of_samples_leave_a_pod_that_waits_asleep():
    """Each is larger than what is kept, and none of its samples helps."""
    watcher = unschedulable_pod(blocker="NetworkTraffic", seen=1)
    for sequence in range(2, 3 * MAX_EVENTS):
        watcher.put_live_data("bandwidth", f"{QUERY}.n{sequence % 5000}", traffic(95.0), sequence=sequence)
    watcher.advance(200)
    assert watcher.stage("web") == "unschedulable"
