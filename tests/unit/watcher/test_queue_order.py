"""Priority first, then age, into a window; and who is not in the queue at all."""

from berth.api.messages import Outcome
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod

ONE_PLACE = AttemptSettings(window_floor=1)


def test_the_important_pod_goes_first_whenever_it_was_created():
    world = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("running"))
    world.show(a_pod("old", age_seconds=100), a_pod("young"), a_pod("urgent", priority=1000))

    for name in ("running", "urgent", "old"):
        world.decide(name, Outcome.BOUND)

    assert world.pods_published == ["running", "urgent", "old", "young"]


def test_no_more_pods_are_on_their_way_than_the_window_has_places():
    world = WatcherUnderTest().lead(*(a_pod(f"p{n}") for n in range(100)))

    assert len(world.published) == 64
    assert world.core.figures(world.now).in_flight == 64
    assert world.core.figures(world.now).pending["active"] == 36


def test_a_fast_pipeline_widens_the_window_to_a_quarter_of_its_last_second():
    world = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(*(a_pod(f"p{n}") for n in range(100)))
    for _ in range(40):
        world.decide(world.pods_published[-1], Outcome.BOUND)
    assert world.core.figures(world.now).window_size == 10

    world.advance(1)

    assert world.core.figures(world.now).window_size == 1


def test_a_pod_that_waits_for_its_volume_gives_its_place_to_the_next():
    world = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("first", age_seconds=5), a_pod("second"))

    world.decide("first", Outcome.WAITING)

    assert world.pods_published == ["first", "second"]
    assert world.stage("first") == "in flight"


def test_pods_of_others_and_pods_that_are_past_placing_are_left_alone():
    world = WatcherUnderTest().lead(
        a_node("n1"),
        a_pod("other", scheduler="default-scheduler"),
        a_pod("bound", node="n1"),
        a_pod("terminating", deleted=True),
        a_pod("done", phase="Succeeded"),
    )

    assert world.published == []


def test_a_gated_pod_waits_and_enters_with_its_age_when_the_gates_go():
    world = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("running"))
    world.show(a_pod("gated", gates=("example.com/quota",), age_seconds=60), a_pod("young"))
    assert world.core.figures(world.now).pending["gated"] == 1

    world.show(a_pod("gated", age_seconds=60, version=2))
    world.decide("running", Outcome.BOUND)

    assert world.pods_published == ["running", "gated"]


def test_a_pod_that_is_deleted_while_it_waits_is_not_published():
    world = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("running"))
    world.show(a_pod("waiting"))

    world.delete(a_pod("waiting", version=2))
    world.decide("running", Outcome.BOUND)

    assert world.pods_published == ["running"]


def test_an_attempt_names_the_uid_the_term_and_counts_from_one():
    world = WatcherUnderTest().lead(a_pod("web"))

    assert world.attempt_of("web") == "uid-web.7.1"
    assert world.published[0].message.pod == a_pod("web")
