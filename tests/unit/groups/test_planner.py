"""Plans of groups: which members go where, and why there is no plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.devices import (
    CelSelector,
    ClaimMeta,
    DeviceClaim,
    DeviceClass,
    DeviceClassSpec,
    DeviceRequest,
    ExactDeviceRequest,
    ExpressionSelector,
    ResourceClaim,
    ResourceClaimSpec,
    ResourcePool,
    ResourceSlice,
    ResourceSliceSpec,
    SliceDevice,
)
from berth.api.meta import ObjectMeta
from berth.api.node import Node
from berth.api.pod import Pod, PodResourceClaim
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.nodes import NodeInfo
from berth.cluster.snapshot import Snapshot
from berth.framework.extending import Extension
from berth.framework.interface import FilterPlugin, KeyedPlugin, Reads
from berth.framework.status import SUCCESS, CycleState, Status
from berth.groups.planner import plan, plan_at_once
from berth.groups.question import GroupQuestion
from berth.groups.workspace import Workspace
from berth.messages.groups import GroupPlan
from harness.builders.groups import RACK, a_question, apart, members, nodes_of, racks, together
from harness.builders.objects import a_container, a_node, a_pod, first_attempt
from harness.builders.profiles import default_profile, profile_of

PROFILE = default_profile()
CPU_REQUEST = "spec.containers[0].resources.requests.cpu"


def racks_of(found: GroupPlan) -> Counter[str]:
    return Counter(node.split("n")[0] for node in nodes_of(found).values())


def test_all_members_get_a_node():
    snapshot = racks([0, 0], [0, 0])
    found = plan_at_once(a_question(members(16, cpu="1")), snapshot, PROFILE)
    assert set(Counter(nodes_of(found).values()).values()) == {4}
    assert (found.message, found.error, found.orders) == ("", "", 1)
    assert (snapshot.pod_count, found.classes[0].placed, found.classes[0].alternates) == (0, 16, [])


def test_one_member_too_many_and_none_has_a_node():
    found = plan_at_once(a_question(members(17, cpu="1")), racks([0, 0], [0, 0]), PROFILE)
    assert not found.is_found
    assert found.message == (
        "16 of 17 have a place; 1 like m016 does not fit: 0/4 nodes are available: 4 Insufficient cpu; "
        "there is no room for all of them: 1 more asks for 1 cpu"
    )
    assert found.is_impossible
    assert [(each.plugin, each.nodes) for each in found.classes[0].rejections] == [("NodeResourcesFit", 4)]


@pytest.mark.parametrize(
    ("pods", "need", "parts"),
    [
        (
            members(9, cpu="900m"),  # a node of 4 takes four
            8,
            [
                "4 of 9 have a place, 8 are needed",
                "5 like m004 do not fit: 0/1 nodes are available: 1 Insufficient cpu",
                "there is no room for so many: 4 more ask for 3.6 cpu",
            ],
        ),
        (
            [*members(4, "a", cpu="3"), *members(3, "b", cpu="2")],
            5,
            [
                "1 of 7 have a place, 5 are needed",
                "3 like a001 do not fit: 0/1 nodes are available: 1 Insufficient cpu",
                "3 like b000 do not fit: 0/1 nodes are available: 1 Insufficient cpu",
                "there is no room for so many: 4 more ask for at least 9 cpu",  # 3 of 2, 1 of 3
            ],
        ),
        (
            members(3, containers=[a_container(memory="6Gi")]),
            3,
            [
                "1 of 3 have a place",
                "2 like m001 do not fit: 0/1 nodes are available: 1 Insufficient memory",
                "there is no room for all of them: 2 more ask for 12 GiB memory",
            ],
        ),
    ],
    ids=["more members than are needed", "members of two sizes", "memory"],
)
def test_the_numbers_of_a_group_that_is_too_large_add_up(pods: list[Pod], need: int, parts: list[str]):
    found = plan_at_once(a_question(pods, need=need), racks([0]), PROFILE)
    assert found.message.split("; ") == parts


def test_a_resource_that_only_a_node_for_other_pods_lacks_is_not_asked_for():
    snapshot = racks([0])
    snapshot.set_node(a_node("no-memory", unschedulable=True, memory="1Mi"))
    found = plan_at_once(a_question(members(5, containers=[a_container(cpu="1", memory="1Gi")])), snapshot, PROFILE)
    assert found.message.endswith("there is no room for all of them: 1 more asks for 1 cpu")


def test_what_is_needed_has_a_place_and_the_others_are_said():
    found = plan_at_once(a_question(members(6, cpu="1"), need=3), racks([0]), PROFILE)
    assert (len(found.members), found.classes[0].members, found.classes[0].example) == (4, 6, "m004")
    assert found.classes[0].rejections


def test_a_plan_on_the_bus_decodes_to_itself():
    found = plan_at_once(a_question(members(6, cpu="1"), rack="required"), racks([0, 0, 0], [1, 1, 0]), PROFILE)
    assert found.classes[0].alternates
    assert msgspec.json.decode(msgspec.json.encode(found), type=GroupPlan) == found


def test_a_thousand_equal_members_take_less_than_a_tenth_of_a_message():
    snapshot = racks(*[[0] * 100] * 4, cpu=16)
    found = plan_at_once(a_question(members(1000, cpu="1"), rack="required"), snapshot, PROFILE)
    assert len(found.members) == 1000
    assert len(msgspec.json.encode(found)) < 51_200
    assert found.steps < 10


# --- domains


def test_the_fullest_rack_that_holds_all_is_taken_so_that_large_ones_stay_whole():
    # Free: r0 8, r1 16, r2 12. The emptiest nodes are in r1.
    snapshot = racks([2, 2, 2, 2], [0, 0, 0, 0], [1, 1, 1, 1])
    assert racks_of(plan_at_once(a_question(members(12, cpu="1"), rack="required"), snapshot, PROFILE)) == {"r2": 12}
    assert racks_of(plan_at_once(a_question(members(8, cpu="1"), rack="required"), snapshot, PROFILE)) == {"r0": 8}


def test_required_affinity_to_each_other_counts_as_its_key():
    # r1 has the emptiest nodes and 8 cpus free, r2 has 12: pod by pod 8 go to r1, and 4 wait for ever.
    snapshot = racks([2, 2, 2, 2], [4, 4, 0, 0], [1, 1, 1, 1], [3, 3, 3, 3])
    pods = members(12, cpu="1", labels={"gang": "a"}, affinity=together(gang="a"))
    found = plan_at_once(a_question(pods), snapshot, PROFILE)
    assert (found.topology_key, found.domain, racks_of(found)) == (RACK, "r2", {"r2": 12})


def test_affinity_that_does_not_select_all_members_is_no_key():
    pods = [
        *members(2, "leader", cpu="1", labels={"role": "leader"}),
        *members(4, "worker", cpu="1", labels={"role": "worker"}, affinity=together(role="leader")),
    ]
    found = plan_at_once(a_question(pods), racks([0], [0, 0]), PROFILE)
    assert (found.topology_key, len(found.members)) == ("", 6)


def test_a_group_that_fits_no_rack_says_what_the_best_one_lacks():
    found = plan_at_once(a_question(members(12, cpu="1"), rack="required"), racks([0, 0], [1, 1, 1]), PROFILE)
    assert found.message == (
        "9 of 12 have a place in the best domain, rack r1; 3 like m009 do not fit: 0/3 nodes are available: "
        "3 Insufficient cpu; there is no room for all of them: 3 more ask for 3 cpu"
    )


def test_a_label_that_no_node_has():
    found = plan_at_once(a_question(members(2), rack="required"), snapshot_of(a_node("n")), PROFILE)
    assert (found.message, found.is_impossible) == ("no node has the label rack", True)


def test_nodes_without_the_label_are_in_no_domain():
    snapshot = racks([0])
    snapshot.set_node(a_node("elsewhere", cpu="64"))
    assert not plan_at_once(a_question(members(5, cpu="1"), rack="required"), snapshot, PROFILE).is_found


def test_a_preferred_rack_holds_most_and_the_rest_goes_outside():
    snapshot = racks([0, 0], [0, 0, 1], [3])
    found = plan_at_once(a_question(members(14, cpu="1"), rack="preferred"), snapshot, PROFILE)
    assert racks_of(found) == {"r1": 11, "r0": 3}
    assert (found.topology_key, found.domain, found.note) == (RACK, "", "11 of 14 are in rack r1, the preferred one")


def test_a_preferred_rack_that_holds_all_is_the_fullest():
    found = plan_at_once(a_question(members(4, cpu="1"), rack="preferred"), racks([0, 0], [2, 2]), PROFILE)
    assert racks_of(found) == {"r1": 4}
    assert (found.domain, found.note) == ("r1", "")


def test_the_rest_of_a_begun_group_goes_to_its_rack():
    snapshot = racks([0, 0, 0], [2, 2])
    snapshot.place(a_pod("begun", cpu="1"), "r1n0")
    found = plan_at_once(a_question(members(3, cpu="1"), bound=["uid-begun"], rack="required"), snapshot, PROFILE)
    assert racks_of(found) == {"r1": 3}
    full = plan_at_once(a_question(members(4, cpu="1"), bound=["uid-begun"], rack="required"), snapshot, PROFILE)
    assert full.message.startswith("1 is bound, 3 of 4 have a place in rack r1 where the group runs; 1 like m003 ")
    assert (full.is_found, full.domain) == (False, "r1")


def test_a_group_that_began_in_two_racks_goes_where_most_of_it_is_and_says_so():
    snapshot = racks([0], [0], [0])
    snapshot.set_node(a_node("bare"))
    for name, node in (("a", "r0n0"), ("b", "r2n0"), ("c", "r2n0"), ("d", "bare")):
        snapshot.place(a_pod(name, cpu="1"), node)
    found = plan_at_once(
        a_question(members(2, cpu="1"), bound=[f"uid-{n}" for n in "abcd"], rack="required"), snapshot, PROFILE
    )
    assert racks_of(found) == {"r2": 2}
    assert found.note == (
        "1 bound member is on a node without the label rack: d on bare; "
        "its bound members are in 2 domains of rack: 1 in r0 (a on r0n0), 2 in r2"
    )


def test_racks_that_hold_each_class_but_not_both_are_out():
    # Of 60 racks 59 hold either the eight large or the eight small ones; the fullest of those would take all tries.
    snapshot = racks(*[[0, 0, 0, 0]] * 59, [0] * 8)
    pods = [*members(8, "large", cpu="2"), *members(8, "small", cpu="1")]
    assert racks_of(plan_at_once(a_question(pods, rack="required"), snapshot, PROFILE)) == {"r59": 16}


def test_the_emptiest_racks_are_tried_too_where_fragments_fill_the_fullest():
    # Each of 20 racks has 8 cpus free, but in halves: the sums of its nodes leave room that host ports take away.
    snapshot = racks(*[[0] * 4] * 20, [0] * 12)
    ports = members(6, labels={"app": "one"}, cpu="1", affinity=apart(app="one"))
    found = plan_at_once(a_question(ports, rack="required"), snapshot, PROFILE)
    assert racks_of(found) == {"r20": 6}


# --- orders


def test_members_that_fit_few_nodes_go_first():
    snapshot = snapshot_of(a_node("ssd", labels={"disk": "ssd"}, cpu="1"), a_node("hdd", cpu="1"))
    pods = [*members(1, "a", cpu="1"), *members(1, "b", cpu="1", node_selector={"disk": "ssd"})]
    found = plan_at_once(a_question(pods), snapshot, PROFILE)
    assert nodes_of(found) == {"uid-b000": "ssd", "uid-a000": "hdd"}
    assert found.orders == 1


def test_followers_are_placed_after_those_that_they_need():
    # By scarcity the workers are first, which need a leader in their rack: they have no place until it has one.
    snapshot = racks([0, 0], [0, 0])
    pods = [
        *members(4, "worker", cpu="1", labels={"role": "worker"}, affinity=together(role="leader")),
        *members(1, "leader", cpu="500m", labels={"role": "leader"}),
    ]
    found = plan_at_once(a_question(pods), snapshot, PROFILE)
    assert len(found.members) == 5
    assert found.orders > 1
    assert len(racks_of(found)) == 1


# --- packing


def free_on(*cpus: str) -> Snapshot:
    return snapshot_of(*[a_node(f"n{cpu}", cpu=cpu) for cpu in cpus])


def of_sizes(*cpus: str) -> list[Pod]:
    return [a_pod(f"m{number}", cpu=cpu) for number, cpu in enumerate(cpus)]


def test_a_large_member_gets_the_node_that_it_fills_best_where_scores_would_give_it_a_larger_one():
    found = plan_at_once(a_question(of_sizes("1200m", "1", "1")), free_on("1500m", "2"), PROFILE)
    assert nodes_of(found) == {"uid-m0": "n1500m", "uid-m1": "n2", "uid-m2": "n2"}


def test_few_members_are_placed_where_some_assignment_holds_them():
    # On the tightest nodes one 5 is alone on 7, and then 5 + 4 leave no room for 3 on 10: 4 + 3 must go to 7.
    found = plan_at_once(a_question(of_sizes("5", "5", "4", "3")), free_on("7", "10"), PROFILE)
    assert nodes_of(found) == {"uid-m0": "n10", "uid-m1": "n10", "uid-m2": "n7", "uid-m3": "n7"}


def test_of_more_members_than_are_needed_those_are_placed_that_leave_room_for_enough():
    # The four smallest need all that is free.
    found = plan_at_once(a_question(of_sizes("6", "5", "5", "4", "3"), need=4), free_on("7", "10"), PROFILE)
    assert len(found.members) == 4


@pytest.mark.parametrize("rack", ["required", "preferred"])
def test_members_are_packed_in_the_rack_that_holds_them(rack):
    cpus = {"r0n0": "7", "r0n1": "10", "r1n0": "2", "r1n1": "2"}
    snapshot = snapshot_of(*[a_node(name, cpu=cpu, labels={RACK: name[:2]}) for name, cpu in cpus.items()])
    found = plan_at_once(a_question(of_sizes("5", "5", "4", "3"), rack=rack), snapshot, PROFILE)
    assert racks_of(found) == {"r0": 4}


def test_members_that_keep_apart_are_packed_too():
    snapshot = free_on("1", "2", "3")
    space = Workspace(snapshot, PROFILE, first_attempt(a_pod("gang")))
    pods = members(2, cpu="1", labels={"app": "one"}, affinity=apart(app="one"))
    for node in snapshot.node_names():
        snapshot.set_node(a_node(node, cpu=node[1:], labels={"kubernetes.io/hostname": node}))
    for _ in space.place_tightly(pods, snapshot.columns.exists[: snapshot.size], {"cpu": 1.0}):
        pass
    assert [each.node for each in space.placed] == ["n1", "n2"]


def test_a_group_that_no_packing_helps_says_so():
    found = plan_at_once(a_question(of_sizes("1500m", "1500m", "1")), racks([0, 0], cpu=2), PROFILE)
    assert found.message.endswith("; no placement found in 2 orders, nor by packing nodes tightly")
    assert not found.is_impossible


def test_a_large_group_of_several_sizes_is_packed_in_few_steps():
    # As in the first of these tests, a hundred times.
    nodes = [a_node(f"{cpu}-{number}", cpu=cpu) for number in range(100) for cpu in ("1500m", "2")]
    pods = [*members(100, "a", cpu="1200m"), *members(200, "b", cpu="1")]
    found = plan_at_once(a_question(pods), snapshot_of(*nodes), PROFILE)
    assert len(found.members) == 300
    assert found.steps < 30


def test_no_placement_is_not_called_impossible_unless_a_bound_proves_it():
    # Sums leave room for all four on each node; anti-affinity to each other does not.
    pods = members(4, cpu="1", labels={"app": "one"}, affinity=apart(app="one"))
    found = plan_at_once(a_question(pods), racks([0, 0, 0]), PROFILE)
    assert found.message.startswith("3 of 4 have a place; 1 like m003 does not fit: 0/3 nodes are available: ")
    assert found.message.endswith("; no placement found in 1 order")
    assert not found.is_impossible


# --- minResources, limits, errors


def test_min_resources_beyond_the_members_must_be_free():
    driver = members(1, "driver", cpu="1")
    enough = plan_at_once(a_question(driver, min_resources={"cpu": 8000}), racks([0, 0]), PROFILE)
    short = plan_at_once(a_question(driver, min_resources={"cpu": 9000}), racks([0, 0]), PROFILE)
    assert enough.is_found
    assert short.message == (
        "1 of 1 have a place; minResources asks for 9 cpu beyond its bound members, 8 is free in all (a sum of 2 nodes)"
    )


def test_min_resources_count_nodes_that_members_may_use():
    snapshot = racks([0])
    snapshot.set_node(a_node("cordoned", cpu="64", unschedulable=True))
    found = plan_at_once(a_question(members(1, cpu="1"), min_resources={"cpu": 9000}), snapshot, PROFILE)
    assert not found.is_found


def test_min_resources_that_bound_members_have_are_not_asked_for_again():
    snapshot = racks([0, 0])
    snapshot.place(a_pod("driver", cpu="2"), "r0n0")
    question = a_question(members(1, cpu="1"), bound=["uid-driver"], min_resources={"cpu": 8000})
    assert plan_at_once(question, snapshot, PROFILE).is_found


@pytest.mark.parametrize(
    ("pods", "error"),
    [
        (members(2001), "the group has more than a plan can take: 2001 members (at most 2000)"),
        (
            [a_pod(f"m{number}", cpu=f"{number}m") for number in range(1, 66)],
            "the group has more than a plan can take: 65 kinds of members (at most 64)",
        ),
        (
            [*members(2, cpu="1"), a_pod("odd", cpu="x")],
            f"default/odd: parsing {CPU_REQUEST}: want a quantity such as 500m or 2Gi, got 'x'",
        ),
    ],
    ids=["members", "classes", "a quantity"],
)
def test_a_group_that_cannot_be_planned_says_why(pods: list[Pod], error: str):
    assert plan_at_once(a_question(pods), racks([0]), PROFILE).error == error


def test_nodes_that_an_extender_drops_take_no_member():
    pods = members(5, cpu="1")
    kept = Extension(asked=frozenset({"r0n0", "r0n1"}), left=frozenset({"r0n1"}))
    few = plan_at_once(replace(a_question(pods[:4]), extensions={pods[2].uid: kept}), racks([0, 0]), PROFILE)
    assert set(nodes_of(few).values()) == {"r0n1"}
    many = plan_at_once(replace(a_question(pods), extensions={pods[2].uid: kept}), racks([0, 0]), PROFILE)
    assert many.message == (
        "4 of 5 have a place; 1 like m004 does not fit: 0/2 nodes are available: 1 Insufficient cpu; "
        "there is no room for all of them: 1 more asks for 1 cpu"
    )


def test_a_member_that_an_extender_binds_fails_the_group():
    binding = ExtenderConfiguration(url_prefix="http://x", name="x", bind_verb="bind")
    profile = replace(PROFILE, extenders=(binding,))
    found = plan_at_once(a_question(members(2)), racks([0]), profile)
    assert found.error == "default/m000: an extender binds it, so that it cannot be bound with a group"


class Breaks(FilterPlugin):
    name: ClassVar[str] = "Breaks"

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        if pod.metadata.name == "m002":
            raise ValueError("odd")
        return SUCCESS


def test_a_plugin_that_raises_fails_the_group_with_the_members_name():
    snapshot = racks([0])
    found = plan_at_once(a_question(members(3)), snapshot, profile_of(Breaks()))
    assert found.error.startswith('default/m002: running Filter plugin "Breaks": ValueError: odd')
    assert (found.members, snapshot.pod_count) == ([], 0)


def test_without_nodes():
    found = plan_at_once(a_question(members(3)), Snapshot(), PROFILE)
    assert (found.message, found.classes) == ("no nodes available to schedule pods", [])


# --- alternates


def test_each_class_has_further_nodes_of_the_domain_with_room_after_the_plan():
    snapshot = racks([0, 0, 0], [0, 0, 0, 0])
    found = plan_at_once(a_question(members(6, cpu="1"), rack="required"), snapshot, PROFILE)
    assert found.domain == "r0"
    alternates = found.classes[0].alternates
    # Two of six on each of three nodes with 4 cpus: two more fit on each.
    assert {(found.nodes[each.node], each.pods, each.fits) for each in alternates} == {
        (f"r0n{place}", 2, 2) for place in range(3)
    }
    assert "NodeResourcesFit" in found.classes[0].scores


# --- slices and devices


def planned_in_steps(snapshot: Snapshot, question: GroupQuestion, on_pause: Callable[[int], object]) -> GroupPlan:
    """The plan that pauses wherever it may; ``on_pause`` is called with the number of the pause, from 0."""
    planning = plan(question, snapshot, PROFILE, may_continue=lambda: False)
    pauses = 0
    while True:
        try:
            next(planning)
        except StopIteration as end:
            found: GroupPlan = end.value
            return found
        on_pause(pauses)
        pauses += 1


def test_a_plan_goes_on_with_a_copy_while_others_change_the_snapshot():
    snapshot, others = racks([0, 0], [0, 0]), list[int]()
    pods = members(8, cpu="1", labels={"app": "one"}, affinity=together(app="one"))
    expected = plan_at_once(a_question(pods), snapshot, PROFILE)

    def add_another(pause: int) -> None:
        assert all(snapshot.placed(pod.uid) is None for pod in pods)
        snapshot.place(a_pod(f"other-{pause}", cpu="1"), f"r{pause % 2}n0")
        others.append(pause)

    assert planned_in_steps(snapshot, a_question(pods), add_another) == expected
    assert len(others) > 5


def test_a_search_for_tight_nodes_pauses_between_its_states():
    snapshot, question, others = free_on("7", "10"), a_question(of_sizes("5", "5", "4", "3")), list[int]()
    expected = plan_at_once(question, snapshot, PROFILE)

    def add_another(pause: int) -> None:
        snapshot.place(a_pod(f"other-{pause}", cpu="1"), "n10")
        others.append(pause)

    found = planned_in_steps(snapshot, question, add_another)
    assert found == expected
    assert found.is_found
    assert len(others) > found.steps


def test_a_gang_that_needs_gpus_of_nodes_pauses_as_any_other():
    snapshot = snapshot_of(a_node("n1", **{"example.com/gpu": "4"}), a_node("n2", **{"example.com/gpu": "4"}))
    pods = [a_pod(f"m{n}", containers=[a_container(**{"example.com/gpu": "1"})]) for n in range(8)]
    planning = plan(a_question(pods), snapshot, PROFILE, may_continue=lambda: False)
    next(planning)
    assert snapshot.pod_count == 0
    found = plan_at_once(a_question(pods), snapshot, PROFILE)
    assert Counter(nodes_of(found).values()) == {"n1": 4, "n2": 4}


def test_a_preferred_rack_is_no_part_of_why_there_is_no_plan():
    found = plan_at_once(a_question(members(9, cpu="1"), rack="preferred"), racks([0], [0]), PROFILE)
    assert found.message.startswith("8 of 9 have a place; ")
    assert (found.topology_key, found.domain) == (RACK, "")  # the counts are of all nodes


def test_members_with_claims_get_devices_of_their_own_and_none_is_left_assumed():
    snapshot = Snapshot()
    gpu = DeviceClassSpec(selectors=[ExpressionSelector(cel=CelSelector(expression='device.driver == "gpu"'))])
    snapshot.objects(DeviceClass).set("gpu", DeviceClass(metadata=ObjectMeta(name="gpu"), spec=gpu))
    for node in ("n1", "n2"):
        snapshot.set_node(a_node(node))
        pool = ResourcePool(name=node, generation=1, resource_slice_count=1)
        devices = [SliceDevice(name="d0"), SliceDevice(name="d1")]
        spec = ResourceSliceSpec(driver="gpu", node_name=node, pool=pool, devices=devices)
        snapshot.objects(ResourceSlice).set(node, ResourceSlice(metadata=ObjectMeta(name=node), spec=spec))
    pods = [claiming(snapshot, f"m{number}") for number in range(4)]
    planning = plan(a_question(pods), snapshot, default_profile(), may_continue=lambda: False)
    with pytest.raises(StopIteration) as end:
        next(planning)  # in one piece
    found = end.value.value
    given = [
        (result.pool, result.device)
        for claims in found.devices.values()
        for allocation in claims.values()
        for result in allocation.devices.results
    ]
    assert len(given) == len(set(given)) == 4
    ledger = DeviceLedger.of(snapshot)
    assert not any(ledger.assumed(f"claim-m{number}") for number in range(4))


def claiming(snapshot: Snapshot, name: str) -> Pod:
    """A pod with a claim of its own for one device."""
    request = DeviceRequest(name="gpu", exactly=ExactDeviceRequest(device_class_name="gpu"))
    claim = ResourceClaim(
        metadata=ClaimMeta(name=name, namespace="default", uid=f"claim-{name}"),
        spec=ResourceClaimSpec(devices=DeviceClaim(requests=[request])),
    )
    snapshot.objects(ResourceClaim).set(claim.metadata.uid, claim)
    return a_pod(name, resource_claims=[PodResourceClaim(name="gpu", resource_claim_name=name)])


def snapshot_of(*nodes: Node) -> Snapshot:
    snapshot = Snapshot()
    for node in nodes:
        snapshot.set_node(node)
    return snapshot


class OnlyGold(KeyedPlugin, FilterPlugin):
    """Rejects pods by a label."""

    name = "OnlyGold"
    reads = Reads.NODE

    def pod_key(self, pod):
        return pod.metadata.labels["tier"]

    def filter(self, state, pod, node):
        return SUCCESS if pod.metadata.labels["tier"] == "gold" else Status.unschedulable("not gold")


def test_members_that_differ_only_in_a_plugins_key_are_asked_about_apart():
    pods = [pod for tier in ("gold", "silver") for pod in members(1, tier, labels={"tier": tier})]
    found = plan_at_once(a_question(pods), racks([0, 0]), profile_of(OnlyGold()))
    assert not found.is_found
    assert "not gold" in found.message
