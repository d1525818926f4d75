"""A new leader finds the bus at any stage of anything and goes on from there."""

from datetime import timedelta

from berth.api.messages import Outcome, Positions
from berth_watcher.events import FoundDecision, FoundInFlight, LookUpAttempt, StepDown, StreamsRead
from berth_watcher.settings import AttemptSettings
from harness.worlds.watcher_world import EPOCH, TERM, WatcherUnderTest, a_node, a_pod, attempt, foreign_value


def found(name: str, *, term: int = 6, n: int = 3) -> dict[str, FoundInFlight]:
    return {f"uid-{name}": FoundInFlight(attempt=attempt(name, term, n), pod=a_pod(name))}


def decided(name: str, outcome: Outcome, *, term: int = 6, n: int = 3, age: float = 1, uid: str = "", **more):
    decision = WatcherUnderTest().decision(name, outcome, attempt=str(attempt(name, term, n)), **more).decision
    if uid:
        decision = type(decision)(**{**{f: getattr(decision, f) for f in decision.__struct_fields__}, "uid": uid})
    return {f"uid-{name}": FoundDecision(decision=decision, time=EPOCH - timedelta(seconds=age), age_seconds=age)}


def test_nothing_is_published_before_the_bus_has_been_looked_through():
    world = WatcherUnderTest()
    world.list_objects(a_pod("web"))
    world.take_over()
    world.read_bucket()
    world.show(a_pod("late"))
    assert world.published == []

    world.send(StreamsRead())

    assert sorted(world.pods_published) == ["late", "web"]


def test_nothing_is_written_before_the_bucket_has_been_read():
    world = WatcherUnderTest()
    world.list_objects(a_node("n1"))
    world.take_over()
    world.show(a_node("n2"))
    assert world.bucket == {}

    world.read_bucket()

    assert world.mirrored("node.n1") is not None
    assert world.mirrored("node.n2") is not None


def test_only_differences_are_written():
    former = WatcherUnderTest().lead(a_node("same"), a_node("changed"), a_node("left"))
    world = WatcherUnderTest(sequence=former.sequence)
    world.bucket = dict(former.bucket)

    world.lead(a_node("same", version=9), a_node("changed", cpu="9"), a_node("new"))

    assert world.bucket["node.same"] is former.bucket["node.same"]
    assert world.mirrored("node.changed")["status"]["allocatable"]["cpu"] == "9"
    assert world.mirrored("node.left") is None
    assert world.mirrored("node.new") is not None


def test_a_pod_in_pending_or_ranked_is_in_flight_as_it_is():
    world = WatcherUnderTest().lead(a_pod("web"), stages=StreamsRead(in_flight=found("web")))
    assert world.published == []
    assert world.core.figures(world.now).in_flight == 1

    world.advance(10)

    assert [str(effect.attempt) for effect in world.of(LookUpAttempt)] == ["uid-web.6.3"]


def test_an_attempt_of_the_former_term_is_decided_and_the_next_is_of_the_new_term():
    world = WatcherUnderTest().lead(a_pod("web"), stages=StreamsRead(in_flight=found("web")))

    world.decide("web", Outcome.CONFLICT, attempt="uid-web.6.3")

    assert world.attempt_of("web") == f"uid-web.{TERM}.1"


def test_a_pod_that_changed_while_nobody_led_is_published_again_at_once():
    in_flight = {"uid-web": FoundInFlight(attempt=attempt("web", 6, 3), pod=a_pod("web", labels={"old": "1"}))}

    world = WatcherUnderTest().lead(a_pod("web"), stages=StreamsRead(in_flight=in_flight))

    assert world.attempt_of("web") == "uid-web.7.1"


def test_after_waiting_a_pod_is_in_flight_without_a_place_in_the_window():
    stages = StreamsRead(in_flight=found("web"), decisions=decided("web", Outcome.WAITING))

    world = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(a_pod("web"), a_pod("next"), stages=stages)

    assert world.stage("web") == "in flight"
    assert world.pods_published == ["next"]


def test_more_in_flight_than_there_are_places_holds_the_rest_back():
    in_flight = {**found("a"), **found("b")}

    world = WatcherUnderTest(settings=AttemptSettings(window_floor=1)).lead(
        a_pod("a"), a_pod("b"), a_pod("c"), stages=StreamsRead(in_flight=in_flight)
    )
    world.decide("a", Outcome.BOUND, attempt="uid-a.6.3")
    assert world.published == []
    world.decide("b", Outcome.BOUND, attempt="uid-b.6.3")

    assert world.pods_published == ["c"]


def test_a_final_decision_of_the_attempt_that_ranked_still_holds_counts():
    stages = StreamsRead(in_flight=found("web"), decisions=decided("web", Outcome.BOUND))

    world = WatcherUnderTest().lead(a_pod("web"), stages=stages)

    assert world.stage("web") == "awaiting watch"
    assert world.core.figures(world.now).in_flight == 0


def test_a_decision_of_an_earlier_attempt_leaves_the_pod_in_flight():
    stages = StreamsRead(in_flight=found("web", n=4), decisions=decided("web", Outcome.CONFLICT, n=3))

    world = WatcherUnderTest().lead(a_pod("web"), stages=stages)

    assert world.stage("web") == "in flight"


def test_the_last_decision_restores_back_off_and_reasons():
    refusal = {"message": "0/1 nodes are available: 1 Insufficient cpu.", "blockers": ["NodeResourcesFit"]}
    stages = StreamsRead(decisions=decided("web", Outcome.UNSCHEDULABLE, n=2, age=0.5, **refusal))

    world = WatcherUnderTest(sequence=5).lead(a_pod("web"), stages=stages)

    queued = world.core.find("uid-web")
    assert queued is not None
    assert queued.message == refusal["message"]
    assert queued.unschedulable_plugins == {"NodeResourcesFit"}
    assert world.stage("web") == "backoff"
    world.advance(1.4)  # the second failure backs off for 2 s, half a second of which had passed
    assert world.published == []
    world.advance(0.2)
    assert world.attempt_of("web") == "uid-web.7.1"


def test_a_namesakes_decision_is_not_the_pods():
    stages = StreamsRead(decisions=decided("web", Outcome.UNSCHEDULABLE, uid="uid-of-another"))

    world = WatcherUnderTest().lead(a_pod("web"), stages=stages)

    assert world.attempt_of("web") == "uid-web.7.1"


def test_a_decision_heard_during_the_takeover_is_not_missed():
    world = WatcherUnderTest()
    world.list_objects(a_pod("web"))
    world.take_over()
    world.read_bucket()
    world.decide("web", Outcome.BOUND, attempt="uid-web.6.3")

    world.send(StreamsRead(in_flight=found("web")))

    assert world.stage("web") == "awaiting watch"


def test_a_pod_that_nobody_has_ever_tried_is_tried():
    world = WatcherUnderTest().lead(a_pod("web"), stages=StreamsRead(in_flight=found("other")))

    assert world.attempt_of("web") == "uid-web.7.1"


def test_a_wiped_store_is_filled_again_and_every_pod_is_tried():
    world = WatcherUnderTest().lead(a_node("n1"), a_pod("web"), a_pod("bound", node="n1"))
    objects = (a_node("n1"), a_pod("web"), a_pod("bound", node="n1"))

    again = WatcherUnderTest().lead(*objects)

    assert again.bucket.keys() == world.bucket.keys()
    assert again.pods_published == ["web"]


def test_an_attempt_of_a_higher_term_ends_the_leadership():
    world = WatcherUnderTest().lead(a_pod("web"), stages=StreamsRead(in_flight=found("web", term=8)))

    assert [effect.term for effect in world.of(StepDown)] == [8]


def test_a_higher_terms_entry_in_the_bucket_ends_the_leadership():
    world = WatcherUnderTest()
    world.put("node.n1", foreign_value(a_node("n1"), term=8))

    world.lead(a_node("n1"))

    assert [effect.term for effect in world.of(StepDown)] == [8]


def test_a_refusal_from_before_the_takeover_may_have_missed_events_and_is_tried_again():
    refusal = {"blockers": ["NodeResourcesFit"], "positions": Positions(cluster=1)}
    stages = StreamsRead(decisions=decided("web", Outcome.UNSCHEDULABLE, n=1, age=60, **refusal))

    world = WatcherUnderTest(sequence=5).lead(a_pod("web"), stages=stages)
    world.advance(0)

    assert world.attempt_of("web") == "uid-web.7.1"
