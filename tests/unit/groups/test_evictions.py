"""Evictions for a whole group: none unless all that is needed fits with them, and no victim too many."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.pod import Pod
from berth.api.podgroups import GROUP_LABEL, Topology
from berth.api.workloads import BudgetStatus, PodDisruptionBudget, SelectorSpec
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check
from berth.groups import planner
from berth.groups.evictions import GroupEvictions, plan_evictions, units_of
from berth.groups.planner import plan_at_once
from berth.groups.question import GroupQuestion
from harness.builders.groups import a_group, a_question, apart, members, nodes_of, racks
from harness.builders.objects import a_pod
from harness.builders.profiles import default_profile
from harness.plugins.long_runs import often

PROFILE = default_profile()
LOW = a_group("low", minimum=20, goes_as_one=True)


def low(snapshot: Snapshot, name: str, node: str, *, group: str = "", priority: int = -10, **pod: Any) -> Pod:
    labels = {GROUP_LABEL: group} if group else None
    made = a_pod(name, cpu=pod.pop("cpu", "1"), labels=labels, priority=priority, **pod)
    snapshot.place(made, node)
    return made


def evicted(question: GroupQuestion, snapshot: Snapshot, priority: int = 0, **options: Any) -> GroupEvictions | None:
    groups = {each.key: each for each in (LOW, a_group("loose", minimum=2))}
    planning = plan_evictions(question, snapshot, PROFILE, priority=priority, groups=groups, **options)
    while True:
        try:
            next(planning)
        except StopIteration as end:
            found: GroupEvictions | None = end.value
            return found


def names(found: GroupEvictions | None) -> list[str]:
    assert found is not None
    return sorted(pod.metadata.name for pod in found.victims)


@pytest.fixture
def full() -> Snapshot:
    """40 cpus, 20 of a low group that goes as one and 20 of single low pods, mixed on every node."""
    snapshot = racks([0] * 10)
    for number in range(20):
        low(snapshot, f"gang-{number}", f"r0n{number % 10}", group="low")
        low(snapshot, f"single-{number:02}", f"r0n{(number + number // 10) % 10}")
    return snapshot


def test_twelve_evictions_are_enough_for_twelve_and_none_is_of_the_group_that_goes_as_one(full):
    before = {uid: full.node_of(uid) for uid in full._placed}
    found = evicted(a_question(members(12, cpu="1")), full)
    assert len(names(found)) == 12
    assert all(name.startswith("single") for name in names(found))
    assert {uid: full.node_of(uid) for uid in full._placed} == before


def test_the_search_looks_for_places_alone(full, monkeypatch):
    """Alternates, and why others have no place, take as long as the places."""
    monkeypatch.setattr(planner.Planner, "_alternates", None)
    monkeypatch.setattr(planner.Planner, "_diagnosis", None)
    assert len(names(evicted(a_question(members(12, cpu="1")), full))) == 12
    assert evicted(a_question(members(60, cpu="1")), full) is None


def test_nothing_is_evicted_for_a_group_that_never_fits(full):
    assert evicted(a_question(members(60, cpu="1")), full) is None


def test_a_group_that_goes_as_one_goes_whole_where_singles_are_not_enough(full):
    found = evicted(a_question(members(22, cpu="1")), full)
    assert len([name for name in names(found) if name.startswith("gang")]) == 20
    assert len(names(found)) == 22


def test_equal_and_higher_priority_is_never_evicted(full):
    assert evicted(a_question(members(12, cpu="1")), full, priority=-10) is None


def test_pods_that_are_going_count_first():
    snapshot = racks([0])
    low(snapshot, "going", "r0n0", cpu="2", metadata={"deletion_timestamp": "2026-01-01T00:00:00Z"})
    low(snapshot, "stays", "r0n0", cpu="2")
    assert names(evicted(a_question(members(2, cpu="1")), snapshot)) == []
    assert names(evicted(a_question(members(3, cpu="1")), snapshot)) == ["stays"]


def test_what_is_going_for_an_equal_pod_is_not_counted_on():
    """Else its victims are too few, and it evicts again when the other has taken the room."""
    snapshot = racks([0])
    low(snapshot, "going", "r0n0", cpu="2", metadata={"deletion_timestamp": "2026-01-01T00:00:00Z"})
    low(snapshot, "stays", "r0n0", cpu="2")
    snapshot.nominate(a_pod("equal", cpu="2"), "r0n0")
    assert names(evicted(a_question(members(2, cpu="1")), snapshot)) == ["stays"]
    snapshot.nominate(a_pod("less", cpu="2", priority=-1), "r0n0")
    assert evicted(a_question(members(3, cpu="1")), snapshot) is None


def test_the_least_important_and_youngest_go():
    snapshot = racks([0, 0])
    for number, (name, priority) in enumerate((("old", -10), ("young", -10), ("important", -5), ("lowest", -20))):
        created = {"creation_timestamp": f"2026-01-01T00:00:0{number}Z"}
        low(snapshot, name, f"r0n{number // 2}", cpu="2", priority=priority, metadata=created)
    assert names(evicted(a_question(members(2, cpu="2")), snapshot)) == ["lowest", "young"]


def test_of_equal_priority_a_single_pod_goes_before_a_younger_group():
    snapshot = racks([0])
    low(snapshot, "single", "r0n0", cpu="2", metadata={"creation_timestamp": "2026-01-01T00:00:00Z"})
    low(snapshot, "gang-0", "r0n0", cpu="2", group="low", metadata={"creation_timestamp": "2026-01-01T00:00:01Z"})
    assert names(evicted(a_question(members(1, cpu="2")), snapshot)) == ["single"]


def test_more_victims_than_a_message_names_are_not_evicted(full, monkeypatch):
    monkeypatch.setattr("berth.groups.evictions.MOST_VICTIMS", 4)
    assert len(names(evicted(a_question(members(4, cpu="1")), full))) == 4
    assert evicted(a_question(members(5, cpu="1")), full) is None


def protect(snapshot: Snapshot, app: str, allowed: int) -> None:
    made = PodDisruptionBudget(
        metadata=ObjectMeta(name=app, namespace="default", uid=app),
        spec=SelectorSpec(selector=LabelSelector(match_labels={"app": app})),
        status=BudgetStatus(disruptions_allowed=allowed),
    )
    snapshot.objects(PodDisruptionBudget).set(app, made)


@pytest.mark.parametrize(
    ("allowed", "wanted"),
    [
        pytest.param(0, ["important-1", "old-0", "old-1"], id="none may go"),
        pytest.param(1, ["important-1", "old-0", "web-1"], id="one may go"),
        pytest.param(2, ["old-0", "old-1", "web-0", "web-1"], id="both may go"),
    ],
)
def test_no_more_pods_of_a_disruption_budget_go_than_it_allows_where_others_can(allowed: int, wanted: list[str]):
    """As for a single pod: also where the protected ones are younger, or less important."""
    snapshot = racks([0, 0])
    for number in range(2):
        created = {"creation_timestamp": f"2026-01-01T00:00:0{number}Z"}
        low(snapshot, f"old-{number}", f"r0n{number}", metadata=created)
        low(snapshot, f"important-{number}", f"r0n{number}", priority=-5, cpu="2", metadata=created)
        web = {**created, "labels": {"app": "web"}}
        low(snapshot, f"web-{number}", f"r0n{number}", priority=-20, metadata=web)
    protect(snapshot, "web", allowed)
    assert names(evicted(a_question(members(4, cpu="1")), snapshot)) == wanted


def test_protected_pods_go_where_a_group_does_not_fit_without_their_room():
    snapshot = racks([0, 0])
    for number in range(2):
        low(snapshot, f"web-{number}", f"r0n{number}", cpu="4", metadata={"labels": {"app": "web"}})
    protect(snapshot, "web", 0)
    assert names(evicted(a_question(members(2, cpu="4")), snapshot)) == ["web-0", "web-1"]


def test_what_min_resources_asks_for_stays_free_beside_what_is_not_evicted():
    """Else pods are evicted in vain: the plan for the room that they leave is refused."""
    snapshot = racks([0], [0])
    for number in range(4):
        low(
            snapshot, f"p{number}", f"r{number // 2}n0", metadata={"creation_timestamp": f"2026-01-01T00:00:0{number}Z"}
        )
    question = a_question(members(2, cpu="2"), min_resources={"cpu": 7000})
    found = evicted(question, snapshot)
    assert names(found) == ["p1", "p2", "p3"]
    assert evicted(a_question(members(2, cpu="2"), min_resources={"cpu": 9000}), snapshot) is None
    for uid in ("uid-p1", "uid-p2", "uid-p3"):
        snapshot.remove_pod(uid)
    assert plan_at_once(question, snapshot, PROFILE).is_found


def test_a_groups_own_bound_members_are_no_victims():
    snapshot = racks([0])
    low(snapshot, "mine", "r0n0", group="gang", cpu="2")
    low(snapshot, "other", "r0n0", cpu="2")
    assert names(evicted(a_question(members(2, cpu="1"), bound=["uid-mine"]), snapshot)) == ["other"]
    assert evicted(a_question(members(3, cpu="1"), bound=["uid-mine"]), snapshot) is None


def test_a_loose_group_loses_what_is_beyond_its_minimum_first():
    snapshot = racks([0])
    low(snapshot, "single", "r0n0", metadata={"creation_timestamp": "2025-01-01T00:00:00Z"})  # though it is older
    for number in range(3):
        created = {"creation_timestamp": f"2026-01-01T00:00:0{number}Z"}
        low(snapshot, f"loose-{number}", "r0n0", group="loose", metadata=created)
    assert names(evicted(a_question(members(2, cpu="1")), snapshot)) == ["loose-2", "single"]
    units = units_of(snapshot, 0, {a_group("loose").key: a_group("loose", minimum=2)}, spared=a_group().key)
    assert [unit.breaks_group for unit in units] == [False, False, True, True]


@pytest.mark.parametrize(
    "question",
    [
        a_question([*members(3, cpu="1"), a_pod("never", cpu="1", preemption_policy="Never")]),
        a_question(members(4, cpu="1"), may_preempt=False),
        a_question(members(4, cpu="1"), rack="required"),
    ],
    ids=["a member", "the group", "a required rack"],
)
def test_groups_for_which_nothing_is_evicted(full, question):
    assert evicted(question, full) is None


def test_a_preferred_rack_does_not_keep_a_group_from_evicting(full):
    assert question_of(4).group.topology == Topology(key="rack", required=False)
    assert len(names(evicted(question_of(4), full))) == 4


def question_of(count: int) -> GroupQuestion:
    return a_question(members(count, cpu="1"), rack="preferred")


@settings(max_examples=often(20), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3), st.sampled_from(["1", "2"]), st.integers(-3, 1), st.sampled_from(["", "low", "loose"])
        ),
        max_size=8,
    ),
    st.integers(1, 6),
    st.sampled_from(["1", "2", "3"]),
    st.booleans(),
    st.booleans(),
)
def test_a_plan_holds_without_its_victims_and_with_none_of_them(placed, count, cpu, spread, pauses):
    snapshot = racks([0, 0], [0, 0])
    for number, (node, amount, priority, group) in enumerate(placed):
        low(snapshot, f"p{number}", f"r{node // 2}n{node % 2}", cpu=amount, priority=priority, group=group)
    pods = members(count, cpu=cpu, labels={"app": "a"}, **({"affinity": apart(app="a")} if spread else {}))
    question = a_question(pods)
    found = evicted(question, snapshot, may_continue=lambda: not pauses)
    if plan_at_once(question, snapshot, PROFILE).is_found:
        assert names(found) == []
    if found is None:
        return
    assert all((victim.spec.priority or 0) < 0 for victim in found.victims)
    one_by_one = [victim for victim in found.victims if GROUP_LABEL not in (victim.metadata.labels or {})]
    where = {victim.uid: snapshot.node_of(victim.uid) for victim in found.victims}
    for victim in found.victims:
        snapshot.remove_pod(victim.uid)
    assert holds(snapshot, question, found)
    for victim in one_by_one:
        snapshot.place(victim, where[victim.uid] or "")
        assert not holds(snapshot, question, found)
        snapshot.remove_pod(victim.uid)


def holds(snapshot: Snapshot, question: GroupQuestion, found: GroupEvictions) -> bool:
    by_uid = {pod.uid: pod for pod in question.members}
    nodes = nodes_of(found.plan)
    for uid, node in nodes.items():
        snapshot.place(by_uid[uid], node)
    passing = all(check(by_uid[uid], node, snapshot, PROFILE, has_room=True).is_success for uid, node in nodes.items())
    for uid in nodes:
        snapshot.remove_pod(uid)
    return passing
