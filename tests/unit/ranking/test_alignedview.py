"""A shadow's view has what a live scorer had counted, and not what came after."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from berth.bus.interface import Entry, StoredMessage
from berth.messages.attempts import Candidate, Decision, Outcome, Positions, Ranked, Received
from berth.messages.encoding import encode
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term
from berth.ranking import alignedview
from berth.ranking.alignedview import HOLD_SECONDS, AlignedView
from berth.ranking.view import View
from harness.builders.objects import a_node, a_pod, first_attempt

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POD = a_pod("web-0")


@pytest.fixture
def aligned() -> AlignedView:
    aligned = AlignedView(View())
    aligned.add_mirror([a_node_at(1, "a"), a_node_at(2, "b")], 2, 0.0)
    aligned.release(0.0)
    return aligned


def a_node_at(sequence: int, name: str) -> Entry:
    value = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(a_node(name))))
    return Entry(key=f"node.{name}", data=encode_entry(value), sequence=sequence, time=at(sequence))


def at(sequence: int) -> datetime:
    return NOW + timedelta(milliseconds=sequence)


def a_decision_at(sequence: int, data: bytes | None = None) -> StoredMessage:
    bound = Decision(
        attempt=str(first_attempt(POD)),
        profile="berth",
        epoch=1,
        outcome=Outcome.BOUND,
        namespace="default",
        pod="web-0",
        uid=POD.uid,
        node="a",
    )
    payload = encode(bound) if data is None else data
    return StoredMessage(subject="berth.decision.x", sequence=sequence, data=payload, time=at(sequence))


def ranked_on(**positions: int) -> Ranked:
    return Ranked(
        attempt=str(first_attempt(POD)), profile="berth", pod=POD, positions=Positions(**positions), received=Received()
    )


def nodes(aligned: AlignedView) -> set[str]:
    return set(aligned.view.snapshot.node_names())


def test_nothing_is_applied_before_a_live_ranking_has_counted_it(aligned):
    aligned.add_mirror([a_node_at(3, "c"), a_node_at(4, "d")], 4, 1.0)
    assert nodes(aligned) == {"a", "b"}
    aligned.advance_to(ranked_on(cluster=3), 1.0)
    assert nodes(aligned) == {"a", "b", "c"}
    assert aligned.view.positions.cluster == 3


def test_a_decision_comes_after_the_ranking_that_it_is_about(aligned):
    aligned.add_decisions([a_decision_at(7)], 7, 1.0)
    assert aligned.advance_to(ranked_on(cluster=2, decisions=6), 1.0).decisions == []
    assert [each.sequence for each in aligned.advance_to(ranked_on(decisions=7), 1.0).decisions] == [7]


def test_what_no_ranking_asks_for_is_applied_once_it_is_old_enough(aligned):
    aligned.add_mirror([a_node_at(3, "c")], 3, 1.0)
    assert aligned.due_at() == 1.0 + HOLD_SECONDS
    aligned.apply_due(1.0 + HOLD_SECONDS - 0.01, is_idle=True)
    assert nodes(aligned) == {"a", "b"}
    aligned.apply_due(1.0 + HOLD_SECONDS, is_idle=True)
    assert nodes(aligned) == {"a", "b", "c"}
    assert (aligned.due_at(), len(aligned)) == (None, 0)


def test_while_rankings_wait_nothing_is_let_go(aligned):
    aligned.add_mirror([a_node_at(3, "c")], 3, 1.0)
    aligned.apply_due(100.0, is_idle=False)
    assert nodes(aligned) == {"a", "b"}


def test_what_is_held_is_bounded(aligned, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(alignedview, "MOST_HELD", 2)
    aligned.add_mirror([a_node_at(3, "c"), a_node_at(4, "d"), a_node_at(5, "e")], 5, 1.0)
    aligned.apply_due(1.0, is_idle=False)
    assert (nodes(aligned), len(aligned)) == ({"a", "b", "c"}, 2)


def test_a_ranking_is_not_due_before_what_it_had_counted_is_here(aligned):
    assert not aligned.has_arrived(Positions(cluster=3))
    aligned.add_mirror([], 3, 1.0)  # a removal that expired, or another reader's filter
    assert aligned.has_arrived(Positions(cluster=3))
    assert not aligned.has_arrived(Positions(cluster=3, decisions=1))


def test_proposals_end_when_they_ended_at_the_live_scorer(aligned):
    first = Ranked(attempt="u.1.1", profile="berth", pod=a_pod("other"), candidates=[])
    aligned.view.proposals.ranked(msgspec.structs.replace(first, candidates=[Candidate(node="a", total=1)]), 0.0)
    assert len(aligned.view.proposals) == 1
    live = msgspec.structs.replace(ranked_on(), received=Received(expired=["u"]))
    aligned.advance_to(live, 1.0)
    assert len(aligned.view.proposals) == 0


def test_what_cannot_be_decoded_is_reported_and_ends_nothing(aligned):
    aligned.add_mirror([Entry(key="node.evil", data=b"{", sequence=3, time=at(3)), a_node_at(4, "d")], 4, 1.0)
    aligned.add_decisions([a_decision_at(7, b"rubbish")], 7, 1.0)
    applied = aligned.advance_to(ranked_on(cluster=2**53, decisions=2**53), 1.0)
    assert len(applied.problems) == 2
    assert nodes(aligned) == {"a", "b", "d"}
