"""What a forged plan of a group costs the binder: about as much as an honest one, and nothing stays."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import msgspec
import pytest

from berth.errors import DecodeError
from berth.messages.encoding import encode
from berth.messages.groupattempts import GroupRanked, decode_group
from berth.messages.groups import Alternate, ClassPlan, GroupPlan, PlannedMember
from berth_binder.decisions import groupcheck
from harness.worlds.group_bench import GroupBench

MEMBERS = 200
NEVER = "9" * 18
"""A resourceVersion that no watch reaches."""
SMALL = 4096

Forge = Callable[[GroupRanked], GroupRanked]


def of_plan(message: GroupRanked, **parts: object) -> GroupRanked:
    return msgspec.structs.replace(message, plan=msgspec.structs.replace(message.plan, **parts))


def on_nodes(*nodes: str) -> Forge:
    """All members on the first node, with all others as alternates."""

    def forge(message: GroupRanked) -> GroupRanked:
        alternates = [Alternate(place, 100, 1, 0.5, 9) for place in range(1, len(nodes))]
        plan = GroupPlan(
            need=message.need,
            nodes=[*nodes],
            members=[PlannedMember(each.uid, 0, 0) for each in message.bundle.members],
            classes=[ClassPlan(members=MEMBERS, placed=MEMBERS, alternates=alternates)],
        )
        return msgspec.structs.replace(message, plan=plan)

    return forge


def with_unknown_members(count: int) -> Forge:
    def forge(message: GroupRanked) -> GroupRanked:
        members = [
            msgspec.structs.replace(each, uid=f"unknown-{place}", resource_version=NEVER)
            for place, each in enumerate(message.bundle.members)
        ]
        bundle = msgspec.structs.replace(message.bundle, members=members)
        planned = [PlannedMember(each.uid, 0, 0) for each in members[:count]]
        return of_plan(msgspec.structs.replace(message, bundle=bundle), members=planned)

    return forge


def of_a_later_group(message: GroupRanked) -> GroupRanked:
    return msgspec.structs.replace(message, group=msgspec.structs.replace(message.group, resource_version=NEVER))


def forged(minimum: int, forge: Forge) -> tuple[GroupBench, int]:
    """The bench once the message has its Decision, and how many checks of a pod on a node it took."""
    bench, checks = GroupBench(cpu="4"), 0
    for number in range(MEMBERS):
        bench.show_node(f"x{number}")
    group, pods = bench.show_group(minimum), bench.show_members(MEMBERS)
    message = decode_group(encode(forge(bench.plan(group, pods, need=minimum))), GroupRanked)
    check = groupcheck.check

    def counted(*given: object, **more: object) -> object:
        nonlocal checks
        checks += 1
        return check(*given, **more)  # type: ignore[arg-type]  # as it was called

    with patch.object(groupcheck, "check", counted):
        bench.take_group(message)
        bench.wait(1.1)
    return bench, checks


@pytest.mark.parametrize(
    ("minimum", "forge", "reason"),
    [
        pytest.param(2, on_nodes(*(f"ghost-{place}" for place in range(17))), "no-candidate", id="nodes that are none"),
        pytest.param(MEMBERS, on_nodes("n1", *(f"x{place}" for place in range(16))), "no-candidate", id="full nodes"),
        pytest.param(MEMBERS, with_unknown_members(MEMBERS), "behind", id="unknown members"),
        pytest.param(32, with_unknown_members(32), "changed", id="members that may come"),
        pytest.param(MEMBERS, of_a_later_group, "behind", id="a version that never comes"),
    ],
)
def test_a_forged_plan_ends_in_a_small_conflict_and_leaves_nothing(minimum: int, forge: Forge, reason: str):
    bench, checks = forged(minimum, forge)
    [decision] = bench.decisions
    assert (str(decision.outcome), decision.reason) == ("conflict", reason)
    assert len(encode(decision)) < SMALL
    assert checks <= 2 * MEMBERS + 16
    assert (bench.acked, [*bench.core.held()], bench.cache.assumed_pods) == ([1], [], {})
    assert (bench.cache._awaited, bench.cache._awaited_versions) == (set(), {})


def test_members_above_the_minimum_on_full_nodes_cost_no_more_than_twice_an_honest_plan():
    _, honest = forged(2, lambda message: message)
    _, checks = forged(2, on_nodes("n1", *(f"x{place}" for place in range(16))))
    assert honest == MEMBERS
    assert checks <= 2 * MEMBERS + 16


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(lambda m: of_plan(m, members=[m.plan.members[0]] * 2), id="a member twice"),
        pytest.param(lambda m: of_plan(m, members=[PlannedMember("another", 0, 0)]), id="a member of another group"),
        pytest.param(lambda m: of_plan(m, classes=[ClassPlan(members=1)] * 65), id="65 classes"),
        pytest.param(
            lambda m: of_plan(m, classes=[ClassPlan(members=1, alternates=[Alternate(0, 1, 1, 0.5, 1)] * 17)]),
            id="17 alternates",
        ),
        pytest.param(lambda m: of_plan(m, members=[PlannedMember(m.bundle.members[0].uid, 0, 99)]), id="node 99 of 4"),
    ],
)
def test_a_plan_that_cannot_be_one_is_no_message(forge: Forge):
    bench = GroupBench()
    group, pods = bench.show_group(4), bench.show_members(4)
    with pytest.raises(DecodeError):
        decode_group(encode(forge(bench.plan(group, pods))), GroupRanked)
