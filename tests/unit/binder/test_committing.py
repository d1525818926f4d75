"""The way of a pod through the binder, rule by rule as PROTOCOL 5 gives them."""

import random
from datetime import timedelta

import msgspec
import pytest

from berth.api.messages import Outcome, Reason
from berth.api.pod import Pod, PodCondition
from berth.kube.watch import Current, Deleted, Listed, Upserted
from berth_binder.cache import NODES, PODS
from berth_binder.conflictcheck import NodeChoice
from berth_binder.events import Ack, BindingAnswer, LogError, Nak, PublishDecision, RecordEvent
from berth_binder.settings import BackoffSettings, CoreSettings
from harness.worlds.binder_bench import BACKOFF, Bench, at_version, make_node, make_pod, on_node, posts, ranked, reads


@pytest.fixture
def bench() -> Bench:
    return Bench()


def gated(pod: Pod) -> Pod:
    spec = msgspec.structs.replace(pod.spec, scheduling_gates=[{"name": "wait"}])
    return msgspec.convert(msgspec.to_builtins(msgspec.structs.replace(pod, spec=spec)), Pod)


def labelled(pod: Pod, version: int) -> Pod:
    metadata = msgspec.structs.replace(pod.metadata, labels={"new": "label"}, resource_version=str(version))
    return msgspec.structs.replace(pod, metadata=metadata)


# The plain way.


def test_a_ranked_pod_is_bound_to_the_first_node_and_acknowledged_after_the_decision(bench):
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n2", "n1"))) == [("web", "n2", "10")]
    effects = bench.answer(pod, 201)
    assert [type(each) for each in effects] == [PublishDecision, Ack, RecordEvent]
    (decision,) = bench.decisions
    assert (decision.outcome, decision.node, decision.epoch, decision.uid) == (Outcome.BOUND, "n2", 7, pod.uid)
    assert bench.acked == [1]


def test_nothing_is_acknowledged_before_the_pub_ack(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    effects = bench.core.handle(BindingAnswer(uid=pod.uid, status=201), bench.now)
    assert [type(each) for each in effects] == [PublishDecision]
    assert [held.sequence for held in bench.core.held()] == [1]


def test_a_binding_names_the_newest_resource_version_that_is_known(bench):
    pod = make_pod("web", version=10)
    bench.show(at_version(pod, 14))
    assert posts(bench.take(ranked(pod, "n1"))) == [("web", "n1", "14")]


def test_a_pod_that_the_own_watch_shows_late_is_posted_with_the_messages_version(bench):
    bench.show(make_pod("web", version=10))
    newer = make_pod("web", version=16)
    assert posts(bench.take(ranked(newer, "n1"))) == [("web", "n1", "16")]


def test_the_decision_carries_what_explains_it(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2", scorer="s-1", evaluated=3))
    bench.answer(pod, 201)
    (decision,) = bench.decisions
    assert [each.node for each in decision.candidates] == ["n1", "n2"]
    assert (decision.scorer, decision.evaluated, decision.feasible, decision.config) == ("s-1", 3, 2, "test")


# Before all else.


def test_a_redelivered_message_is_acknowledged_and_nothing_is_said_again(bench):
    pod = bench.show(make_pod("web"))
    message = ranked(pod, "n1")
    bench.take(message)
    bench.answer(pod, 201)
    effects = bench.deliver(message, 1)
    assert [type(each) for each in effects] == [Ack]
    assert bench.outcomes == ["bound"]


def test_an_earlier_attempt_than_the_decided_one_is_acknowledged_silently(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=2))
    bench.answer(pod, 201)
    assert [type(each) for each in bench.take(ranked(pod, "n1", n=1))] == [Ack]


def test_another_epoch_decides_again(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 201)
    bench.show(on_node(pod, "n1"))
    bench.new_epoch(8)
    assert posts(bench.deliver(ranked(pod, "n1"), 1)) == []
    assert [(decision.epoch, decision.outcome) for decision in bench.decisions] == [(7, "bound"), (8, "bound")]


@pytest.mark.parametrize(("node", "outcome"), [("n2", "bound"), ("n3", "gone")])
def test_a_pod_bound_at_the_api_is_bound_on_one_of_the_k_nodes_and_else_gone(bench, node, outcome):
    pod = make_pod("web")
    bench.show(on_node(pod, node))
    assert posts(bench.take(ranked(pod, "n1", "n2"))) == []
    assert bench.outcomes == [outcome]


def test_an_unknown_uid_with_an_old_resource_version_is_gone(bench):
    bench.cache.observe(Current(kind=PODS, resource_version="50"))
    assert posts(bench.take(ranked(make_pod("web", version=50), "n1"))) == []
    assert bench.outcomes == ["gone"]


def test_an_unknown_uid_above_the_reflectors_version_is_taken_from_the_message(bench):
    bench.cache.observe(Current(kind=PODS, resource_version="50"))
    assert posts(bench.take(ranked(make_pod("web", version=51), "n1"))) == [("web", "n1", "51")]


def test_a_pod_that_is_being_deleted_while_unbound_is_gone(bench):
    pod = make_pod("web")
    bench.show(make_pod("web", version=12, metadata={"deletion_timestamp": "2026-01-01T00:00:00Z"}))
    bench.take(ranked(pod, "n1"))
    assert bench.outcomes == ["gone"]


def test_a_pod_that_has_finished_is_gone(bench):
    pod = bench.show(make_pod("job"))
    bench.show(make_pod("job", version=12, status={"phase": "Failed"}))
    bench.take(ranked(pod, "n1"))
    assert bench.outcomes == ["gone"]


def test_a_pod_that_has_changed_since_is_a_conflict(bench):
    pod = bench.show(make_pod("web"))
    bench.show(labelled(pod, 12))
    bench.take(ranked(pod, "n1"))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.CHANGED)


def test_a_pod_that_was_gated_is_a_conflict(bench):
    pod = bench.show(make_pod("web"))
    bench.show(at_version(gated(pod), 12))
    bench.take(ranked(pod, "n1"))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.CHANGED)


def test_a_condition_or_a_nomination_is_no_change(bench):
    pod = bench.show(make_pod("web"))
    fence = PodCondition(type="berth/fence", status="True", message="7")
    bench.show(make_pod("web", version=12, status={"conditions": [fence], "nominated_node_name": "n3"}))
    assert posts(bench.take(ranked(pod, "n1"))) == [("web", "n1", "12")]


def test_a_scorers_error_is_an_error_with_its_words(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, error="parsing spec.containers[0]: '4x'"))
    assert (bench.decisions[0].outcome, bench.decisions[0].message) == (
        Outcome.ERROR,
        "parsing spec.containers[0]: '4x'",
    )


def test_no_candidate_is_unschedulable_with_the_scorers_reasons(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, message="0/3 nodes are available", blockers=["NodeResourcesFit"]))
    (decision,) = bench.decisions
    assert (decision.outcome, decision.message, decision.blockers) == (
        Outcome.UNSCHEDULABLE,
        "0/3 nodes are available",
        ["NodeResourcesFit"],
    )


def test_a_no_that_hangs_on_a_proposal_is_a_conflict(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, message="0/3 nodes are available", proposals_counted=True))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.PROPOSALS)


def test_a_profile_that_nobody_here_knows_is_given_back_with_a_delay(bench):
    pod = bench.show(make_pod("web"))
    (effect,) = bench.take(msgspec.structs.replace(ranked(pod, "n1"), profile="other"))
    assert isinstance(effect, Nak)
    assert effect.delay.total_seconds() > 0


# The re-check.


def test_a_node_that_no_longer_passes_is_passed_over(bench):
    bench.cache.observe(Upserted(kind=NODES, object=make_node("n1", unschedulable=True)))
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2"))) == [("web", "n2", "10")]


def test_a_node_that_does_not_exist_is_passed_over_though_the_api_would_take_it(bench):
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n9", "n2"))) == [("web", "n2", "10")]


def test_a_node_without_room_for_the_pod_beside_bound_pods_of_others_is_passed_over(bench):
    bench.show(make_pod("theirs", cpu="4", node="n1", spec={}))
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", counted=1))) == [("web", "n2", "10")]


def test_a_reservation_takes_room_before_the_watch_shows_it(bench):
    one, two = bench.show(make_pod("one", cpu="3")), bench.show(make_pod("two", cpu="3"))
    bench.take(ranked(one, "n1"))
    bench.take(ranked(two, "n1", counted=1))
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.NO_CANDIDATE)


def test_a_nominated_pod_of_higher_priority_keeps_its_room(bench):
    bench.show(make_pod("vip", cpu="4", spec={"priority": 10}, status={"nominated_node_name": "n1"}))
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2"))) == [("web", "n2", "10")]


def test_a_conflict_names_the_newest_object_of_each_kind_and_what_refused(bench):
    for name in ("n1", "n2"):
        bench.cache.observe(Upserted(kind=NODES, object=make_node(name, version=33, unschedulable=True)))
    pod = bench.show(make_pod("web"))
    bench.cache.observe(Current(kind=PODS, resource_version="90"))
    bench.take(ranked(pod, "n1", "n2"))
    (decision,) = bench.decisions
    assert (decision.outcome, decision.reason) == (Outcome.CONFLICT, Reason.NO_CANDIDATE)
    assert decision.resource_versions == {"node": "33", "pod": "10"}
    assert {each.plugin for each in decision.rejections} == {"NodeUnschedulable"}


def test_only_a_conflict_names_resource_versions(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 201)
    assert bench.decisions[0].resource_versions == {}


# Untouched first.


def touch(bench: Bench, *nodes: str) -> None:
    for node in nodes:
        bench.show(make_pod(f"other-{node}", cpu="100m", node=node))


def test_the_first_untouched_node_is_taken_before_a_better_touched_one(bench):
    touch(bench, "n1")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2"))) == [("web", "n2", "10")]


def test_a_node_with_the_pods_that_the_scorer_counted_is_untouched(bench):
    touch(bench, "n1")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", counted=1))) == [("web", "n1", "10")]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_when_all_were_touched_the_first_three_attempts_are_ranked_again(bench, n):
    touch(bench, "n1", "n2", "n3")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", "n3", n=n))) == []
    assert (bench.decisions[0].outcome, bench.decisions[0].reason) == (Outcome.CONFLICT, Reason.STALE)


def test_from_the_fourth_attempt_on_a_touched_one_is_taken(bench):
    touch(bench, "n1", "n2", "n3")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", "n3", n=4))) == [("web", "n1", "10")]


def test_with_fewer_feasible_nodes_than_k_a_touched_one_is_taken_at_once(bench):
    touch(bench, "n1", "n2")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", feasible=2))) == [("web", "n1", "10")]


@pytest.mark.parametrize(("n", "feasible"), [(4, 100), (1, 2)], ids=["fourth attempt", "no better list"])
def test_of_touched_nodes_the_one_touched_least_is_taken(bench, n, feasible):
    touch(bench, "n1", "n2", "n3")
    bench.show(make_pod("second-on-n1", cpu="100m", node="n1"))
    pod = bench.show(make_pod("web"))
    # by count minus counted: n1 2, n2 1, n3 1
    assert posts(bench.take(ranked(pod, "n1", "n2", "n3", n=n, feasible=feasible))) == [("web", "n2", "10")]


def test_where_more_pods_make_a_node_better_touched_ones_are_as_good(bench):
    touch(bench, "n1", "n2", "n3")
    pod = bench.show(make_pod("web"))
    assert posts(bench.take(ranked(pod, "n1", "n2", "n3", untouched_first=False))) == [("web", "n1", "10")]


def test_a_reservation_touches_a_node_like_a_pod(bench):
    one, two = bench.show(make_pod("one")), bench.show(make_pod("two"))
    bench.take(ranked(one, "n1", "n2", "n3"))
    assert posts(bench.take(ranked(two, "n1", "n2", "n3"))) == [("two", "n2", "10")]


# Answers to the Binding.


def test_409_and_the_pod_is_on_our_node_is_bound(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2"))
    assert reads(bench.answer(pod, 409)) == ["web"]
    bench.reading(pod, on_node(pod, "n1"))
    assert (bench.decisions[0].outcome, bench.decisions[0].node) == (Outcome.BOUND, "n1")


def test_409_and_the_pod_is_elsewhere_is_gone_and_frees_the_room(bench):
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


def test_409_and_the_pod_is_being_deleted_is_gone(bench):
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


def test_409_for_the_version_alone_is_tried_again_with_the_new_one(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 409)
    assert posts(bench.reading(pod, at_version(pod, 15))) == [("web", "n1", "15")]
    bench.answer(pod, 201)
    assert bench.outcomes == ["bound"]


def test_a_pod_that_is_written_all_the_time_is_not_posted_in_a_hot_loop(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    for version in range(11, 14):
        bench.answer(pod, 409)
        bench.reading(pod, at_version(pod, version))
    assert reads(bench.answer(pod, 409)) == []
    assert reads(bench.wait(1)) == ["web"]


def test_a_node_that_went_away_meanwhile_is_not_posted_to_again_once_no_post_can_land(bench):
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
def test_every_other_refusal_is_an_error_with_the_apis_words(bench, status):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, status, message="namespace default is being terminated")
    (decision,) = bench.decisions
    assert decision.outcome is Outcome.ERROR
    assert "namespace default is being terminated" in decision.message
    assert not bench.cache.assumed_pods


def test_a_missing_right_is_also_told_to_the_operator(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    effects = bench.answer(pod, 403, message="forbidden", missing_right="add to the ClusterRole: create pods/binding")
    assert [each.text for each in effects if isinstance(each, LogError)] == [
        "add to the ClusterRole: create pods/binding"
    ]
    assert "add to the ClusterRole" in bench.decisions[0].message


@pytest.mark.parametrize("status", [0, 401, 408, 429, 500, 503, 504])
def test_what_leaves_the_binding_open_is_read_and_the_same_node_tried_again(bench, status):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n2", "n1"))
    assert bench.answer(pod, status) == []
    assert bench.decisions == []
    assert bench.cache.assumed_pod(pod.uid).node == "n2"
    assert reads(bench.wait(1)) == ["web"]
    assert posts(bench.reading(pod, pod)) == [("web", "n2", "10")]


def test_a_lost_answer_keeps_node_and_reservation_though_the_node_no_longer_passes(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", "n2"))
    bench.no_answer(pod)
    bench.cache.observe(Upserted(kind=NODES, object=make_node("n1", unschedulable=True)))
    bench.wait(1)
    assert posts(bench.reading(pod, pod)) == [("web", "n1", "10")]


def test_a_lost_answer_of_a_binding_that_was_carried_out_is_bound(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.no_answer(pod)
    bench.wait(1)
    bench.reading(pod, on_node(pod, "n1"))
    assert (bench.decisions[0].outcome, bench.decisions[0].node) == (Outcome.BOUND, "n1")


def test_a_reading_without_an_answer_is_tried_again_later_and_later(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.no_answer(pod)
    pauses = []
    for _ in range(5):
        pauses.append(bench.core._attempts[pod.uid].due - bench.now)
        bench.wait(pauses[-1])
        bench.reading(pod, None, status=0)
    assert pauses == [1, 2, 4, 5, 5]


def test_a_longer_pause_is_made_when_the_api_asks_for_it(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 429, retry_after=timedelta(seconds=3))
    assert bench.core.due() == bench.now + 3


def test_pauses_have_jitter():
    backoff = BackoffSettings(initial=timedelta(seconds=1), chance=random.Random(1))
    bench = Bench(settings=CoreSettings(best=3, backoff=backoff))
    found = set()
    for number in range(3):
        pod = bench.show(make_pod(f"p{number}"))
        bench.take(ranked(pod, f"n{number + 1}"))
        bench.no_answer(pod)
        found.add(bench.core._attempts[pod.uid].due - bench.now)
    assert len(found) == 3
    assert all(0.5 <= pause <= 1 for pause in found)


# Order and places on the wire.


def test_posts_start_in_stream_order_and_no_more_than_allowed_are_on_the_wire():
    bench = Bench(nodes=5, settings=CoreSettings(max_in_flight=2, best=3, backoff=BACKOFF))
    pods = [bench.show(make_pod(f"p{number}")) for number in range(4)]
    started = [name for pod in pods for name, _, _ in posts(bench.take(ranked(pod, "n1", "n2", "n3", "n4")))]
    assert started == ["p0", "p1"]
    assert bench.core.backlog == 2
    assert [name for name, _, _ in posts(bench.answer(pods[1], 201))] == ["p2"]
    assert [name for name, _, _ in posts(bench.answer(pods[0], 201))] == ["p3"]


def test_a_redelivered_message_takes_its_old_place_in_the_stream():
    bench = Bench(settings=CoreSettings(max_in_flight=1, best=3, backoff=BACKOFF))
    first, second, third = (bench.show(make_pod(name)) for name in ("first", "second", "third"))
    bench.deliver(ranked(first, "n1"), 1)
    bench.deliver(ranked(third, "n3"), 3)
    bench.deliver(ranked(second, "n2"), 2)
    assert [name for name, _, _ in posts(bench.answer(first, 201))] == ["second"]
    assert [name for name, _, _ in posts(bench.answer(second, 201))] == ["third"]


def test_one_on_the_wire_is_strictly_serial_and_sees_the_newest_state():
    bench = Bench(nodes=2, settings=CoreSettings(max_in_flight=1, best=8, backoff=BACKOFF))
    one, two = bench.show(make_pod("one", cpu="3")), bench.show(make_pod("two", cpu="3"))
    bench.take(ranked(one, "n1"))
    bench.take(ranked(two, "n1", "n2", counted=1))
    assert posts(bench.answer(one, 201)) == [("two", "n2", "10")]


def test_a_pod_in_back_off_holds_up_nobody():
    bench = Bench(settings=CoreSettings(max_in_flight=2, best=3, backoff=BACKOFF))
    stuck, other = bench.show(make_pod("stuck")), bench.show(make_pod("other"))
    bench.take(ranked(stuck, "n1"))
    bench.answer(stuck, 500)
    assert posts(bench.take(ranked(other, "n2"))) == [("other", "n2", "10")]


def test_an_over_long_silence_of_the_api_stops_taking_until_it_answers_again():
    bench = Bench(nodes=8, settings=CoreSettings(max_in_flight=2, best=3, backoff=BACKOFF))
    pods = [bench.show(make_pod(f"p{number}")) for number in range(4)]
    for number, pod in enumerate(pods[:2]):
        bench.take(ranked(pod, f"n{number + 1}"))
    bench.no_answer(pods[0])
    bench.no_answer(pods[1])
    assert bench.core.is_api_silent
    assert posts(bench.take(ranked(pods[2], "n3"))) == []
    bench.wait(1)
    effects = bench.reading(pods[0], pods[0])
    assert not bench.core.is_api_silent
    assert [name for name, _, _ in posts(effects)] == ["p0"]
    effects = bench.reading(pods[1], None)
    assert [name for name, _, _ in posts(effects)] == ["p2"]


# One reservation per uid; later attempts take it over.


def test_a_reservation_stays_after_201_until_the_watch_shows_the_pod(bench):
    pod = bench.show(make_pod("web", cpu="3"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 201)
    assert bench.cache.assumed_pod(pod.uid).is_bound
    other = bench.show(make_pod("other", cpu="3"))
    assert posts(bench.take(ranked(other, "n1", "n2", counted=1))) == [("other", "n2", "10")]
    bench.show(on_node(pod, "n1"))
    assert pod.uid not in bench.cache.assumed_pods


def test_a_later_attempt_takes_the_reservation_over_and_one_outcome_is_said_for_it(bench):
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


def test_a_later_attempt_of_a_pod_that_the_api_has_confirmed_is_bound_where_it_is(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=1))
    bench.answer(pod, 201)
    assert posts(bench.take(ranked(pod, "n2", n=2))) == []
    assert [(decision.attempt, decision.node) for decision in bench.decisions] == [
        ("uid-web.1.1", "n1"),
        ("uid-web.1.2", "n1"),
    ]


def test_a_later_attempt_that_comes_while_the_decision_is_published_is_decided_after_it(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1", n=1))
    (publish,) = bench.core.handle(BindingAnswer(uid=pod.uid, status=201), bench.now)
    assert bench.take(ranked(pod, "n2", n=2)) == []
    bench.run([publish])
    assert [(decision.attempt, decision.outcome) for decision in bench.decisions] == [
        ("uid-web.1.1", "bound"),
        ("uid-web.1.2", "bound"),
    ]
    assert bench.acked == [1, 2]


def test_the_same_message_delivered_twice_while_it_is_committed_is_said_once_and_acknowledged_twice(bench):
    pod = bench.show(make_pod("web"))
    message = ranked(pod, "n1")
    bench.deliver(message, 1)
    assert bench.deliver(message, 1) == []
    bench.answer(pod, 201)
    assert bench.outcomes == ["bound"]
    assert bench.acked == [1, 1]


# Waiting.


def test_a_binding_that_the_api_leaves_open_says_waiting_every_ten_seconds(bench):
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


def test_a_later_attempt_of_a_waiting_one_says_waiting_at_once(bench):
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


# What fails whose.


def test_an_exception_counts_for_that_pod_and_the_fifth_is_an_error_and_a_dead_letter(bench, monkeypatch):
    odd, fine = bench.show(make_pod("odd")), bench.show(make_pod("fine"))
    original = NodeChoice.choose

    def choose(self, message, attempt, pod, profile):
        if pod.uid == odd.uid:
            raise RuntimeError("a plugin broke")
        return original(self, message, attempt, pod, profile)

    monkeypatch.setattr(NodeChoice, "choose", choose)
    bench.take(ranked(odd, "n1"))
    assert posts(bench.take(ranked(fine, "n2"))) == [("fine", "n2", "10")]
    for _ in range(4):
        assert "error" not in bench.outcomes
        bench.wait(5)
    decision = bench.decisions[-1]
    assert (decision.outcome, decision.uid) == (Outcome.ERROR, odd.uid)
    assert "a plugin broke" in decision.message
    buried = [each.held.sequence for each in bench.effects if isinstance(each, PublishDecision) and each.dead_letter]
    assert buried == [1]
    assert bench.acked == [1]


def test_a_list_that_lacks_the_pod_frees_what_was_reserved_for_it(bench):
    pod = bench.show(make_pod("web"))
    bench.take(ranked(pod, "n1"))
    bench.answer(pod, 201)
    bench.cache.observe(Listed(kind=PODS, objects=[], resource_version="60"))
    assert not bench.cache.assumed_pods


def test_a_pause_that_is_over_asks_for_no_time_while_there_is_no_place_on_the_wire():
    bench = Bench(settings=CoreSettings(max_in_flight=1, best=3, backoff=BACKOFF))
    one, two, three = (bench.show(make_pod(name)) for name in ("one", "two", "three"))
    bench.take(ranked(one, "n1"))
    bench.take(ranked(two, "n2"))
    bench.answer(one, 404)
    bench.no_answer(two)
    assert bench.core.due() == bench.now + 1
    bench.wait(1)
    assert bench.core.due() > bench.now  # the place is taken by the reading of the pod; only `waiting` is due later
    bench.reading(two, on_node(two, "n2"))
    bench.take(ranked(three, "n3"))
    assert bench.core.due() is None


def test_a_core_that_is_closed_starts_nothing_and_still_takes_answers():
    bench = Bench(settings=CoreSettings(max_in_flight=1, best=3, backoff=BACKOFF))
    one, two = bench.show(make_pod("one")), bench.show(make_pod("two"))
    bench.take(ranked(one, "n1"))
    bench.take(ranked(two, "n2"))
    bench.core.close()
    assert posts(bench.answer(one, 201)) == []
    assert bench.outcomes == ["bound"]
    assert bench.core.due() is None
