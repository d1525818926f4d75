"""Devices in rankings: what a pod would get counts for later pods, in this scorer and in its peers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from berth.api.pod import Pod, PodResourceClaim
from berth.bus.interface import Entry
from berth.cel import syntax
from berth.cluster.devices.ledger import DeviceLedger
from berth.messages.attempts import MOST_RESULTS, Decision, Outcome, Pending, Ranked
from berth.messages.bounds import within_bounds
from berth.messages.encoding import encode
from berth.messages.mirror import MirrorEntry, encode_entry
from berth.messages.subjects import Term
from berth.ranking.proposals import LIFETIME
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Json = dict[str, Any]


def mirrored(view: View, key: str, thing: object) -> None:
    sequence = view.positions.cluster + 1
    entry = MirrorEntry(term=Term(1), object=msgspec.Raw(msgspec.json.encode(thing)))
    assert view.apply_mirror([Entry(key=key, data=encode_entry(entry), sequence=sequence, time=NOW)], sequence) == []


def a_view(*claims: str) -> View:
    """Two nodes with a GPU each."""
    view = View()
    mirrored(view, "deviceclass.gpu", {"metadata": {"name": "gpu"}})
    for node in ("n1", "n2"):
        mirrored(view, f"node.{node}", a_node(node, cpu="9"))
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "d", "pool": pool, "nodeName": node, "devices": [{"name": "gpu-0"}]}
        mirrored(view, f"resourceslice.{node}", {"metadata": {"name": node}, "spec": spec})
    for name in claims:
        mirrored(view, f"resourceclaim.uid-{name}", a_claim(name))
    return view


def a_claim(name: str, **status: Any) -> Json:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "tolerations": [{"operator": "Exists"}]}}
    config = {"opaque": {"driver": "d", "parameters": {"k": 1}}}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {
        "metadata": metadata,
        "spec": {"devices": {"requests": [request], "config": [config]}},
        "status": status,
    }


def a_pod_with(claim: str, **spec: Any) -> Pod:
    entry = PodResourceClaim(name="gpu", resource_claim_name=claim)
    return a_pod(f"of-{claim}", resource_claims=[entry], **spec)


def answer(view: View, pod: Pod, attempt: int = 1) -> Ranked:
    one = Ranker(profiles={"berth": default_profile()}, config="c", identity="s-1", best=8)
    return one.answer(Pending(attempt=f"{pod.uid}.1.{attempt}", profile="berth", pod=pod), view, 0.0)


def devices_of(ranked: Ranked | Decision) -> dict[str, list[str]]:
    return {uid: [each.key for each in given.devices.results or ()] for uid, given in ranked.devices.items()}


def test_the_first_class_loads_the_parser_of_expressions():
    syntax._parser.cache_clear()
    view = View()
    assert syntax._parser.cache_info().currsize == 0
    mirrored(view, "deviceclass.gpu", {"metadata": {"name": "gpu"}})
    assert syntax._parser.cache_info().currsize == 1


def owned(view: View) -> dict[str, tuple[str, ...]]:
    ledger = DeviceLedger.of(view.snapshot)
    return {name: uids for name in ("n1", "n2") if (uids := ledger.owners_of(f"d/{name}/gpu-0"))}


def decide(view: View, ranked: Ranked, outcome: Outcome, **more: Any) -> None:
    decision = Decision(
        attempt=ranked.attempt,
        epoch=1,
        outcome=outcome,
        profile="berth",
        namespace="default",
        pod=ranked.pod.metadata.name,
        uid=ranked.pod.uid,
        **more,
    )
    view.proposals.decided(msgspec.convert(msgspec.to_builtins(decision), Decision), NOW, 1.0)


def test_a_ranking_carries_the_devices_of_the_first_node_without_what_only_drivers_read():
    ranked = answer(a_view("a"), a_pod_with("a"))
    first = ranked.candidates[0].node
    assert devices_of(ranked) == {"uid-a": [f"d/{first}/gpu-0"]}
    assert b"opaque" not in encode(ranked)
    assert ranked.devices["uid-a"].devices.results[0].tolerations is None
    assert answer(a_view("a"), a_pod("ordinary")).devices == {}


def test_the_next_pod_gets_another_device_in_this_scorer_and_in_a_peer():
    own, peer = a_view("a", "b"), a_view("a", "b")
    first = answer(own, a_pod_with("a"))
    assert peer.apply_ranked(encode(first), 1, 0.0) == ""
    for view in (own, peer):
        second = answer(view, a_pod_with("b"))
        assert second.candidates[0].node != first.candidates[0].node
        assert second.feasible == 1


def test_a_pod_without_a_device_because_of_proposals_is_a_conflict():
    view = a_view("a", "b", "c")
    answer(view, a_pod_with("a"))
    answer(view, a_pod_with("b"))
    waiting = answer(view, a_pod_with("c"))
    assert (waiting.candidates, waiting.proposals_counted) == ([], True)
    assert len(owned(view)) == 2


def test_a_pod_without_a_device_because_of_claims_is_unschedulable():
    view = a_view("c")
    for name, node in (("a", "n1"), ("b", "n2")):
        result = {"request": "gpu", "driver": "d", "pool": node, "device": "gpu-0"}
        mirrored(view, f"resourceclaim.uid-{name}", a_claim(name, allocation={"devices": {"results": [result]}}))
    waiting = answer(view, a_pod_with("c"))
    assert (waiting.candidates, waiting.proposals_counted, waiting.blockers) == ([], False, ["DynamicResources"])


def test_a_pod_that_is_ranked_again_does_not_lack_its_own_device():
    view = a_view("a")
    pod = a_pod_with("a", node_selector={"kubernetes.io/hostname": "n1"})
    mirrored(view, "node.n1", a_node("n1", cpu="9", labels={"kubernetes.io/hostname": "n1"}))
    for attempt in (1, 2):
        assert devices_of(answer(view, pod, attempt)) == {"uid-a": ["d/n1/gpu-0"]}
    assert owned(view) == {"n1": ("uid-a",)}


@pytest.mark.parametrize("outcome", [each for each in Outcome if each.final and each is not Outcome.BOUND])
def test_devices_of_a_proposal_are_free_after_its_decision(outcome: Outcome):
    view = a_view("a")
    decide(view, answer(view, a_pod_with("a")), outcome)
    assert owned(view) == {}


def test_devices_of_a_proposal_are_free_when_it_expires():
    view = a_view("a")
    answer(view, a_pod_with("a"))
    view.expire(LIFETIME.total_seconds() + 1)
    assert owned(view) == {}


@pytest.mark.parametrize("outcome", [Outcome.BOUND, Outcome.WAITING])
def test_a_decision_for_another_node_moves_the_devices(outcome: Outcome):
    view = a_view("a")
    ranked = answer(view, a_pod_with("a"))
    other = "n2" if ranked.candidates[0].node == "n1" else "n1"
    moved = answer(a_view("a"), a_pod_with("a", node_name=""))
    results = [msgspec.structs.replace(each, pool=other) for each in moved.devices["uid-a"].devices.results]
    devices = msgspec.structs.replace(moved.devices["uid-a"].devices, results=results)
    given = {"uid-a": msgspec.structs.replace(moved.devices["uid-a"], devices=devices)}
    decide(view, ranked, outcome, node=other, devices=given)
    assert owned(view) == {other: ("uid-a",)}


def test_the_claims_status_counts_in_place_of_the_proposal_which_ends_with_the_pod():
    view = a_view("a")
    pod = a_pod_with("a")
    ranked = answer(view, pod)
    node = ranked.candidates[0].node
    result = {"request": "gpu", "driver": "d", "pool": node, "device": "gpu-0"}
    mirrored(view, "resourceclaim.uid-a", a_claim("a", allocation={"devices": {"results": [result]}}))
    assert owned(view) == {node: ("uid-a",)}
    mirrored(view, f"pod.{pod.uid}", a_pod_with("a", node_name=node))
    mirrored(view, "resourceclaim.uid-a", a_claim("a"))
    assert owned(view) == {}


def test_devices_of_a_pod_with_very_many_are_not_named():
    ranked = answer(a_view("a"), a_pod_with("a"))
    allocation = ranked.devices["uid-a"]
    results = list(allocation.devices.results) * (MOST_RESULTS + 1)
    devices = msgspec.structs.replace(allocation.devices, results=results)
    many = {"uid-a": msgspec.structs.replace(allocation, devices=devices)}
    assert within_bounds(msgspec.structs.replace(ranked, devices=many)).devices == {}
