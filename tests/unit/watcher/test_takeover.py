"""A new leader reads the bus and continues from the state that it finds there."""

from datetime import timedelta

import pytest

from berth.bus.stages import publish_decision, publish_pending, publish_ranked
from berth.messages.attempts import Decision, Outcome, Pending, Positions, Ranked
from berth.messages.subjects import PodSubject, Term
from berth_watcher.events import FoundDecision, FoundInFlight, LookUpAttempt, StepDown, StreamsRead
from berth_watcher.settings import AttemptSettings
from berth_watcher.takeover import holds, read_streams
from harness.plugins.fixtures_bus import BusUnderTest
from harness.worlds.watcher_world import EPOCH, TERM, WatcherUnderTest, a_node, a_pod, attempt, foreign_value


def subjects(*names: str) -> dict[str, PodSubject]:
    return {
        f"uid-{name}": PodSubject(stage="decision", profile="berth", namespace="default", pod=name) for name in names
    }


def pending(name: str, n: int) -> Pending:
    return Pending(attempt=str(attempt(name, 6, n)), profile="berth", pod=a_pod(name))


def ranked(name: str, n: int) -> Ranked:
    return Ranked(attempt=str(attempt(name, 6, n)), profile="berth", pod=a_pod(name))


def decision(name: str, n: int) -> Decision:
    return Decision(
        attempt=str(attempt(name, 6, n)),
        epoch=1,
        outcome=Outcome.CONFLICT,
        profile="berth",
        namespace="default",
        pod=name,
        uid=f"uid-{name}",
    )


@pytest.fixture
async def session(memory_bus_under_test: BusUnderTest):
    return await memory_bus_under_test.session()


async def test_messages_of_all_stages_are_found_and_the_highest_attempt_counts(session):
    await publish_pending(session, pending("a", 1))
    await publish_ranked(session, ranked("b", 1))
    await publish_pending(session, pending("c", 2))
    await publish_ranked(session, ranked("c", 1))
    await publish_decision(session, decision("c", 1))
    await publish_decision(session, decision("d", 3))

    found = await read_streams(session, subjects("a", "b", "c", "d", "e"))

    assert {uid: str(each.attempt) for uid, each in found.in_flight.items()} == {
        "uid-a": "uid-a.6.1",
        "uid-b": "uid-b.6.1",
        "uid-c": "uid-c.6.2",
    }
    assert {uid: each.decision.attempt for uid, each in found.decisions.items()} == {
        "uid-c": "uid-c.6.1",
        "uid-d": "uid-d.6.3",
    }


class MovingOn:
    """A session on which a message moves on as soon as the stage where it was has been read."""

    def __init__(self, session) -> None:
        self._session = session

    async def scan(self, stream, subject):
        async for stored in self._session.scan(stream, subject):
            yield stored
        if stream == "PENDING":
            await publish_ranked(self._session, ranked("moves", 1))
        else:
            await publish_decision(self._session, decision("decided", 1))

    def last_of_each(self, stream, subjects):
        return self._session.last_of_each(stream, subjects)

    def state(self, stream):
        return self._session.state(stream)


async def test_message_that_moves_on_is_found_at_the_next_stage(session):
    found = await read_streams(MovingOn(session), subjects("moves", "decided"))

    assert list(found.in_flight) == ["uid-moves"]
    assert list(found.decisions) == ["uid-decided"]


async def test_unknown_pods_and_undecodable_messages_are_ignored(session):
    await publish_pending(session, pending("gone", 1))
    await session.publish("berth.pending.berth.default.odd", b"garbage")
    await session.publish("berth.ranked.berth.default.odd", b"{}")

    found = await read_streams(session, subjects("odd"))

    assert found.in_flight == {}
    assert found.decisions == {}


async def test_holds_only_the_attempt_in_the_stream(session):
    await publish_pending(session, pending("a", 2))
    subject = PodSubject(stage="pending", profile="berth", namespace="default", pod="a")

    assert await holds(session, "PENDING", subject, attempt("a", 6, 2))
    assert not await holds(session, "PENDING", subject, attempt("a", 6, 1))


def found_in_flight(name: str, *, term: int = 6, n: int = 3) -> dict[str, FoundInFlight]:
    return {f"uid-{name}": FoundInFlight(attempt=attempt(name, term, n), pod=a_pod(name))}


def decided(name: str, outcome: Outcome, *, term: int = 6, n: int = 3, age: float = 1, uid: str = "", **more):
    decision = WatcherUnderTest().decision(name, outcome, attempt=str(attempt(name, term, n)), **more).decision
    if uid:
        decision = type(decision)(**{**{f: getattr(decision, f) for f in decision.__struct_fields__}, "uid": uid})
    return {f"uid-{name}": FoundDecision(decision=decision, time=EPOCH - timedelta(seconds=age), age_seconds=age)}


def test_nothing_is_published_before_the_streams_have_been_read():
    watcher = WatcherUnderTest()
    watcher.list_objects(a_pod("web"))
    watcher.take_over()
    watcher.read_bucket()
    watcher.show(a_pod("late"))
    assert watcher.published == []

    watcher.send(StreamsRead())

    assert sorted(watcher.pods_published) == ["late", "web"]


def test_nothing_is_written_before_the_bucket_has_been_read():
    watcher = WatcherUnderTest()
    watcher.list_objects(a_node("n1"))
    watcher.take_over()
    watcher.show(a_node("n2"))
    assert watcher.bucket == {}

    watcher.read_bucket()

    assert watcher.mirrored("node.n1") is not None
    assert watcher.mirrored("node.n2") is not None


def test_no_pod_is_published_before_every_difference_is_acknowledged():
    watcher = WatcherUnderTest(hold_writes=True)
    nodes = [a_node(f"n{number}") for number in range(40)]

    watcher.lead(*nodes, a_pod("web"))
    watcher.show(a_pod("late"))
    assert watcher.published == []
    watcher.answer_write("node.n0")
    assert watcher.published == []
    watcher.answer_writes()

    assert sorted(watcher.pods_published) == ["late", "web"]
    assert {each.message.after.cluster for each in watcher.published} == {40}


def test_removal_is_a_difference_too():
    watcher = WatcherUnderTest(hold_writes=True)
    watcher.put("node.left", foreign_value(a_node("left")))

    watcher.lead(a_pod("web"))
    assert watcher.published == []
    watcher.answer_writes()

    assert watcher.pods_published == ["web"]
    assert watcher.published[0].message.after.cluster == 2


def test_every_pod_of_the_term_asks_for_the_position_of_the_takeover():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_node("n2"), a_pod("web"))

    watcher.show(a_pod("next"))
    watcher.decide("web", Outcome.ERROR)
    watcher.advance(1)

    assert watcher.pods_published == ["web", "next", "web"]
    asked = {each.message.after.cluster for each in watcher.published}
    assert len(asked) == 1
    assert asked.pop() >= watcher.bucket["node.n2"].sequence


def test_changes_after_the_takeover_hold_no_pod_up():
    watcher = WatcherUnderTest(hold_writes=True).lead()
    watcher.answer_writes()

    watcher.show(a_node("new"), a_pod("web"))

    assert watcher.pods_published == ["web"]


def test_changed_pod_is_published_again_only_after_the_mirror_is_written():
    in_flight = {"uid-web": FoundInFlight(attempt=attempt("web", 6, 3), pod=a_pod("web", labels={"old": "1"}))}

    watcher = WatcherUnderTest(hold_writes=True).lead(
        a_node("n1"), a_pod("web"), streams=StreamsRead(in_flight=in_flight)
    )
    assert watcher.published == []
    watcher.answer_writes()

    assert watcher.attempt_of("web") == "uid-web.7.1"


def test_back_off_goes_on_while_the_mirror_is_written():
    streams = StreamsRead(decisions=decided("web", Outcome.ERROR, n=1, age=0.2))

    watcher = WatcherUnderTest(hold_writes=True).lead(a_node("n1"), a_pod("web"), streams=streams)
    watcher.advance(0.7)
    watcher.answer_writes()
    assert watcher.stage("web") == "backoff"
    watcher.advance(0.2)

    assert watcher.attempt_of("web") == "uid-web.7.1"


def test_writes_in_flight_are_bounded():
    watcher = WatcherUnderTest(hold_writes=True, max_writes=8)

    watcher.lead(*(a_node(f"n{number}") for number in range(30)), a_pod("web"))

    most = 0
    while watcher.held_writes:
        most = max(most, len(watcher.held_writes))
        watcher.answer_writes()
    assert most == 8
    assert len([key for key in watcher.bucket if key.startswith("node.")]) == 30
    assert watcher.pods_published == ["web"]


def test_only_differences_are_written():
    former = WatcherUnderTest().lead(a_node("same"), a_node("changed"), a_node("left"))
    watcher = WatcherUnderTest(sequence=former.sequence)
    watcher.bucket = dict(former.bucket)

    watcher.lead(a_node("same", version=9), a_node("changed", cpu="9"), a_node("new"))

    assert watcher.bucket["node.same"] is former.bucket["node.same"]
    assert watcher.mirrored("node.changed")["status"]["allocatable"]["cpu"] == "9"
    assert watcher.mirrored("node.left") is None
    assert watcher.mirrored("node.new") is not None


def test_pod_in_pending_or_ranked_stays_in_flight():
    watcher = WatcherUnderTest().lead(a_pod("web"), streams=StreamsRead(in_flight=found_in_flight("web")))
    assert watcher.published == []
    assert watcher.core.figures(watcher.now).in_flight == {"berth": 1}

    watcher.advance(10)

    assert [str(effect.attempt) for effect in watcher.of(LookUpAttempt)] == ["uid-web.6.3"]


def test_attempt_after_one_of_the_former_term_is_of_the_new_term():
    watcher = WatcherUnderTest().lead(a_pod("web"), streams=StreamsRead(in_flight=found_in_flight("web")))

    watcher.decide("web", Outcome.CONFLICT, attempt="uid-web.6.3")

    assert watcher.attempt_of("web") == f"uid-web.{TERM}.1"


def test_pod_changed_while_no_watcher_led_is_published_again():
    in_flight = {"uid-web": FoundInFlight(attempt=attempt("web", 6, 3), pod=a_pod("web", labels={"old": "1"}))}

    watcher = WatcherUnderTest().lead(a_pod("web"), streams=StreamsRead(in_flight=in_flight))

    assert watcher.attempt_of("web") == "uid-web.7.1"


def test_waiting_pod_is_in_flight_without_a_slot():
    streams = StreamsRead(in_flight=found_in_flight("web"), decisions=decided("web", Outcome.WAITING))

    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(
        a_pod("web"), a_pod("next"), streams=streams
    )

    assert watcher.stage("web") == "in flight"
    assert watcher.pods_published == ["next"]


def test_more_pods_in_flight_than_slots_hold_others_back():
    in_flight = {**found_in_flight("a"), **found_in_flight("b")}

    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(
        a_pod("a"), a_pod("b"), a_pod("c"), streams=StreamsRead(in_flight=in_flight)
    )
    watcher.decide("a", Outcome.BOUND, attempt="uid-a.6.3")
    assert watcher.published == []
    watcher.decide("b", Outcome.BOUND, attempt="uid-b.6.3")

    assert watcher.pods_published == ["c"]


def test_final_decision_counts_while_ranked_still_holds_the_attempt():
    streams = StreamsRead(in_flight=found_in_flight("web"), decisions=decided("web", Outcome.BOUND))

    watcher = WatcherUnderTest().lead(a_pod("web"), streams=streams)

    assert watcher.stage("web") == "awaiting watch"
    assert watcher.core.figures(watcher.now).in_flight == {"berth": 0}


def test_decision_of_an_earlier_attempt_leaves_the_pod_in_flight():
    streams = StreamsRead(in_flight=found_in_flight("web", n=4), decisions=decided("web", Outcome.CONFLICT, n=3))

    watcher = WatcherUnderTest().lead(a_pod("web"), streams=streams)

    assert watcher.stage("web") == "in flight"


def test_last_decision_restores_back_off_and_reasons():
    rejection = {"message": "0/1 nodes are available: 1 Insufficient cpu.", "blockers": ["NodeResourcesFit"]}
    streams = StreamsRead(decisions=decided("web", Outcome.UNSCHEDULABLE, age=0.5, failures=1, **rejection))

    watcher = WatcherUnderTest(sequence=5).lead(a_pod("web"), streams=streams)

    queued = watcher.core.find("uid-web")
    assert queued is not None
    assert queued.message == rejection["message"]
    assert queued.unschedulable_plugins == {"NodeResourcesFit"}
    assert watcher.stage("web") == "backoff"
    watcher.advance(1.4)  # the second failure backs off for 2 s, half a second of which had passed
    assert watcher.published == []
    watcher.advance(0.2)
    assert watcher.attempt_of("web") == "uid-web.7.1"


def test_conflicts_before_the_takeover_do_not_lengthen_the_back_off():
    watcher = WatcherUnderTest().lead(a_pod("web"))
    for _ in range(2):
        watcher.decide("web", Outcome.CONFLICT)
    last = watcher.decision("web", Outcome.ERROR, failures=watcher.published[-1].message.failures).decision
    found = FoundDecision(decision=last, time=EPOCH, age_seconds=0)

    successor = WatcherUnderTest()
    successor.list_objects(a_pod("web"))
    successor.take_over(Term(8))
    successor.read_bucket()
    successor.send(StreamsRead(decisions={"uid-web": found}))

    successor.advance(1)  # the first failure backs off for 1 s
    assert successor.attempt_of("web") == "uid-web.8.1"


def test_failures_of_a_pod_in_flight_lengthen_the_back_off():
    in_flight = {"uid-web": FoundInFlight(attempt=attempt("web", 6, 9), pod=a_pod("web"), failures=2)}
    watcher = WatcherUnderTest().lead(a_pod("web"), streams=StreamsRead(in_flight=in_flight))

    watcher.decide("web", Outcome.ERROR, attempt="uid-web.6.9")

    watcher.advance(3.9)
    assert watcher.published == []
    watcher.advance(0.2)  # the third failure backs off for 4 s
    assert watcher.published[0].message.failures == 3


def test_decision_of_another_pod_of_the_same_name_is_ignored():
    streams = StreamsRead(decisions=decided("web", Outcome.UNSCHEDULABLE, uid="uid-of-another"))

    watcher = WatcherUnderTest().lead(a_pod("web"), streams=streams)

    assert watcher.attempt_of("web") == "uid-web.7.1"


def test_decisions_from_before_the_takeover_do_not_widen_the_window():
    watcher = WatcherUnderTest(settings=AttemptSettings(window_floor=1))
    watcher.list_objects(*(a_pod(f"p{number}") for number in range(20)))
    watcher.take_over()
    watcher.read_bucket()
    for number in range(100):
        watcher.decide(f"old-{number}", Outcome.BOUND, attempt=f"uid-old-{number}.6.1")

    watcher.send(StreamsRead())

    assert len(watcher.published) == 1


def test_decision_received_during_the_takeover_counts():
    watcher = WatcherUnderTest()
    watcher.list_objects(a_pod("web"))
    watcher.take_over()
    watcher.read_bucket()
    watcher.decide("web", Outcome.BOUND, attempt="uid-web.6.3")

    watcher.send(StreamsRead(in_flight=found_in_flight("web")))

    assert watcher.stage("web") == "awaiting watch"


def test_pod_never_tried_is_published():
    watcher = WatcherUnderTest().lead(a_pod("web"), streams=StreamsRead(in_flight=found_in_flight("other")))

    assert watcher.attempt_of("web") == "uid-web.7.1"


def test_empty_bucket_is_filled_and_every_pod_is_published():
    watcher = WatcherUnderTest().lead(a_node("n1"), a_pod("web"), a_pod("bound", node="n1"))
    objects = (a_node("n1"), a_pod("web"), a_pod("bound", node="n1"))

    again = WatcherUnderTest().lead(*objects)

    assert again.bucket.keys() == watcher.bucket.keys()
    assert again.pods_published == ["web"]


def test_attempt_of_a_higher_term_ends_the_term():
    watcher = WatcherUnderTest().lead(a_pod("web"), streams=StreamsRead(in_flight=found_in_flight("web", term=8)))

    assert [effect.term for effect in watcher.of(StepDown)] == [8]


def test_entry_of_a_higher_term_ends_the_term():
    watcher = WatcherUnderTest()
    watcher.put("node.n1", foreign_value(a_node("n1"), term=8))

    watcher.lead(a_node("n1"))

    assert [effect.term for effect in watcher.of(StepDown)] == [8]


def test_rejection_from_before_the_takeover_may_have_missed_events():
    rejection = {"blockers": ["NodeResourcesFit"], "positions": Positions(cluster=1)}
    streams = StreamsRead(decisions=decided("web", Outcome.UNSCHEDULABLE, n=1, age=60, **rejection))

    watcher = WatcherUnderTest(sequence=5).lead(a_pod("web"), streams=streams)
    watcher.advance(0)

    assert watcher.attempt_of("web") == "uid-web.7.1"
