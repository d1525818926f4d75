"""PodGroups of both dialects in one form, and how many members must still be placed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.meta import OwnerReference
from berth.api.pod import Pod, PodSchedulingGate, PodSchedulingGroup
from berth.api.podgroups import (
    GROUP_LABEL,
    PREFERRED_TOPOLOGY_ANNOTATION,
    TOPOLOGY_ANNOTATION,
    CoschedulingPodGroup,
    Dialect,
    Members,
    PodGroup,
    Topology,
    UpstreamPodGroup,
    group_of,
    of_coscheduling,
    of_upstream,
    several_profiles,
)
from berth.cluster.snapshot import Snapshot
from harness.builders.objects import a_pod

METADATA: dict[str, Any] = {
    "name": "train-7",
    "namespace": "ml",
    "uid": "u-7",
    "resourceVersion": "12",
    "creationTimestamp": "2026-01-01T00:00:00Z",
}
RACK = "topology.kubernetes.io/rack"
MINE = frozenset({"berth"})


def coscheduling(spec: dict[str, Any], **metadata: Any) -> PodGroup:
    whole = {"metadata": METADATA | metadata, "spec": spec}
    return of_coscheduling(msgspec.json.decode(msgspec.json.encode(whole), type=CoschedulingPodGroup))


def upstream(spec: dict[str, Any], **metadata: Any) -> PodGroup:
    whole = {"metadata": METADATA | metadata, "spec": spec}
    return of_upstream(msgspec.json.decode(msgspec.json.encode(whole), type=UpstreamPodGroup))


def gang(count: int, **spec: Any) -> dict[str, Any]:
    return {"schedulingPolicy": {"gang": {"minCount": count}}, **spec}


def test_a_coscheduling_group_as_trainer_writes_it():
    group = coscheduling(
        {"minMember": 9, "minResources": {"cpu": "36", "nvidia.com/gpu": 64}, "scheduleTimeoutSeconds": 30}
    )
    assert group == PodGroup(
        dialect=Dialect.COSCHEDULING,
        namespace="ml",
        name="train-7",
        uid="u-7",
        resource_version="12",
        created="2026-01-01T00:00:00Z",
        minimum=9,
        min_resources={"cpu": 36000, "nvidia.com/gpu": 64},
        timeout_seconds=30,
    )
    assert str(group.key) == "ml/train-7"


@pytest.mark.parametrize("mode", ["PodGroup", {"all": {}}], ids=["v1alpha2", "v1beta1"])
def test_an_upstream_group_with_everything(mode: Any):
    group = upstream(
        gang(
            9,
            podGroupTemplateRef={"workload": {"workloadName": "train", "podGroupTemplateName": "workers"}},
            schedulingConstraints={"topology": [{"key": RACK}]},
            disruptionMode=mode,
            priority=1000,
            priorityClassName="high",
            preemptionPolicy="Never",
        )
    )
    assert group == PodGroup(
        dialect=Dialect.UPSTREAM,
        namespace="ml",
        name="train-7",
        uid="u-7",
        resource_version="12",
        created="2026-01-01T00:00:00Z",
        minimum=9,
        topology=Topology(key=RACK),
        priority=1000,
        may_preempt=False,
        goes_as_one=True,
    )


def test_a_group_on_the_bus_decodes_to_itself():
    group = upstream(gang(3, schedulingConstraints={"topology": [{"key": RACK}]}))
    assert msgspec.json.decode(msgspec.json.encode(group), type=PodGroup) == group


@pytest.mark.parametrize("spec", [{}, {"minMember": None}, {"scheduleTimeoutSeconds": 0, "minMember": 1}])
def test_what_is_absent_has_coschedulings_default(spec: dict[str, Any]):
    group = coscheduling(spec)
    assert (group.minimum, group.timeout_seconds, group.problems) == (1, 60, ())


@pytest.mark.parametrize(
    ("annotations", "topology"),
    [
        ({TOPOLOGY_ANNOTATION: RACK}, Topology(key=RACK)),
        ({PREFERRED_TOPOLOGY_ANNOTATION: "rack"}, Topology(key="rack", required=False)),
    ],
)
def test_an_annotation_names_the_topology_of_a_coscheduling_group(annotations: dict[str, str], topology: Topology):
    assert coscheduling({"minMember": 2}, annotations=annotations).topology == topology


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        (lambda: coscheduling({"minMember": 0}), "spec.minMember: want 1 or more, got 0"),
        (
            lambda: coscheduling({"minMember": 3000}),
            "spec.minMember: the group asks for a minimum of 3000, more than a plan can take (at most 2000)",
        ),
        (
            lambda: coscheduling({"minResources": {"cpu": "many"}}),
            "spec.minResources.cpu: want a quantity such as 500m or 2Gi, got 'many'",
        ),
        (
            lambda: coscheduling({"minResources": {f"r{i}": 1 for i in range(33)}}),
            "spec.minResources: want at most 32 resources, got 33",
        ),
        (
            lambda: coscheduling({}, annotations={TOPOLOGY_ANNOTATION: "a rack"}),
            "metadata.annotations[berth/topology]: want the key of a node label, got 'a rack'",
        ),
        (
            lambda: coscheduling({}, annotations={TOPOLOGY_ANNOTATION: "a", PREFERRED_TOPOLOGY_ANNOTATION: "b"}),
            "metadata.annotations: want berth/topology or berth/topology-preferred, got both",
        ),
        (
            lambda: coscheduling({}, annotations={"berth/topolgy": "rack", "example.com/topology": "rack"}),
            "metadata.annotations[berth/topolgy]: want berth/topology or berth/topology-preferred",
        ),
        (
            lambda: upstream({"schedulingPolicy": {"basic": {}}}, annotations={TOPOLOGY_ANNOTATION: "rack"}),
            "metadata.annotations[berth/topology]: want spec.schedulingConstraints.topology, as this dialect has it",
        ),
        (lambda: upstream({}), "spec.schedulingPolicy: want gang or basic"),
        (lambda: upstream(gang(-1)), "spec.schedulingPolicy.gang.minCount: want 1 or more, got -1"),
        (
            lambda: upstream(gang(1, schedulingConstraints={"topology": [{"key": "a"}, {"key": "b"}]})),
            "spec.schedulingConstraints.topology: want at most 1, got 2",
        ),
        (
            lambda: upstream(gang(1, schedulingConstraints={"topology": [{}]})),
            "spec.schedulingConstraints.topology[0].key: want the key of a node label, got ''",
        ),
        (lambda: upstream(gang(1, disruptionMode={})), "spec.disruptionMode: want all or single"),
        (lambda: upstream(gang(1, disruptionMode="Half")), "spec.disruptionMode: want Pod or PodGroup, got 'Half'"),
        (
            lambda: upstream(gang(1, parentCompositePodGroupName="p")),
            "spec.parentCompositePodGroupName: groups of groups are not scheduled",
        ),
    ],
)
def test_a_group_that_cannot_be_scheduled_says_which_field_is_why(group: Any, problem: str):
    assert group().problems == (problem,)


def test_all_problems_are_named_at_once():
    assert len(coscheduling({"minMember": 0, "minResources": {"cpu": "x", "memory": "y"}}).problems) == 3


@given(st.text(max_size=400))
def test_no_text_breaks_the_reader_of_topology_keys(text: str):
    group = coscheduling({"minMember": 2}, annotations={TOPOLOGY_ANNOTATION: text})
    assert (group.topology is None) == bool(group.problems)


@pytest.mark.parametrize(
    ("group", "ordinary"),
    [
        (coscheduling({"minMember": 1}), True),
        (coscheduling({"minMember": 1, "minResources": {"cpu": "2"}}), True),
        (coscheduling({"minMember": 1, "minResources": {"cpu": "9", "memory": "36Gi"}}), False),
        (coscheduling({"minMember": 2}), False),
        (coscheduling({}, annotations={TOPOLOGY_ANNOTATION: RACK}), False),
        (upstream({"schedulingPolicy": {"basic": {}}}), True),
        (upstream({}), False),
    ],
)
def test_a_group_that_asks_for_no_more_than_its_pods_do_is_no_group(group: PodGroup, *, ordinary: bool):
    assert group.is_ordinary({"cpu": 2000}) is ordinary


def test_the_field_counts_before_the_label():
    labelled = a_pod(labels={GROUP_LABEL: "by-label"})
    named = a_pod(labels={GROUP_LABEL: "by-label"}, scheduling_group=PodSchedulingGroup(pod_group_name="by-field"))
    assert group_of(labelled) == (Dialect.COSCHEDULING, "default", "by-label")
    assert group_of(named) == (Dialect.UPSTREAM, "default", "by-field")
    assert group_of(a_pod()) is None
    assert group_of(a_pod(labels={GROUP_LABEL: ""})) is None


# --- members

_numbers = iter(range(10**9))


def member(node: str = "", phase: str = "", owner: str = "job", **changes: Any) -> Pod:
    name = f"m{next(_numbers)}"
    owners = [OwnerReference(kind="Job", name=owner, uid=f"uid-{owner}", controller=True)] if owner else None
    metadata = {"owner_references": owners, "deletion_timestamp": "t" if changes.pop("going", False) else None}
    return a_pod(name, node=node, metadata=metadata, status={"phase": phase}, **changes)


def need(minimum: int, *pods: Pod) -> int:
    return Members.of(pods, MINE).need(coscheduling({"minMember": minimum}))


def test_need_is_the_minimum_without_those_that_are_bound():
    assert need(4, member(), member(), member(), member()) == 4
    assert need(4, member("n1"), member("n2"), member()) == 2
    assert need(2, member("n1"), member("n2"), member("n3"), member()) == 0


def test_a_bound_member_that_is_going_has_failed_or_is_gone_counts_no_more():
    assert need(3, member("n1"), member("n1", going=True), member("n1", "Failed"), member()) == 2


def test_a_succeeded_member_counts_while_its_controller_has_others():
    # Upstream counts it no more: the last member of such a job waits for ever.
    assert need(4, member("n1", "Succeeded"), member("n1", "Succeeded"), member("n2"), member()) == 1


def test_last_nights_run_of_a_cronjob_does_not_count():
    last_night = [member("n1", "Succeeded", owner="run-1") for _ in range(4)]
    tonight = [member(owner="run-2") for _ in range(4)]
    assert need(4, *last_night, *tonight) == 4


def test_a_succeeded_pod_of_nobody_does_not_count():
    assert need(2, member("n1", "Succeeded", owner=""), member(owner=""), member(owner="")) == 2


def test_only_berths_own_waiting_pods_are_pending():
    members = Members.of(
        [
            member(),
            member(scheduling_gates=[PodSchedulingGate(name="g")]),
            member(scheduler_name="default-scheduler"),
            member(scheduler_name="default-scheduler"),
            member(going=True),
            member("n1"),
        ],
        MINE,
    )
    counts = (len(members.pending), members.gated, dict(members.others), len(members.bound))
    assert counts == (1, 1, {"default-scheduler": 2}, 1)


def test_a_begun_group_wants_no_more_than_exist():
    group = coscheduling({"minMember": 8})
    fresh = Members.of([member() for _ in range(6)], MINE)
    begun = Members.of([member("n1"), *[member() for _ in range(6)]], MINE)
    half_done = Members.of([member("n1", "Succeeded"), *[member() for _ in range(6)]], MINE)
    assert [(each.is_begun, each.wanted(group), each.are_enough(group)) for each in (fresh, begun, half_done)] == [
        (False, 8, False),
        (True, 6, False),
        (True, 6, False),
    ]


def test_the_priority_is_the_lowest_of_the_group_and_its_pending_members():
    members = Members.of([member(priority=5), member(priority=7), member("n1", priority=-3)], MINE)
    assert members.priority(coscheduling({})) == 5
    assert members.priority(upstream(gang(2, priority=3))) == 3
    assert Members().priority(coscheduling({})) == 0


def test_two_profiles_in_one_group_are_refused_in_upstreams_words():
    members = Members.of([member(), member(scheduler_name="other")], {"berth", "other"})
    assert several_profiles(members.profiles) == (
        'all pods in a single pod group should have the same .spec.schedulerName set, got: "berth" and "other"'
    )


@given(st.lists(st.sampled_from(["pending", "bound", "going", "Succeeded", "Failed"]), max_size=12), st.integers(1, 8))
def test_what_is_bound_succeeded_and_needed_make_the_minimum(states: list[str], minimum: int):
    pods = {
        "pending": member,
        "bound": lambda: member("n"),
        "going": lambda: member("n", going=True),
        "Succeeded": lambda: member("n", "Succeeded"),
        "Failed": lambda: member("n", "Failed"),
    }
    members = Members.of([pods[state]() for state in states], MINE)
    group = coscheduling({"minMember": minimum})
    counted = len(members.bound) + members.succeeded
    assert members.need(group) == max(0, minimum - counted)
    assert members.wanted(group) <= members.need(group)


def test_pods_of_groups_are_of_the_class_of_their_spec_and_keep_their_group_when_placed():
    snapshot = Snapshot()
    pods = [a_pod(name, scheduling_group=PodSchedulingGroup(pod_group_name=name)) for name in ("a", "b")]
    assert snapshot.class_of(pods[0]) is snapshot.class_of(pods[1]) is snapshot.class_of(a_pod("c"))
    snapshot.place(pods[0], "n1")
    placed = snapshot.placed("uid-a")
    assert placed is not None
    assert group_of(placed.pod) == group_of(pods[0])
