"""Unschedulable pods back off and wake on the events that can help them, also on those that came while they were on
their way.
"""

import time

from berth.api.messages import Outcome, Positions
from berth.framework.events import Action, ClusterEvent, Resource
from berth_watcher.requeue import EventLog
from berth_watcher.settings import AttemptSettings, RequeueSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod

FIT = {"blockers": ["NodeResourcesFit"]}


def refused(world: WatcherUnderTest, name: str = "web", **more: object) -> None:
    """A ranking on everything that the bucket held said no for want of room."""
    positions = Positions(cluster=world.sequence)
    world.decide(name, Outcome.UNSCHEDULABLE, positions=positions, **FIT, **more)


def test_an_unschedulable_pod_sleeps_five_minutes_at_most():
    world = WatcherUnderTest().lead(a_pod("web"))
    refused(world)
    world.advance(299)
    assert len(world.published) == 1

    world.advance(1)

    assert world.attempt_of("web") == "uid-web.7.2"


def test_a_new_node_wakes_a_pod_that_lacked_room_once_its_back_off_is_over():
    world = WatcherUnderTest().lead(a_pod("web"))
    refused(world)

    world.show(a_node("n1"))
    assert world.stage("web") == "backoff"
    world.advance(1)

    assert world.attempt_of("web") == "uid-web.7.2"


def test_after_its_back_off_an_event_wakes_a_pod_at_once_and_its_ranking_must_see_it():
    world = WatcherUnderTest().lead(a_pod("web"))
    refused(world)
    world.advance(2)
    world.hold_writes = True

    world.show(a_node("n1"))
    assert world.stage("web") == "awaiting mirror"
    world.answer_writes()

    assert world.published[-1].message.after.cluster >= world.bucket["node.n1"].sequence


def test_a_pod_that_leaves_a_node_wakes_who_lacked_room():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"), a_pod("big", node="n1", cpu="4"))
    refused(world)
    world.advance(2)

    world.show(a_pod("big", node="n1", cpu="4", phase="Succeeded", version=2))

    assert world.attempt_of("web") == "uid-web.7.2"


def test_the_end_of_a_nomination_wakes_who_lacked_room():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"), a_pod("preemptor", nominated="n1", scheduler="other"))
    refused(world)
    world.advance(2)

    world.show(a_pod("preemptor", scheduler="other", version=2))

    assert world.attempt_of("web") == "uid-web.7.2"


def test_events_that_cannot_help_let_it_sleep():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    refused(world)
    world.advance(2)

    world.show(a_node("n1", labels={"zone": "a"}, version=2), a_pod("other", node="n1", version=3))
    world.show(a_node("small", cpu="500m"))

    assert world.stage("web") == "unschedulable"


def test_an_event_that_came_during_the_flight_and_that_the_ranking_had_not_seen_is_not_lost():
    world = WatcherUnderTest().lead(a_pod("web"))
    seen = Positions(cluster=world.sequence)
    world.show(a_node("n1"))

    world.decide("web", Outcome.UNSCHEDULABLE, positions=seen, **FIT)
    assert world.stage("web") == "backoff"
    world.advance(1)

    assert world.attempt_of("web") == "uid-web.7.2"
    assert world.published[-1].message.after.cluster >= world.bucket["node.n1"].sequence


def test_an_event_before_publishing_whose_write_the_ranking_had_not_seen_is_not_lost():
    world = WatcherUnderTest().lead()
    seen = Positions(cluster=world.sequence)
    world.show(a_node("n1"))
    world.show(a_pod("web"))

    world.decide("web", Outcome.UNSCHEDULABLE, positions=seen, **FIT)

    assert world.stage("web") == "backoff"


def test_an_event_that_the_ranking_had_seen_does_not_wake():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.show(a_node("n1"))

    refused(world)

    assert world.stage("web") == "unschedulable"


def test_an_event_that_the_bucket_does_not_hold_yet_counts_as_not_seen():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.hold_writes = True
    world.show(a_node("n1"))

    refused(world)

    assert world.stage("web") == "backoff"


def test_back_off_doubles_from_one_second_to_ten():
    world = WatcherUnderTest().lead(a_pod("web"))
    waits = []
    for _ in range(6):
        world.decide("web", Outcome.ERROR)
        began = world.now
        while world.stage("web") == "backoff":
            world.advance(0.5)
        waits.append(world.now - began)

    assert waits == [1, 2, 4, 8, 10, 10]


def test_a_refused_pod_goes_behind_those_that_began_to_wait_before_its_refusal():
    world = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(a_pod("web", age_seconds=100))
    refused(world)
    world.show(a_pod("running"), a_pod("young"))
    world.advance(2)

    world.show(a_node("n1"))
    world.decide("running", Outcome.BOUND)
    world.decide("young", Outcome.BOUND)

    assert world.pods_published == ["web", "running", "young", "web"]


def test_a_change_of_the_pod_itself_wakes_it():
    world = WatcherUnderTest().lead(a_pod("web"))
    refused(world)
    world.advance(2)

    world.show(a_pod("web", labels={"tier": "front"}, version=2))

    assert world.attempt_of("web") == "uid-web.7.2"


def test_its_own_condition_does_not_wake_it():
    world = WatcherUnderTest().lead(a_pod("web"))
    refused(world)
    world.advance(2)

    world.show(a_pod("web", version=2))

    assert world.stage("web") == "unschedulable"


def test_a_refusal_by_nobody_is_tried_again_after_its_back_off():
    world = WatcherUnderTest().lead(a_pod("web"))

    world.decide("web", Outcome.UNSCHEDULABLE, positions=Positions(cluster=world.sequence))
    world.advance(1)

    assert world.attempt_of("web") == "uid-web.7.2"


def test_a_preempting_pod_is_tried_again_when_a_victim_is_gone_or_after_ten_seconds():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"), a_pod("victim", node="n1"))
    preempting = {"positions": Positions(cluster=world.sequence), "node": "n1", "blockers": ["NodeResourcesFit"]}
    world.decide("web", Outcome.PREEMPTING, **preempting)
    world.advance(2)
    world.delete(a_pod("victim", node="n1", version=2))
    assert world.attempt_of("web") == "uid-web.7.2"

    preempting["positions"] = Positions(cluster=world.sequence)
    world.decide("web", Outcome.PREEMPTING, **preempting)
    world.advance(10)

    assert world.attempt_of("web") == "uid-web.7.3"


def test_events_that_nobody_waits_for_cost_the_same_however_many_pods_sleep():
    """Ten thousand sleepers, a thousand bindings of others: a look at each sleeper would be ten million looks."""
    world = WatcherUnderTest(
        settings=AttemptSettings(window_floor=20_000, requeue=RequeueSettings(max_unschedulable_seconds=1e6))
    )
    world.lead(a_node("n1"), *(a_pod(f"p{n}") for n in range(10_000)))
    for n in range(10_000):
        refused(world, f"p{n}", attempt=f"uid-p{n}.7.1")
    assert world.core.figures(world.now).pending["unschedulable"] == 10_000

    began = time.process_time()
    for n in range(1000):
        world.show(a_pod(f"other{n}", node="n1", version=2 + n))

    assert time.process_time() - began < 2


def test_a_decision_older_than_everything_remembered_counts_as_having_missed_something():
    log, added = EventLog(max_events=2), ClusterEvent(Resource.NODE, Action.ADD)

    for sequence in (10, 20, 30):
        log.record(added, None, None, sequence=sequence)

    assert log.may_lack_events_since(9)
    assert not log.may_lack_events_since(10)
    assert len(list(log.since(10))) == 2
