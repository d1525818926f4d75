"""A conflict goes to the head of its own priority once everything that it is about has been seen."""

from berth.api.messages import Outcome, Reason
from berth.kube.watch import Current
from berth_watcher.events import AttemptLookedUp
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod, attempt

ONE_PLACE = AttemptSettings(window_floor=1)


def test_a_conflict_goes_before_older_pods_of_its_priority_and_behind_more_important_ones():
    world = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("loser"))
    world.show(a_pod("older", age_seconds=100), a_pod("urgent", priority=1))

    world.decide("loser", Outcome.CONFLICT)
    world.decide("urgent", Outcome.BOUND)
    world.decide("loser", Outcome.BOUND)

    assert world.pods_published == ["loser", "urgent", "loser", "older"]


def test_a_conflict_waits_until_the_reflectors_have_reached_every_version_that_it_names():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))

    world.decide("web", Outcome.CONFLICT, resource_versions={"pod": "50", "node": "40"})
    world.show(a_pod("other", node="n1", version=50))
    assert world.stage("web") == "awaiting versions"
    world.show(a_node("n1", version=40))

    assert world.attempt_of("web") == "uid-web.7.2"


def test_a_bookmark_reaches_a_version_as_well_as_an_object_does():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.decide("web", Outcome.CONFLICT, resource_versions={"node": "40"})

    world.send(Current(kind="node", resource_version="41"))

    assert world.attempt_of("web") == "uid-web.7.2"


def test_a_broken_watch_holds_a_conflict_for_ten_seconds_and_no_longer():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.decide("web", Outcome.CONFLICT, resource_versions={"node": "4000"})

    world.advance(10)

    assert world.attempt_of("web") == "uid-web.7.2"


def test_the_next_ranking_must_see_what_the_mirror_holds_of_the_conflict():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    world.hold_writes = True
    world.decide("web", Outcome.CONFLICT, resource_versions={"pod": "50"})

    world.show(a_pod("other", node="n1", version=50))
    assert world.stage("web") == "awaiting mirror"
    world.answer_writes()

    after = world.published[-1].message.after
    assert after.cluster >= world.bucket["pod.uid-other"].sequence
    assert after.decisions == 1


def test_what_a_ranking_must_see_stays_with_the_pod_when_its_attempt_gets_lost():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    world.decide("web", Outcome.CONFLICT)
    asked_for = world.published[-1].message.after
    world.advance(10)

    world.send(AttemptLookedUp(attempt=attempt("web", 7, 2), in_work_queue=False))

    assert asked_for.cluster > 0
    assert world.published[-1].message.after == asked_for


def test_the_first_attempt_asks_for_no_positions():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))

    assert world.published[0].message.after.cluster == 0


def test_the_third_conflict_in_a_row_backs_off():
    world = WatcherUnderTest().lead(a_pod("web"))
    for _ in range(2):
        world.decide("web", Outcome.CONFLICT)
    assert len(world.published) == 3

    world.decide("web", Outcome.CONFLICT)
    assert world.stage("web") == "backoff"
    world.advance(1)

    assert len(world.published) == 4


def test_a_stale_ranking_is_not_one_of_the_three_in_a_row():
    world = WatcherUnderTest().lead(a_pod("web"))

    for _ in range(5):
        world.decide("web", Outcome.CONFLICT, reason=Reason.STALE)

    assert len(world.published) == 6
    assert world.stage("web") == "in flight"


def test_another_outcome_in_between_begins_the_row_anew():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.decide("web", Outcome.CONFLICT)
    world.decide("web", Outcome.CONFLICT)
    world.decide("web", Outcome.ERROR)
    world.advance(1)

    world.decide("web", Outcome.CONFLICT)

    assert world.stage("web") == "in flight"
