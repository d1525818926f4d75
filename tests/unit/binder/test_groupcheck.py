"""The check of a group's plan in the binder: all members that are needed are assumed, or none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.api.pod import Pod, PodSchedulingGate, changed, digest_of
from berth.api.podgroups import GROUP_LABEL, Members, Topology
from berth.cluster.nodes import NodeInfo
from berth.framework.cycle import check
from berth.framework.interface import FilterPlugin
from berth.framework.profile import Profile
from berth.framework.status import SUCCESS, CycleState, Status
from berth.groups.planner import plan_at_once
from berth.kube.listwatch import Current, Deleted, Upserted
from berth.messages.attempts import Outcome, Reason
from berth_binder.cache import NODES, PODS, Cache
from berth_binder.decisions.groupcheck import GroupCheck, GroupPlacement, refuses_single
from berth_binder.decisions.verdict import RecheckError, Verdict
from harness.builders.groups import RACK, a_group, a_question, members, nodes_of, racks
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile, profile_of
from harness.plugins.long_runs import often

PROFILE = default_profile()
LABELS = {GROUP_LABEL: "gang"}
KEY = a_group().key


class Binder:
    """A binder's cache with racks of nodes of four cpus, a plan that a scorer made on the same state, and the check."""

    def __init__(self, *used: list[int], count: int, rack: str = "", profile: Profile = PROFILE, **pod: Any) -> None:
        self.cache = Cache(schedulers=["berth"])
        scorers = racks(*used)
        for row in range(scorers.size):
            self.show_node(scorers.node_at(row))
            for placed in scorers.placed_on_row(row):
                self.show(placed.pod, scorers.rows.names[row])
        self.pods = members(count, cpu="1", labels=LABELS, version=7, **pod)
        for each in self.pods:
            self.show(each)
        self.group = a_group(minimum=count, topology=Topology(key=RACK) if rack else None)
        self.plan = plan_at_once(a_question(self.pods, rack=rack), scorers, PROFILE)
        self.check = GroupCheck(cache=self.cache, profiles={"berth": profile})

    def show_node(self, node: Any) -> None:
        self.cache.observe(Upserted(kind=NODES, object=node))

    def show(self, pod: Pod, node: str = "") -> None:
        spec = msgspec.structs.replace(pod.spec, node_name=node) if node else pod.spec
        self.cache.observe(Upserted(kind=PODS, object=msgspec.structs.replace(pod, spec=spec)))

    def take(self, node: str, cpu: str) -> None:
        """Another pod is bound there."""
        self.show(a_pod(f"other-{self.cache.pod_count}", cpu=cpu), node)

    def now(self) -> Any:
        planned = {pod.uid: (digest_of(pod), 7) for pod in self.pods}
        return self.check.members_now([each.uid for each in self.plan.members], planned, KEY, "berth")

    def examine(self, need: int | None = None, **options: Any) -> GroupPlacement | Verdict:
        pods = {pod.uid: pod for pod in self.pods}
        examination = self.check.examine(self.plan, self.group, pods, need or len(self.pods), "berth", **options)
        return result_of(examination)


def result_of(examination: Iterable[None]) -> Any:
    iterator = iter(examination)
    while True:
        try:
            next(iterator)
        except StopIteration as end:
            return end.value


def test_a_plan_that_holds_is_assumed_as_it_is():
    binder = Binder([0, 0], count=6)
    found = binder.examine()
    assert isinstance(found, GroupPlacement)
    assert found.nodes == nodes_of(binder.plan)
    assert {uid: each.node for uid, each in binder.cache.assumed_pods.items()} == found.nodes


def test_a_member_whose_node_was_taken_gets_the_best_alternate():
    binder = Binder([0, 0], count=5)
    # Three and two of five; one more place on the first node, two on the second.
    first = binder.plan.nodes[binder.plan.members[0].node]
    binder.take(first, "2")
    found = binder.examine()
    assert isinstance(found, GroupPlacement)
    assert sorted(found.nodes.values()).count(first) == 2
    assert len(binder.cache.assumed_pods) == 5


def test_one_member_without_a_node_and_nothing_stays_assumed():
    binder = Binder([0, 0], count=8)
    binder.take("r0n0", "1")
    found = binder.examine()
    assert isinstance(found, Verdict)
    assert (found.outcome, found.reason) == (Outcome.CONFLICT, Reason.NO_CANDIDATE)
    assert found.message == "1 members have no node any more, and 8 are needed together"
    assert found.rejections[0].reason == "Insufficient cpu"
    assert not binder.cache.assumed_pods
    assert binder.cache.snapshot.pods_on("r0n0") == 1


def test_optional_members_without_a_node_drop_out():
    binder = Binder([0, 0], count=8)
    binder.take("r0n0", "1")
    found = binder.examine(need=6)
    assert isinstance(found, GroupPlacement)
    assert len(found.nodes) == 7


def test_a_conflict_is_found_before_all_members_are_tried():
    binder = Binder([0, 0], count=8)
    binder.take("r0n0", "4")
    binder.take("r0n1", "4")
    tried = 0

    def may_continue() -> bool:
        nonlocal tried
        tried += 1
        return True

    assert isinstance(binder.examine(may_continue=may_continue), Verdict)
    assert tried == 1


def test_a_node_that_events_touch_between_slices_is_checked_again():
    binder = Binder([0, 0], [0, 0], count=4, rack="required")
    pods = {pod.uid: pod for pod in binder.pods}
    examination = binder.check.examine(binder.plan, binder.group, pods, 4, "berth", may_continue=lambda: False)
    first = binder.plan.nodes[binder.plan.members[0].node]
    for _ in range(2):
        next(examination)
    binder.take(first, "4")  # another client: all that is assumed there has no room any more
    found = result_of(examination)
    assert isinstance(found, GroupPlacement)
    assert first not in found.nodes.values()
    assert {node[:2] for node in found.nodes.values()} == {first[:2]}


def test_members_that_lose_their_nodes_between_slices_undo_all():
    binder = Binder([0, 0], count=8)
    pods = {pod.uid: pod for pod in binder.pods}
    examination = binder.check.examine(binder.plan, binder.group, pods, 8, "berth", may_continue=lambda: False)
    for _ in range(8):
        next(examination)
    binder.take("r0n0", "1")
    assert isinstance(result_of(examination), Verdict)
    assert not binder.cache.assumed_pods


def test_an_examination_that_is_given_up_leaves_nothing_assumed():
    binder = Binder([0, 0], count=8)
    pods = {pod.uid: pod for pod in binder.pods}
    examination = binder.check.examine(binder.plan, binder.group, pods, 8, "berth", may_continue=lambda: False)
    next(examination)
    assert binder.cache.assumed_pods
    examination.close()
    assert not binder.cache.assumed_pods


@pytest.mark.parametrize(
    ("planned_rack", "key"),
    [
        pytest.param("", RACK, id="a plan without the domain"),
        pytest.param("required", "zone", id="a plan for another key"),
    ],
)
def test_the_topology_that_the_binder_knows_counts(planned_rack: str, key: str):
    binder = Binder([0], [0], count=4, rack=planned_rack)
    binder.group = a_group(minimum=4, topology=Topology(key=key))
    found = binder.examine()
    assert isinstance(found, Verdict)
    assert (found.outcome, found.reason) == (Outcome.CONFLICT, Reason.NO_CANDIDATE)


def test_a_node_that_left_the_rack_is_no_place():
    binder = Binder([0, 0], count=8, rack="required")
    binder.show_node(a_node("r0n0", labels={RACK: "r9"}))
    found = binder.examine()
    assert isinstance(found, Verdict)
    assert found.rejections[0].reason == "node(s) have no longer rack=r0"


class Breaks(FilterPlugin):
    name: ClassVar[str] = "Breaks"

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        if pod.metadata.name == "m002":
            raise ValueError("odd")
        return SUCCESS


def test_a_plugin_that_raises_undoes_all():
    binder = Binder([0, 0], count=4, profile=profile_of(Breaks()))
    with pytest.raises(RecheckError, match="default/m002"):
        binder.examine()
    assert not binder.cache.assumed_pods


# --- members as the binder's own watch shows them


def test_members_are_those_that_are_as_they_were_planned():
    binder = Binder([0] * 8, count=8)
    gone, gated, other, labelled, bound = binder.pods[:5]
    binder.cache.observe(Deleted(kind=PODS, object=gone))
    gates = [PodSchedulingGate(name="g")]
    binder.show(a_pod(gated.metadata.name, labels=LABELS, cpu="1", version=9, scheduling_gates=gates))
    binder.show(a_pod(other.metadata.name, labels={GROUP_LABEL: "another"}, cpu="1", version=9))
    binder.show(a_pod(labelled.metadata.name, labels={**LABELS, "new": "label"}, cpu="1", version=9))
    binder.show(bound, "r0n0")
    binder.cache.observe(Current(kind=PODS, resource_version="50"))
    now = binder.now()
    assert sorted(now.ready) == [pod.uid for pod in binder.pods[5:]]
    assert sorted(now.changed) == [pod.uid for pod in binder.pods[:5]]
    assert now.unknown == []


def test_members_that_the_watch_has_not_shown_yet_are_awaited_unless_there_are_many():
    few, many = Binder([0] * 8, count=8), Binder([0] * 20, count=40)
    for binder in (few, many):
        binder.cache = Cache(schedulers=["berth"])
        binder.check = GroupCheck(cache=binder.cache, profiles={"berth": PROFILE})
    assert (len(few.now().unknown), few.now().is_behind) == (8, False)
    assert (len(many.now().unknown), many.now().is_behind) == (40, True)


def test_a_member_whose_binding_was_answered_waits_no_more_before_the_watch_shows_it():
    binder = Binder([0] * 4, count=4)
    binder.cache.assume(binder.pods[0], "r0n0")
    binder.cache.finish_binding(binder.pods[0].uid)
    assert sorted(binder.now().ready) == [pod.uid for pod in binder.pods[1:]]


def test_a_new_resource_version_alone_is_no_change():
    binder = Binder([0] * 4, count=4)
    for pod in binder.pods:
        binder.show(msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, resource_version="9")))
    assert len(binder.now().ready) == 4


# --- single rankings


@pytest.mark.parametrize(
    ("pod", "group", "bound", "refused"),
    [
        (a_pod("m"), None, 0, False),
        (a_pod("m", labels=LABELS), None, 0, True),
        (a_pod("m", labels=LABELS), a_group(minimum=3), 0, True),
        (a_pod("m", labels=LABELS), a_group(minimum=3), 2, True),
        (a_pod("m", labels=LABELS), a_group(minimum=3), 3, False),
        (a_pod("m", labels=LABELS), a_group(minimum=1), 0, False),
        (a_pod("m", labels=LABELS, cpu="1"), a_group(minimum=1, min_resources={"cpu": 2000}), 0, True),
        (a_pod("m", labels=LABELS, cpu="1"), a_group(minimum=1, min_resources={"cpu": 2000}), 1, False),
    ],
)
def test_a_member_alone_is_bound_only_beyond_the_minimum(pod: Pod, group: Any, bound: int, *, refused: bool):
    of_group = Members(bound=members(bound), pending=[pod])
    assert refuses_single(pod, group, of_group) is refused


def test_a_digest_differs_where_a_pod_has_changed():
    pod = a_pod("m", labels=LABELS, cpu="1")
    for other in (
        a_pod("m", labels=LABELS, cpu="1", version=9),
        a_pod("m", labels={**LABELS, "a": "b"}, cpu="1"),
        a_pod("m", labels=LABELS, cpu="2"),
        a_pod("m", labels=LABELS, cpu="1", metadata={"annotations": {}}),
    ):
        assert (digest_of(pod) == digest_of(other)) is not changed(pod, other)


# --- by chance


@settings(max_examples=often(25), deadline=None)
@given(
    st.integers(2, 8),
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["1", "2", "3"])), max_size=4),
    st.lists(st.tuples(st.integers(0, 10), st.integers(0, 3)), max_size=3),
    st.integers(1, 8),
    st.booleans(),
)
def test_at_least_what_is_needed_holds_or_nothing_is_assumed(count, before, between, need, pauses):
    binder = Binder([0, 0], [0, 0], count=count)
    if not binder.plan.is_found:
        return
    names = [f"r{n // 2}n{n % 2}" for n in range(4)]
    for node, cpu in before:
        binder.take(names[node], cpu)
    need = min(need, count)
    pods = {pod.uid: pod for pod in binder.pods}
    examination = binder.check.examine(binder.plan, binder.group, pods, need, "berth", may_continue=lambda: not pauses)
    events = dict(between)
    step = 0
    while True:
        try:
            next(examination)
        except StopIteration as end:
            found = end.value
            break
        if step in events:
            binder.take(names[events[step]], "1")
        step += 1
    assumed = {uid: each.node for uid, each in binder.cache.assumed_pods.items()}
    if isinstance(found, Verdict):
        assert assumed == {}
        return
    assert assumed == found.nodes
    assert len(assumed) >= need
    for uid, node in assumed.items():
        assert check(pods[uid], node, binder.cache.snapshot, PROFILE, has_room=True).is_success
