"""What is said of groups between their attempts: who is told, when, and what."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from berth.api.kinds import COSCHEDULING_POD_GROUP
from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodCondition, PodSchedulingGroup
from berth.api.podgroups import (
    GROUP_LABEL,
    CoschedulingPodGroup,
    CoschedulingSpec,
    Dialect,
    GangPolicy,
    GroupKey,
    SchedulingPolicy,
    UpstreamPodGroup,
    UpstreamSpec,
    UpstreamStatus,
    of_coscheduling,
)
from berth.kube.listwatch import Current, Deleted, ObjectDecoder, Upserted
from berth_binder.cache import Cache
from berth_binder.decisions.groupreports import GroupReports
from berth_binder.decisions.partialgroups import lacking
from berth_binder.eventrecorder.budget import EventBudget
from berth_binder.eventrecorder.records import ConditionRecord, EventRecord, Record
from berth_binder.events import GroupState
from harness.builders.objects import a_pod

GANG = GroupKey(Dialect.COSCHEDULING, "default", "gang")


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


def said(gates: GroupReports, now: float) -> list[tuple[str, int]]:
    return [(gate.message, len(gate.pods)) for gate in gates.report(now)]


def test_a_gate_speaks_after_five_seconds_and_again_five_seconds_after_a_change():
    cache = a_cache(a_pod_group(4), a_member("a"), a_member("b"))
    gates = GroupReports(cache)
    assert [said(gates, now) for now in (1.0, 5.0)] == [[], []]
    assert said(gates, 6.0) == [("2 of 4 members exist", 2)]
    assert said(gates, 20.0) == []
    show(cache, a_member("c"))
    assert (said(gates, 21.0), said(gates, 26.0)) == ([], [("3 of 4 members exist", 3)])


def test_a_gate_that_opens_in_time_says_nothing():
    cache = a_cache(a_pod_group(2), a_member("a"))
    gates = GroupReports(cache)
    assert said(gates, 1.0) == []
    show(cache, a_member("b"))
    assert said(gates, 10.0) == []


def test_pods_without_their_pod_group_say_so():
    cache = a_cache(a_pod_group(2), a_member("a"), a_member("b"))
    gates = GroupReports(cache)
    cache.observe(Deleted(kind="coschedulingpodgroup", object=a_pod_group(2)))
    assert said(gates, 1.0) == []
    assert said(gates, 6.0) == [('no PodGroup "gang" in scheduling.x-k8s.io', 2)]


def test_a_group_that_cannot_be_read_says_so_on_its_object_and_to_its_pods():
    raw = b'{"metadata":{"name":"gang","namespace":"default","uid":"uid-gang"},"spec":{"minMember":1e30}}'
    cache = a_cache(ObjectDecoder(COSCHEDULING_POD_GROUP).one(raw), a_member("a"), a_member("b"))
    gates = GroupReports(cache)
    assert list(gates.report(1.0)) == []
    [report] = gates.report(6.0)
    assert report.group is not None
    assert (report.group.name, len(report.pods)) == ("gang", 2)
    assert report.message.startswith("the PodGroup cannot be read: Expected `int")


@pytest.mark.parametrize("minimum", [1, 4])
def test_where_pod_groups_are_not_served_nothing_waits(minimum: int):
    cache = a_cache(a_member("a"))
    cache.observe(Current(kind="coschedulingpodgroup", resource_version="0", is_served=False))
    gates = GroupReports(cache)
    assert (said(gates, 1.0), said(gates, 9.0)) == ([], [])
    show(cache, a_pod_group(minimum))


def bound(name: str) -> Pod:
    return a_member(name, node="n1")


def test_a_group_bound_in_part_for_longer_than_its_timeout_is_reported_once():
    cache = a_cache(a_pod_group(4), bound("a"), bound("b"), a_member("c"))
    reports = GroupReports(cache)
    assert [list(reports.report(now)) for now in (0.0, 59.0)] == [[], []]
    [report] = reports.report(60.0)
    assert (report.state, report.message) == (GroupState.PARTIAL, "2 of 4 members are bound; without a node: c")
    assert list(reports.report(1000.0)) == []
    show(cache, bound("c"), bound("d"))
    assert list(reports.report(1001.0)) == []
    cache.observe(Deleted(kind="pod", object=bound("d")))
    assert [list(reports.report(now)) for now in (1002.0, 1061.0)] == [[], []]
    assert len(list(reports.report(1062.0))) == 1


def told(name: str, message: str) -> Pod:
    """A member whose last attempt has failed for this reason."""
    pod = a_member(name)
    conditions = [PodCondition(type="PodScheduled", status="False", message=message)]
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, conditions=conditions))


def test_a_report_says_why_the_rest_has_no_node():
    cache = a_cache(a_pod_group(4), bound("a"), told("b", "0/3 nodes are available"))
    reports = GroupReports(cache)
    list(reports.report(0.0))
    [report] = reports.report(60.0)
    assert report.message == "1 of 4 members are bound; without a node: b (0/3 nodes are available)"
    assert len(reports.partial) == 1
    cache.observe(Deleted(kind="pod", object=a_member("b")))
    assert lacking(of_coscheduling(a_pod_group(4)), cache.members_of(GANG)) == (
        "1 of 4 members are bound; 1 of 4 members exist"
    )
    cache.observe(Deleted(kind="pod", object=bound("a")))
    list(reports.report(61.0))
    assert len(reports.partial) == 0


@pytest.mark.parametrize(("status", "reasons"), [("", ["GroupPartial", "GroupPartial"]), ("True", ["GroupPartial"])])
def test_a_partial_group_gets_a_condition_unless_it_was_whole(status: str, reasons: list[str]):
    group = PodSchedulingGroup(pod_group_name="gang")
    cache = a_cache(a_pod("a", node="n1", scheduling_group=group))
    cache.observe(Upserted(kind="podgroup", object=an_upstream_group(2, status)))
    reports, budget = GroupReports(cache), EventBudget()
    list(reports.report(0.0))
    for report in reports.report(60.0):
        budget.add_state(report)
    records = iter(lambda: budget.next(0.0, bindings_wait=False), None)
    assert [record.reason for record in records] == reasons


# --- evictions


def gangs(*priorities: int) -> Cache:
    """Groups ``g0``, ``g1``, ... with one member bound of two, of these priorities; each is younger than the last."""
    cache = Cache(schedulers=("berth",))
    for number, priority in enumerate(priorities):
        created = f"2026-01-01T00:00:0{number}Z"
        metadata = ObjectMeta(name=f"g{number}", namespace="default", uid=f"uid-g{number}", creation_timestamp=created)
        show(cache, CoschedulingPodGroup(metadata=metadata, spec=CoschedulingSpec(min_member=2)))
        show(cache, a_pod(f"m{number}", node="n1", priority=priority, labels={GROUP_LABEL: f"g{number}"}))
    return cache


def evicted(reports: GroupReports, now: float, *begun: int, tried: str = "") -> str:
    list(reports.report(now))
    found = reports.partial.to_evict(now, {f"uid-g{number}" for number in begun}, lambda uid: uid == tried)
    return "" if found is None else found.group.name


def test_the_least_important_and_youngest_group_is_evicted_first_and_one_a_minute():
    cache = gangs(5, 0, 0)
    reports = GroupReports(cache)
    assert [evicted(reports, now, 0, 1, 2) for now in (0.0, 59.0, 60.0)] == ["", "", "g2"]
    cache.observe(Deleted(kind="pod", object=a_pod("m2", node="n1", labels={GROUP_LABEL: "g2"})))
    assert [evicted(reports, now, 0, 1, 2) for now in (61.0, 119.0, 120.0, 180.0)] == ["", "", "g1", "g1"]


def test_only_a_group_that_this_epoch_has_begun_and_that_has_no_attempt_is_evicted():
    reports = GroupReports(gangs(0, 0))
    list(reports.report(0.0))
    assert evicted(reports, 70.0) == ""
    assert evicted(reports, 71.0, 1, tried="uid-g1") == ""
    assert evicted(reports, 72.0, 1) == "g1"


def test_a_group_that_becomes_whole_in_time_is_not_evicted():
    cache = gangs(0)
    reports = GroupReports(cache)
    list(reports.report(0.0))
    show(cache, a_pod("more", node="n1", labels={GROUP_LABEL: "g0"}))
    assert evicted(reports, 70.0, 0) == ""


def an_upstream_group(minimum: int, status: str = "", *, uid: str = "uid-gang") -> UpstreamPodGroup:
    metadata = ObjectMeta(name="gang", namespace="default", uid=uid, resource_version="1")
    spec = UpstreamSpec(scheduling_policy=SchedulingPolicy(gang=GangPolicy(min_count=minimum)))
    conditions = [PodCondition(type="PodGroupScheduled", status=status)] if status else None
    return UpstreamPodGroup(metadata=metadata, spec=spec, status=UpstreamStatus(conditions=conditions))


def test_a_whole_group_gets_its_condition_again_until_the_watch_shows_it():
    group = PodSchedulingGroup(pod_group_name="gang")
    cache = a_cache(*[a_pod(name, node="n1", scheduling_group=group) for name in "ab"])
    cache.observe(Upserted(kind="podgroup", object=an_upstream_group(2)))
    reports = GroupReports(cache)
    said = [[report.state for report in reports.report(now)] for now in (0.0, 4.0, 5.0)]
    assert said == [[GroupState.WHOLE], [], [GroupState.WHOLE]]
    cache.observe(Upserted(kind="podgroup", object=an_upstream_group(2, "True")))
    assert list(reports.report(10.0)) == []


def test_a_pod_group_that_is_remade_once_its_members_have_finished_gets_no_condition():
    group = PodSchedulingGroup(pod_group_name="gang")
    cache = a_cache(*[a_pod(name, node="n1", scheduling_group=group) for name in "ab"])
    cache.observe(Upserted(kind="podgroup", object=an_upstream_group(2)))
    reports = GroupReports(cache)
    assert [report.state for report in reports.report(0.0)] == [GroupState.WHOLE]
    cache.observe(Upserted(kind="podgroup", object=an_upstream_group(2, "True")))
    for name in "ab":
        show(cache, a_pod(name, node="n1", scheduling_group=group, status={"phase": "Succeeded"}))
    cache.observe(Deleted(kind="podgroup", object=an_upstream_group(2, "True")))
    cache.observe(Upserted(kind="podgroup", object=an_upstream_group(2, uid="uid-remade")))
    assert list(reports.report(6.0)) == []


def records_of_gate(cache: Cache) -> list[Record]:
    """All records of the only gate, once it has been closed for long enough."""
    gates, budget = GroupReports(cache), EventBudget()
    list(gates.report(0.0))
    [gate] = gates.report(6.0)
    budget.add_state(gate)
    return list(iter(lambda: budget.next(0.0, bindings_wait=False), None))


def test_without_a_pod_group_the_gate_is_an_event_on_its_pods():
    condition, event = records_of_gate(a_cache(a_member("a")))
    assert isinstance(condition, ConditionRecord)
    assert isinstance(event, EventRecord)
    assert (event.kind, event.pod.metadata.name, event.reason, event.note) == (
        "Pod",
        "a",
        "WaitingForPodGroup",
        'no PodGroup "gang" in scheduling.x-k8s.io',
    )


def test_a_gate_is_an_event_on_the_group_and_a_condition_of_its_pods():
    condition, event = records_of_gate(a_cache(a_pod_group(4), a_member("a")))
    assert isinstance(condition, ConditionRecord)
    assert (condition.reason, condition.message) == ("WaitingForPodGroup", "1 of 4 members exist")
    assert isinstance(event, EventRecord)
    assert (event.kind, event.api_version, event.pod.metadata.name) == (
        "PodGroup",
        "scheduling.x-k8s.io/v1alpha1",
        "gang",
    )
