"""Attempts end by a Decision of the latest attempt, by what the API shows, or because they are lost."""

from datetime import UTC, datetime

import pytest

from berth.lifecycle.peers import HELD_SECONDS
from berth.messages.attempts import Outcome
from berth_watcher.events import (
    AttemptLookedUp,
    LookUpAttempt,
    PodRead,
    PublishDeadLetter,
    PublishNotStored,
    PublishRefused,
    ReadPod,
    Warn,
)
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod, attempt


def test_pod_bound_by_another_scheduler_leaves_the_flight():
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(
        a_node("n1"), a_pod("web", age_seconds=9), a_pod("next")
    )

    watcher.show(a_pod("web", node="n1", version=2, age_seconds=9))

    assert watcher.stage("web") == "gone"
    assert watcher.pods_published == ["web", "next"]


def test_decision_of_a_deleted_pod_is_ignored():
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(
        a_pod("web", age_seconds=9), a_pod("next")
    )

    watcher.show(a_pod("web", deleted=True, version=2, age_seconds=9))
    watcher.delete(a_pod("web", deleted=True, version=3, age_seconds=9))
    watcher.decide("web", Outcome.CONFLICT)

    assert watcher.stage("web") == "gone"
    assert watcher.pods_published == ["web", "next"]


def test_pod_changed_in_flight_is_published_again():
    watcher = WatcherUnderTest().lead(a_pod("web"))

    watcher.show(a_pod("web", labels={"tier": "front"}, version=2))

    assert watcher.attempt_of("web") == "uid-web.7.2"
    assert watcher.published[-1].message.pod.metadata.labels == {"tier": "front"}
    assert watcher.core.figures(watcher.now).in_flight == {"berth": 1}


def test_own_conditions_are_no_change_of_the_pod():
    watcher = WatcherUnderTest().lead(a_pod("web"))

    watcher.show(a_pod("web", version=2, nominated="n1"))

    assert len(watcher.published) == 1


def test_decision_of_an_earlier_attempt_is_ignored():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.show(a_pod("web", labels={"tier": "front"}, version=2))

    watcher.decide("web", Outcome.UNSCHEDULABLE, attempt="uid-web.7.1", blockers=["NodeResourcesFit"])

    assert watcher.stage("web") == "in flight"


def test_duplicate_decision_counts_once():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    decision = watcher.decision("web", Outcome.ERROR)

    watcher.send(decision)
    watcher.advance(0.5)
    watcher.send(decision)
    watcher.advance(0.5)

    assert watcher.pods_published == ["web", "web"]


def test_decision_of_the_higher_epoch_counts():
    watcher = WatcherUnderTest().lead(a_pod("web"))

    watcher.decide("web", Outcome.UNSCHEDULABLE, epoch=1, blockers=["NodeResourcesFit"])
    watcher.decide("web", Outcome.BOUND, epoch=2)
    assert watcher.stage("web") == "awaiting watch"
    watcher.decide("web", Outcome.ERROR, epoch=1)

    assert watcher.stage("web") == "awaiting watch"


def test_pod_too_large_for_the_bus_backs_off_and_frees_its_slot():
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(
        a_pod("huge", age_seconds=9), a_pod("next")
    )

    watcher.send(PublishRefused(attempt=attempt("huge", 7, 1), reason="too large"))

    assert [effect.dead_letter.reason for effect in watcher.of(PublishDeadLetter)] == ["too large"]
    assert watcher.stage("huge") == "backoff"
    assert watcher.pods_published == ["huge", "next"]


def held(watcher: WatcherUnderTest, n: int, held_by: str = "pending", *, is_worked_on: bool = False) -> None:
    watcher.send(AttemptLookedUp(attempt=attempt("web", 7, n), held_by=held_by, is_worked_on=is_worked_on))


def seconds_of_attempts(count: int, held_by: str, *, is_worked_on: bool) -> tuple[WatcherUnderTest, list[int]]:
    """Have each look-up find the attempt in the work queue; the seconds after which each was followed by the next."""
    watcher = WatcherUnderTest().lead(a_pod("web"))
    seconds = []
    for n in range(1, count + 1):
        began, looked_up = watcher.now, len(watcher.of(LookUpAttempt))
        while watcher.attempt_of("web") == f"uid-web.7.{n}":
            watcher.advance(1)
            if len(watcher.of(LookUpAttempt)) > looked_up:
                looked_up = len(watcher.of(LookUpAttempt))
                held(watcher, n, held_by, is_worked_on=is_worked_on)
        seconds.append(round(watcher.now - began))
    return watcher, seconds


def test_attempt_without_decision_is_looked_up_every_ten_seconds():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.advance(9.9)
    assert watcher.of(LookUpAttempt) == []

    watcher.advance(0.2)
    watcher.advance(10)

    assert [str(effect.attempt) for effect in watcher.of(LookUpAttempt)] == ["uid-web.7.1"] * 2
    assert str(watcher.of(LookUpAttempt)[0].subject("pending")) == "berth.pending.berth.default.web"
    assert len(watcher.published) == 1


@pytest.mark.parametrize("held_by", ["pending", "ranked"])
def test_attempt_that_a_work_queue_holds_is_followed_by_the_next_every_ten_seconds(held_by: str):
    watcher, seconds = seconds_of_attempts(6, held_by, is_worked_on=False)

    assert seconds == [10] * 6
    assert [warning.message for warning in watcher.of(Warn)] == ["pods wait for a service"]


def test_attempt_that_a_scorer_works_on_is_followed_by_the_next_each_time_later():
    _, seconds = seconds_of_attempts(6, "pending", is_worked_on=True)

    assert seconds == [10, 22, 42, 82, 82, 82]


@pytest.mark.parametrize("after", [1.0, 5.0, 9.0, 35.0, 71.0])
def test_attempt_whose_scorer_goes_is_followed_by_the_next_within_ten_seconds(after: float):
    watcher, _ = seconds_of_attempts(5, "pending", is_worked_on=True)
    gone_at, n, looked_up = watcher.now + after, 6, len(watcher.of(LookUpAttempt))
    while watcher.attempt_of("web") == "uid-web.7.6":
        watcher.advance(0.5)
        if len(watcher.of(LookUpAttempt)) > looked_up:
            looked_up = len(watcher.of(LookUpAttempt))
            # Its last announcement counts for some seconds.
            held(watcher, n, is_worked_on=watcher.now <= gone_at + HELD_SECONDS)

    assert watcher.now - gone_at <= 10.5


def test_attempt_after_one_that_stayed_in_pending_is_ranked_as_a_suspect():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.advance(10)
    held(watcher, 1)
    assert [each.message.suspect for each in watcher.published] == [False, True]

    watcher.decide("web", Outcome.ERROR)
    watcher.advance(1)

    assert not watcher.published[-1].message.suspect


def test_attempt_after_one_that_stayed_in_ranked_is_no_suspect():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.advance(10)

    held(watcher, 1, "ranked")

    assert [each.message.suspect for each in watcher.published] == [False, False]


def test_attempt_that_a_scorer_puts_off_for_a_century_gives_its_slot_to_others():
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(
        a_pod("web", age_seconds=9), a_pod("next")
    )
    watcher.advance(10)
    assert watcher.pods_published == ["web"]

    held(watcher, 1)

    assert watcher.pods_published == ["web", "next"]
    assert watcher.stage("web") == "active"
    watcher.decide("next", Outcome.BOUND)
    assert watcher.pods_published == ["web", "next", "web"]


def test_decision_of_an_attempt_whose_slot_was_given_back_counts():
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(
        a_pod("web", age_seconds=9), a_pod("next")
    )
    watcher.advance(10)
    held(watcher, 1)

    watcher.decide("web", Outcome.BOUND)

    assert watcher.stage("web") == "awaiting watch"
    watcher.decide("next", Outcome.BOUND)
    assert watcher.pods_published == ["web", "next"]


def test_after_a_decision_an_attempt_is_held_for_ten_seconds_again():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.advance(10)
    held(watcher, 1)
    watcher.decide("web", Outcome.ERROR)
    watcher.advance(1)
    assert watcher.attempt_of("web") == "uid-web.7.3"

    watcher.advance(10)
    held(watcher, 3)

    assert watcher.attempt_of("web") == "uid-web.7.4"


def test_waiting_delays_the_look_up():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.advance(9)

    watcher.decide("web", Outcome.WAITING)
    watcher.advance(9)

    assert watcher.of(LookUpAttempt) == []


def test_lost_attempt_is_followed_by_the_next():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.advance(10)

    watcher.send(AttemptLookedUp(attempt=attempt("web", 7, 1)))

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_missed_decision_is_found_by_the_look_up():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.advance(10)
    missed = watcher.decision("web", Outcome.BOUND).decision

    watcher.send(AttemptLookedUp(attempt=attempt("web", 7, 1), decision=missed, time=datetime.now(UTC)))

    assert len(watcher.published) == 1
    assert watcher.stage("web") == "awaiting watch"


def test_third_lost_attempt_is_an_error_and_a_dead_letter():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    for n in (1, 2, 3):
        watcher.advance(10)
        watcher.send(AttemptLookedUp(attempt=attempt("web", 7, n)))

    (dead_letter,) = (effect.dead_letter for effect in watcher.of(PublishDeadLetter))
    assert dead_letter.attempt == "uid-web.7.3"
    assert "uid-web.7.3" in dead_letter.reason
    assert watcher.stage("web") == "backoff"
    assert watcher.core.figures(watcher.now).in_flight == {"berth": 0}
    watcher.advance(1)
    assert watcher.attempt_of("web") == "uid-web.7.4"


def test_publish_that_nats_left_unanswered_is_no_lost_attempt():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    for n in range(1, 6):
        watcher.send(PublishNotStored(attempt=attempt("web", 7, n)))
        watcher.advance(10)
        watcher.send(AttemptLookedUp(attempt=attempt("web", 7, n)))

    assert watcher.attempt_of("web") == "uid-web.7.6"
    assert watcher.of(PublishDeadLetter) == []
    for n in (6, 7, 8):
        watcher.advance(10)
        watcher.send(AttemptLookedUp(attempt=attempt("web", 7, n)))
    assert len(watcher.of(PublishDeadLetter)) == 1


def test_look_up_of_an_earlier_attempt_is_ignored():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.advance(10)
    watcher.show(a_pod("web", labels={"tier": "front"}, version=2))

    watcher.send(AttemptLookedUp(attempt=attempt("web", 7, 1)))

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_pod_decided_gone_but_unbound_at_the_api_is_tried_again():
    watcher = WatcherUnderTest().lead(a_pod("web"))

    watcher.decide("web", Outcome.GONE)
    assert [(effect.namespace, effect.name) for effect in watcher.of(ReadPod)] == [("default", "web")]
    watcher.send(PodRead(uid="uid-web", pod=a_pod("web", version=5)))

    assert watcher.attempt_of("web") == "uid-web.7.2"
    assert watcher.published[-1].message.pod.metadata.resource_version == "5"


def test_pod_decided_gone_is_read_again_until_the_watch_shows_it():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.decide("web", Outcome.GONE)

    watcher.send(PodRead(uid="uid-web", pod=None))
    watcher.advance(10)

    assert len(watcher.published) == 1
    assert len(watcher.of(ReadPod)) == 2
    watcher.delete(a_pod("web", version=3))
    assert watcher.stage("web") == "gone"


def test_pod_of_the_same_name_is_another_pod():
    watcher = WatcherUnderTest().lead(a_pod("web"))

    watcher.delete(a_pod("web", version=2))
    watcher.show(a_pod("web", uid="uid-second", version=3))

    assert watcher.attempt_of("web") == "uid-second.7.1"


def test_attempt_that_the_bus_has_not_stored_is_tried_again_and_is_no_failure_of_the_pod():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    for n in range(1, 9):
        watcher.send(PublishNotStored(attempt=attempt("web", 7, n)))
        watcher.advance(10)
        watcher.send(AttemptLookedUp(attempt=attempt("web", 7, n)))

    assert watcher.attempt_of("web") == "uid-web.7.9"
    assert watcher.of(PublishDeadLetter) == []


def test_pod_whose_attempt_the_bus_has_not_stored_counts_as_waiting():
    watcher = WatcherUnderTest().lead(a_pod("web"), a_pod("other"))
    watcher.send(PublishNotStored(attempt=attempt("web", 7, 1)))
    assert watcher.core.figures(watcher.now).pending["active"] == 1
    watcher.decide("web", Outcome.BOUND)
    assert watcher.core.figures(watcher.now).pending["active"] == 0
