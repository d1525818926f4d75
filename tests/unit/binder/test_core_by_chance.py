"""The core with an API server that fails at random: each pod gets one node, and each message is settled."""

import random

import pytest

from berth_binder.attempts.attempt import MOST_HELD
from berth_binder.events import PostBinding
from harness.plugins.long_runs import often
from harness.worlds.binder_bench import ranked
from harness.worlds.binder_by_chance import NODES, ROOM, SETTINGS, RandomBinderWorld

PODS_MADE = 24


@pytest.mark.parametrize("seed", range(often(5)))
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


class MuchRankedWorld(RandomBinderWorld):
    """Somebody publishes messages of any number for pods that wait."""

    def step(self) -> None:
        super().step()
        waiting = [pod for pod in self.pods.values() if not pod.spec.node_name]
        if waiting and self.chance.random() < 0.2:
            pod = self.chance.choice(waiting)
            for _ in range(self.chance.randrange(2 * MOST_HELD)):
                self.sequence += 1
                self.messages[self.sequence] = ranked(pod, "n1", n=self.chance.choice([0, 1, 5, 99, 10**18 - 1]))
                self.deliver(self.sequence)

    def newest(self) -> dict[str, int]:
        """By uid, the newest message in the stream."""
        return {self.messages[sequence].pod.uid: sequence for sequence in sorted(self.unsettled)}


@pytest.mark.parametrize("seed", range(often(3)))
def test_of_any_number_of_messages_of_a_pod_few_are_held_and_the_newest_stays(seed):
    world = MuchRankedWorld(chance=random.Random(seed))
    core = world.bench.core
    for number in range(PODS_MADE):
        world.create(f"p{number}")
    for _ in range(300):
        world.step()
        newest = world.newest()
        assert newest.keys() >= core._attempts.keys(), "a leader that follows would not know the pod"
        assert {each.sequence for each in core.held()} >= set(newest.values())
        assert all(len(attempt.deliveries) <= MOST_HELD for attempt in core._attempts.values())
    world.come_to_rest()
    assert all(len(nodes) == 1 for nodes in world.bound_to.values())
    assert world.unsettled == set()
