"""Events and conditions of Decisions: their content, series, and the budget that limits them."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from berth.api.pod import Pod, PodCondition, PodStatus
from berth.kube.http1 import Response
from berth.kube.writes import MAX_NOTE_BYTES, condition_patch
from berth.lifecycle.process import Process
from berth.messages.attempts import Decision, Outcome, Preemption, Victim
from berth_binder.eventrecorder.budget import SERIES_SECONDS, EventBudget
from berth_binder.eventrecorder.recorder import EventRecorder
from berth_binder.eventrecorder.records import (
    ConditionRecord,
    EventRecord,
    condition_of,
    event_body,
    event_of,
    events_of_victims,
    series_body,
)
from berth_binder.settings import EventSettings
from harness.fakes.recording_meter import RecordingMeter
from harness.worlds.binder_bench import make_pod

WALL = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)


def decision(outcome: Outcome, *, pod: str = "web", **parts: str) -> Decision:
    fixed = {"attempt": "uid-web.1.1", "epoch": 1, "profile": "berth", "namespace": "default", "uid": "uid-web"}
    return Decision(**fixed, outcome=outcome, pod=pod, **parts)


def test_event_has_reporter_and_regarding():
    event = event_of(decision(Outcome.BOUND, node="n1"), make_pod("web"))
    body = event_body(event, instance="host-1", wall=WALL)
    assert body["reportingController"] == "berth"
    assert body["reportingInstance"] == "berth-host-1"
    assert body["eventTime"] == "2026-01-02T03:04:05.678900Z"
    assert body["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "default",
        "name": "web",
        "uid": "uid-web",
        "resourceVersion": "10",
    }


def test_same_decision_of_two_epochs_is_one_event():
    one = event_of(decision(Outcome.BOUND, node="n1"), make_pod("web"))
    again = event_of(msgspec.structs.replace(decision(Outcome.BOUND, node="n1"), epoch=2), make_pod("web"))
    assert one.name == again.name


def test_longest_pod_name_gives_a_valid_event_name():
    pod = make_pod("a" * 252 + "b")
    event = event_of(decision(Outcome.BOUND, pod=pod.metadata.name, node="n1"), pod)
    assert len(event.name) <= 253


def test_long_notes_and_messages_are_cut():
    unschedulable = decision(Outcome.UNSCHEDULABLE, message="é" * 5000)
    assert len(event_of(unschedulable, make_pod("web")).note.encode()) <= MAX_NOTE_BYTES
    assert condition_of(unschedulable, make_pod("web")).message.endswith("...")


def test_a_scorers_text_cannot_steer_the_terminal_of_who_reads_it():
    failed = decision(Outcome.ERROR, message="boom \x1b[31m\x07\n\u202e\u2028")
    shown = r"boom \x1b[31m\x07\n\u202e\u2028"
    assert event_of(failed, make_pod("web")).note == shown
    assert condition_of(failed, make_pod("web")).message == shown


def test_repeat_is_a_patch_of_the_series():
    event = replace(event_of(decision(Outcome.UNSCHEDULABLE, message="no"), make_pod("web")), count=2)
    assert series_body(event, WALL) == {"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:05.678900Z"}}


def test_condition_has_status_and_reason():
    condition = condition_of(decision(Outcome.ERROR, message="it broke"), make_pod("web")).condition(WALL)
    assert (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "SchedulerError")
    assert condition.last_transition_time == "2026-01-02T03:04:05Z"


def test_condition_that_stays_false_keeps_its_time():
    present = PodCondition(type="PodScheduled", status="False", last_transition_time="2025-12-31T00:00:00Z")
    pod = make_pod("web", status={"conditions": [present]})
    condition = condition_of(decision(Outcome.UNSCHEDULABLE, message="no room"), pod).condition(WALL)
    assert condition.last_transition_time == "2025-12-31T00:00:00Z"


def test_condition_names_the_generation_that_was_tried_and_is_written_again_for_the_next():
    pod = make_pod("web")
    tried = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, generation=2))
    record = condition_of(decision(Outcome.UNSCHEDULABLE, message="no room"), tried)
    condition = record.condition(WALL)
    assert condition.observed_generation == 2
    assert json.loads(condition_patch(condition))["status"]["conditions"][0]["observedGeneration"] == 2

    shown = PodStatus(conditions=[condition])
    assert not replace(record, pod=msgspec.structs.replace(tried, status=shown)).changes_anything
    later = msgspec.structs.replace(tried.metadata, generation=3)
    assert replace(record, pod=msgspec.structs.replace(tried, metadata=later, status=shown)).changes_anything


# Evictions.


VICTIMS = [Victim(uid="u1", namespace="other", name="low-1"), Victim(uid="u2", namespace="default", name="low-2")]
EVICTED = Preemption(node="n1", victims=VICTIMS)


def preempting(
    *, n: int = 1, outcome: Outcome = Outcome.PREEMPTING, preemption: Preemption | None = EVICTED
) -> Decision:
    return Decision(
        attempt=f"uid-vip.1.{n}",
        epoch=7,
        outcome=outcome,
        profile="berth",
        namespace="default",
        pod="vip",
        uid="uid-vip",
        node="n1",
        message="0/1 nodes are available: 1 Insufficient cpu.",
        preemption=preemption,
    )


def test_each_victim_has_an_event_with_its_preemptor():
    bodies = [event_body(note, instance="x", wall=WALL) for note in events_of_victims(preempting(), make_pod("vip"))]
    assert [(body["reason"], body["action"], body["type"]) for body in bodies] == [
        ("Preempted", "Preempting", "Normal")
    ] * 2
    assert {body["note"] for body in bodies} == {"Preempted by pod uid-vip on node n1"}
    assert [(body["metadata"]["namespace"], body["regarding"]["name"]) for body in bodies] == [
        ("other", "low-1"),
        ("default", "low-2"),
    ]
    assert {body["related"]["name"] for body in bodies} == {"vip"}


def test_same_eviction_of_two_attempts_is_one_event():
    names = [[note.name for note in events_of_victims(preempting(n=n), make_pod("vip"))] for n in (1, 2)]
    assert names[0] == names[1]


def test_preemptor_has_a_failed_scheduling_event():
    event, condition = event_of(preempting(), make_pod("vip")), condition_of(preempting(), make_pod("vip"))
    assert (event.reason, event.note) == ("FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu.")
    assert (condition.reason, condition.message) == ("Unschedulable", "0/1 nodes are available: 1 Insufficient cpu.")


def test_other_decisions_have_no_events_of_victims():
    assert events_of_victims(preempting(outcome=Outcome.BOUND, preemption=None), make_pod("vip")) == []


# Series and budget.


def decided(pod: Pod, outcome: Outcome, **parts: str) -> Decision:
    return Decision(
        attempt=f"{pod.uid}.1.{parts.pop('n', '1')}",
        epoch=1,
        outcome=outcome,
        profile="berth",
        namespace="default",
        pod=pod.metadata.name,
        uid=pod.uid,
        **parts,
    )


def offer(
    budget: EventBudget, name: str, outcome: Outcome = Outcome.BOUND, *, namespace: str = "default", **parts: str
) -> Pod:
    pod = make_pod(name)
    pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace=namespace))
    budget.add(decided(pod, outcome, **parts), pod)
    return pod


def drain(budget: EventBudget, now: float = 0.0) -> list[EventRecord | ConditionRecord]:
    notes = []
    while (note := budget.next(now, bindings_wait=False)) is not None:
        notes.append(note)
        budget.done()
    return notes


def test_bound_pod_has_an_event_and_no_condition():
    budget = EventBudget()
    offer(budget, "web", node="n1")
    (event,) = drain(budget)
    assert (event.type, event.reason, event.action) == ("Normal", "Scheduled", "Binding")
    assert event.note == "Successfully assigned default/web to n1"


@pytest.mark.parametrize(
    ("outcome", "reason"), [(Outcome.UNSCHEDULABLE, "Unschedulable"), (Outcome.ERROR, "SchedulerError")]
)
def test_unschedulable_pod_has_a_condition_and_an_event(outcome, reason):
    budget = EventBudget()
    offer(budget, "web", outcome, message="0/3 nodes are available")
    condition, event = drain(budget)
    assert (condition.reason, condition.message) == (reason, "0/3 nodes are available")
    assert (event.type, event.reason, event.action) == ("Warning", "FailedScheduling", "Scheduling")


@pytest.mark.parametrize("outcome", [Outcome.CONFLICT, Outcome.GONE, Outcome.WAITING])
def test_other_outcomes_are_not_recorded(outcome):
    budget = EventBudget()
    offer(budget, "web", outcome)
    assert budget.waiting == 0


def test_condition_that_the_pod_has_is_not_written_again():
    present = PodCondition(type="PodScheduled", status="False", reason="Unschedulable", message="no room")
    pod = make_pod("web", status={"conditions": [present]})
    budget = EventBudget()
    budget.add(decided(pod, Outcome.UNSCHEDULABLE, message="no room"), pod)
    assert [type(note) for note in drain(budget)] == [EventRecord]
    budget.add(decided(pod, Outcome.UNSCHEDULABLE, message="no room at all"), pod)
    assert ConditionRecord in [type(note) for note in drain(budget)]


def test_repeat_is_counted_in_the_same_event():
    budget = EventBudget()
    for n in ("1", "2", "3"):
        offer(budget, "web", Outcome.UNSCHEDULABLE, message="no room", n=n)
        event = drain(budget)[-1]
    assert event.count == 3
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="another reason")
    assert drain(budget)[-1].count == 1


def test_expired_event_is_created_again():
    budget = EventBudget()
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="no room", n="1")
    budget.end_series(drain(budget)[-1])
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="no room", n="2")
    assert drain(budget)[-1].count == 1


@pytest.mark.parametrize(("seconds", "count"), [(SERIES_SECONDS, 2), (SERIES_SECONDS + 1, 1)])
def test_a_series_without_repeats_ends(seconds: float, count: int):
    budget = EventBudget()
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="no room", n="1")
    drain(budget)
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="no room", n="2")
    assert drain(budget, seconds)[-1].count == count


def test_so_many_series_are_remembered_and_no_more():
    budget = EventBudget(EventSettings(series=2))
    for name in ("first", "second", "third"):
        offer(budget, name, Outcome.UNSCHEDULABLE, message="no room", n="1")
        drain(budget)
    counts = {}
    for name in ("third", "second", "first"):
        offer(budget, name, Outcome.UNSCHEDULABLE, message="no room", n="2")
        counts[name] = drain(budget)[-1].count
    assert counts == {"first": 1, "second": 2, "third": 2}


def test_newer_record_replaces_the_waiting_one():
    budget = EventBudget()
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="old")
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="new")
    assert [note.message for note in drain(budget) if isinstance(note, ConditionRecord)] == ["new"]


def test_oldest_record_is_dropped_when_too_many_wait():
    budget = EventBudget(EventSettings(queued=2))
    for name in ("one", "two", "three"):
        offer(budget, name, node="n1")
    assert budget.dropped == 1
    assert [note.pod.metadata.name for note in drain(budget)] == ["two", "three"]


def test_fewer_requests_are_in_flight_while_bindings_wait():
    budget = EventBudget(EventSettings(in_flight=2, in_flight_behind_bindings=1))
    for name in ("one", "two", "three"):
        offer(budget, name, node="n1")
    assert budget.next(0.0, bindings_wait=True) is not None
    assert budget.next(0.0, bindings_wait=True) is None
    assert budget.next(0.0, bindings_wait=False) is not None
    assert budget.next(0.0, bindings_wait=False) is None
    budget.done()
    assert budget.next(0.0, bindings_wait=False) is not None


def test_rate_is_kept():
    budget = EventBudget(EventSettings(per_second=10, burst=1))
    for name in ("one", "two"):
        offer(budget, name, node="n1")
    assert len(drain(budget, now=0.0)) == 1
    assert budget.due(0.0) == pytest.approx(0.1)
    assert drain(budget, now=0.05) == []
    assert len(drain(budget, now=0.11)) == 1
    assert budget.due(0.11) is None


def names(notes: list[EventRecord | ConditionRecord]) -> list[str]:
    return [note.pod.metadata.name for note in notes]


def test_pods_that_fit_nowhere_have_a_rate_of_their_own_which_delays_no_event_of_a_bound_pod():
    budget = EventBudget(EventSettings(refusals_per_second=2, refusals_burst=2))
    for name in ("one", "two"):
        offer(budget, name, Outcome.UNSCHEDULABLE, message="no room")
    offer(budget, "bound", node="n1")

    assert names(drain(budget, now=0.0)) == ["one", "one", "bound"]
    assert budget.due(0.0) == pytest.approx(0.5)
    assert drain(budget, now=0.4) == []
    assert names(drain(budget, now=1.1)) == ["two", "two"]


def test_namespaces_take_turns():
    budget = EventBudget()
    for name in ("a1", "a2", "a3"):
        offer(budget, name, node="n1", namespace="a")
    offer(budget, "b1", node="n1", namespace="b")

    assert names(drain(budget)) == ["a1", "b1", "a2", "a3"]


def test_the_oldest_of_the_namespace_with_the_most_is_dropped():
    budget = EventBudget(EventSettings(queued=3))
    offer(budget, "b1", node="n1", namespace="b")
    for name in ("a1", "a2", "a3"):
        offer(budget, name, node="n1", namespace="a")

    assert budget.dropped == 1
    assert names(drain(budget)) == ["b1", "a2", "a3"]


def test_pending_failure_records_of_a_bound_pod_are_dropped():
    budget = EventBudget()
    offer(budget, "web", Outcome.UNSCHEDULABLE, message="no room")
    offer(budget, "web", node="n1")

    (event,) = drain(budget)
    assert event.reason == "Scheduled"
    assert not budget.is_busy


# Sending.


class Server:
    """Stands for the client of the API server: it answers when the test allows it."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.asked = asyncio.Semaphore(0)
        self.paths: list[str] = []
        self.open = self.most = 0

    async def request(self, _method: str, path: str, **_parts: object) -> Response:
        self.paths.append(path)
        self.open += 1
        self.most = max(self.most, self.open)
        self.asked.release()
        await self.may_answer.wait()
        self.open -= 1
        return Response(status=201, body=b"")

    async def was_asked(self, times: int) -> None:
        async with asyncio.timeout(10):
            for _ in range(times):
                await self.asked.acquire()


def recorder(server: Server, **settings: float) -> EventRecorder:
    process = Process(name="binder", metrics=RecordingMeter())
    return EventRecorder(server, process, EventBudget(EventSettings(**settings)))


def record(on: EventRecorder, *names: str) -> None:
    for name in names:
        bound = decision(Outcome.BOUND, pod=name, node="n1")
        on.record(msgspec.structs.replace(bound, uid=f"uid-{name}"), make_pod(name))


async def test_senders_go_on_with_what_waits_and_are_never_more_than_the_budget_has():
    server = Server()
    recording = recorder(server, in_flight=2, in_flight_behind_bindings=1)
    record(recording, "before")
    sending = asyncio.create_task(recording.run())
    await server.was_asked(1)
    record(recording, "a", "b", "c")
    await server.was_asked(1)
    assert server.open == 2
    server.may_answer.set()
    await server.was_asked(2)
    await recording.finish(10)
    assert (len(server.paths), server.most) == (4, 2)
    server.may_answer.clear()
    recording.defer_to(lambda: True)
    record(recording, "d", "e")
    await server.was_asked(1)
    assert server.open == 1
    server.may_answer.set()
    await recording.finish(10)
    assert len(server.paths) == 6
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending


async def test_what_the_rate_holds_back_is_sent_in_time_without_another_record():
    server = Server()
    server.may_answer.set()
    recording = recorder(server, per_second=50.0, burst=1)
    sending = asyncio.create_task(recording.run())
    record(recording, "a", "b", "c")
    await server.was_asked(3)
    await recording.finish(10)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    record(recording, "d")  # nobody sends any more
    assert len(server.paths) == 3
