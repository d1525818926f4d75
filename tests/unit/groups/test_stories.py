"""Gangs from the queue to their nodes, with every part that does no I/O and nothing in between.

Scorers plan at the same time on one state, without each other's plans; the binder takes the plans one after another.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from berth.api.pod import Pod
from berth.api.podgroups import GROUP_LABEL, Dialect, GroupKey, PodGroup, Topology
from berth.framework.cycle import rank
from berth.groups.planner import plan_at_once
from berth.groups.question import GroupQuestion
from berth.kube.listwatch import Deleted, Upserted
from berth.messages.subjects import Attempt, Term, Uid
from berth_binder.cache import NODES, PODS, Cache
from berth_binder.decisions.groupcheck import GroupCheck, GroupPlacement
from berth_watcher.queue.groups import Groups, QueuedGroup, Way
from harness.builders.groups import a_group, together
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import default_profile
from harness.plugins.long_runs import often

PROFILE = default_profile()
BACKOFF = 1.0  # seconds after a plan that was not found
TURN = 0.1  # seconds of a plan and its Bindings


@dataclass
class Pipeline:
    """Time goes on in turns. In each one as many groups are planned as there are scorers."""

    scorers: int = 1
    now: float = 0.0
    cache: Cache = field(default_factory=lambda: Cache(schedulers=["berth"]))
    groups: Groups = field(default_factory=Groups)
    due: list[tuple[float, int, QueuedGroup]] = field(default_factory=list)
    backoff_until: dict[GroupKey, float] = field(default_factory=dict)
    attempts: int = 0
    failed: int = 0
    made: int = 0

    def nodes(self, *names: str, cpu: int = 4, **labels: str) -> None:
        for name in names:
            node = a_node(name, cpu=str(cpu), labels={"kubernetes.io/hostname": name, **labels})
            self.cache.observe(Upserted(kind=NODES, object=node))
        self.wake()

    def gang(self, name: str, count: int, cpu: str = "1", *, topology: Topology | None = None, **pod: object) -> None:
        self.show_group(a_group(name, minimum=count, topology=topology))
        for number in range(count):
            self.show(a_pod(f"{name}-{number}", labels={GROUP_LABEL: name}, cpu=cpu, **pod))

    def show_group(self, group: PodGroup) -> None:
        for changed in self.groups.observe_group(group):
            self.consider(changed)

    def show(self, pod: Pod, node: str = "") -> None:
        if node:
            pod = a_pod(pod.metadata.name, labels=pod.metadata.labels, node=node, containers=pod.spec.containers)
        self.cache.observe(Upserted(kind=PODS, object=pod))
        for changed in self.groups.observe_pod(pod, self.now):
            self.consider(changed)

    def end(self, *names: str) -> None:
        """Delete all pods of these gangs."""
        for group in list(self.groups):
            if group.key.name in names:
                for pod in list(group.pods.values()):
                    self.cache.observe(Deleted(kind=PODS, object=pod))
                    self.groups.remove_pod(pod.uid, self.now)
        self.wake()

    def wake(self) -> None:
        for group in self.groups:
            self.consider(group)

    def consider(self, group: QueuedGroup) -> None:
        if group.gate(group.members({"berth"}), set(Dialect), self.now).way is Way.TOGETHER:
            self.made += 1
            heapq.heappush(self.due, (max(self.now, self.backoff_until.get(group.key, 0.0)), self.made, group))

    def turn(self) -> None:
        """One plan of each scorer, then the binder's turn."""
        taken: dict[QueuedGroup, None] = {}
        while self.due and self.due[0][0] <= self.now and len(taken) < self.scorers:
            group = heapq.heappop(self.due)[2]
            members = group.members({"berth"})
            if group.gate(members, set(Dialect), self.now).way is Way.TOGETHER and self.groups.get(group.key) is group:
                taken[group] = None
        planned = [
            (group, question := self.question(group), plan_at_once(question, self.cache.snapshot, PROFILE))
            for group in taken
        ]
        self.now += TURN
        for group, question, plan in planned:
            self.attempts += 1
            assert not plan.error
            pods = {pod.uid: pod for pod in question.members}
            assert group.group is not None
            if not plan.is_found:
                self.failed += 1
                self.backoff_until[group.key] = self.now + BACKOFF
                self.land(group)
                continue
            check = GroupCheck(cache=self.cache, profiles={"berth": PROFILE})
            examination = check.examine(plan, group.group, pods, question.need, "berth")
            try:
                next(examination)
            except StopIteration as done:
                found = done.value
            self.land(group)
            if isinstance(found, GroupPlacement):
                for uid, node in found.nodes.items():
                    self.show(pods[uid], node)
            else:
                self.consider(group)
        self.check_all_or_none()

    def land(self, group: QueuedGroup) -> None:
        for changed in self.groups.landed(group, self.now):
            self.consider(changed)

    def question(self, group: QueuedGroup) -> GroupQuestion:
        members, form = group.members({"berth"}), group.group
        assert form is not None
        group.published()
        return GroupQuestion(
            group=form,
            attempt=Attempt(uid=Uid(form.uid), term=Term(1), n=self.attempts + 1),
            members=members.pending,
            need=members.wanted(form),
            bound=[pod.uid for pod in members.bound],
        )

    def until_quiet(self, most: int = 2000) -> None:
        """Until nothing is due but back-offs that no event has ended."""
        for _ in range(most):
            if not self.due:
                return
            self.now = max(self.now, self.due[0][0])
            self.turn()
        raise AssertionError("groups are tried without end")

    def bound(self, name: str) -> int:
        return sum(len(group.members({"berth"}).bound) for group in self.groups if group.key.name == name)

    def whole(self) -> list[str]:
        return sorted(
            group.key.name
            for group in self.groups
            if group.group is not None and self.bound(group.key.name) >= group.group.minimum
        )

    def check_all_or_none(self) -> None:
        for group in self.groups:
            assert group.group is not None
            assert self.bound(group.key.name) in (0, group.group.minimum)


def test_two_gangs_of_sixty_percent_one_is_whole_and_the_other_holds_nothing():
    for scorers in (1, 2):
        world = Pipeline(scorers=scorers)
        world.nodes(*(f"n{number}" for number in range(10)))
        world.gang("a", 24)
        world.gang("b", 24)
        world.until_quiet()
        [winner] = world.whole()
        loser = "ab".replace(winner, "")
        assert world.bound(loser) == 0
        # 16 single pods fit beside the winner.
        for number in range(16):
            single = a_pod(f"single-{number}", cpu="1")
            ranking = rank(single, world.cache.snapshot, PROFILE, attempt=first_attempt(single))
            world.show(single, ranking.candidates[0].node)
        world.end(winner)
        world.until_quiet()
        assert world.whole() == [loser]
        assert world.failed <= 2


def test_gangs_before_their_nodes():
    world = Pipeline(scorers=2)
    world.gang("a", 22)
    world.gang("b", 22)
    world.until_quiet()
    for number in range(10):
        world.nodes(f"n{number}")
        world.until_quiet()
    assert len(world.whole()) == 1


def test_ten_gangs_of_eight_with_room_for_six():
    world = Pipeline(scorers=4)
    world.nodes(*(f"n{number:02}" for number in range(12)))
    for number in range(10):
        world.gang(f"g{number:02}", 8)
    world.until_quiet()
    whole = world.whole()
    assert (len(whole), world.failed) == (6, 4)
    world.end(*whole)
    world.until_quiet()
    assert len(world.whole()) == 4


def test_a_waiting_gang_whose_member_is_replaced_is_placed_when_room_comes():
    world = Pipeline()
    world.nodes("n0", "n1")
    world.gang("c", 8)
    world.until_quiet()
    world.gang("d", 5)
    world.until_quiet()
    group = next(group for group in world.groups if group.key.name == "d")
    old = next(iter(group.pods.values()))
    world.cache.observe(Deleted(kind=PODS, object=old))
    world.groups.remove_pod(old.uid, world.now)
    world.show(a_pod("d-new", labels={GROUP_LABEL: "d"}, cpu="1"))
    world.until_quiet()
    world.end("c")
    world.until_quiet()
    assert world.whole() == ["d"]


def test_the_replacement_of_a_lost_member_goes_beside_the_others():
    world = Pipeline()
    world.nodes("a0", "a1", rack="a")
    world.nodes("b0", "b1", "b2", rack="b")
    world.gang("g", 6, topology=Topology(key="rack"))
    world.until_quiet()
    group = next(iter(world.groups))
    lost = next(iter(group.pods.values()))
    world.cache.observe(Deleted(kind=PODS, object=lost))
    world.groups.remove_pod(lost.uid, world.now)
    world.show(a_pod("new", labels={GROUP_LABEL: "g"}, cpu="1"))
    world.until_quiet()
    assert world.whole() == ["g"]
    assert {pod.spec.node_name[0] for pod in group.pods.values()} == {"a"}


def test_affinity_to_each_other_finds_the_rack_and_one_that_fits_none_is_tried_once():
    world = Pipeline()
    for rack, used in (("r0", 2), ("r1", 0), ("r2", 1), ("r3", 3)):
        for place in range(4):
            name = f"{rack}n{place}"
            load = 4 if rack == "r1" and place < 2 else used
            world.nodes(name, rack=rack)
            if load:
                world.show(a_pod(f"load-{name}", cpu=str(load)), name)
    for name in "ab":
        world.gang(name, 12, affinity=together(**{GROUP_LABEL: name}))
    world.until_quiet()
    assert world.whole() == ["a"]
    assert (world.bound("b"), world.failed) == (0, 1)


@settings(max_examples=often(15), deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(2, 8), st.sampled_from(["500m", "1", "2"])), min_size=1, max_size=6),
    st.integers(1, 3),
    st.lists(st.integers(0, 5), max_size=3),
)
def test_no_gang_is_ever_partial_and_at_rest_none_that_waits_would_fit(cpus, gangs, scorers, ends):
    world = Pipeline(scorers=scorers)
    for number, cpu in enumerate(cpus):
        world.nodes(f"n{number}", cpu=cpu)
    for number, (count, cpu) in enumerate(gangs):
        world.gang(f"g{number}", count, cpu)
    world.until_quiet()
    none_fits(world, gangs)
    for number in ends:
        world.end(f"g{number}")
        world.until_quiet()
        none_fits(world, gangs)
    assert world.attempts <= 4 * len(gangs) * (len(ends) + 1) + len(gangs) ** 2


def none_fits(world: Pipeline, gangs: Sequence[tuple[int, str]]) -> None:
    for group in world.groups:
        if not world.bound(group.key.name):
            assert not plan_at_once(world.question(group), world.cache.snapshot, PROFILE).is_found
            group.is_in_flight = False
