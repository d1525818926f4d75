"""Judges that have called something wrong which was right."""

import json
import random

import pytest

from berth.api.podgroups import GROUP_LABEL, Dialect, GroupKey
from berth.bus.interface import PubAck
from berth.bus.topology import DECISIONS
from berth.settings.settings import Numbers
from berth_sim.apiserver.kinds import PODS, parse_path
from berth_sim.nodes import pod_manifest
from simulation.api import ApiRequest
from simulation.grouprules import GroupRules
from simulation.groups import REHEARSED_SECONDS, GroupInvariants, GroupUsers, _small_gang
from simulation.invariants import Invariants, Messages
from simulation.loop import OWNER, SimulatedProcess
from simulation.simulate import simulating
from simulation.truth import decoded
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


@pytest.mark.parametrize("goes_alone", [True, False])
def test_a_pod_beyond_the_minimum_takes_none_of_the_requests_of_groups(world, goes_alone):
    world.numbers = Numbers(max_in_flight_bindings=4)
    users = GroupUsers(world, random.Random(1), lambda _what: None)
    schedulers = frozenset({"berth"})
    rules = GroupRules(world, GroupInvariants(world, users, lambda: 0.0, schedulers), schedulers)
    for number in range(4):  # three quarters of 4 are 3
        manifest = pod_manifest(f"p{number}", labels={GROUP_LABEL: "g1"}, scheduler="berth")
        uid = world.api.resources.create(PODS, "default", manifest).value["metadata"]["uid"]
        rules._in_flight[uid] = uid if goes_alone and number == 3 else "uid-of-g1"
        path = f"/api/v1/namespaces/default/pods/p{number}/binding"
        rules._on_sending(SimulatedProcess("binder-1"), "POST", parse_path(path))
    assert bool(world.problems) is not goes_alone


@pytest.mark.parametrize("was_paused", [True, False])
def test_what_a_watch_has_received_during_a_pause_is_not_known_at_once(world, was_paused):
    invariants, process = Invariants(world, frozenset({"berth"})), SimulatedProcess("binder-1")
    pod = decoded(world.api.resources.create(PODS, "default", pod_manifest("p", scheduler="berth")))
    world.api.resources.store.remove(PODS, ("default", "p"))
    world.run_for(20.0)
    if was_paused:
        world.loop.resume(process)
    token = OWNER.set(process)
    try:
        invariants.examining(pod, {"pods": world.api.store.revision})
    finally:
        OWNER.reset(token)
    assert bool(world.problems) is not was_paused


def _binding(uid):
    path, body = "/api/v1/namespaces/default/pods/p/binding", {"metadata": {"uid": uid}, "target": {"name": "n"}}
    return ApiRequest(
        process=SimulatedProcess("binder-1"), method="POST", path=path, route=parse_path(path), body=body,
        content_type="application/json", sent_at=0.0, seen={},
    )  # fmt: skip
