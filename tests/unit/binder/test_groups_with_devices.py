"""Members of groups with ResourceClaims: devices are held for all or none, and taken back where none is bound."""

from __future__ import annotations

from typing import Any

import pytest

from berth.api.pod import Pod
from berth_binder.events import PostBinding, ReleaseClaims, WriteObjects
from harness.worlds.group_bench import LABELS, GroupBench
from unit.binder.test_claims import World, claim_of, using


class GroupWorld(World, GroupBench):
    """One GPU on each of two nodes, and three claims."""


@pytest.fixture
def world() -> GroupWorld:
    world = GroupWorld()
    world.add_devices(n1=1, n2=1)
    for name in ("a", "b", "c"):
        world.show_claim(claim_of(name))
    return world


def members(world: GroupWorld, *claims: str) -> list[Pod]:
    return [world.show(using(f"m-{claim}", claim, labels=LABELS)) for claim in claims]


def sent(effects: list[Any], kind: type) -> list[str]:
    return [each.pod.metadata.name for each in effects if isinstance(each, kind)]


def write_all(world: GroupWorld, pods: list[Pod], version: int = 30) -> list[Any]:
    """The API server writes each pod's claim, and the watch shows it."""
    effects: list[Any] = []
    for number, pod in enumerate(pods):
        write = world.writes(pod)[0]
        effects += world.written(pod, version + number)
        effects += world.allocated(pod.metadata.name.removeprefix("m-"), write.allocation, version + number, pod)
    return effects


def test_all_claims_are_written_and_seen_before_the_first_binding(world):
    group, pods = world.show_group(2), members(world, "a", "b")
    effects = world.take_group(world.plan(group, pods))
    assert sorted(sent(effects, WriteObjects)) == ["m-a", "m-b"]
    assert sent(effects, PostBinding) == []
    assert {owner for node in ("n1", "n2") for owner in world.owners(f"{node}/gpu-0")} == {"uid-a", "uid-b"}
    assert sorted(sent(write_all(world, pods), PostBinding)) == ["m-a", "m-b"]
    world.bind_all(each for each in world.effects if isinstance(each, PostBinding))
    assert [str(each.outcome) for each in world.of_group][-1] == "bound"
    assert {each.pod for each in world.decisions if each.devices} == {"m-a", "m-b"}


def test_a_group_with_one_device_too_few_holds_and_writes_none(world):
    group, pods = world.show_group(3), members(world, "a", "b", "c")
    enough = GroupWorld()
    enough.add_devices(n1=1, n2=1, n3=1)
    for name in ("a", "b", "c"):
        enough.show_claim(claim_of(name))
    effects = world.take_group(enough.plan(enough.show_group(3), members(enough, "a", "b", "c")))
    assert sent(effects, WriteObjects) == []
    assert [str(each.outcome) for each in world.of_group] == ["conflict"]
    assert world.owners("n1/gpu-0") == world.owners("n2/gpu-0") == ()
    assert group.minimum == len(pods)


def test_what_was_written_is_taken_back_when_another_claim_changed(world):
    group, pods = world.show_group(2), members(world, "a", "b")
    world.take_group(world.plan(group, pods))
    world.written(pods[0], 30)
    assert sent(world.written(pods[1], status=409), ReleaseClaims) == ["m-b"]
    assert sent(world.released(pods[1], 31), ReleaseClaims) == ["m-a"]
    assert world.of_group == []
    world.released(pods[0], 32)
    assert [(str(each.outcome), each.reason) for each in world.of_group] == [("conflict", "claims")]
    assert world.owners("n1/gpu-0") == world.owners("n2/gpu-0") == ()
    assert not world.cache.assumed_pods


def test_a_write_under_way_when_its_group_fails_is_taken_back_after_its_answer(world):
    group, pods = world.show_group(2), members(world, "a", "b")
    world.take_group(world.plan(group, pods))
    world.written(pods[1], status=409)
    assert sent(world.released(pods[1], 31), ReleaseClaims) == []
    assert sent(world.written(pods[0], 32), ReleaseClaims) == ["m-a"]
    assert world.of_group == []
    world.released(pods[0], 33)
    assert [str(each.outcome) for each in world.of_group] == ["conflict"]


@pytest.mark.parametrize("is_answered_first", [True, False])
def test_a_write_without_an_answer_is_made_void_when_its_group_fails(world, is_answered_first):
    group, pods = world.show_group(2), members(world, "a", "b")
    world.take_group(world.plan(group, pods))
    world.written(pods[1], status=409)
    steps = [lambda: world.written(pods[0], status=0), lambda: world.released(pods[1], 31)]
    for step in steps if is_answered_first else reversed(steps):
        step()
    (release,) = world.releases(pods[0])
    assert release.voids
