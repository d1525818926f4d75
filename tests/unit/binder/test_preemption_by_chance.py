"""Evictions against an API server that fails by chance: no node is overcommitted, and every message has an end."""

import random
from dataclasses import dataclass

import pytest

from berth.api.pod import Pod, priority_of
from berth.messages.attempts import Preemption, Victim
from harness.plugins.long_runs import often
from harness.worlds.binder_bench import ranked
from harness.worlds.binder_by_chance import NODES, ROOM, RandomBinderWorld

IMPORTANT = 100
UNIMPORTANT, IMPORTANT_ONES = 20, 5
"""The pods of low priority alone are more than the nodes can hold."""


@dataclass
class Preempting(RandomBinderWorld):
    """Some pods are important. For them the scorers propose evictions, which often do not help."""

    def priority_of(self, name: str) -> int:
        return IMPORTANT if name.startswith("vip") else 0

    def propose(self) -> None:
        waiting = [pod for pod in self.pods.values() if not pod.spec.node_name and priority_of(pod) == IMPORTANT]
        if not waiting:
            return
        pod = self.chance.choice(waiting)
        self.attempts[pod.uid] = n = self.attempts.get(pod.uid, 0) + 1
        node = f"n{self.chance.randrange(NODES) + 1}"
        there = [other for other in self.pods.values() if other.spec.node_name == node and priority_of(other) == 0]
        victims = self.chance.sample(there, self.chance.choice([len(there), len(there), min(1, len(there)), 0]))
        self.sequence += 1
        preemption = Preemption(node=node, victims=[_victim(each) for each in victims])
        clears = self.chance.random() < 0.1
        proposed = preemption if not clears else None
        view = {"evaluated": NODES, "view_age_seconds": 1.0}
        whole = {"message": "no", "preemption": proposed, "clears_nomination": clears, **view}
        self.messages[self.sequence] = ranked(pod, n=n, **whole)
        self.deliver(self.sequence)

    def step(self) -> None:
        turn = self.chance.random()
        if turn < 0.15:
            self.propose()
        elif turn < 0.2:
            self.end_one()
        else:
            super().step()


def _victim(pod: Pod) -> Victim:
    return Victim(uid=pod.uid, namespace=pod.metadata.namespace, name=pod.metadata.name)


def run_of(seed: int) -> Preempting:
    world = Preempting(chance=random.Random(seed))
    for number in range(UNIMPORTANT):
        world.create(f"p{number}")
    for number in range(IMPORTANT_ONES):
        world.create(f"vip{number}")
    for _ in range(600):
        world.step()
        assert all(world.load(f"n{number}") <= ROOM for number in range(1, NODES + 1))
    world.come_to_rest()
    return world


@pytest.mark.parametrize("seed", range(often(5)))
def test_no_node_is_overcommitted_and_every_message_has_an_end(seed):
    world = run_of(seed)
    assert world.unsettled == set()
    assert list(world.bench.core.held()) == []
    assert not world.bench.cache.assumed_pods
    assert all(priority_of(pod) == 0 for pod in world.evicted)
    nominations = {each.pod.uid: each.node for each in world.bench.cache.snapshot.nominations()}
    shown = {pod.uid: pod.status.nominated_node_name for pod in world.pods.values() if not pod.spec.node_name}
    assert nominations == {uid: node for uid, node in shown.items() if node}


def test_runs_evict_and_have_conflicts():
    worlds = [run_of(seed) for seed in range(10)]
    assert sum(len(world.evicted) for world in worlds) > 20
    outcomes = {decision.outcome.value for world in worlds for decision in world.bench.decisions}
    assert {"preempting", "conflict", "bound"} <= outcomes
