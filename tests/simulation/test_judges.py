"""Judges that have called something wrong which was right."""

import json
import random

import pytest

from berth.api.podgroups import Dialect, GroupKey
from berth.bus.interface import PubAck
from berth.bus.topology import DECISIONS
from berth_sim.apiserver.kinds import PODS, parse_path
from berth_sim.nodes import pod_manifest
from simulation.api import ApiRequest
from simulation.groups import REHEARSED_SECONDS, GroupInvariants, GroupUsers, _small_gang
from simulation.invariants import Messages
from simulation.loop import SimulatedProcess
from simulation.simulate import simulating
from simulation.world import World


@pytest.fixture
def world():
    with simulating():
        world = World(1)
        world.is_calm = world.is_only_attacked = True
        yield world
        world.close()


def test_a_pod_whose_binding_a_policy_denies_may_be_an_error(world):
    Messages(world)
    pod = world.api.resources.create(PODS, "default", pod_manifest("p", scheduler="berth")).value
    uid = pod["metadata"]["uid"]
    world.api.forbidden.add(("default", "p"))
    assert world.api.serve(_binding(uid)).status == 422
    world.api.forbidden.clear()
    decision = json.dumps({"schema": 1, "attempt": f"{uid}.1.1", "outcome": "error"}).encode()
    for stored in world.bus.on_stored:
        stored("berth.decision.berth.default.p", decision, {}, PubAck(stream=DECISIONS, sequence=1, duplicate=False))
    assert not world.problems


@pytest.mark.parametrize("leaves", [True, False])
def test_a_policy_keeps_out_a_group_only_if_its_leader_is_one_of_it(world, leaves):
    chance, resources = random.Random(1), world.api.resources
    users = GroupUsers(world, chance, lambda _what: None)
    GroupInvariants(world, users, lambda: 0.0, frozenset({"berth"}))
    gang = _small_gang(chance, 1, 2, cpu="100m")
    gang.key, gang.leader = GroupKey(Dialect.COSCHEDULING, "default", "g1"), "g1-0"
    users._gangs.append(gang)
    users._make_group(gang)
    for name in gang.members:
        users._make_member(gang, name)
    users._forbid(gang)
    world.run_for(REHEARSED_SECONDS + 0.1)
    users._change_minimum(gang, 1)
    if leaves:
        leader = users._pod("g1-0")
        metadata = {**leader.value["metadata"], "labels": {}}
        resources.update(PODS, leader, {**leader.value, "metadata": metadata}, "")
    else:
        users._change_minimum(gang, 2)
    other = users._pod("g1-1")
    resources.store.put(PODS, other.key, {**other.value, "spec": {**other.value["spec"], "nodeName": "n"}})
    assert bool(world.problems) is not leaves


def _binding(uid):
    path, body = "/api/v1/namespaces/default/pods/p/binding", {"metadata": {"uid": uid}, "target": {"name": "n"}}
    return ApiRequest(
        process=SimulatedProcess("binder-1"), method="POST", path=path, route=parse_path(path), body=body,
        content_type="application/json", sent_at=0.0, seen={},
    )  # fmt: skip
