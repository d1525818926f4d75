"""Groups in the core with an API server that fails at random: nothing of a group is begun that cannot be whole."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from berth.api.podgroups import GROUP_LABEL, PodGroup
from berth.messages.groupattempts import GroupRanked
from berth_binder.events import Effect, Event, PostBinding, RehearsalAnswer, RehearseBinding
from harness.plugins.long_runs import often
from harness.worlds.binder_bench import make_pod
from harness.worlds.binder_by_chance import NODES, ROOM, SETTINGS, RandomBinderWorld
from harness.worlds.group_bench import GroupBench

GROUPS = {"red": 3, "blue": 5, "green": 6}
"""Their minimums; each has one member more."""
SINGLES = 6


@dataclass
class GroupWorld(RandomBinderWorld):
    """With groups, whose members are deleted and remade, and PodGroups, which come and go."""

    bench: GroupBench = field(
        default_factory=lambda: GroupBench(nodes=NODES, cpu=str(ROOM), settings=SETTINGS, agrees=False)
    )
    groups: dict[str, PodGroup] = field(default_factory=dict)
    begun_by: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def begin(self) -> None:
        for name, minimum in GROUPS.items():
            self.groups[name] = self.bench.show_group(minimum, name=name, version=self.version)
            for number in range(minimum + 1):
                self.create(f"{name}-{number}")
        for number in range(SINGLES):
            self.create(f"single-{number}")

    def create(self, name: str) -> None:
        self.version += 1
        uid, group = f"{name}-{self.version}", name.partition("-")[0]
        labels = {GROUP_LABEL: group} if group in GROUPS else None
        self._store(make_pod(name, uid=uid, version=self.version, labels=labels))

    def rank(self) -> None:
        if self.chance.random() < 0.4:
            super().rank()  # of any pod alone, as an old watcher would
            return
        group = self.groups[self.chance.choice(sorted(GROUPS))]
        pods = [pod for name, pod in self.pods.items() if name.startswith(f"{group.name}-")]
        waiting = [pod for pod in pods if not pod.spec.node_name]
        need = group.minimum - len(pods) + len(waiting)
        if not waiting or need < 1:
            return
        for uid in (group.uid, *(pod.uid for pod in waiting)):
            self.attempts[uid] = self.attempts.get(uid, 0) + 1
        self.sequence += 1
        message = self.bench.plan(group, waiting, need=need, n=self.attempts[group.uid], numbers=self.attempts)
        self.messages[self.sequence] = message  # type: ignore[assignment]
        self.deliver(self.sequence)

    def deliver(self, sequence: int) -> None:
        message = self.messages[sequence]
        if not isinstance(message, GroupRanked):
            super().deliver(sequence)
            return
        self.unsettled.add(sequence)
        self.handle(self.bench.group_delivery(message, sequence))

    def carry_out(self, effects: list[Effect]) -> None:
        super().carry_out(effects)
        self.under_way += [each for each in effects if isinstance(each, RehearseBinding)]

    def _answer(self, effect: Effect) -> Event | None:
        if not isinstance(effect, RehearseBinding):
            return super()._answer(effect)
        status = self.chance.choice([201] * 12 + [0, 500, 403])
        pod = self.pods.get(effect.pod.metadata.name)
        if pod is None or pod.metadata.resource_version != effect.pod.metadata.resource_version:
            status = 409
        return RehearsalAnswer(uid=effect.pod.uid, status=status)

    def bind(self, post: PostBinding) -> int:
        self.check_first(post)
        return super().bind(post)

    def check_first(self, post: PostBinding) -> None:
        """A Binding of a group's first member is sent when all that it needs are assumed."""
        name = post.pod.metadata.name.partition("-")[0]
        if name not in GROUPS or post in self.late_posts:
            return
        members = [pod for pod in self.pods.values() if pod.metadata.name.startswith(f"{name}-")]
        assumed = self.bench.cache.assumed_pods
        there = sum(bool(pod.spec.node_name) or pod.uid in assumed for pod in members)
        begun = any(pod.spec.node_name for pod in members) or self.begun_by[name]
        if not begun and there < GROUPS[name] and self.bench.core.in_flight <= 1:
            self.problems.append(f"{post.pod.key} is bound with {there} of {GROUPS[name]} there")
        self.begun_by[name] += 1


@pytest.mark.parametrize("seed", range(often(3)))
def test_every_group_is_whole_or_waits_and_every_message_has_an_end(seed):
    world = GroupWorld(chance=random.Random(seed))
    world.begin()
    for _ in range(300):
        world.step()
        assert all(world.load(f"n{number}") <= ROOM for number in range(1, NODES + 1))
        sent = [one for one in world.under_way if isinstance(one, PostBinding | RehearseBinding)]
        assert len(sent) <= SETTINGS.max_in_flight
    world.come_to_rest()
    assert world.problems == []
    assert all(len(nodes) == 1 for nodes in world.bound_to.values())
    assert world.unsettled == set()
    assert [*world.bench.core.held()] == []
    assert not world.bench.cache.assumed_pods
    finals = [decision.attempt for decision in world.bench.decisions if decision.outcome.final]
    assert len(finals) == len(set(finals)), "an attempt was decided twice"
    for decision in world.bench.decisions:
        if decision.outcome == "bound" and not decision.pod.startswith("~"):
            assert world.bound_to[decision.uid] == [decision.node]


def test_random_runs_bind_groups():
    world = GroupWorld(chance=random.Random(3))
    world.begin()
    for _ in range(300):
        world.step()
    world.come_to_rest()
    outcomes = Counter(str(each.outcome) for each in world.bench.decisions if each.pod.startswith("~"))
    assert outcomes["bound"] > 0
    assert outcomes["conflict"] > 0
