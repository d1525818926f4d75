"""Groups in the watcher's queue: gates, turns, the window, back-off, and which pods belong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berth.api.meta import OwnerReference
from berth.api.pod import Pod, PodSchedulingGate, PodSchedulingGroup
from berth.api.podgroups import GROUP_LABEL, MOST_MEMBERS, Dialect, GroupKey, PodGroup, Topology, in_order
from berth_watcher.queue.groups import (
    BEGUN_SECONDS,
    GroupEntry,
    GroupGate,
    Groups,
    QueuedGroup,
    Way,
)
from harness.builders.groups import a_group, members, together
from harness.builders.objects import a_pod

MINE = frozenset({"berth"})
KNOWN = frozenset({Dialect.COSCHEDULING, Dialect.UPSTREAM})
KEY = a_group().key


def a_member(name: str, group: str = "gang", **pod: Any) -> Pod:
    return a_pod(name, labels={GROUP_LABEL: group}, **pod)


def queued(group: PodGroup | None, *pods: Pod) -> QueuedGroup:
    return QueuedGroup(key=KEY, group=group, pods={pod.uid: pod for pod in pods})


def an_entry(count: int, **fields: Any) -> GroupEntry:
    pods = members(count)
    group = queued(a_group(minimum=count), *pods)
    time = datetime(2026, 1, 1, tzinfo=UTC)
    return GroupEntry(pod=pods[0], timestamp=time, group=group, form=a_group(minimum=count), members=pods, **fields)


def gate(group: QueuedGroup, now: float = 0.0, known: Any = KNOWN) -> GroupGate:
    return group.gate(group.members(MINE), known, now)


# --- the gate


def test_a_group_is_tried_once_its_minimum_exists():
    pods = [a_member(f"m{number}") for number in range(4)]
    assert gate(queued(a_group(minimum=4), *pods[:3])) == GroupGate(Way.GATED, "3 of 4 members exist")
    assert gate(queued(a_group(minimum=4), *pods)).way is Way.TOGETHER


def test_bound_and_succeeded_members_count_for_the_gate():
    owners = [OwnerReference(kind="Job", name="job", uid="job", controller=True)]
    done = a_member("done", node="n", status={"phase": "Succeeded"}, metadata={"owner_references": owners})
    bound = a_member("bound", node="n", metadata={"owner_references": owners})
    assert gate(queued(a_group(minimum=3), done, bound, a_member("m"))).way is Way.TOGETHER


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (None, 'no PodGroup "gang" in scheduling.x-k8s.io'),
        (a_group(minimum=1, is_terminating=True), 'PodGroup "gang" is being deleted'),
        (
            a_group(minimum=1, problems=("spec.minMember: want 1 or more, got 0",)),
            "spec.minMember: want 1 or more, got 0",
        ),
    ],
)
def test_a_group_that_is_not_as_it_should_be_says_why(group: PodGroup | None, message: str):
    assert gate(queued(group, a_member("m"))) == GroupGate(Way.GATED, message)


def test_a_dialect_that_could_not_be_asked_for_keeps_its_pods_waiting():
    found = gate(queued(None, a_member("m")), known=frozenset({Dialect.UPSTREAM}))
    assert found.message == "it is not known yet whether the API server has PodGroups of scheduling.x-k8s.io"


def test_the_gate_says_which_pods_do_not_count():
    found = gate(
        queued(
            a_group(minimum=16),
            *[a_member(f"m{number}") for number in range(12)],
            *[a_member(f"o{number}", scheduler_name="default-scheduler") for number in range(3)],
            a_member("g", scheduling_gates=[PodSchedulingGate(name="g")]),
        )
    )
    assert found.message == (
        "12 of 16 members can be tried; 1 of its pods has scheduling gates; "
        "3 of its pods have schedulerName default-scheduler"
    )


@pytest.mark.parametrize(("minimum", "absent"), [(5, "; 1 more does not exist"), (7, "; 3 more do not exist"), (4, "")])
def test_members_that_do_not_exist_are_said_beside_those_that_cannot_be_tried(minimum: int, absent: str):
    gated = a_member("g", scheduling_gates=[PodSchedulingGate(name="g")])
    members = [*[a_member(f"m{number}") for number in range(2)], gated, a_member("o", scheduler_name="other")]
    found = gate(queued(a_group(minimum=minimum), *members))
    parts = "1 of its pods has scheduling gates; 1 of its pods has schedulerName other"
    assert found.message == f"2 of {minimum} members can be tried; {parts}{absent}"


def test_two_profiles_are_refused():
    group = queued(a_group(minimum=2), a_member("a"), a_member("b", scheduler_name="batch"))
    found = group.gate(group.members({"berth", "batch"}), KNOWN, 0.0)
    assert found.message.endswith('got: "batch" and "berth"')


def test_a_begun_group_goes_on_with_what_exists_ten_seconds_after_the_last_news():
    group = queued(a_group(minimum=8), a_member("b", node="n"), *[a_member(f"m{number}") for number in range(3)])
    group.changed_at = 100.0
    assert gate(group, 109.9) == GroupGate(Way.GATED, "4 of 8 members exist", 100.0 + BEGUN_SECONDS)
    assert gate(group, 110.0).way is Way.TOGETHER
    assert group.members(MINE).wanted(a_group(minimum=8)) == 3


@pytest.mark.parametrize(
    ("minimum", "expected"),
    [
        (2, GroupGate(Way.ONE_BY_ONE)),
        (3, GroupGate(Way.TOGETHER)),
        (4, GroupGate(Way.GATED, "3 of 4 members exist", BEGUN_SECONDS)),
    ],
    ids=["as before", "raised to what exists", "raised further"],
)
def test_a_raised_minimum_makes_a_rest_of_a_group_that_was_whole(minimum: int, expected: GroupGate):
    pods = [a_member("a", node="n"), a_member("b", node="n"), a_member("c")]
    assert gate(queued(a_group(minimum=minimum), *pods)) == expected


def test_a_lowered_minimum_ends_the_rest_of_a_begun_group():
    pods = [a_member("a", node="n"), a_member("b")]
    assert gate(queued(a_group(minimum=2), *pods)).way is Way.TOGETHER
    assert gate(queued(a_group(minimum=1, topology=Topology(key="rack")), *pods)).way is Way.ONE_BY_ONE


def test_nothing_more_is_begun_of_a_group_whose_podgroup_is_deleted():
    gone = gate(queued(None, a_member("a", node="n"), a_member("b")))
    assert gone == GroupGate(Way.GATED, 'no PodGroup "gang" in scheduling.x-k8s.io')


def test_a_fresh_group_waits_for_its_minimum_for_ever():
    group = queued(a_group(minimum=8), a_member("m"))
    assert gate(group, 10**9) == GroupGate(Way.GATED, "1 of 8 members exist")


@pytest.mark.parametrize(
    ("group", "way"),
    [
        (a_group(minimum=1), Way.ONE_BY_ONE),
        (a_group(minimum=1, min_resources={"cpu": 1000}), Way.ONE_BY_ONE),
        (a_group(minimum=1, min_resources={"cpu": 9000}), Way.TOGETHER),
        (a_group(minimum=1, topology=Topology(key="rack")), Way.TOGETHER),
        (a_group(minimum=2), Way.TOGETHER),
    ],
)
def test_a_group_that_asks_for_no_more_than_its_pods_is_none(group: PodGroup, way: Way):
    assert gate(queued(group, a_member("a", cpu="1"), a_member("b", cpu="1"))).way is way


def test_pods_beyond_the_minimum_are_ordinary_pods():
    bound = [a_member(f"b{number}", node="n") for number in range(4)]
    assert gate(queued(a_group(minimum=4), *bound, a_member("m"))).way is Way.ONE_BY_ONE


# --- its place, its turn, the window


def test_a_group_stands_where_its_least_important_member_would():
    pods = [a_member("young", priority=9), a_member("low", priority=3)]
    group = queued(a_group(minimum=2, priority=5), *pods)
    representative = group.representative(a_group(minimum=2, priority=5), group.members(MINE))
    assert (representative.metadata.name, representative.metadata.uid, representative.spec.priority) == (
        "~gang",
        "uid-gang",
        3,
    )


def test_members_are_published_by_priority_and_age_and_no_more_than_a_plan_takes():
    pods = [
        a_member("b", metadata={"creation_timestamp": "2026-01-01T00:00:02Z"}),
        a_member("a", metadata={"creation_timestamp": "2026-01-01T00:00:01Z"}),
        a_member("c", priority=1, metadata={"creation_timestamp": "2026-01-01T00:00:03Z"}),
    ]
    assert [pod.metadata.name for pod in in_order(pods)] == ["c", "a", "b"]
    assert len(in_order(members(MOST_MEMBERS + 1))) == MOST_MEMBERS


@pytest.mark.parametrize(
    ("slots", "used", "size", "conflicts", "turns"),
    [
        (4, 0, 64, 0, 4),
        (4, 60, 64, 0, 4),
        (4, 61, 64, 0, 0),
        (64, 0, 64, 0, 64),
        (100, 0, 64, 0, 64),
        (100, 1, 64, 0, 0),
        (4, 1, 64, 2, 0),
        (4, 0, 64, 2, 4),
    ],
)
def test_a_group_goes_when_its_slots_are_free_or_nothing_is_in_flight_and_pays_a_turn_a_member(
    slots, used, size, conflicts, turns
):
    assert an_entry(slots, conflicts=conflicts).admit(used, size) == turns


# --- attempts


@pytest.mark.parametrize(("plan_seconds", "until"), [(0.01, 5.0), (2.0, 20.0), (100.0, 60.0)])
def test_back_off_lasts_ten_times_the_last_plan(plan_seconds: float, until: float):
    entry = an_entry(4, backoff_until=5.0)
    entry.back_off_for(plan_seconds, 0.0)
    assert entry.backoff_until == until


@pytest.mark.parametrize(
    ("topology", "affinity", "is_uniform"),
    [
        pytest.param(None, None, True, id="anywhere"),
        pytest.param(Topology(key="rack"), None, False, id="one rack"),
        pytest.param(Topology(key="rack", required=False), None, False, id="one rack if possible"),
        pytest.param(None, together(), False, id="where the others are"),
    ],
)
def test_what_helps_a_group_in_another_domain_than_the_best_is_not_known(topology, affinity, is_uniform):
    # The plan says which plugins rejected a member in the best domain only. Room in another one may be enough.
    entry = an_entry(2)
    entry.form = a_group(minimum=2, topology=topology)
    entry.members = members(2, affinity=affinity)
    assert entry.is_uniform is is_uniform


# --- which pods belong


def test_pods_and_their_group_may_come_in_any_order():
    groups = Groups()
    [first] = groups.observe_pod(a_member("a"), 1.0)
    assert first.group is None
    assert groups.observe_group(a_group(minimum=2)) == [first]
    [second] = groups.observe_pod(a_member("b"), 2.0)
    assert second is first
    assert (len(first.pods), first.changed_at, first.group) == (2, 2.0, a_group(minimum=2))
    later = Groups()
    assert later.observe_group(a_group(minimum=2)) == []
    assert later.observe_pod(a_member("a"), 1.0)[0].group == a_group(minimum=2)


def test_a_pod_without_a_group_changes_none():
    groups = Groups()
    assert groups.observe_pod(a_pod("plain"), 1.0) == []
    assert groups.remove_pod("uid-plain", 1.0) == []
    assert (len(groups), groups.of("uid-plain")) == (0, None)


def test_a_group_is_remade_under_living_pods():
    groups = Groups()
    [group] = groups.observe_pod(a_member("a"), 1.0)
    groups.observe_group(a_group(uid="old"))
    groups.observe_group(a_group(uid="new", minimum=3))
    assert groups.remove_group(KEY, "old") == []
    assert group.group is not None
    assert group.group.minimum == 3
    assert groups.remove_group(KEY, "new") == [group]
    assert group.group is None


def test_the_status_of_a_pod_group_is_no_news():
    groups = Groups()
    [gang] = groups.observe_pod(a_member("a"), 1.0)
    assert groups.observe_group(a_group(resource_version="1")) == [gang]
    assert groups.observe_group(a_group(resource_version="2")) == []
    assert gang.group == a_group(resource_version="2")


def test_a_condition_of_a_member_is_no_news_of_its_group():
    groups = Groups()
    groups.observe_pod(a_member("a"), 1.0)
    assert groups.observe_pod(a_member("a", version=9), 2.0) == []
    assert groups.observe_pod(a_member("a", node="n"), 3.0)


def test_a_pod_moves_to_another_group_when_its_own_is_not_in_flight():
    groups = Groups()
    [gang] = groups.observe_pod(a_member("a"), 1.0)
    [other] = groups.observe_pod(a_member("b", group="other"), 1.0)
    gang.published()
    assert groups.observe_pod(a_member("a", group="other"), 2.0) == []
    assert (groups.of("uid-a"), gang.has_changed) == (gang, True)
    assert set(groups.landed(gang, 3.0)) == {gang, other}
    assert groups.of("uid-a") is other
    assert [each.key.name for each in groups] == ["other"]


def test_what_changes_in_flight_is_noted_and_recalls_nothing():
    groups = Groups()
    [gang] = groups.observe_pod(a_member("a"), 1.0)
    gang.published()
    groups.remove_pod("uid-a", 2.0)
    assert (gang.is_in_flight, gang.has_changed, groups.get(KEY)) == (True, True, gang)
    assert groups.landed(gang, 3.0) == [gang]
    assert groups.get(KEY) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.sampled_from(["", "x", "y", "gone", "flies", "lands"]),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_every_pod_ends_in_the_group_that_it_names(history):
    groups, last = Groups(), dict[str, GroupKey | None]()
    for now, (name, what, by_field) in enumerate(history):
        if what == "gone":
            groups.remove_pod(f"uid-{name}", now)
            last.pop(name, None)
        elif what in ("flies", "lands"):
            group = groups.of(f"uid-{name}")
            if group is not None and what == "flies":
                group.published()
            elif group is not None:
                groups.landed(group, now)
        else:
            named = PodSchedulingGroup(pod_group_name=what) if by_field and what else None
            labels = {GROUP_LABEL: what} if what and not by_field else None
            groups.observe_pod(a_pod(name, labels=labels, scheduling_group=named), now)
            dialect = Dialect.UPSTREAM if by_field else Dialect.COSCHEDULING
            last[name] = GroupKey(dialect, "default", what) if what else None
    for group in list(groups):
        groups.landed(group, 100.0)
    for group in list(groups):
        assert not group.is_in_flight
    found = {name: group.key if (group := groups.of(f"uid-{name}")) else None for name in last}
    assert found == last
    assert {pod.metadata.name for group in groups for pod in group.pods.values()} == {
        name for name, key in last.items() if key is not None
    }
    assert all(group.pods for group in groups)
