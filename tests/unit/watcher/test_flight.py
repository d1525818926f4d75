"""How a pod leaves the flight: by a Decision of its latest attempt, by what the API shows, or because it got lost."""

from datetime import UTC, datetime

from berth.api.messages import Outcome
from berth_watcher.events import AttemptLookedUp, LookUpAttempt, PodRead, PublishDeadLetter, PublishRefused, ReadPod
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod, attempt


def test_a_pod_bound_by_somebody_else_leaves_the_flight_at_once():
    world = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(
        a_node("n1"), a_pod("web", age_seconds=9), a_pod("next")
    )

    world.show(a_pod("web", node="n1", version=2, age_seconds=9))

    assert world.stage("web") == "gone"
    assert world.pods_published == ["web", "next"]


def test_a_pod_deleted_in_flight_leaves_it_and_its_late_decision_changes_nothing():
    world = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(a_pod("web", age_seconds=9), a_pod("next"))

    world.show(a_pod("web", deleted=True, version=2, age_seconds=9))
    world.delete(a_pod("web", deleted=True, version=3, age_seconds=9))
    world.decide("web", Outcome.CONFLICT)

    assert world.stage("web") == "gone"
    assert world.pods_published == ["web", "next"]


def test_a_pod_changed_in_flight_is_published_again_at_once():
    world = WatcherUnderTest().lead(a_pod("web"))

    world.show(a_pod("web", labels={"tier": "front"}, version=2))

    assert world.attempt_of("web") == "uid-web.7.2"
    assert world.published[-1].message.pod.metadata.labels == {"tier": "front"}
    assert world.core.figures(world.now).in_flight == 1


def test_conditions_that_berth_itself_writes_are_no_change():
    world = WatcherUnderTest().lead(a_pod("web"))

    world.show(a_pod("web", version=2, nominated="n1"))

    assert len(world.published) == 1


def test_a_decision_about_an_earlier_attempt_is_dropped():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.show(a_pod("web", labels={"tier": "front"}, version=2))

    world.decide("web", Outcome.UNSCHEDULABLE, attempt="uid-web.7.1", blockers=["NodeResourcesFit"])

    assert world.stage("web") == "in flight"


def test_a_decision_heard_twice_counts_once():
    world = WatcherUnderTest().lead(a_pod("web"))
    decision = world.decision("web", Outcome.ERROR)

    world.send(decision)
    world.advance(0.5)
    world.send(decision)
    world.advance(0.5)

    assert world.pods_published == ["web", "web"]


def test_of_two_decisions_for_an_attempt_that_of_the_higher_epoch_counts():
    world = WatcherUnderTest().lead(a_pod("web"))

    world.decide("web", Outcome.UNSCHEDULABLE, epoch=1, blockers=["NodeResourcesFit"])
    world.decide("web", Outcome.BOUND, epoch=2)
    assert world.stage("web") == "awaiting watch"
    world.decide("web", Outcome.ERROR, epoch=1)

    assert world.stage("web") == "awaiting watch"


def test_a_pod_that_the_bus_will_never_take_backs_off_at_once_and_gives_its_place_to_the_next():
    world = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(a_pod("huge", age_seconds=9), a_pod("next"))

    world.send(PublishRefused(attempt=attempt("huge", 7, 1), reason="too large"))

    assert [effect.dead_letter.reason for effect in world.of(PublishDeadLetter)] == ["too large"]
    assert world.stage("huge") == "backoff"
    assert world.pods_published == ["huge", "next"]


def test_a_silent_attempt_is_looked_up_after_ten_seconds_and_every_ten_from_then_on():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.advance(9.9)
    assert world.of(LookUpAttempt) == []

    world.advance(0.2)
    world.send(AttemptLookedUp(attempt=attempt("web", 7, 1), in_work_queue=True))
    world.advance(10)

    assert [str(effect.attempt) for effect in world.of(LookUpAttempt)] == ["uid-web.7.1"] * 2
    assert str(world.of(LookUpAttempt)[0].subject("pending")) == "berth.pending.berth.default.web"
    assert len(world.published) == 1


def test_waiting_puts_the_look_up_off():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.advance(9)

    world.decide("web", Outcome.WAITING)
    world.advance(9)

    assert world.of(LookUpAttempt) == []


def test_a_publish_that_got_lost_is_followed_by_the_next_attempt():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.advance(10)

    world.send(AttemptLookedUp(attempt=attempt("web", 7, 1), in_work_queue=False))

    assert world.attempt_of("web") == "uid-web.7.2"


def test_a_decision_that_was_not_heard_is_found_by_the_look_up():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.advance(10)
    missed = world.decision("web", Outcome.BOUND).decision

    world.send(
        AttemptLookedUp(attempt=attempt("web", 7, 1), in_work_queue=False, decision=missed, time=datetime.now(UTC))
    )

    assert len(world.published) == 1
    assert world.stage("web") == "awaiting watch"


def test_the_third_attempt_that_gets_lost_in_a_row_is_an_error_with_its_reason_in_dead():
    world = WatcherUnderTest().lead(a_pod("web"))
    for n in (1, 2, 3):
        world.advance(10)
        world.send(AttemptLookedUp(attempt=attempt("web", 7, n), in_work_queue=False))

    (letter,) = (effect.dead_letter for effect in world.of(PublishDeadLetter))
    assert letter.attempt == "uid-web.7.3"
    assert "uid-web.7.3" in letter.reason
    assert world.stage("web") == "backoff"
    assert world.core.figures(world.now).in_flight == 0
    world.advance(1)
    assert world.attempt_of("web") == "uid-web.7.4"


def test_an_answer_about_an_attempt_that_is_no_longer_the_latest_changes_nothing():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.advance(10)
    world.show(a_pod("web", labels={"tier": "front"}, version=2))

    world.send(AttemptLookedUp(attempt=attempt("web", 7, 1), in_work_queue=False))

    assert world.attempt_of("web") == "uid-web.7.2"


def test_a_pod_that_the_binder_calls_gone_and_the_api_shows_unbound_goes_back_into_the_queue():
    world = WatcherUnderTest().lead(a_pod("web"))

    world.decide("web", Outcome.GONE)
    assert [(effect.namespace, effect.name) for effect in world.of(ReadPod)] == [("default", "web")]
    world.send(PodRead(uid="uid-web", pod=a_pod("web", version=5)))

    assert world.attempt_of("web") == "uid-web.7.2"
    assert world.published[-1].message.pod.metadata.resource_version == "5"


def test_a_pod_that_is_gone_indeed_waits_for_the_watch_to_say_so_and_is_asked_for_again():
    world = WatcherUnderTest().lead(a_pod("web"))
    world.decide("web", Outcome.GONE)

    world.send(PodRead(uid="uid-web", pod=None))
    world.advance(10)

    assert len(world.published) == 1
    assert len(world.of(ReadPod)) == 2
    world.delete(a_pod("web", version=3))
    assert world.stage("web") == "gone"


def test_a_namesake_is_a_pod_of_its_own():
    world = WatcherUnderTest().lead(a_pod("web"))

    world.delete(a_pod("web", version=2))
    world.show(a_pod("web", uid="uid-second", version=3))

    assert world.attempt_of("web") == "uid-second.7.1"
