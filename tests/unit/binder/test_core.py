"""A pod in the core after the conflict check: answers, pauses, order, final Decisions.

The rule: docs/protocol.md, 5 and 6.
"""

import random
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest

from berth.kube.listwatch import Deleted, Listed, Upserted
from berth.messages.attempts import AttemptReport, Candidate, Decision, Outcome, Ranked, Reason
from berth.messages.encoding import decode, encode
from berth_binder.attempts.attempt import MOST_HELD
from berth_binder.attempts.pods import REPORTED_FAILURES
from berth_binder.cache import NODES, PODS
from berth_binder.decisions.conflictcheck import NodeChoice
from berth_binder.eventrecorder.records import event_of
from berth_binder.events import (
    Ack,
    BindingAnswer,
    LogMissingRight,
    PodAnswer,
    PublishDecision,
    PutOff,
    RecordEvent,
    RejectRanked,
    SetAside,
    VoidBindings,
)
from berth_binder.settings import API_BACKOFF, CoreSettings
from fuzz.ordinary import ranked as an_ordinary_ranking
from harness.worlds.binder_bench import (
    BACKOFF,
    Bench,
    at_version,
    gated,
    labelled,
    make_node,
    make_pod,
    on_node,
    posts,
    ranked,
    reads,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# Bound at once.


def test_ranked_pod_is_bound_to_the_first_node_then_acknowledged(bench):
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n2", "n1"))) == [("web", "n2", "10")]
    effects = bench.answer(pod, 201)
    assert [type(each) for each in effects] == [PublishDecision, Ack, RecordEvent]
    (decision,) = bench.decisions
    assert (decision.outcome, decision.node, decision.epoch, decision.uid) == (Outcome.BOUND, "n2", 7, pod.uid)
    assert bench.acked == [1]


def test_decision_carries_all_that_the_ranking_reported(bench):
    bench.profiles["batch"] = bench.profiles["berth"]
    pod = bench.show(make_pod("web", spec={"scheduler_name": "batch"}))
    ordinary = decode(msgspec.json.encode(an_ordinary_ranking("web")), Ranked)
    candidates = [Candidate(node="n1", total=100)]
    ranking = msgspec.structs.replace(ordinary, pod=pod, profile="batch", candidates=candidates)
    decided_otherwise = {"schema", "config", "message", "preemption", "devices", "candidates"}
    reported = {
        field.name: getattr(ranking, field.name)
        for field in msgspec.structs.fields(AttemptReport)
        if field.name not in decided_otherwise
    }
    bench.take(ranking)
    bench.answer(pod, 201)
    (decision,) = bench.decisions
    assert {name: getattr(decision, name) for name in reported} == reported
    defaults = {field.name: field.default for field in msgspec.structs.fields(AttemptReport)}
    assert [name for name, value in reported.items() if value == defaults[name]] == []


def test_nothing_is_acknowledged_before_the_pub_ack(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    effects = bench.core.handle([BindingAnswer(uid=pod.uid, status=201)], bench.now)
    assert [type(each) for each in effects] == [PublishDecision]
    assert [held.sequence for held in bench.core.held()] == [1]


def test_binding_has_the_newest_known_resource_version(bench):
    pod = make_pod("web", version=10)
    bench.show(at_version(pod, 14))
    assert posts(bench.take(ranked(pod, "n1"))) == [("web", "n1", "14")]


def test_decision_carries_what_explains_it(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2", scorer="s-1", evaluated=3))
    bench.answer(pod, 201)
    (decision,) = bench.decisions
    assert [each.node for each in decision.candidates] == ["n1", "n2"]
    assert (decision.scorer, decision.evaluated, decision.feasible, decision.config) == ("s-1", 3, 2, "test")


# Redelivered messages and unknown profiles.


def test_redelivered_message_is_only_acknowledged(bench):
    pod = bench.show(make_pod("web"))
    message = ranked(pod, "n1")
    bench.take(message)
    bench.answer(pod, 201)
    effects = bench.deliver(message, 1)
    assert [type(each) for each in effects] == [Ack]
    assert bench.outcomes == ["bound"]


def test_earlier_attempt_than_the_decided_one_is_only_acknowledged(bench):
    pod = bench.show(make_pod("web"))
    bench.deliver(ranked(pod, "n1", n=2), 2)
    bench.answer(pod, 201)
    assert [type(each) for each in bench.deliver(ranked(pod, "n1", n=1), 1)] == [Ack]


HUGE = 10**18 - 1
"""The number of an attempt that no watcher has published."""


def test_attempts_stored_after_one_with_a_huge_number_are_examined(bench):
    pod = bench.show(make_pod("web", cpu="9"))
    bench.take(ranked(pod, "n1", n=HUGE))
    assert bench.outcomes == ["conflict"]
    bench.take(ranked(pod, "n1", n=3))
    bench.take(ranked(pod, "n1", n=4))
    assert [decision.attempt for decision in bench.decisions[1:]] == ["uid-web.1.3", "uid-web.1.4"]
    assert bench.acked == [1, 2, 3]


def test_attempt_that_joins_one_with_a_huge_number_is_decided_next(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=HUGE))
    bench.no_answer(pod)
    assert posts(bench.take(ranked(pod, "n2", n=3))) == []
    bench.wait(1)
    bench.reading(pod, on_node(pod, "n1"))
    assert [(decision.attempt, decision.outcome) for decision in bench.decisions] == [
        (f"uid-web.1.{HUGE}", "bound"),
        ("uid-web.1.3", "bound"),
    ]
    assert bench.acked == [1, 2]


def held(bench: Bench) -> list[int]:
    return [each.sequence for each in bench.core.held()]


def test_of_the_messages_of_a_pod_that_waits_few_are_held(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=1))
    bench.no_answer(pod)
    most = 0
    for number in range(2, 101):
        bench.take(ranked(pod, "n2", n=number))
        most = max(most, len(held(bench)))
    assert most <= MOST_HELD
    assert {1, 100} <= set(held(bench))
    assert set(bench.acked) == set(range(1, 101)) - set(held(bench))
    bench.wait(1)
    bench.reading(pod, on_node(pod, "n1"))
    finals = [(each.attempt, each.outcome) for each in bench.decisions if each.outcome.final]
    assert finals == [("uid-web.1.100", "bound")]
    assert sorted(bench.acked) == list(range(1, 101))


def test_the_newest_message_is_held_beside_one_with_a_huge_number(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=HUGE))
    bench.no_answer(pod)
    for number in range(2, 101):
        bench.take(ranked(pod, "n2", n=number))
    assert {1, 100} <= set(held(bench))
    bench.wait(1)
    bench.reading(pod, on_node(pod, "n1"))
    finals = [each.attempt for each in bench.decisions if each.outcome.final]
    assert (finals[0], finals[-1]) == (f"uid-web.1.{HUGE}", "uid-web.1.100")
    assert sorted(bench.acked) == list(range(1, 101))


def test_message_that_a_decision_is_stored_for_is_held_until_it_is(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=1))
    bench.no_answer(pod)
    bench.take(ranked(pod, "n1", n=2))
    bench.wait(1)
    (publish,) = bench.core.handle([PodAnswer(uid=pod.uid, status=200, pod=on_node(pod, "n1"))], bench.now)
    for number in range(3, 101):
        bench.take(ranked(pod, "n2", n=number))
    assert {1, 2, 100} <= set(held(bench))
    bench.run([publish])
    assert sorted(bench.acked) == list(range(1, 101))


def test_message_that_is_delivered_again_and_again_is_not_acknowledged_before_its_decision(bench):
    pod = bench.show(make_pod("web"))
    message = ranked(pod, "n1")
    bench.deliver(message, 1)
    bench.no_answer(pod)
    for _ in range(100):
        bench.deliver(message, 1)
    assert (bench.acked, set(held(bench))) == ([], {1})
    assert len(held(bench)) <= MOST_HELD
    bench.wait(1)
    bench.reading(pod, on_node(pod, "n1"))
    assert set(bench.acked) == {1}


def test_another_epoch_decides_again(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 201)
    bench.show(on_node(pod, "n1"))
    bench.new_epoch(8)
    assert posts(bench.deliver(ranked(pod, "n1"), 1)) == []
    assert [(decision.epoch, decision.outcome) for decision in bench.decisions] == [(7, "bound"), (8, "bound")]


def test_unknown_profile_of_a_waiting_pod_is_put_off(bench):
    pod = bench.show(make_pod("web", spec={"scheduler_name": "other"}))
    (effect,) = bench.take(msgspec.structs.replace(ranked(pod, "n1"), profile="other"))
    assert isinstance(effect, PutOff)


def test_unknown_profile_of_a_pod_that_names_another_is_a_dead_letter(bench):
    pod = bench.show(make_pod("web"))
    (effect,) = bench.take(msgspec.structs.replace(ranked(pod, "n1"), profile="other"))
    assert isinstance(effect, RejectRanked)
    forged = make_pod("web", spec={"scheduler_name": "other"})
    (effect,) = bench.take(msgspec.structs.replace(ranked(forged, "n1"), profile="other"))
    assert isinstance(effect, RejectRanked)


def test_unknown_profile_of_a_pod_that_does_not_wait_is_a_dead_letter(bench):
    pod = make_pod("web", spec={"scheduler_name": "other"})
    (effect,) = bench.take(msgspec.structs.replace(ranked(pod, "n1"), profile="other"))
    assert isinstance(effect, RejectRanked)


# Answers to the Binding.


def test_409_and_the_pod_is_on_our_node_is_bound(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2"))
    assert reads(bench.answer(pod, 409)) == ["web"]
    bench.reading(pod, on_node(pod, "n1"))
    assert (bench.decisions[0].outcome, bench.decisions[0].node) == (Outcome.BOUND, "n1")


def test_409_and_the_pod_is_elsewhere_is_gone(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2"))
    bench.answer(pod, 409)
    bench.reading(pod, on_node(pod, "n2"))
    assert bench.outcomes == ["gone"]
    assert not bench.cache.assumed_pods


def test_409_and_there_is_no_such_pod_is_gone(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 409)
    bench.reading(pod, None)
    assert bench.outcomes == ["gone"]


def test_409_and_a_namesake_is_there_is_gone(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 409)
    bench.reading(pod, make_pod("web", uid="another", version=30))
    assert bench.outcomes == ["gone"]


def test_409_and_the_pod_terminates_is_gone(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 409)
    bench.reading(pod, make_pod("web", version=30, metadata={"deletion_timestamp": "2026-01-01T00:00:00Z"}))
    assert bench.outcomes == ["gone"]


@pytest.mark.parametrize("change", [lambda pod: labelled(pod, 12), lambda pod: at_version(gated(pod), 12)])
def test_409_and_the_pod_has_changed_or_is_gated_is_a_conflict(bench, change):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 409)
    bench.reading(pod, change(pod))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.CHANGED)
    assert not bench.cache.assumed_pods


def test_409_for_the_version_alone_is_retried_with_the_new_one(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 409)
    assert posts(bench.reading(pod, at_version(pod, 15))) == [("web", "n1", "15")]
    bench.answer(pod, 201)
    assert bench.outcomes == ["bound"]


def test_conflicts_in_a_row_make_a_pause(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    for version in range(11, 14):
        bench.answer(pod, 409)
        bench.reading(pod, at_version(pod, version))
    assert reads(bench.answer(pod, 409)) == []
    assert reads(bench.wait(1)) == ["web"]


def test_deleted_node_is_replaced_once_no_post_can_land(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2"))
    bench.answer(pod, 409)
    bench.cache.observe(Deleted(kind=NODES, object=make_node("n1", version=40)))
    assert posts(bench.reading(pod, at_version(pod, 15))) == [("web", "n2", "15")]
    assert bench.cache.assumed_pod(pod.uid).node == "n2"


def test_404_is_gone(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 404)
    assert bench.outcomes == ["gone"]


@pytest.mark.parametrize("status", [400, 403, 413, 422])
def test_other_rejections_are_an_error_with_the_apis_message(bench, status):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, status, message="namespace default is being terminated")
    (decision,) = bench.decisions
    assert decision.outcome is Outcome.ERROR
    assert "namespace default is being terminated" in decision.message
    assert not bench.cache.assumed_pods


def test_what_the_api_server_says_is_cut_to_what_readers_take(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 422, message="why " * 10_000)
    (decision,) = bench.decisions
    assert decode(encode(decision), Decision) == decision
    assert decision.message.startswith("binding rejected by the API server: 422: why why")


def test_missing_right_is_logged_too(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    effects = bench.answer(pod, 403, message="forbidden", missing_right="add to the ClusterRole: create pods/binding")
    assert [each.text for each in effects if isinstance(each, LogMissingRight)] == [
        "add to the ClusterRole: create pods/binding"
    ]
    assert "add to the ClusterRole" in bench.decisions[0].message


def voided(effects) -> list[str]:
    return [each.pod.metadata.name for each in effects if isinstance(each, VoidBindings)]


@pytest.mark.parametrize("status", [0, 408, 500, 504])
def test_refusal_frees_the_node_only_once_no_earlier_post_can_land(bench, status):
    pod, other = bench.show(make_pod("web", cpu="3")), bench.show(make_pod("other", cpu="3"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, status)
    bench.wait(1)
    bench.reading(pod, pod)
    assert voided(bench.answer(pod, 403, message="quota exceeded")) == ["web"]
    assert (bench.decisions, bench.cache.assumed_pod(pod.uid).node) == ([], "n1")
    assert posts(bench.take(ranked(other, "n1"))) == []
    bench.reading(pod, at_version(pod, 30))
    assert [each.outcome for each in bench.decisions if each.uid == pod.uid] == [Outcome.ERROR]
    assert "quota exceeded" in bench.decisions[-1].message
    assert posts(bench.take(ranked(other, "n1", n=2))) == [("other", "n1", "10")]


def test_post_that_landed_before_it_was_made_void_is_bound(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.no_answer(pod)
    bench.wait(1)
    bench.reading(pod, pod)
    bench.answer(pod, 422)
    bench.reading(pod, on_node(pod, "n1", 30))
    assert bench.outcomes == ["bound"]


def test_making_posts_void_is_tried_until_the_api_answers(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.no_answer(pod)
    bench.wait(1)
    bench.reading(pod, pod)
    bench.answer(pod, 422)
    bench.reading(pod, None, status=503)
    assert bench.cache.assumed_pod(pod.uid).node == "n1"
    assert voided(bench.wait(2)) == ["web"]
    bench.reading(pod, None)
    assert bench.outcomes == ["gone"]


def test_a_binding_that_fails_again_and_again_is_said_on_the_pod(bench: Bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    for failures in range(1, REPORTED_FAILURES + 1):
        effects = bench.answer(pod, 500)
        said = [each for each in effects if isinstance(each, RecordEvent)]
        assert len(said) == (failures == REPORTED_FAILURES)
        bench.wait(30)
        bench.reading(pod, pod)
    (event,) = [event_of(each.decision, each.pod) for each in said]
    assert (event.type, event.reason, event.note) == (
        "Warning",
        "FailedScheduling",
        "the API server answered 500: no reason given",
    )


def test_refusal_frees_the_node_at_once_when_every_post_was_answered(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 429)
    bench.wait(1)
    bench.reading(pod, pod)
    assert voided(bench.answer(pod, 403)) == []
    assert bench.outcomes == ["error"]


@pytest.mark.parametrize("status", [0, 401, 408, 429, 500, 503, 504])
def test_open_binding_is_read_and_retried_on_the_same_node(bench, status):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n2", "n1"))
    assert [type(each) for each in bench.answer(pod, status)] == [SetAside]
    assert bench.decisions == []
    assert bench.cache.assumed_pod(pod.uid).node == "n2"
    assert reads(bench.wait(1)) == ["web"]
    assert posts(bench.reading(pod, pod)) == [("web", "n2", "10")]


def lose_the_node_of_an_open_binding(bench, pod, *nodes: str):
    """The first POST has no answer, and its node does not pass any more when the pod is read."""
    bench.take(ranked(pod, *nodes))
    bench.no_answer(pod)
    bench.cache.observe(Upserted(kind=NODES, object=make_node(nodes[0], unschedulable=True)))
    bench.wait(1)
    return bench.reading(pod, pod)


def test_open_binding_is_made_void_before_another_node_is_tried(bench):
    pod = bench.show(make_pod("web"))
    effects = lose_the_node_of_an_open_binding(bench, pod, "n1", "n2")
    assert (voided(effects), posts(effects)) == (["web"], [])
    assert bench.cache.assumed_pod(pod.uid).node == "n1"
    assert posts(bench.reading(pod, at_version(pod, 30))) == [("web", "n2", "30")]


def test_open_binding_whose_node_is_gone_is_a_conflict_when_no_other_passes(bench):
    pod = bench.show(make_pod("web"))
    lose_the_node_of_an_open_binding(bench, pod, "n1")
    bench.reading(pod, None, status=503)
    assert bench.cache.assumed_pod(pod.uid).node == "n1"
    assert reads(bench.wait(2)) == ["web"]
    assert voided(bench.reading(pod, pod)) == ["web"]
    bench.reading(pod, at_version(pod, 30))
    assert bench.outcomes[-1] == "conflict"
    assert not bench.cache.assumed_pods


@pytest.mark.parametrize(("node", "outcome"), [("n1", "bound"), ("n2", "gone")])
def test_open_binding_that_landed_before_it_was_made_void_is_seen(bench, node, outcome):
    pod = bench.show(make_pod("web"))
    lose_the_node_of_an_open_binding(bench, pod, "n1", "n2")
    assert posts(bench.reading(pod, on_node(pod, node, 30))) == []
    assert bench.outcomes == [outcome]


def test_refused_binding_whose_node_is_gone_goes_to_another_at_once(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2"))
    bench.answer(pod, 429)
    bench.cache.observe(Upserted(kind=NODES, object=make_node("n1", unschedulable=True)))
    bench.wait(1)
    assert posts(bench.reading(pod, pod)) == [("web", "n2", "10")]


def test_lost_answer_of_a_binding_that_succeeded_is_bound(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.no_answer(pod)
    bench.wait(1)
    bench.reading(pod, on_node(pod, "n1"))
    assert (bench.decisions[0].outcome, bench.decisions[0].node) == (Outcome.BOUND, "n1")


def test_reads_without_an_answer_back_off(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.no_answer(pod)
    pauses = []
    for _ in range(5):
        pauses.append(bench.core._attempts[pod.uid].due - bench.now)
        bench.wait(pauses[-1])
        bench.reading(pod, None, status=0)
    assert pauses == [1, 2, 4, 5, 5]


def test_retry_after_is_kept(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 429, retry_after=timedelta(seconds=3))
    assert bench.core.due() == bench.now + 3


def test_pauses_have_jitter():
    backoff = replace(API_BACKOFF, initial=timedelta(seconds=1), chance=random.Random(1))
    bench = Bench(settings=CoreSettings(backoff=backoff))
    found = set()
    for number in range(3):
        pod = bench.show(make_pod(f"p{number}"))
        bench.take(ranked(pod, f"n{number + 1}"))
        bench.no_answer(pod)
        found.add(bench.core._attempts[pod.uid].due - bench.now)
    assert len(found) == 3
    assert all(0.5 <= pause <= 1 for pause in found)


# Order and requests in flight.


def test_posts_start_in_stream_order_up_to_max_in_flight():
    bench = Bench(nodes=5, settings=CoreSettings(max_in_flight=2, backoff=BACKOFF))
    pods = [bench.show(make_pod(f"p{number}")) for number in range(4)]
    started = [name for pod in pods for name, _, _ in posts(bench.take(ranked(pod, "n1", "n2", "n3", "n4")))]
    assert started == ["p0", "p1"]
    assert bench.core.backlog == 2
    assert [name for name, _, _ in posts(bench.answer(pods[1], 201))] == ["p2"]
    assert [name for name, _, _ in posts(bench.answer(pods[0], 201))] == ["p3"]


def test_redelivered_message_takes_its_old_place():
    bench = Bench(settings=CoreSettings(max_in_flight=1, backoff=BACKOFF))
    first, second, third = (bench.show(make_pod(name)) for name in ("first", "second", "third"))
    bench.deliver(ranked(first, "n1"), 1)
    bench.deliver(ranked(third, "n3"), 3)
    bench.deliver(ranked(second, "n2"), 2)
    assert [name for name, _, _ in posts(bench.answer(first, 201))] == ["second"]
    assert [name for name, _, _ in posts(bench.answer(second, 201))] == ["third"]


def test_one_in_flight_is_strictly_serial():
    bench = Bench(nodes=2, settings=CoreSettings(max_in_flight=1, backoff=BACKOFF))
    one, two = bench.show(make_pod("one", cpu="3")), bench.show(make_pod("two", cpu="3"))
    bench.take(ranked(one, "n1"))
    bench.take(ranked(two, "n1", "n2", counted=1))
    assert posts(bench.answer(one, 201)) == [("two", "n2", "10")]


def test_pods_behind_one_in_back_off_are_bound():
    bench = Bench(settings=CoreSettings(max_in_flight=2, backoff=BACKOFF))
    stuck, other = bench.show(make_pod("stuck")), bench.show(make_pod("other"))
    bench.take(ranked(stuck, "n1"))
    bench.answer(stuck, 500)
    assert posts(bench.take(ranked(other, "n2"))) == [("other", "n2", "10")]


def test_silent_api_has_messages_examined_one_at_a_time_after_a_back_off():
    bench = Bench(nodes=8, settings=CoreSettings(max_in_flight=3, backoff=BACKOFF))
    pods = [bench.show(make_pod(f"p{number}")) for number in range(6)]
    for number, pod in enumerate(pods[:3]):
        bench.take(ranked(pod, f"n{number + 1}"))
    for pod in pods[:3]:
        bench.no_answer(pod)
    assert bench.core.is_api_silent
    assert [posts(bench.take(ranked(pod, "n4"))) for pod in pods[3:]] == [[], [], []]
    assert bench.core.due() == bench.now + 1
    effects = bench.wait(1)
    assert (reads(effects), [name for name, _, _ in posts(effects)]) == (["p0", "p1"], ["p3"])
    effects = bench.reading(pods[0], pods[0])
    assert not bench.core.is_api_silent
    assert [name for name, _, _ in posts(effects)] == ["p0"]
    assert [name for name, _, _ in posts(bench.reading(pods[1], None))] == ["p4"]


# Later attempts of the same uid.


def test_pod_stays_assumed_after_201_until_the_watch_shows_it(bench):
    pod = bench.show(make_pod("web", cpu="3"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 201)
    assert bench.cache.assumed_pod(pod.uid).is_bound
    other = bench.show(make_pod("other", cpu="3"))
    assert posts(bench.take(ranked(other, "n1", "n2", counted=1))) == [("other", "n2", "10")]
    bench.show(on_node(pod, "n1"))
    assert pod.uid not in bench.cache.assumed_pods


def test_later_attempt_takes_over_and_gets_the_one_decision(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=1))
    bench.no_answer(pod)
    assert posts(bench.take(ranked(pod, "n2", n=2))) == []
    assert bench.cache.assumed_pod(pod.uid).node == "n1"
    bench.wait(1)
    bench.reading(pod, on_node(pod, "n1"))
    assert [(decision.attempt, decision.outcome, decision.node) for decision in bench.decisions] == [
        ("uid-web.1.2", "bound", "n1")
    ]
    assert bench.acked == [1, 2]


def test_later_attempt_of_a_bound_pod_is_bound_where_it_is(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=1))
    bench.answer(pod, 201)
    assert posts(bench.take(ranked(pod, "n2", n=2))) == []
    assert [(decision.attempt, decision.node) for decision in bench.decisions] == [
        ("uid-web.1.1", "n1"),
        ("uid-web.1.2", "n1"),
    ]


def test_later_attempt_during_publishing_is_decided_next(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=1))
    (publish,) = bench.core.handle([BindingAnswer(uid=pod.uid, status=201)], bench.now)
    assert bench.take(ranked(pod, "n2", n=2)) == []
    bench.run([publish])
    assert [(decision.attempt, decision.outcome) for decision in bench.decisions] == [
        ("uid-web.1.1", "bound"),
        ("uid-web.1.2", "bound"),
    ]
    assert bench.acked == [1, 2]


def test_message_delivered_twice_is_decided_once(bench):
    pod = bench.show(make_pod("web"))
    message = ranked(pod, "n1")
    bench.deliver(message, 1)
    assert bench.deliver(message, 1) == []
    bench.answer(pod, 201)
    assert bench.outcomes == ["bound"]
    assert bench.acked == [1, 1]


# Waiting.


def test_open_binding_publishes_waiting_every_ten_seconds(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.no_answer(pod)
    for _ in range(30):
        bench.wait(1)
        bench.reading(pod, None, status=0)
    waits = [(decision.outcome, decision.node, decision.repeat) for decision in bench.decisions]
    assert waits == [("waiting", "n1", 0), ("waiting", "n1", 1), ("waiting", "n1", 2)]
    assert bench.acked == []
    assert [held.sequence for held in bench.core.held()] == [1]
    bench.wait(5)
    bench.reading(pod, on_node(pod, "n1"))
    assert bench.outcomes[-1] == "bound"
    assert bench.acked == [1]


def test_later_attempt_of_a_waiting_one_publishes_waiting_at_once(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=1))
    bench.no_answer(pod)
    bench.wait(10)
    bench.reading(pod, None, status=0)
    assert bench.outcomes == ["waiting"]
    bench.take(ranked(pod, "n2", n=2))
    assert [(decision.attempt, decision.outcome, decision.repeat) for decision in bench.decisions] == [
        ("uid-web.1.1", "waiting", 0),
        ("uid-web.1.2", "waiting", 0),
    ]


# Exceptions, and the end.


def test_fifth_exception_is_an_error_and_a_dead_letter(bench, monkeypatch):
    odd, fine = bench.show(make_pod("odd")), bench.show(make_pod("fine"))
    original = NodeChoice.choose

    def choose(self, message, pod, profile):
        if pod.uid == odd.uid:
            raise RuntimeError("a plugin broke")
        return original(self, message, pod, profile)

    monkeypatch.setattr(NodeChoice, "choose", choose)
    bench.take(ranked(odd, "n1"))
    assert posts(bench.take(ranked(fine, "n2"))) == [("fine", "n2", "10")]
    for _ in range(4):
        assert "error" not in bench.outcomes
        bench.wait(5)
    decision = bench.decisions[-1]
    assert (decision.outcome, decision.uid) == (Outcome.ERROR, odd.uid)
    assert "a plugin broke" in decision.message
    dead_letters = [
        each.held.sequence for each in bench.effects if isinstance(each, PublishDecision) and each.dead_letter
    ]
    assert dead_letters == [1]
    assert bench.acked == [1]


def test_list_without_the_pod_forgets_the_assumed_pod(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 201)
    bench.cache.observe(Listed(kind=PODS, objects=[], resource_version="60"))
    assert not bench.cache.assumed_pods


def test_ended_pause_is_not_due_while_nothing_may_start():
    bench = Bench(settings=CoreSettings(max_in_flight=1, backoff=BACKOFF))
    one, two, three = (bench.show(make_pod(name)) for name in ("one", "two", "three"))
    bench.take(ranked(one, "n1"))
    bench.take(ranked(two, "n2"))
    bench.answer(one, 404)
    bench.no_answer(two)
    assert bench.core.due() == bench.now + 1
    bench.wait(1)
    assert bench.core.due() > bench.now  # reading the pod uses the only request in flight; only `waiting` is due later
    bench.reading(two, on_node(two, "n2"))
    bench.take(ranked(three, "n3"))
    assert bench.core.due() is None


def test_closed_core_starts_nothing_and_handles_answers():
    bench = Bench(settings=CoreSettings(max_in_flight=1, backoff=BACKOFF))
    one, two = bench.show(make_pod("one")), bench.show(make_pod("two"))
    bench.take(ranked(one, "n1"))
    bench.take(ranked(two, "n2"))
    bench.core.close()
    assert posts(bench.answer(one, 201)) == []
    assert bench.outcomes == ["bound"]
    assert bench.core.due() is None
