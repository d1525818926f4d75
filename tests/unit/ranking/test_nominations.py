"""Nominations that scorers propose: counted from the proposal on, and ended by a Decision."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from berth.api.pod import Pod, PodStatus
from berth.cluster.snapshot import Snapshot
from berth.messages.attempts import Candidate, Decision, Outcome, Preemption, Ranked
from berth.messages.subjects import Attempt
from berth.ranking.proposals import NominationProposals, Proposals
from harness.builders.objects import a_node, a_pod

LIFETIME = 30.0
POD = a_pod("vip")


@pytest.fixture
def snapshot() -> Snapshot:
    snapshot = Snapshot()
    for name in ("n1", "n2"):
        snapshot.set_node(a_node(name))
    return snapshot


@pytest.fixture
def nominations(snapshot: Snapshot) -> NominationProposals:
    return NominationProposals(snapshot, LIFETIME)


def nominated_nodes(snapshot: Snapshot) -> list[str]:
    return [each.node for each in snapshot.nominations()]


def ranked(node: str = "", *, n: int = 1, **parts: object) -> Ranked:
    preemption = Preemption(node=node) if node else None
    return Ranked(attempt=str(attempt(n)), profile="berth", pod=POD, preemption=preemption, **parts)


def attempt(n: int = 1) -> Attempt:
    return Attempt.parse(f"{POD.uid}.1.{n}")


def decision(outcome: Outcome, node: str = "", n: int = 1) -> Decision:
    about = {"profile": "berth", "namespace": "default", "pod": "vip", "uid": POD.uid}
    return Decision(attempt=str(attempt(n)), epoch=1, outcome=outcome, node=node, **about)


def nominated(node: str) -> Pod:
    return msgspec.structs.replace(POD, status=PodStatus(nominated_node_name=node))


def test_a_proposed_preemption_nominates_the_node(snapshot, nominations):
    nominations.ranked(ranked("n1"), attempt(), 0.0)
    assert nominated_nodes(snapshot) == ["n1"]


@pytest.mark.parametrize("outcome", [Outcome.CONFLICT, Outcome.UNSCHEDULABLE, Outcome.ERROR, Outcome.GONE])
def test_a_final_decision_ends_the_nomination(snapshot, nominations, outcome):
    nominations.ranked(ranked("n1"), attempt(), 0.0)
    nominations.decided(decision(outcome), attempt(), 1.0)
    assert nominated_nodes(snapshot) == []


def test_preempting_moves_the_nomination_to_the_decisions_node(snapshot, nominations):
    nominations.ranked(ranked("n1"), attempt(), 0.0)
    nominations.decided(decision(Outcome.PREEMPTING, "n2"), attempt(), 1.0)
    assert nominated_nodes(snapshot) == ["n2"]
    nominations.expire(LIFETIME + 0.5)
    assert nominated_nodes(snapshot) == ["n2"]
    nominations.expire(LIFETIME + 1.0)
    assert nominated_nodes(snapshot) == []


def test_a_mirrored_nomination_outlives_the_proposal(snapshot, nominations):
    nominations.ranked(ranked("n1"), attempt(), 0.0)
    snapshot.nominate(nominated("n1"), "n1")
    nominations.mirrored(nominated("n1"))
    nominations.expire(1000.0)
    assert (nominated_nodes(snapshot), len(nominations)) == (["n1"], 0)


def test_when_a_proposal_ends_the_mirrored_nomination_counts_again(snapshot, nominations):
    snapshot.nominate(nominated("n1"), "n1")
    nominations.mirrored(nominated("n1"))
    nominations.ranked(ranked("n2", n=2), attempt(2), 0.0)
    assert nominated_nodes(snapshot) == ["n2"]
    nominations.decided(decision(Outcome.CONFLICT, n=2), attempt(2), 1.0)
    assert nominated_nodes(snapshot) == ["n1"]


def test_a_preemptor_that_is_deleted_after_a_repeated_attempt_keeps_no_node(snapshot, nominations):
    """The mirror shows its nomination all along and so never again: its end must end the proposal's."""
    snapshot.nominate(nominated("n1"), "n1")
    nominations.mirrored(nominated("n1"))
    nominations.ranked(ranked("n1", n=2), attempt(2), 0.0)
    nominations.decided(decision(Outcome.PREEMPTING, "n1", n=2), attempt(2), 1.0)
    assert (nominated_nodes(snapshot), len(nominations)) == (["n1"], 0)
    snapshot.end_nomination(POD.uid)  # what applying the purge does
    nominations.unmirrored(POD.uid)
    assert nominated_nodes(snapshot) == []


def test_a_pod_that_fits_ends_its_nomination(snapshot, nominations):
    nominations.ranked(ranked("n1"), attempt(), 0.0)
    nominations.ranked(ranked(n=2, candidates=[Candidate(node="n2", total=1)]), attempt(2), 1.0)
    assert nominated_nodes(snapshot) == []


def test_an_earlier_attempt_changes_nothing(snapshot, nominations):
    nominations.ranked(ranked("n1", n=2), attempt(2), 0.0)
    nominations.ranked(ranked("n2"), attempt(), 1.0)
    nominations.decided(decision(Outcome.CONFLICT), attempt(), 1.0)
    assert nominated_nodes(snapshot) == ["n1"]


def test_a_ranking_marked_as_conflict_nominates_no_node(snapshot, nominations):
    nominations.ranked(ranked("n1", proposals_counted=True), attempt(), 0.0)
    assert nominated_nodes(snapshot) == []


def test_nominations_can_be_suspended(snapshot, nominations):
    nominations.ranked(ranked("n1"), attempt(), 0.0)
    nominations.suspend()
    assert nominated_nodes(snapshot) == []
    nominations.resume()
    assert nominated_nodes(snapshot) == ["n1"]


def test_a_decision_received_before_its_ranking_ends_it(snapshot):
    proposals = Proposals(snapshot)
    proposals.decided(decision(Outcome.CONFLICT), datetime(2026, 1, 1, tzinfo=UTC), 0.0)
    proposals.ranked(ranked("n1"), 1.0)
    assert nominated_nodes(snapshot) == []


def test_a_pod_ranked_again_withdraws_its_nomination(snapshot):
    proposals = Proposals(snapshot)
    proposals.ranked(ranked("n1"), 0.0)
    proposals.withdraw(POD.uid)
    assert nominated_nodes(snapshot) == []


def test_a_nomination_that_leaves_the_mirror_leaves_the_proposal_of_another(snapshot):
    proposals = Proposals(snapshot)
    proposals.ranked(ranked("n1"), 0.0)
    snapshot.end_nomination(POD.uid)  # what applying the purge does
    proposals.unmirrored(POD.uid, datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert nominated_nodes(snapshot) == ["n1"]
    proposals.mirrored(POD.uid)
    assert len(proposals.nominations) == 0
