"""The core with an API server that fails at random: each pod gets one node, and each message is settled."""

import random

import pytest

from berth_binder.events import PostBinding
from harness.worlds.binder_by_chance import NODES, ROOM, SETTINGS, RandomBinderWorld

PODS_MADE = 24


@pytest.mark.parametrize("seed", range(150))
def test_every_pod_has_one_node_and_every_message_an_end(seed):
    world = RandomBinderWorld(chance=random.Random(seed))
    for number in range(PODS_MADE):
        world.create(f"p{number}")
    for _ in range(600):
        world.step()
        assert all(world.load(f"n{number}") <= ROOM for number in range(1, NODES + 1))
        assert len([one for one in world.under_way if isinstance(one, PostBinding)]) <= SETTINGS.max_in_flight
    world.come_to_rest()
    assert all(len(nodes) == 1 for nodes in world.bound_to.values())
    assert world.unsettled == set()
    assert list(world.bench.core.held()) == []
    assert not world.bench.cache.assumed_pods
    finals = [decision.attempt for decision in world.bench.decisions if decision.outcome.final]
    assert len(finals) == len(set(finals)), "an attempt was decided twice"
    for decision in world.bench.decisions:
        if decision.outcome == "bound":
            assert world.bound_to[decision.uid] == [decision.node]
