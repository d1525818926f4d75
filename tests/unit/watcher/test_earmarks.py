"""Earmarks in the watcher: scorers read them in ``cluster``, and their end wakes the pods that they kept out."""

from __future__ import annotations

from typing import Any

import pytest

from berth.api.podgroups import Dialect
from berth.messages.attempts import Decision, Outcome, Positions
from berth.messages.earmarks import FILTER, Earmark
from berth_watcher.events import FoundDecision, StreamsRead
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import EPOCH, WatcherUnderTest, a_node, a_pod
from unit.watcher.test_gangs import GANG, KINDS, a_pod_group, bound, members

KEY = "earmark.berth"
EARMARK = Earmark(
    dialect=Dialect.COSCHEDULING, namespace="default", name="gang", uid="uid-~gang", profile="berth", nodes=["n1"]
)


def a_watcher(**parts: Any) -> WatcherUnderTest:
    watcher = WatcherUnderTest(kinds=KINDS, settings=AttemptSettings(), **parts)
    return watcher.lead(a_node("n1"), a_pod_group(minimum=2), *members(2), a_pod("newcomer"))


@pytest.fixture
def watcher() -> WatcherUnderTest:
    """A group has an earmark, which has kept a pod out."""
    found = a_watcher()
    decide_group(found, earmark=EARMARK)
    found.decide("newcomer", Outcome.UNSCHEDULABLE, blockers=[FILTER], positions=positions(found))
    found.advance(2.0)
    assert (found.stage("newcomer"), found.pods_published) == ("unschedulable", ["newcomer"])
    return found


def positions(watcher: WatcherUnderTest) -> Positions:
    return Positions(cluster=watcher.sequence, decisions=watcher.decisions)


def decide_group(watcher: WatcherUnderTest, outcome: Outcome = Outcome.UNSCHEDULABLE, **more: Any) -> None:
    watcher.decide(GANG, outcome, positions=positions(watcher), blockers=["NodeResourcesFit"], **more)


def test_scorers_read_it_until_its_end(watcher):
    shown = watcher.mirrored(KEY)
    assert isinstance(shown, dict)
    assert (shown["name"], shown["nodes"], shown["until"]) == ("gang", ["n1"], "2026-01-01T00:05:00+00:00")


def test_its_end_by_time_wakes_the_pods_that_it_kept_out(watcher):
    due = watcher.core.due()
    assert due is not None
    watcher.advance(297.0)
    assert watcher.mirrored(KEY) is not None
    watcher.advance(2.5)
    assert watcher.mirrored(KEY) is None
    assert watcher.pods_published == ["newcomer"] * 2
    assert watcher.published[-1].message.after.cluster >= watcher.bucket[KEY].sequence


def _deleted(watcher: WatcherUnderTest) -> None:
    watcher.delete(a_pod_group(minimum=2))


def _changed(watcher: WatcherUnderTest) -> None:
    watcher.show(a_pod_group(minimum=1, version=2))


def _incomplete(watcher: WatcherUnderTest) -> None:
    watcher.delete(members(2)[0])


def _whole(watcher: WatcherUnderTest) -> None:
    watcher.show(*map(bound, members(2)))


def _of_another_epoch(watcher: WatcherUnderTest) -> None:
    watcher.show(a_pod("other"))
    watcher.decide("other", Outcome.UNSCHEDULABLE, epoch=2)


@pytest.mark.parametrize("happens", [_deleted, _changed, _incomplete, _whole, _of_another_epoch])
def test_it_ends_at_once_with_its_group_and_with_the_epoch(watcher, happens):
    happens(watcher)
    watcher.advance(0.1)
    assert watcher.mirrored(KEY) is None
    assert watcher.pods_published.count("newcomer") == 2


@pytest.mark.parametrize("outcome", [Outcome.UNSCHEDULABLE, Outcome.BOUND])
def test_it_ends_with_a_decision_of_the_group_that_has_none(watcher, outcome):
    attempt = watcher.attempt_of(GANG)
    watcher.decide(GANG, outcome, attempt=attempt)
    watcher.advance(0.1)
    assert watcher.mirrored(KEY) is None


def test_a_decision_that_repeats_it_writes_nothing(watcher):
    before = watcher.bucket[KEY].sequence
    again = Earmark(**{name: getattr(EARMARK, name) for name in EARMARK.__struct_fields__} | {"seconds": 200})
    watcher.decide(GANG, Outcome.UNSCHEDULABLE, attempt=watcher.attempt_of(GANG), earmark=again)
    assert watcher.bucket[KEY].sequence == before


def test_other_events_do_not_wake_the_pods_that_it_keeps_out_and_a_new_node_does(watcher):
    gone = a_pod("gone", node="n1")
    watcher.show(gone)
    watcher.delete(gone)
    watcher.advance(1.0)
    assert watcher.pods_published == ["newcomer"]
    watcher.show(a_node("n2"))
    watcher.advance(1.0)
    assert watcher.pods_published == ["newcomer"] * 2


def test_a_new_watcher_goes_on_with_the_groups_last_decision():
    former = a_watcher()
    decide_group(former, earmark=EARMARK)
    watcher = WatcherUnderTest(kinds=KINDS)
    watcher.bucket, watcher.sequence = former.bucket, former.sequence
    decision = Decision(
        attempt="uid-~gang.6.1",
        epoch=1,
        outcome=Outcome.UNSCHEDULABLE,
        profile="berth",
        namespace="default",
        pod=GANG,
        uid="uid-~gang",
        earmark=EARMARK,
    )
    found = FoundDecision(decision=decision, time=EPOCH, age_seconds=100.0)
    watcher.lead(a_node("n1"), a_pod_group(minimum=2), *members(2), streams=StreamsRead(decisions={"uid-~gang": found}))
    watcher.advance(0.0)
    assert watcher.mirrored(KEY) is not None
    watcher.advance(202.0)
    assert watcher.mirrored(KEY) is None


def test_a_new_watcher_removes_one_that_no_decision_has():
    former = a_watcher()
    decide_group(former, earmark=EARMARK)
    watcher = WatcherUnderTest(kinds=KINDS)
    watcher.bucket, watcher.sequence = former.bucket, former.sequence
    watcher.lead(a_node("n1"), a_pod_group(minimum=2), *members(2))
    assert watcher.mirrored(KEY) is None
