"""A conflict goes to the head of its own priority once everything that it is about has been seen."""

from berth.api.messages import Outcome, Reason
from berth.kube.watch import Current
from berth_watcher.events import LookedUp
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import World, a_node, a_pod, attempt

ONE_PLACE = AttemptSettings(window_floor=1)


def test_a_conflict_goes_before_older_pods_of_its_priority_and_behind_more_important_ones():
    world = World(settings=ONE_PLACE).leads(a_pod("loser"))
    world.shows(a_pod("older", age_seconds=100), a_pod("urgent", priority=1))

    world.decides("loser", Outcome.CONFLICT)
    world.decides("urgent", Outcome.BOUND)
    world.decides("loser", Outcome.BOUND)

    assert world.pods_published == ["loser", "urgent", "loser", "older"]


def test_a_conflict_waits_until_the_reflectors_have_reached_every_version_that_it_names():
    world = World().leads(a_node("n1"), a_pod("web"))

    world.decides("web", Outcome.CONFLICT, resource_versions={"pod": "50", "node": "40"})
    world.shows(a_pod("other", node="n1", version=50))
    assert world.stage("web") == "behind"
    world.shows(a_node("n1", version=40))

    assert world.attempt_of("web") == "uid-web.7.2"


def test_a_bookmark_reaches_a_version_as_well_as_an_object_does():
    world = World().leads(a_pod("web"))
    world.decides("web", Outcome.CONFLICT, resource_versions={"node": "40"})

    world.send(Current(kind="node", resource_version="41"))

    assert world.attempt_of("web") == "uid-web.7.2"


def test_a_broken_watch_holds_a_conflict_for_ten_seconds_and_no_longer():
    world = World().leads(a_pod("web"))
    world.decides("web", Outcome.CONFLICT, resource_versions={"node": "4000"})

    world.passes(10)

    assert world.attempt_of("web") == "uid-web.7.2"


def test_the_next_ranking_must_see_what_the_mirror_holds_of_the_conflict():
    world = World().leads(a_node("n1"), a_pod("web"))
    world.bucket_is_slow = True
    world.decides("web", Outcome.CONFLICT, resource_versions={"pod": "50"})

    world.shows(a_pod("other", node="n1", version=50))
    assert world.stage("web") == "settling"
    world.stores()

    after = world.published[-1].message.after
    assert after.cluster >= world.bucket["pod.uid-other"].sequence
    assert after.decisions == 1


def test_what_a_ranking_must_see_stays_with_the_pod_when_its_attempt_gets_lost():
    world = World().leads(a_node("n1"), a_pod("web"))
    world.decides("web", Outcome.CONFLICT)
    asked_for = world.published[-1].message.after
    world.passes(10)

    world.send(LookedUp(attempt=attempt("web", 7, 2), held=False))

    assert asked_for.cluster > 0
    assert world.published[-1].message.after == asked_for


def test_the_first_attempt_asks_for_no_positions():
    world = World().leads(a_node("n1"), a_pod("web"))

    assert world.published[0].message.after.cluster == 0


def test_the_third_conflict_in_a_row_backs_off():
    world = World().leads(a_pod("web"))
    for _ in range(2):
        world.decides("web", Outcome.CONFLICT)
    assert len(world.published) == 3

    world.decides("web", Outcome.CONFLICT)
    assert world.stage("web") == "backoff"
    world.passes(1)

    assert len(world.published) == 4


def test_a_stale_ranking_is_not_one_of_the_three_in_a_row():
    world = World().leads(a_pod("web"))

    for _ in range(5):
        world.decides("web", Outcome.CONFLICT, reason=Reason.STALE)

    assert len(world.published) == 6
    assert world.stage("web") == "in flight"


def test_another_outcome_in_between_begins_the_row_anew():
    world = World().leads(a_pod("web"))
    world.decides("web", Outcome.CONFLICT)
    world.decides("web", Outcome.CONFLICT)
    world.decides("web", Outcome.ERROR)
    world.passes(1)

    world.decides("web", Outcome.CONFLICT)

    assert world.stage("web") == "in flight"
