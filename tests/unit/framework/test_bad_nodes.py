"""A node whose status has absurd numbers, or that a check fails on, costs only itself."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest

from berth.api.node import Node
from berth.api.pod import Pod
from berth.cluster.nodes import node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import Ranking, check, rank
from berth.framework.filtering import MOST_COUNTED, nominated_pods
from berth.framework.preemption import confirm
from berth.framework.status import Code
from harness.builders.objects import a_node, a_pod, first_attempt, pod_requesting
from harness.builders.profiles import default_profile

HONEST: Final = ("honest-0", "honest-1")
ODD: Final = {
    "int64": 2**63 - 1,
    "least int64": -(2**63),
    "uint64": 2**64 - 1,
    "30 digits": "1" * 30,
    "1e30": 1e30,
    "1e30 as text": "1e30",
    "1e308": 1e308,
    "negative": -1,
    "nearly 0": "1e-320",
    "100,000 digits": "9" * 100_000,
    "100,000 digits of an exponent": "1e" + "9" * 100_000,
    "NaN": "NaN",
    "infinite": float("inf"),
    "empty": "",
    "NUL": "\0",
    "right to left": "\u202e1",
}
RESOURCES: Final = ("pods", "cpu", "memory", "ephemeral_storage", "example.com/gpu")


def cluster_with(node: Node, *others: str) -> Snapshot:
    """The node, with a pod of high priority nominated to it, and empty nodes."""
    snapshot = Snapshot()
    for each in (node, *map(a_node, others)):
        snapshot.set_node(each)
    snapshot.nominate(with_priority(pod_requesting("nominated", cpu="1"), 1000), node.metadata.name)
    return snapshot


def with_priority(pod: Pod, priority: int) -> Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, priority=priority))


def ranked(pod: Pod, snapshot: Snapshot) -> Ranking:
    return rank(pod, snapshot, default_profile(), attempt=first_attempt(pod))


@pytest.mark.parametrize("quantity", ODD.values(), ids=list(ODD))
@pytest.mark.parametrize("resource", RESOURCES)
def test_a_node_with_an_absurd_amount_costs_no_pod_its_place(resource: str, quantity: Any):
    snapshot = cluster_with(a_node("odd", **{resource: quantity}), *HONEST)
    wanted = {} if resource == "pods" else {resource.replace("_", "-"): "1"}
    pods = (a_pod(), pod_requesting(cpu="100m", memory="1Mi"), pod_requesting(**wanted))

    for pod in pods:
        ranking = ranked(pod, snapshot)
        assert not ranking.error
        if resource != "example.com/gpu":
            assert set(HONEST) <= {candidate.node for candidate in ranking.candidates}
        check(pod, "odd", snapshot, default_profile())


@pytest.mark.parametrize("quantity", ODD.values(), ids=list(ODD))
@pytest.mark.parametrize("resource", RESOURCES)
def test_preemption_beside_a_node_with_an_absurd_amount_finds_the_honest_node(resource: str, quantity: Any):
    snapshot = cluster_with(a_node("odd", **{resource: quantity}), "honest")
    for name in ("odd", "honest"):
        snapshot.place(with_priority(pod_requesting(f"lower-{name}", cpu="3"), -1), name)

    ranking = ranked(with_priority(pod_requesting("higher", cpu="3", memory="1Gi"), 10), snapshot)

    assert not ranking.error
    assert ranking.candidates or ranking.nomination is not None


def test_a_node_counts_no_more_nominated_pods_than_the_largest_kubelet_may_run():
    snapshot = Snapshot()
    snapshot.set_node(a_node("odd", pods=2**63 - 1))
    for number in range(MOST_COUNTED + 10):
        snapshot.nominate(with_priority(pod_requesting(f"nominated-{number}"), 1), "odd")
    info = node_info(snapshot, "odd")
    assert info is not None

    assert len(nominated_pods(a_pod(), info)) == MOST_COUNTED


def test_a_node_on_which_the_check_breaks_costs_no_pod_its_place(monkeypatch: pytest.MonkeyPatch):
    """Whatever breaks it: here the Snapshot itself, as if it held something that no code expects."""
    snapshot = cluster_with(a_node("odd"), *HONEST)
    pod, profile = pod_requesting(cpu="100m"), default_profile()

    def broken(node: str) -> list[Any]:
        raise ValueError(f"{node} has odd numbers")

    monkeypatch.setattr(snapshot, "nominations_to", broken)

    assert {candidate.node for candidate in ranked(pod, snapshot).candidates} == set(HONEST)
    status = check(pod, "odd", snapshot, profile)
    assert status.reasons == ("node(s) cannot be checked (ValueError)",)
    assert status.code is Code.UNSCHEDULABLE_AND_UNRESOLVABLE
    assert confirm(pod, "odd", snapshot, profile) is None
    assert list(snapshot.problems) == ["node odd: checking it for a pod: ValueError: odd has odd numbers"]  # said once


def test_a_node_that_has_changed_is_reported_again(monkeypatch: pytest.MonkeyPatch):
    snapshot = cluster_with(a_node("odd"))
    pod, profile = pod_requesting(cpu="100m"), default_profile()

    def broken(node: str) -> list[Any]:
        raise ValueError(node)

    monkeypatch.setattr(snapshot, "nominations_to", broken)
    check(pod, "odd", snapshot, profile)
    snapshot.set_node(a_node("odd", labels={"new": ""}))

    check(pod, "odd", snapshot, profile)

    assert len(snapshot.problems) == 2
