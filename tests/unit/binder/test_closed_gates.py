"""Groups that wait for members: who is told, when, and what."""

from __future__ import annotations

from typing import Any

import pytest

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod
from berth.api.podgroups import GROUP_LABEL, CoschedulingPodGroup, CoschedulingSpec
from berth.kube.listwatch import Current, Deleted, Upserted
from berth_binder.cache import Cache
from berth_binder.decisions.closedgates import ClosedGates
from berth_binder.eventrecorder import ConditionRecord, EventBudget, EventRecord
from harness.builders.objects import a_pod


def a_member(name: str, **pod: Any) -> Pod:
    return a_pod(name, labels={GROUP_LABEL: "gang"}, **pod)


def a_pod_group(minimum: int) -> CoschedulingPodGroup:
    metadata = ObjectMeta(name="gang", namespace="default", uid="uid-gang", resource_version="1")
    return CoschedulingPodGroup(metadata=metadata, spec=CoschedulingSpec(min_member=minimum))


def a_cache(*things: Any) -> Cache:
    cache = Cache(schedulers=("berth",))
    show(cache, *things)
    return cache


def show(cache: Cache, *things: Any) -> None:
    for thing in things:
        kind = "pod" if isinstance(thing, Pod) else "coschedulingpodgroup"
        cache.observe(Upserted(kind=kind, object=thing))


def said(gates: ClosedGates, now: float) -> list[tuple[str, int]]:
    return [(gate.message, len(gate.pods)) for gate in gates.report(now)]


def test_a_gate_speaks_after_five_seconds_and_again_five_seconds_after_a_change():
    cache = a_cache(a_pod_group(4), a_member("a"), a_member("b"))
    gates = ClosedGates(cache)
    assert [said(gates, now) for now in (1.0, 5.0)] == [[], []]
    assert said(gates, 6.0) == [("2 of 4 members exist", 2)]
    assert said(gates, 20.0) == []
    show(cache, a_member("c"))
    assert (said(gates, 21.0), said(gates, 26.0)) == ([], [("3 of 4 members exist", 3)])


def test_a_gate_that_opens_in_time_says_nothing():
    cache = a_cache(a_pod_group(2), a_member("a"))
    gates = ClosedGates(cache)
    assert said(gates, 1.0) == []
    show(cache, a_member("b"))
    assert said(gates, 10.0) == []


def test_pods_without_their_pod_group_say_so():
    cache = a_cache(a_pod_group(2), a_member("a"), a_member("b"))
    gates = ClosedGates(cache)
    cache.observe(Deleted(kind="coschedulingpodgroup", object=a_pod_group(2)))
    assert said(gates, 1.0) == []
    assert said(gates, 6.0) == [('no PodGroup "gang" in scheduling.x-k8s.io', 2)]


@pytest.mark.parametrize("minimum", [1, 4])
def test_where_pod_groups_are_not_served_nothing_waits(minimum: int):
    cache = a_cache(a_member("a"))
    cache.observe(Current(kind="coschedulingpodgroup", resource_version="0", is_served=False))
    gates = ClosedGates(cache)
    assert (said(gates, 1.0), said(gates, 9.0)) == ([], [])
    show(cache, a_pod_group(minimum))


def test_a_gate_is_an_event_on_the_group_and_a_condition_of_its_pods():
    cache = a_cache(a_pod_group(4), a_member("a"))
    gates = ClosedGates(cache)
    list(gates.report(0.0))
    [gate] = gates.report(6.0)
    budget = EventBudget()
    budget.add_gate(gate.group, gate.pods, gate.message)
    condition, event = budget.next(0.0, bindings_wait=False), budget.next(0.0, bindings_wait=False)
    assert isinstance(condition, ConditionRecord)
    assert (condition.reason, condition.message) == ("WaitingForPodGroup", "1 of 4 members exist")
    assert isinstance(event, EventRecord)
    assert (event.kind, event.api_version, event.pod.metadata.name) == (
        "PodGroup",
        "scheduling.x-k8s.io/v1alpha1",
        "gang",
    )
