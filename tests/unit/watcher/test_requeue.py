"""Unschedulable pods back off and are requeued by events that may help them, also by those during their flight."""

import gc
import time
import tracemalloc

import msgspec
import pytest

from berth.api.meta import SelectorRequirement
from berth.api.pod import Affinity, NodeAffinity, NodeSelector, NodeSelectorTerm, Pod
from berth.framework.events import Action, ClusterEvent, Resource
from berth.kube.listwatch import Deleted, Listed, Upserted
from berth.messages.attempts import Outcome, Positions, Reason
from berth_watcher.queue import requeue
from berth_watcher.queue.requeue import MAX_EVENTS, EventLog
from berth_watcher.settings import AttemptSettings, RequeueSettings
from berth_watcher.stages.pods import HEAD_START_SECONDS
from berth_watcher.store import ObjectStore
from harness.builders.objects import pod_requesting
from harness.builders.profiles import default_profile
from harness.worlds.watcher_world import KINDS, WatcherUnderTest, a_node, a_pod

FIT = {"blockers": ["NodeResourcesFit"]}


def rejected(watcher: WatcherUnderTest, name: str = "web", **more: object) -> None:
    """A ranking that had seen everything in the bucket rejected the pod for lack of resources."""
    more = {"positions": Positions(cluster=watcher.sequence), **FIT, **more}
    watcher.decide(name, Outcome.UNSCHEDULABLE, **more)


def test_unschedulable_pod_is_tried_again_after_five_minutes():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher)
    watcher.advance(299)
    assert len(watcher.published) == 1

    watcher.advance(1)

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_new_node_requeues_a_pod_at_once_when_nothing_else_is_to_be_done():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher)

    watcher.show(a_node("n1"))

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_new_node_requeues_a_pod_after_its_back_off_while_the_window_is_in_use():
    settings = AttemptSettings(window_floor=4)
    watcher = WatcherUnderTest(settings=settings).lead(a_pod("web"))
    rejected(watcher)
    watcher.show(a_pod("other"))

    watcher.show(a_node("n1"))
    assert watcher.stage("web") == "backoff"
    watcher.advance(1)

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_back_off_ends_early_only_when_no_pod_of_the_profile_is_active():
    settings = AttemptSettings(window_floor=4)
    watcher = WatcherUnderTest(settings=settings).lead(a_pod("web"), *(a_pod(f"p{n}") for n in range(5)))
    rejected(watcher)
    watcher.show(a_node("n1"))
    assert watcher.stage("p4") == "active"

    for n in range(4):
        watcher.decide(f"p{n}", Outcome.BOUND)
        assert watcher.stage("web") == "backoff"
    watcher.decide("p4", Outcome.BOUND)

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_back_offs_that_end_early_leave_most_of_the_window_free():
    settings = AttemptSettings(window_floor=8)
    watcher = WatcherUnderTest(settings=settings).lead(*(a_pod(f"p{n}", priority=n) for n in range(6)))
    for n in range(6):
        rejected(watcher, f"p{n}")

    watcher.show(a_node("n1"))
    watcher.advance(HEAD_START_SECONDS)
    assert watcher.pods_published[6:] == ["p5", "p4"]  # a quarter of eight, the most important first
    rejected(watcher, "p5")
    watcher.advance(HEAD_START_SECONDS)

    assert watcher.pods_published[6:] == ["p5", "p4", "p3"]


def two_that_wait() -> WatcherUnderTest:
    """Two pods that have failed, and an event that may help both."""
    watcher = WatcherUnderTest().lead(a_pod("low"), a_pod("high", priority=1))
    rejected(watcher, "high")
    rejected(watcher, "low")
    watcher.show(a_node("n1"))
    return watcher


def test_of_two_pods_that_wait_for_one_room_the_more_important_is_decided_first():
    """Published together, the other one would have the room whenever its scorer is faster."""
    watcher = two_that_wait()
    assert watcher.pods_published[2:] == ["high"]
    watcher.decide("high", Outcome.BOUND)
    assert watcher.pods_published[2:] == ["high", "low"]


def test_a_pod_gives_way_to_a_more_important_one_for_a_tenth_of_a_second():
    watcher = two_that_wait()
    assert watcher.core.due() == watcher.now + HEAD_START_SECONDS
    watcher.advance(HEAD_START_SECONDS)
    assert watcher.pods_published[2:] == ["high", "low"]


def test_a_pod_does_not_give_way_to_one_of_another_profile():
    watcher = WatcherUnderTest(profiles={"berth": default_profile(), "other": default_profile()})
    watcher.lead(a_pod("low", scheduler="other"), a_pod("high", priority=1))
    rejected(watcher, "high")
    rejected(watcher, "low")
    watcher.show(a_node("n1"))
    assert sorted(watcher.pods_published[2:]) == ["high", "low"]


def test_a_pod_that_was_not_tried_yet_gives_way_to_none():
    watcher = two_that_wait()
    watcher.decide("high", Outcome.BOUND)
    watcher.show(a_pod("fresh", priority=-1))
    assert watcher.pods_published[2:] == ["high", "low", "fresh"]


@pytest.mark.parametrize("window_floor", [1, 2, 3])
def test_one_back_off_at_a_time_ends_early_in_a_window_of_fewer_than_four_slots(window_floor):
    settings = AttemptSettings(window_floor=window_floor)
    watcher = WatcherUnderTest(settings=settings).lead(a_pod("low"), a_pod("high", priority=1))
    rejected(watcher, "high")
    rejected(watcher, "low")

    watcher.show(a_node("n1"))
    assert watcher.pods_published == ["high", "low", "high"]
    rejected(watcher, "high")

    assert watcher.pods_published == ["high", "low", "high", "low"]


def test_pod_that_fails_again_and_again_is_tried_early_once_a_second():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    tried = []
    for n in range(400):
        watcher.show(a_node(f"n{n}"))
        if watcher.stage("web") == "in flight":
            tried.append(watcher.now)
            rejected(watcher)
        watcher.advance(0.01)

    assert len(tried) == 5, tried  # one at the first rejection; kube-scheduler would try 400 times, and never fit


def test_back_off_after_an_error_does_not_end_early():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.decide("web", Outcome.ERROR)

    watcher.show(a_node("n1"))
    watcher.advance(0.9)

    assert watcher.stage("web") == "backoff"


def test_back_off_without_an_event_that_helps_does_not_end_early():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher, positions=Positions(cluster=watcher.sequence + 9))  # of a deleted stream
    watcher.advance(0.9)

    assert watcher.stage("web") == "backoff"


def test_ranking_must_see_the_event_that_requeued_the_pod():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher)
    watcher.advance(2)
    watcher.hold_writes = True

    watcher.show(a_node("n1"))
    assert watcher.stage("web") == "awaiting mirror"
    watcher.answer_writes()

    assert watcher.published[-1].message.after.cluster >= watcher.bucket["node.n1"].sequence


def test_pod_that_leaves_a_node_requeues_pods_that_lacked_resources():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"), a_pod("big", node="n1", cpu="4"))
    rejected(watcher)
    watcher.advance(2)

    watcher.show(a_pod("big", node="n1", cpu="4", phase="Succeeded", version=2))

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_end_of_a_nomination_requeues_pods_that_lacked_resources():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"), a_pod("preemptor", nominated="n1", scheduler="other"))
    rejected(watcher)
    watcher.advance(2)

    watcher.show(a_pod("preemptor", scheduler="other", version=2))

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_events_that_cannot_help_are_ignored():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    rejected(watcher)
    watcher.advance(2)

    watcher.show(a_node("n1", labels={"zone": "a"}, version=2), a_pod("other", node="n1", version=3))
    watcher.show(a_node("small", cpu="500m"))

    assert watcher.stage("web") == "unschedulable"


def test_event_during_the_flight_is_not_lost():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    seen = Positions(cluster=watcher.sequence)
    watcher.show(a_node("n1"))

    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=seen, **FIT)

    assert watcher.attempt_of("web") == "uid-web.7.2"
    assert watcher.published[-1].message.after.cluster >= watcher.bucket["node.n1"].sequence


def test_event_before_publishing_is_not_lost():
    watcher = WatcherUnderTest().lead()
    seen = Positions(cluster=watcher.sequence)
    watcher.show(a_node("n1"))
    watcher.show(a_pod("web"))

    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=seen, **FIT)

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_an_object_rewritten_since_the_ranking_counts_as_new_to_it():
    """The bucket has one version of a node: a ranking at a position between its writes may not have seen it at all."""
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.show(a_node("n1"))
    seen = Positions(cluster=watcher.sequence)
    watcher.show(a_node("n1", labels={"zone": "a"}, version=2))

    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=seen, **FIT)

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_event_that_the_ranking_had_seen_does_not_requeue():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.show(a_node("n1"))

    rejected(watcher)

    assert watcher.stage("web") == "unschedulable"


@pytest.mark.parametrize("stream", ["cluster", "decisions"])
def test_positions_of_a_deleted_stream_count_as_having_missed_events(stream: str):
    """A scorer that has not noticed yet names what it had read of the former stream."""
    watcher = WatcherUnderTest().lead(a_pod("web"), a_pod("full", node="n1"), a_node("n1"))
    watcher.delete(a_pod("full", node="n1"))
    watcher.answer_writes()
    current = Positions(cluster=watcher.sequence, decisions=watcher.decisions)
    former = msgspec.structs.replace(current, **{stream: 100})

    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=former, **FIT)
    assert watcher.stage("web") == "backoff"
    watcher.advance(1)

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_event_not_stored_yet_counts_as_not_seen():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.hold_writes = True
    watcher.show(a_node("n1"))

    rejected(watcher)

    assert watcher.stage("web") == "backoff"


def test_back_off_doubles_from_one_second_to_ten():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    waits = []
    for _ in range(6):
        watcher.decide("web", Outcome.ERROR)
        began = watcher.now
        while watcher.stage("web") == "backoff":
            watcher.advance(0.5)
        waits.append(watcher.now - began)

    assert waits == [1, 2, 4, 8, 10, 10]


def test_rejected_pod_goes_behind_older_pods():
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(a_pod("web", age_seconds=100))
    rejected(watcher)
    watcher.show(a_pod("running"), a_pod("young"))
    watcher.advance(2)

    watcher.show(a_node("n1"))
    watcher.decide("running", Outcome.BOUND)
    watcher.decide("young", Outcome.BOUND)

    assert watcher.pods_published == ["web", "running", "young", "web"]


def test_change_of_the_pod_itself_requeues_it():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher)
    watcher.advance(2)

    watcher.show(a_pod("web", labels={"tier": "front"}, version=2))

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_own_condition_does_not_requeue_the_pod():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher)
    watcher.advance(2)

    watcher.show(a_pod("web", version=2))

    assert watcher.stage("web") == "unschedulable"


def test_pod_that_no_plugin_rejected_waits_for_any_event():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=Positions(cluster=watcher.sequence))
    watcher.show(a_pod("web", version=2))  # its condition
    watcher.advance(20)
    assert (watcher.stage("web"), watcher.attempt_of("web")) == ("unschedulable", "uid-web.7.1")

    watcher.show(a_pod("other", node="n1"))

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_pod_in_a_cluster_without_nodes_waits_for_nodes_alone():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    seen = Positions(cluster=watcher.sequence)
    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=seen, reason=Reason.NO_NODES)
    watcher.advance(20)
    watcher.show(a_pod("other", node="gone"))
    assert (watcher.stage("web"), watcher.attempt_of("web")) == ("unschedulable", "uid-web.7.1")

    watcher.show(a_node("n1"))

    assert watcher.attempt_of("web") == "uid-web.7.2"


@pytest.mark.parametrize("reason", ["", Reason.NO_NODES])
def test_node_that_came_before_the_decision_ends_the_back_off_of_a_pod_that_no_plugin_rejected(reason):
    watcher = WatcherUnderTest().lead(a_pod("web"))
    seen = Positions(cluster=watcher.sequence)
    watcher.show(a_node("n1"))

    watcher.decide("web", Outcome.UNSCHEDULABLE, positions=seen, reason=reason)

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_preempting_pod_waits_for_a_victim_or_ten_seconds():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"), a_pod("victim", node="n1"))
    preempting = {"positions": Positions(cluster=watcher.sequence), "node": "n1", "blockers": ["NodeResourcesFit"]}
    watcher.decide("web", Outcome.PREEMPTING, **preempting)
    watcher.advance(2)
    watcher.delete(a_pod("victim", node="n1", version=2))
    assert watcher.attempt_of("web") == "uid-web.7.2"

    preempting["positions"] = Positions(cluster=watcher.sequence)
    watcher.decide("web", Outcome.PREEMPTING, **preempting)
    watcher.advance(10)

    assert watcher.attempt_of("web") == "uid-web.7.3"


@pytest.mark.slow
def test_events_of_no_interest_cost_the_same_however_many_pods_wait():
    """Ten thousand pods wait and a thousand others are bound: one call of a hint per pod would be ten million calls."""
    watcher = WatcherUnderTest(
        settings=AttemptSettings(window_floor=20_000, requeue=RequeueSettings(max_unschedulable_seconds=1e6))
    )
    watcher.lead(a_node("n1"), *(a_pod(f"p{n}") for n in range(10_000)))
    for n in range(10_000):
        rejected(watcher, f"p{n}", attempt=f"uid-p{n}.7.1")
    assert watcher.core.figures(watcher.now).pending["unschedulable"] == 10_000

    began = time.process_time()
    for n in range(1000):
        watcher.show(a_pod(f"other{n}", node="n1", version=2 + n))

    assert time.process_time() - began < 5  # half a second; ten million calls take ten


def test_decision_older_than_the_log_counts_as_having_missed_events():
    log, added = EventLog(max_events=2), ClusterEvent(Resource.NODE, Action.ADD)

    for sequence in (10, 20, 30):
        log.record(added, None, None, sequence=sequence)

    assert log.may_lack_events_since(9)
    assert not log.may_lack_events_since(10)
    assert len(list(log.since(10, 0))) == 2


def test_log_holds_large_events_by_their_size_and_says_what_it_lacks():
    log, added = EventLog(max_bytes=10), ClusterEvent(Resource.NODE, Action.ADD)

    for sequence in (10, 20, 30, 40):
        log.record(added, None, None, sequence=sequence, size=4)
    assert len(list(log.since(0, 0))) == 2
    assert log.may_lack_events_since(19)
    assert not log.may_lack_events_since(20)
    log.record(added, None, None, sequence=50, size=11)

    assert list(log.since(0, 0)) == []  # that one was dropped too
    assert log.may_lack_events_since(49)
    assert not log.may_lack_events_since(50)


def large_pod(name: str) -> Pod:
    """On a node, with a megabyte of values of a node affinity."""
    expression = SelectorRequirement(key="k", operator="In", values=["x" * 1_000_000])
    required = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[expression])])
    affinity = Affinity(node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required))
    pod = a_pod(name, node="n1")
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, affinity=affinity))


def test_large_pods_that_came_and_went_are_given_back():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    watcher.decide("web", Outcome.UNSCHEDULABLE, blockers=["NodeResourcesFit", "NodeAffinity", "InterPodAffinity"])
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(100):
            pod = large_pod(f"large-{number}")
            watcher.show(pod)
            watcher.delete(pod)
        del pod
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert used < 40_000_000  # not 100 MB


def test_events_too_large_to_await_their_hints_count_as_helping(monkeypatch: pytest.MonkeyPatch):
    watcher = WatcherUnderTest().lead(a_node("n1", cpu="4"), a_pod("web"))
    rejected(watcher)
    watcher.show(a_node("n1", cpu="3"))
    assert watcher.stage("web") == "unschedulable"
    monkeypatch.setattr(requeue, "MAX_EVENT_BYTES", 100)

    watcher.show(a_node("n1", cpu="2"))

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_log_of_a_bucket_that_stores_nothing_is_bounded_and_says_what_it_lacks():
    log, added = EventLog(max_events=2), ClusterEvent(Resource.NODE, Action.ADD)
    log.record(added, None, None, change=1)
    log.on_settled(1, position=10)
    for change in range(2, 7):
        log.record(added, None, None, change=change)

    assert [change for *_, change in log.since(0, 0)] == [6, 5]
    assert log.may_lack_events_since(10**9)  # where the dropped ones will be stored is not known

    log.on_settled(3, position=30)
    assert log.may_lack_events_since(10**9)
    log.on_settled(4, position=40)  # all that were dropped are stored, at or below this
    assert log.may_lack_events_since(39)
    assert not log.may_lack_events_since(40)
    log.on_settled(6, position=60)
    assert list(log.since(60, 0)) == []
    assert len(list(log.since(59, 0))) == 2


def test_decision_while_the_bucket_is_full_counts_as_having_missed_what_the_log_has_dropped():
    """The pod is tried again once that is stored: a node that fits may be among it."""
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    watcher.hold_writes = True
    watcher.show(a_node("n2", cpu="64"))
    for number in range(MAX_EVENTS + 1):
        watcher.show(a_node("n1", cpu="4", labels={"round": str(number)}, version=3 + number))
    rejected(watcher)
    watcher.advance(2)
    assert watcher.stage("web") == "awaiting mirror"
    while watcher.held_writes:
        watcher.answer_writes()
    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_pod_that_leaves_a_node_requeues_those_that_fit_what_is_free_there_now():
    there = [a_pod(f"runs-{n}", node="n1", cpu="1") for n in range(4)]
    watcher = WatcherUnderTest().lead(a_node("n1", cpu="4"), *there, a_pod("small", cpu="1"), a_pod("large", cpu="3"))
    for name in ("small", "large"):
        rejected(watcher, name)

    watcher.delete(there[0])
    assert [watcher.stage(name) for name in ("small", "large")] == ["in flight", "unschedulable"]
    watcher.delete(there[1])
    assert watcher.stage("large") == "unschedulable"
    watcher.delete(there[2])

    assert watcher.stage("large") == "in flight"


def test_pod_that_leaves_wakes_a_pod_that_fits_when_less_important_ones_are_evicted():
    """Before, not even their eviction was enough: the pod that leaves is more important than both."""
    watcher = WatcherUnderTest().lead(
        a_node("n1", cpu="2"),
        a_pod("low", node="n1", cpu="1"),
        a_pod("high", node="n1", cpu="1", priority=2000),
        a_pod("equal", cpu="2"),
        a_pod("middle", cpu="2", priority=1000),
    )
    rejected(watcher, "equal")
    rejected(watcher, "middle")

    watcher.delete(a_pod("high", node="n1", cpu="1", priority=2000))

    assert watcher.attempt_of("middle") == "uid-middle.7.2"
    assert watcher.stage("equal") == "unschedulable"


def test_room_on_a_node_follows_its_pods_and_its_allocatable():
    store = ObjectStore(KINDS)

    def show(*things) -> None:
        for thing in things:
            store.apply(Upserted(kind="pod" if isinstance(thing, Pod) else "node", object=thing))

    assert store.room_of("n1") is None
    show(a_pod("early", node="n1", cpu="1"), a_node("n1", cpu="4"))
    assert store.room_of("n1").free["cpu"] == 3000
    show(a_pod("waits", cpu="1"), a_pod("second", node="n1", cpu="500m"), a_pod("early", node="n1", cpu="2", version=2))
    assert store.room_of("n1").free["cpu"] == 1500
    show(a_pod("second", node="n1", cpu="500m", phase="Succeeded", version=3), a_node("n1", cpu="1", version=2))
    assert store.room_of("n1").free["cpu"] == -1000
    pods = store.room_of("n1").free["pods"]
    store.apply(Deleted(kind="pod", object=a_pod("early", node="n1", cpu="2")))
    room = store.room_of("n1")
    assert room == ({**room.free, "cpu": 1000, "pods": pods + 1}, [])
    store.apply(Listed(kind="node", objects=[], resource_version="20"))
    assert store.room_of("n1") is None


def test_resources_end_in_a_nodes_room_with_the_last_pod_that_requests_them():
    store = ObjectStore(KINDS)
    others = a_pod("others", node="n1", cpu="1")
    odd = pod_requesting("odd", **{"example.com/odd": "1"})
    odd = msgspec.structs.replace(odd, spec=msgspec.structs.replace(odd.spec, node_name="n1"))
    for kind, thing in (("node", a_node("n1")), ("pod", others), ("pod", odd)):
        store.apply(Upserted(kind=kind, object=thing))
    assert "example.com/odd" in store.room_of("n1").taken[0][1]

    store.apply(Deleted(kind="pod", object=odd))

    assert "example.com/odd" not in store.room_of("n1").taken[0][1]


def test_one_deletion_wakes_none_of_two_thousand_pods_that_need_more():
    names = [f"needs-{n}" for n in range(2000)]
    settings = AttemptSettings(window_floor=2000)
    runs = [a_pod(f"runs-{n}", node="n1", cpu="1") for n in range(4)]
    watcher = WatcherUnderTest(settings=settings).lead(
        a_node("n1", cpu="4"), *runs, *(a_pod(name, cpu="4") for name in names)
    )
    for name in names:
        rejected(watcher, name)

    watcher.delete(runs[0])

    assert len(watcher.published) == 2000
