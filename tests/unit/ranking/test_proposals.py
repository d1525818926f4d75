"""Proposals: what counts on a node before the mirror shows it."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from berth.api.meta import ObjectMeta
from berth.api.node import Node
from berth.api.pod import Pod
from berth.cluster.snapshot import Snapshot
from berth.messages.attempts import Candidate, Decision, Outcome, Ranked
from berth.messages.encoding import encode
from berth.ranking import proposals as module
from berth.ranking.proposals import LIFETIME, Proposals
from berth.ranking.view import EXPIRED_NAMED, View

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(uid="u1"):
    return Pod(metadata=ObjectMeta(name=uid, namespace="default", uid=uid))


def ranked(attempt="u1.1.1", *nodes):
    return Ranked(
        attempt=attempt,
        profile="berth",
        pod=pod(attempt.split(".")[0]),
        candidates=[Candidate(node=node, total=1) for node in nodes],
    )


def decision(outcome, attempt="u1.1.1", node=""):
    uid = attempt.split(".")[0]
    return Decision(
        attempt=attempt,
        epoch=1,
        outcome=outcome,
        profile="berth",
        namespace="default",
        pod=uid,
        uid=uid,
        node=node,
    )


@pytest.fixture
def snapshot():
    made = Snapshot()
    for name in ("a", "b"):
        made.set_node(Node(metadata=ObjectMeta(name=name)))
    return made


@pytest.fixture
def proposals(snapshot):
    return Proposals(snapshot)


def test_a_proposal_counts_as_a_pod_on_its_first_node(snapshot, proposals):
    proposals.ranked(ranked("u1.1.1", "a", "b"), now=0)
    assert (snapshot.pods_on("a"), snapshot.pods_on("b")) == (1, 0)


def test_a_proposal_received_twice_counts_once(snapshot, proposals):
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.ranked(ranked("u1.1.1", "a"), now=1)
    assert snapshot.pods_on("a") == 1


def test_a_later_attempt_moves_the_proposal_and_an_earlier_one_does_not(snapshot, proposals):
    proposals.ranked(ranked("u1.1.2", "a"), now=0)
    proposals.ranked(ranked("u1.2.1", "b"), now=0)
    proposals.ranked(ranked("u1.1.9", "a"), now=0)
    assert (snapshot.pods_on("a"), snapshot.pods_on("b")) == (0, 1)


def test_a_ranking_without_nodes_ends_the_proposal_of_the_attempt_before(snapshot, proposals):
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.ranked(ranked("u1.1.2"), now=0)
    assert snapshot.pods_on("a") == 0


@pytest.mark.parametrize("outcome", [o for o in Outcome if o.final and o is not Outcome.BOUND])
@pytest.mark.parametrize("attempt", ["u1.1.1", "u1.1.2", "u1.2.1"])
def test_a_final_decision_of_that_or_a_higher_attempt_ends_it(snapshot, proposals, outcome, attempt):
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.decided(decision(outcome, attempt), NOON, now=1)
    assert snapshot.pods_on("a") == 0


def test_a_decision_on_a_lower_attempt_changes_nothing(snapshot, proposals):
    proposals.ranked(ranked("u1.1.2", "a"), now=0)
    proposals.decided(decision(Outcome.CONFLICT, "u1.1.1"), NOON, now=1)
    assert snapshot.pods_on("a") == 1


@pytest.mark.parametrize("outcome", [Outcome.WAITING, Outcome.BOUND])
def test_waiting_and_bound_move_it_to_the_decisions_node(snapshot, proposals, outcome):
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.decided(decision(outcome, node="b"), NOON, now=1)
    assert (snapshot.pods_on("a"), snapshot.pods_on("b")) == (0, 1)


def test_it_expires_thirty_seconds_after_the_last_message(snapshot, proposals):
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.decided(decision(Outcome.WAITING, node="a"), NOON, now=20)
    proposals.expire(now=49.9)
    assert snapshot.pods_on("a") == 1
    proposals.expire(now=50)
    assert snapshot.pods_on("a") == 0


def test_a_bound_one_does_not_expire(snapshot, proposals):
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.decided(decision(Outcome.BOUND, node="a"), NOON, now=1)
    proposals.expire(now=1000)
    assert snapshot.pods_on("a") == 1


def test_a_bound_one_ends_when_the_mirror_shows_it(snapshot, proposals):
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.decided(decision(Outcome.BOUND, node="b"), NOON, now=1)
    proposals.mirrored("u1")
    snapshot.place(pod(), "b")
    proposals.complete_up_to(NOON + timedelta(hours=1))
    proposals.ranked(ranked("u1.1.1", "a"), now=2)
    assert (len(proposals), snapshot.pods_on("a"), snapshot.pods_on("b")) == (0, 0, 1)


def test_a_bound_one_ends_when_a_complete_mirror_lacks_it(snapshot, proposals):
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.decided(decision(Outcome.BOUND, node="a"), NOON, now=1)
    proposals.complete_up_to(NOON + timedelta(seconds=5))
    assert snapshot.pods_on("a") == 1
    proposals.complete_up_to(NOON + timedelta(seconds=5, milliseconds=1))
    assert snapshot.pods_on("a") == 0


@pytest.mark.parametrize("shown", [True, False], ids=["shown bound", "never shown bound"])
def test_a_pod_that_is_gone_does_not_count_when_its_message_is_delivered_again(snapshot, proposals, shown):
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.decided(decision(Outcome.BOUND, node="a"), NOON, now=0)
    if shown:
        proposals.mirrored("u1")
    proposals.unmirrored("u1", NOON + timedelta(seconds=1))
    for seconds in (1, 100):
        proposals.complete_up_to(NOON + timedelta(seconds=seconds))
        proposals.ranked(ranked("u1.1.1", "a"), now=1)
        assert len(proposals) == 0


def test_a_bound_one_ends_when_the_mirror_removes_the_pod(snapshot, proposals):
    """It was bound and deleted between two reads: what is rejected because of it would be woken by nothing."""
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.decided(decision(Outcome.BOUND, node="a"), NOON, now=1)
    proposals.unmirrored("u1", NOON + timedelta(seconds=1))
    assert (len(proposals), snapshot.pods_on("a")) == (0, 0)


@pytest.mark.parametrize(("seconds", "counted"), [(-1, 1), (1, 0)])
def test_a_pod_whose_removal_was_read_before_its_decision_does_not_count(snapshot, proposals, seconds, counted):
    """A removal from before the Decision was of its nomination."""
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.unmirrored("u1", NOON + timedelta(seconds=seconds))
    assert snapshot.pods_on("a") == 1
    proposals.decided(decision(Outcome.BOUND, node="a"), NOON, now=1)
    assert snapshot.pods_on("a") == counted


@pytest.mark.parametrize(
    ("outcome", "counted"), [(Outcome.BOUND, (0, 1)), (Outcome.CONFLICT, (0, 0)), (Outcome.WAITING, (0, 1))]
)
def test_a_decision_received_before_its_ranking_applies(snapshot, proposals, outcome, counted):
    proposals.decided(decision(outcome, node="b"), NOON, now=0)
    proposals.ranked(ranked("u1.1.1", "a"), now=1)
    assert (snapshot.pods_on("a"), snapshot.pods_on("b")) == counted


@pytest.mark.parametrize("outcome", Outcome)
def test_a_ranking_received_after_its_decision_waits_for_none(proposals, outcome):
    proposals.decided(decision(outcome, node="a"), NOON, 0.0)
    proposals.ranked(ranked("u1.1.1", "a"), 0.0)
    assert not proposals.others_propose("s-1")
    proposals.ranked(ranked("u1.1.2", "a"), 0.0)
    assert proposals.others_propose("s-1")


def test_a_remembered_decision_does_not_end_a_later_attempt(snapshot, proposals):
    proposals.decided(decision(Outcome.CONFLICT, "u1.1.1"), NOON, now=0)
    proposals.ranked(ranked("u1.1.2", "a"), now=1)
    assert snapshot.pods_on("a") == 1


@pytest.mark.parametrize(("seconds", "counted"), [(119, 0), (121, 1)])
def test_a_decision_is_remembered_for_two_minutes_of_later_decisions(snapshot, proposals, seconds, counted):
    proposals.decided(decision(Outcome.CONFLICT, "u1.1.1"), NOON, now=0)
    proposals.decided(decision(Outcome.CONFLICT, "u2.1.1"), NOON + timedelta(seconds=seconds), now=seconds)
    proposals.ranked(ranked("u1.1.1", "a"), now=seconds)
    assert snapshot.pods_on("a") == counted


def test_of_two_remembered_decisions_of_a_term_the_last_counts_whatever_their_numbers(snapshot, proposals):
    proposals.decided(decision(Outcome.CONFLICT, "u1.1.999999999999999999"), NOON, now=0)
    proposals.decided(decision(Outcome.CONFLICT, "u1.1.3"), NOON, now=1)
    proposals.ranked(ranked("u1.1.4", "a"), now=2)
    assert snapshot.pods_on("a") == 1


def test_a_pod_ranked_again_does_not_count_against_itself(snapshot, proposals):
    proposals.ranked(ranked("u1.1.1", "a"), now=0)
    proposals.withdraw("u1")
    assert snapshot.pods_on("a") == 0


def test_a_ranking_names_the_last_of_the_proposals_that_expired_before_it():
    """While no binder decides, a scorer that has nothing to rank may hear of any number of its peers'."""
    view = View()
    view.snapshot.set_node(Node(metadata=ObjectMeta(name="a")))
    for number in range(EXPIRED_NAMED + 1):
        view.proposals.ranked(ranked(f"u{number}.1.1", "a"), now=number)
        view.expire(number + LIFETIME.total_seconds())
    received = view.take_received().expired
    assert (len(received), received[-1]) == (EXPIRED_NAMED, f"u{EXPIRED_NAMED}")
    assert view.take_received().expired == []


@pytest.mark.parametrize("attempt", ["u1.1.1", "u2.1.1.1", "junk"])
def test_a_ranking_that_is_no_attempt_of_its_pod_proposes_nothing(attempt):
    """A proposal is ended by its attempt's pod: that of another pod would count for ever, or move a bound one."""
    view = View()
    for name in ("a", "b"):
        view.snapshot.set_node(Node(metadata=ObjectMeta(name=name)))
    view.snapshot.place(pod("u2"), "a")
    forged = msgspec.structs.replace(ranked("u2.1.1", "b"), attempt=attempt)
    assert view.apply_ranked(encode(forged), 1, 0.0)
    assert (view.snapshot.pods_on("a"), view.snapshot.pods_on("b"), len(view.proposals)) == (1, 0, 0)


def view_of_rankings_of_no_pods(count):
    view = View()
    view.snapshot.set_node(Node(metadata=ObjectMeta(name="a")))
    for number in range(count):
        view.count_peer(ranked(f"none-{number}.1.1", "a"), number + 1, 0.0, size=100)
    return view


def test_of_proposals_without_a_decision_the_oldest_end_beyond_a_number(monkeypatch):
    monkeypatch.setattr(module, "MOST_UNDECIDED", 3)
    view = view_of_rankings_of_no_pods(5)
    assert view.snapshot.pods_on("a") == 3
    assert view.take_received().expired == ["none-0", "none-1"], "a replay ends them too"


def test_of_proposals_without_a_decision_the_oldest_end_beyond_their_bytes(monkeypatch):
    monkeypatch.setattr(module, "MOST_UNDECIDED_BYTES", 250)
    assert view_of_rankings_of_no_pods(5).snapshot.pods_on("a") == 2


def test_rankings_that_place_their_pod_nowhere_are_forgotten_after_their_lifetime_too(snapshot, monkeypatch):
    monkeypatch.setattr(module, "MOST_UNDECIDED", 3)
    proposals = Proposals(snapshot)
    for number in range(3):
        proposals.ranked(ranked(f"none-{number}.1.1"), now=0)
    proposals.expire(LIFETIME.total_seconds())
    ended = [proposals.ranked(ranked(f"u{number}.1.1", "a"), now=40) for number in range(3)]
    assert (ended, snapshot.pods_on("a")) == ([[], [], []], 3)


def test_decided_proposals_do_not_count_among_those_without_a_decision(snapshot, monkeypatch):
    monkeypatch.setattr(module, "MOST_UNDECIDED", 2)
    proposals = Proposals(snapshot)
    for number in range(5):
        proposals.ranked(ranked(f"u{number}.1.1", "a"), now=0)
        proposals.decided(decision(Outcome.BOUND, f"u{number}.1.1", "a"), NOON, now=0)
    assert snapshot.pods_on("a") == 5
