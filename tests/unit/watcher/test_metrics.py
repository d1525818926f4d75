"""What the watcher counts: pods that enter a queue and why, how long pods wait, and how long attempts take."""

from __future__ import annotations

from datetime import timedelta

from msgspec import structs

from berth.bus.interface import StoredMessage
from berth.messages.attempts import Decision, Outcome, Positions
from berth_watcher.effects import count_published, count_scheduled
from berth_watcher.events import CountScheduled
from berth_watcher.metrics import Gauges
from berth_watcher.service import count_decision
from harness.fakes.recording_meter import RecordingMeter
from harness.worlds.watcher_world import EPOCH, WatcherUnderTest, a_node, a_pod

FIT = {"blockers": ["NodeResourcesFit"]}


def incoming(watcher: WatcherUnderTest) -> dict[tuple[str, str], int]:
    return dict(watcher.core.figures(watcher.now).incoming)


def scheduled(watcher: WatcherUnderTest) -> list[tuple[int, float]]:
    """Attempts and seconds of each pod that was bound."""
    counted = (effect for effect in watcher.other_effects if isinstance(effect, CountScheduled))
    return [(each.attempts, each.seconds) for each in counted]


def rejected(watcher: WatcherUnderTest, name: str = "web") -> None:
    watcher.decide(name, Outcome.UNSCHEDULABLE, positions=Positions(cluster=watcher.sequence), **FIT)


def test_new_pod_enters_the_active_queue():
    watcher = WatcherUnderTest().lead()
    watcher.show(a_pod("web"))
    assert incoming(watcher) == {("active", "UnschedulablePodAdd"): 1}


def test_pods_of_a_takeover_are_counted_once():
    watcher = WatcherUnderTest().lead(a_pod("web"), a_pod("db"))
    assert incoming(watcher) == {("active", "UnschedulablePodAdd"): 2}


def test_gated_pod_is_counted_as_unschedulable_until_ungated():
    watcher = WatcherUnderTest().lead(a_pod("web", gates=("later",)))
    assert incoming(watcher) == {("unschedulable", "UnschedulablePodAdd"): 1}

    watcher.show(a_pod("web", version=2))

    assert incoming(watcher)["active", "UnschedulablePodUpdatePodSchedulingGatesEliminated"] == 1


def test_rejected_pod_passes_unschedulable_backoff_and_active():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher)
    assert incoming(watcher)["unschedulable", "ScheduleAttemptFailure"] == 1

    watcher.show(a_node("n1"))
    assert incoming(watcher)["backoff", "NodeAdd"] == 1
    assert incoming(watcher)["active", "PopFromBackoffQ"] == 1  # nothing else is to be done

    watcher.decide("web", Outcome.ERROR)
    watcher.advance(2)
    assert incoming(watcher)["active", "BackoffComplete"] == 1


def test_unschedulable_pod_becomes_active_by_timeout():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher)
    watcher.advance(300)
    assert incoming(watcher)["active", "UnschedulableTimeout"] == 1


def test_scheduled_pod_is_timed_from_when_it_was_first_active():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    rejected(watcher)
    watcher.advance(300)  # the second attempt
    watcher.advance(2)

    watcher.show(a_pod("web", node="n1", version=2))

    assert scheduled(watcher) == [(2, 302.0)]


def test_scheduled_pod_is_counted_when_the_decision_comes_before_the_watch():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    watcher.advance(1)
    watcher.decide("web", Outcome.BOUND, node="n1")
    watcher.advance(1)
    watcher.show(a_pod("web", node="n1", version=2))
    assert scheduled(watcher) == [(1, 2.0)]


def test_gated_time_does_not_count():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web", gates=("later",)))
    watcher.advance(60)
    watcher.show(a_pod("web", version=2))
    watcher.advance(1)
    watcher.show(a_pod("web", node="n1", version=3))
    assert scheduled(watcher) == [(1, 1.0)]


def test_pod_bound_by_another_scheduler_is_not_counted():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    rejected(watcher)
    watcher.show(a_pod("web", node="n1", version=2))
    assert scheduled(watcher) == []


def test_publish_carries_the_wait_for_a_slot():
    floor = WatcherUnderTest().settings.window_floor
    watcher = WatcherUnderTest().lead(*(a_pod(f"web-{number:03}") for number in range(floor + 1)))
    assert {each.waited_seconds for each in watcher.published} == {0.0}

    watcher.advance(3)
    watcher.decide("web-000", Outcome.BOUND, node="n1")

    assert watcher.published[-1].waited_seconds == 3.0


def test_attempts_are_timed_by_nats_time_stamps():
    meter = RecordingMeter()
    decision = Decision(
        attempt="u.1.1",
        epoch=1,
        outcome=Outcome.BOUND,
        profile="berth",
        namespace="default",
        pod="web",
        uid="u",
        asked_at=EPOCH,
        ranked_at=EPOCH + timedelta(seconds=1),
    )
    stored = StoredMessage(subject="s", sequence=1, data=b"", time=EPOCH + timedelta(seconds=3))
    count_decision(meter, decision, stored)
    count_decision(meter, structs.replace(decision, outcome=Outcome.CONFLICT), stored)
    count_decision(meter, structs.replace(decision, outcome=Outcome.WAITING), stored)
    attempts = "scheduler_scheduling_attempt_duration_seconds"
    assert {key: seconds for key, seconds in meter.observed.items() if key[0] == attempts} == {
        (attempts, "scheduled", "berth"): [3.0]
    }
    assert meter.observed["berth_stage_duration_seconds", "rank"] == [1.0, 1.0]
    assert meter.observed["berth_stage_duration_seconds", "commit"] == [2.0, 2.0]


def test_many_attempts_share_a_label():
    meter = RecordingMeter()
    for attempts in (1, 14, 15, 400):
        count_scheduled(meter, CountScheduled(pod=a_pod("web"), attempts=attempts, seconds=1.0))
    sli = "scheduler_pod_scheduling_sli_duration_seconds"
    assert meter.observed[sli, "15+"] == [1.0, 1.0]
    assert meter.observed[sli, "14"] == meter.observed[sli, "1"] == [1.0]
    assert meter.observed["scheduler_pod_scheduling_attempts",] == [1, 14, 15, 400]


def test_attempt_that_replaces_another_has_no_queue_time():
    watcher, meter = WatcherUnderTest().lead(a_pod("web")), RecordingMeter()
    watcher.show(a_pod("web", labels={"app": "web"}, version=2))
    for published in watcher.published:
        count_published(meter, published)
    assert meter.value("berth_messages_published_total", stream="PENDING") == 2
    assert meter.observed["berth_stage_duration_seconds", "queue"] == [0.0]


def test_gauges_are_cleared_and_counters_stay():
    watcher, meter = WatcherUnderTest().lead(a_pod("web")), RecordingMeter()
    gauges = Gauges(meter)
    gauges.update(watcher.core.figures(watcher.now))
    rejected(watcher)
    gauges.update(watcher.core.figures(watcher.now))
    assert meter.value("scheduler_unschedulable_pods", plugin="NodeResourcesFit", profile="berth") == 1
    watcher.advance(300)
    gauges.update(watcher.core.figures(watcher.now))
    assert meter.value("scheduler_unschedulable_pods", plugin="NodeResourcesFit", profile="berth") == 0
    assert meter.value("scheduler_queue_incoming_pods_total", queue="active", event="UnschedulablePodAdd") == 1
    assert meter.value("scheduler_queue_incoming_pods_total", queue="active", event="UnschedulableTimeout") == 1
    assert meter.value("berth_in_flight_pods", profile="berth") == 1

    gauges.clear()

    assert {key[0] for key in meter.values} == {"scheduler_queue_incoming_pods_total"}


def test_rejected_pod_counts_for_its_plugins_until_tried_again():
    watcher = WatcherUnderTest().lead(a_pod("web"), a_pod("gated", gates=("later",)))

    def by_plugin() -> dict[tuple[str, str], int]:
        return dict(watcher.core.figures(watcher.now).unschedulable)

    gated = {("SchedulingGates", "berth"): 1}
    assert by_plugin() == gated
    rejected(watcher)
    assert by_plugin() == {**gated, ("NodeResourcesFit", "berth"): 1}
    watcher.hold_writes = True
    watcher.show(a_node("n1"))
    assert watcher.stage("web") == "backoff"
    assert by_plugin() == {**gated, ("NodeResourcesFit", "berth"): 1}
    watcher.answer_writes()
    assert watcher.stage("web") == "in flight"
    assert by_plugin() == gated
    watcher.show(a_pod("gated", version=2))
    assert by_plugin() == {}


def test_names_that_are_no_plugins_count_as_one():
    """They come from Decisions, which others may write: each name would be a series for ever."""
    watcher, meter = WatcherUnderTest().lead(*(a_pod(f"p{each}") for each in range(5))), RecordingMeter()
    positions = Positions(cluster=watcher.sequence)
    for each in range(5):
        blockers = [f"made-up-{each}", f"also-{each}", "NodeResourcesFit"]
        watcher.decide(f"p{each}", Outcome.UNSCHEDULABLE, positions=positions, blockers=blockers)
    gauges = Gauges(meter)
    gauges.update(watcher.core.figures(watcher.now))
    shown = {key: pods for key, pods in meter.values.items() if key[0] == "scheduler_unschedulable_pods"}
    assert sorted((plugin, pods) for (_, plugin, _), pods in shown.items()) == [
        ("(unknown)", 5),
        ("NodeResourcesFit", 5),
    ]

    for each in range(5):
        watcher.delete(a_pod(f"p{each}"))
    gauges.update(watcher.core.figures(watcher.now))
    shown = {key: pods for key, pods in meter.values.items() if key[0] == "scheduler_unschedulable_pods"}
    assert sorted((plugin, pods) for (_, plugin, _), pods in shown.items()) == [
        ("(unknown)", 0),
        ("NodeResourcesFit", 0),
    ]


def test_deleted_pod_counts_for_no_plugin():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    rejected(watcher)
    watcher.delete(a_pod("web"))
    assert dict(watcher.core.figures(watcher.now).unschedulable) == {}
