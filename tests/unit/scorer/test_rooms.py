"""Room that scorers propose to make: kept for the pod from the proposal on, and free again when nothing comes of it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from berth.api.messages import Candidate, Decision, Outcome, Preemption, Ranked
from berth.api.pod import Pod, PodStatus
from berth.api.subjects import Attempt
from berth.cluster.snapshot import Snapshot
from berth_scorer.proposals import NominationProposals, Proposals
from harness.builders.objects import a_node, a_pod

LAPSE = 30.0
POD = a_pod("vip")


@pytest.fixture
def snapshot() -> Snapshot:
    snapshot = Snapshot()
    for name in ("n1", "n2"):
        snapshot.set_node(a_node(name))
    return snapshot


@pytest.fixture
def rooms(snapshot: Snapshot) -> NominationProposals:
    return NominationProposals(snapshot, LAPSE)


def kept(snapshot: Snapshot) -> list[str]:
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


def test_a_proposed_node_is_kept_at_once(snapshot, rooms):
    rooms.ranked(ranked("n1"), attempt(), 0.0)
    assert kept(snapshot) == ["n1"]


@pytest.mark.parametrize("outcome", [Outcome.CONFLICT, Outcome.UNSCHEDULABLE, Outcome.ERROR, Outcome.GONE])
def test_a_proposal_of_which_nothing_comes_keeps_no_node(snapshot, rooms, outcome):
    rooms.ranked(ranked("n1"), attempt(), 0.0)
    rooms.decided(decision(outcome), attempt(), 1.0)
    assert kept(snapshot) == []


def test_the_binder_says_which_node_it_is(snapshot, rooms):
    rooms.ranked(ranked("n1"), attempt(), 0.0)
    rooms.decided(decision(Outcome.PREEMPTING, "n2"), attempt(), 1.0)
    assert kept(snapshot) == ["n2"]
    rooms.expire(LAPSE + 0.5)
    assert kept(snapshot) == ["n2"]
    rooms.expire(LAPSE + 1.0)
    assert kept(snapshot) == []


def test_what_the_mirror_shows_outlives_the_proposal(snapshot, rooms):
    rooms.ranked(ranked("n1"), attempt(), 0.0)
    snapshot.nominate(nominated("n1"), "n1")
    rooms.mirrored(nominated("n1"))
    rooms.expire(1000.0)
    assert (kept(snapshot), len(rooms)) == (["n1"], 0)


def test_a_proposal_for_another_node_gives_way_to_the_mirror_when_nothing_comes_of_it(snapshot, rooms):
    snapshot.nominate(nominated("n1"), "n1")
    rooms.mirrored(nominated("n1"))
    rooms.ranked(ranked("n2", n=2), attempt(2), 0.0)
    assert kept(snapshot) == ["n2"]
    rooms.decided(decision(Outcome.CONFLICT, n=2), attempt(2), 1.0)
    assert kept(snapshot) == ["n1"]


def test_a_pod_that_fits_needs_no_room(snapshot, rooms):
    rooms.ranked(ranked("n1"), attempt(), 0.0)
    rooms.ranked(ranked(n=2, candidates=[Candidate(node="n2", total=1)]), attempt(2), 1.0)
    assert kept(snapshot) == []


def test_an_earlier_attempt_changes_nothing(snapshot, rooms):
    rooms.ranked(ranked("n1", n=2), attempt(2), 0.0)
    rooms.ranked(ranked("n2"), attempt(), 1.0)
    rooms.decided(decision(Outcome.CONFLICT), attempt(), 1.0)
    assert kept(snapshot) == ["n1"]


def test_a_proposal_that_the_binder_will_not_look_at_keeps_no_node(snapshot, rooms):
    rooms.ranked(ranked("n1", proposals_counted=True), attempt(), 0.0)
    assert kept(snapshot) == []


def test_rooms_can_be_left_out_for_a_while(snapshot, rooms):
    rooms.ranked(ranked("n1"), attempt(), 0.0)
    rooms.lift()
    assert kept(snapshot) == []
    rooms.put_back()
    assert kept(snapshot) == ["n1"]


def test_a_decision_that_was_heard_before_its_ranking_ends_the_proposal(snapshot):
    proposals = Proposals(snapshot)
    proposals.decided(decision(Outcome.CONFLICT), datetime(2026, 1, 1, tzinfo=UTC), 0.0)
    proposals.ranked(ranked("n1"), 1.0)
    assert kept(snapshot) == []


def test_a_pod_that_is_ranked_again_does_not_keep_its_own_room(snapshot):
    proposals = Proposals(snapshot)
    proposals.ranked(ranked("n1"), 0.0)
    proposals.withdraw(POD.uid)
    assert kept(snapshot) == []


def test_a_pod_that_is_bound_or_gone_keeps_no_room(snapshot):
    proposals = Proposals(snapshot)
    proposals.ranked(ranked("n1"), 0.0)
    proposals.unmirrored(POD.uid)
    assert len(proposals.rooms) == 0
