"""What the watcher counts: who came to which queue and why, how long pods waited, and how long attempts took."""

from __future__ import annotations

from datetime import timedelta

from msgspec import structs

from berth.api.messages import Decision, Outcome, Positions
from berth.bus.interface import StoredMessage
from berth.framework.events import Action, ClusterEvent, Resource
from berth.process.metrics import RecordingMeter
from berth_watcher.events import CountScheduled
from berth_watcher.hints import label_of, label_of_own_update
from berth_watcher.metrics import Gauges, count_decision, count_published, count_scheduled
from harness.worlds.watcher_world import EPOCH, WatcherUnderTest, a_node, a_pod

FIT = {"blockers": ["NodeResourcesFit"]}


def entered(world: WatcherUnderTest) -> dict[tuple[str, str], int]:
    return dict(world.core.figures(world.now).incoming)


def scheduled(world: WatcherUnderTest) -> list[CountScheduled]:
    return [effect for effect in world.others if isinstance(effect, CountScheduled)]


def refused(world: WatcherUnderTest, name: str = "web") -> None:
    world.decide(name, Outcome.UNSCHEDULABLE, positions=Positions(cluster=world.sequence), **FIT)


def test_a_new_pod_comes_to_the_active_queue_because_it_was_added():
    world = WatcherUnderTest().lead()
    world.show(a_pod("web"))
    assert entered(world) == {("active", "UnschedulablePodAdd"): 1}


def test_pods_that_a_takeover_finds_are_counted_once():
    world = WatcherUnderTest().lead(a_pod("web"), a_pod("db"))
    assert entered(world) == {("active", "UnschedulablePodAdd"): 2}


def test_a_gated_pod_waits_among_the_unschedulable_until_its_gates_go():
    world = WatcherUnderTest().lead(a_pod("web", gates=("later",)))
    assert entered(world) == {("unschedulable", "UnschedulablePodAdd"): 1}

    world.show(a_pod("web", version=2))

    assert entered(world)["active", "UnschedulablePodUpdatePodSchedulingGatesEliminated"] == 1


def test_a_refused_pod_sleeps_wakes_by_an_event_and_comes_back_when_its_back_off_is_over():
    world = WatcherUnderTest().lead(a_pod("web"))
    refused(world)
    assert entered(world)["unschedulable", "ScheduleAttemptFailure"] == 1

    world.show(a_node("n1"))
    assert entered(world)["backoff", "NodeAdd"] == 1

    world.advance(1)
    assert entered(world)["active", "BackoffComplete"] == 1


def test_a_pod_that_slept_too_long_comes_back_by_timeout():
    world = WatcherUnderTest().lead(a_pod("web"))
    refused(world)
    world.advance(300)
    assert entered(world)["active", "UnschedulableTimeout"] == 1


def test_a_pod_is_counted_when_it_is_seen_on_its_node_from_when_it_first_waited():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    refused(world)
    world.advance(300)  # the second attempt
    world.advance(2)

    world.show(a_pod("web", node="n1", version=2))

    assert scheduled(world) == [CountScheduled(attempts=2, seconds=302.0)]


def test_also_when_the_decision_was_heard_first():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    world.advance(1)
    world.decide("web", Outcome.BOUND, node="n1")
    world.advance(1)
    world.show(a_pod("web", node="n1", version=2))
    assert scheduled(world) == [CountScheduled(attempts=1, seconds=2.0)]


def test_the_time_behind_gates_does_not_count():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web", gates=("later",)))
    world.advance(60)
    world.show(a_pod("web", version=2))
    world.advance(1)
    world.show(a_pod("web", node="n1", version=3))
    assert scheduled(world) == [CountScheduled(attempts=1, seconds=1.0)]


def test_a_pod_that_somebody_else_bound_while_it_slept_is_not_ours_to_count():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"))
    refused(world)
    world.show(a_pod("web", node="n1", version=2))
    assert scheduled(world) == []


def test_the_wait_for_a_place_in_the_window_is_told_with_the_publish():
    floor = WatcherUnderTest().settings.window_floor
    world = WatcherUnderTest().lead(*(a_pod(f"web-{number:03}") for number in range(floor + 1)))
    assert {each.waited_seconds for each in world.published} == {0.0}

    world.advance(3)
    world.decide("web-000", Outcome.BOUND, node="n1")

    assert world.published[-1].waited_seconds == 3.0


def test_attempts_are_timed_by_the_times_at_which_nats_stored_their_messages():
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
    assert {key: said for key, said in meter.observed.items() if key[0] == attempts} == {
        (attempts, "scheduled", "berth"): [3.0]
    }
    assert meter.observed["berth_stage_duration_seconds", "rank"] == [1.0, 1.0]
    assert meter.observed["berth_stage_duration_seconds", "commit"] == [2.0, 2.0]


def test_many_attempts_are_not_told_apart():
    meter = RecordingMeter()
    for attempts in (1, 14, 15, 400):
        count_scheduled(meter, CountScheduled(attempts=attempts, seconds=1.0))
    sli = "scheduler_pod_scheduling_sli_duration_seconds"
    assert meter.observed[sli, "15+"] == [1.0, 1.0]
    assert meter.observed[sli, "14"] == meter.observed[sli, "1"] == [1.0]
    assert meter.observed["scheduler_pod_scheduling_attempts",] == [1, 14, 15, 400]


def test_an_attempt_without_a_turn_of_its_own_has_waited_for_nothing():
    world, meter = WatcherUnderTest().lead(a_pod("web")), RecordingMeter()
    world.show(a_pod("web", labels={"app": "web"}, version=2))
    for published in world.published:
        count_published(meter, published)
    assert meter.value("berth_messages_published_total", stream="PENDING") == 2
    assert meter.observed["berth_stage_duration_seconds", "queue"] == [0.0]


def test_gauges_follow_the_figures_arrivals_add_up_and_the_end_takes_the_gauges_back():
    world, meter = WatcherUnderTest().lead(a_pod("web")), RecordingMeter()
    gauges = Gauges(meter)
    gauges.update(world.core.figures(world.now))
    refused(world)
    gauges.update(world.core.figures(world.now))
    assert meter.value("scheduler_unschedulable_pods", plugin="NodeResourcesFit", profile="berth") == 1
    world.advance(300)
    gauges.update(world.core.figures(world.now))
    assert meter.value("scheduler_unschedulable_pods", plugin="NodeResourcesFit", profile="berth") == 0
    assert meter.value("scheduler_queue_incoming_pods_total", queue="active", event="UnschedulablePodAdd") == 1
    assert meter.value("scheduler_queue_incoming_pods_total", queue="active", event="UnschedulableTimeout") == 1
    assert meter.value("berth_in_flight_pods") == 1

    gauges.clear()

    assert {key[0] for key in meter.values} == {"scheduler_queue_incoming_pods_total"}


def test_a_refused_pod_counts_for_its_plugins_until_it_is_tried_again():
    world = WatcherUnderTest().lead(a_pod("web"), a_pod("gated", gates=("later",)))

    def by_plugin() -> dict[tuple[str, str], int]:
        return dict(world.core.figures(world.now).unschedulable)

    gated = {("SchedulingGates", "berth"): 1}
    assert by_plugin() == gated
    refused(world)
    assert by_plugin() == {**gated, ("NodeResourcesFit", "berth"): 1}
    world.show(a_node("n1"))
    assert world.stage("web") == "backoff"
    assert by_plugin() == {**gated, ("NodeResourcesFit", "berth"): 1}
    world.advance(1)
    assert world.stage("web") == "in flight"
    assert by_plugin() == gated
    world.show(a_pod("gated", version=2))
    assert by_plugin() == {}


def test_a_refused_pod_that_is_deleted_counts_no_more():
    world = WatcherUnderTest().lead(a_pod("web"))
    refused(world)
    world.delete(a_pod("web"))
    assert dict(world.core.figures(world.now).unschedulable) == {}


def test_events_have_kube_schedulers_names():
    assert label_of(ClusterEvent(Resource.POD, Action.DELETE)) == "AssignedPodDelete"
    assert label_of(ClusterEvent(Resource.NODE, Action.UPDATE_NODE_TAINT)) == "NodeUpdateNodeTaint"
    assert label_of(ClusterEvent(Resource.CSI_NODE, Action.ADD)) == "storage.k8s.io/CSINodeAdd"
    both = Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT
    assert label_of(ClusterEvent(Resource.NODE, both)) == "NodeUpdateNodeLabel"
    assert label_of_own_update(Action.UPDATE_POD_TOLERATIONS) == "UnschedulablePodUpdatePodToleration"
    assert label_of_own_update(Action(0)) == "UnschedulablePodUpdate"
