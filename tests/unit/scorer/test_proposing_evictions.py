"""What a scorer says when an important pod fits nowhere and others could go for it."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from berth.api.messages import Pending, Ranked, Victim
from berth.api.mirror import MirrorEntry, encode_entry
from berth.api.pod import Pod
from berth.api.subjects import Term
from berth.bus.interface import Entry
from berth_scorer.ranker import Ranker
from berth_scorer.view import View
from harness.builders.objects import a_container, a_node, a_pod
from harness.builders.profiles import default_profile

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def view() -> View:
    """One node that an unimportant pod fills."""
    view = View()
    show(view, "node.n1", a_node("n1", cpu="1"))
    show(view, "pod.uid-low", low())
    return view


def low(**spec: object) -> Pod:
    return a_pod("low", priority=0, containers=[a_container(cpu="1")], node_name="n1", **spec)


def show(view: View, key: str, thing: object, sequence: int = 1) -> None:
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing)))
    assert view.mirror([Entry(key=key, data=encode_entry(entry), sequence=sequence, time=NOW)], sequence) == []


def answer(view: View, pod: Pod) -> Ranked:
    answering = Ranker(profiles={"berth": default_profile()}, config="c", identity="s-1", best=8)
    return answering.answer(Pending(attempt=f"{pod.uid}.1.1", profile="berth", pod=pod), view, 0.0)


def important(**spec: object) -> Pod:
    return a_pod("vip", **{"priority": 100, "containers": [a_container(cpu="1")], **spec})


def test_the_victims_are_named(view):
    said = answer(view, important())
    assert (said.candidates, said.preemption.node) == ([], "n1")
    assert said.preemption.victims == [Victim(uid="uid-low", namespace="default", name="low")]
    assert said.message == "0/1 nodes are available: 1 Insufficient cpu."


def test_nobody_is_proposed_for_a_pod_that_is_not_more_important(view):
    said = answer(view, important(priority=0))
    assert (said.preemption, said.clears_nomination) == (None, True)
    assert said.message.endswith("1 No preemption victims found for incoming pod.")


def test_a_no_that_hangs_on_a_proposal_is_a_conflict_whoever_could_go(view):
    show(view, "node.n2", a_node("n2", cpu="1"))
    assert answer(view, a_pod("first", priority=0, containers=[a_container(cpu="1")])).candidates
    assert answer(view, important()).proposals_counted


def test_pods_that_come_together_are_given_a_node_each(view):
    for number in (2, 3, 4):
        show(view, f"node.n{number}", a_node(f"n{number}", cpu="1"))
        other = a_pod(f"low-{number}", priority=0, containers=[a_container(cpu="1")], node_name=f"n{number}")
        show(view, f"pod.{other.uid}", other)
    vips = [a_pod(f"vip-{number}", priority=100, containers=[a_container(cpu="1")]) for number in range(5)]
    said = [answer(view, vip) for vip in vips]
    assert sorted(each.preemption.node for each in said[:4]) == ["n1", "n2", "n3", "n4"]
    assert (said[4].preemption, said[4].proposals_counted) == (None, True)
