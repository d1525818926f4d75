"""After a conflict a pod goes to the front of its priority, once the reflectors have shown what it was about."""

from berth.kube.listwatch import Current
from berth.messages.attempts import Outcome, Reason
from berth_watcher.events import AttemptLookedUp
from berth_watcher.queue.requeue import VersionGate
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import WatcherUnderTest, a_node, a_pod, attempt

ONE_PLACE = AttemptSettings(window_floor=1)


def test_conflict_goes_to_the_front_of_its_priority():
    watcher = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("loser"))
    watcher.show(a_pod("older", age_seconds=100), a_pod("urgent", priority=1))

    watcher.decide("loser", Outcome.CONFLICT)
    watcher.decide("urgent", Outcome.BOUND)
    watcher.decide("loser", Outcome.BOUND)

    assert watcher.pods_published == ["loser", "urgent", "loser", "older"]


def test_conflict_waits_for_every_version_that_it_names():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))

    watcher.decide("web", Outcome.CONFLICT, resource_versions={"pod": "50", "node": "40"})
    watcher.show(a_pod("other", node="n1", version=50))
    assert watcher.stage("web") == "awaiting versions"
    watcher.show(a_node("n1", version=40))

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_bookmark_reaches_a_version():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.decide("web", Outcome.CONFLICT, resource_versions={"node": "40"})

    watcher.send(Current(kind="node", resource_version="41"))

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_broken_watch_holds_a_conflict_for_ten_seconds_at_most():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.decide("web", Outcome.CONFLICT, resource_versions={"node": "4000"})

    watcher.advance(10)

    assert watcher.attempt_of("web") == "uid-web.7.2"


def test_next_ranking_must_see_what_the_conflict_was_about():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    watcher.hold_writes = True
    watcher.decide("web", Outcome.CONFLICT, resource_versions={"pod": "50"})

    watcher.show(a_pod("other", node="n1", version=50))
    assert watcher.stage("web") == "awaiting mirror"
    watcher.answer_writes()

    after = watcher.published[-1].message.after
    assert after.cluster >= watcher.bucket["pod.uid-other"].sequence
    assert after.decisions == 1


def test_required_positions_survive_a_lost_attempt():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    watcher.decide("web", Outcome.CONFLICT)
    asked_for = watcher.published[-1].message.after
    watcher.advance(10)

    watcher.send(AttemptLookedUp(attempt=attempt("web", 7, 2)))

    assert asked_for.cluster > 0
    assert watcher.published[-1].message.after == asked_for


def test_third_consecutive_conflict_backs_off():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    for _ in range(2):
        watcher.decide("web", Outcome.CONFLICT)
    assert len(watcher.published) == 3

    watcher.decide("web", Outcome.CONFLICT)
    assert watcher.stage("web") == "backoff"
    watcher.advance(1)

    assert len(watcher.published) == 4


def test_another_outcome_resets_the_count_of_conflicts():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    watcher.decide("web", Outcome.CONFLICT)
    watcher.decide("web", Outcome.CONFLICT)
    watcher.decide("web", Outcome.ERROR)
    watcher.advance(1)

    watcher.decide("web", Outcome.CONFLICT)

    assert watcher.stage("web") == "in flight"


def test_pod_that_only_proposals_keep_out_goes_before_nobody():
    watcher = WatcherUnderTest(settings=ONE_PLACE).lead(a_pod("kept-out"))
    watcher.show(a_pod("later"))

    watcher.decide("kept-out", Outcome.CONFLICT, reason=Reason.PROPOSALS)
    assert watcher.stage("kept-out") == "backoff"
    assert watcher.stage("later") == "in flight"
    watcher.advance(1)
    watcher.decide("later", Outcome.BOUND)

    assert watcher.pods_published == ["kept-out", "later", "kept-out"]


def test_pod_that_only_proposals_keep_out_is_tried_at_once_when_nothing_else_is_to_be_done():
    watcher = WatcherUnderTest().lead(a_pod("kept-out"))

    watcher.decide("kept-out", Outcome.CONFLICT, reason=Reason.PROPOSALS)
    again = watcher.published[-1].message
    assert again.attempt == "uid-kept-out.7.2"
    assert again.after.decisions == 1  # that ranking must have read what became of the proposals
    watcher.decide("kept-out", Outcome.CONFLICT, reason=Reason.PROPOSALS)

    assert watcher.stage("kept-out") == "backoff"  # once in a second


def test_waits_for_versions_that_never_come_are_forgotten():
    gate = VersionGate(["node"])

    for number in range(5000):
        uid = f"uid-{number}"
        assert not gate.pass_or_wait(uid, {"node": 10**9})
        gate.end(uid)

    assert len(gate) <= 100
    assert not gate.pass_or_wait("uid-last", {"node": 20})
    assert gate.on_version("node", 20) == ["uid-last"]


def test_pod_that_waits_again_for_another_version_is_returned_once():
    gate = VersionGate(["node"])
    gate.pass_or_wait("uid-web", {"node": 20})
    gate.pass_or_wait("uid-web", {"node": 30})

    assert gate.on_version("node", 25) == []
    assert gate.on_version("node", 30) == ["uid-web"]
