"""Groups of a run, which are bound whole or not at all: who makes them, and the controller that replaces lost members.

Always more are wanted than fit. Whenever nearly all room is taken, many end at the same moment, and as many new ones
want what becomes free. After the last fault no more are left than fit: each of them becomes whole.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from berth.api.podgroups import GROUP_LABEL
from faults.judge import PodState
from faults.workload import POOL, Workload, each
from faults.world import World, signalled
from harness.worlds.podgroups import podgroups_path

PER_NODE = 4
MEMBER_CPU = "250m"
SIZES = (2, 3, 4, 6, 9)
TOO_MANY = 1.5
"""Members that are wanted, for each place."""
NEARLY_ALL = 0.7
ENDING = 0.5
"""The share of the whole groups that end at once."""
LOOK_SECONDS = 0.1
BEGUN_SECONDS = 20.0
"""How long a fault waits for a group of which a part is bound."""
SIGKILL = 9
SLOW_SECONDS = 0.2
FEW_AT_ONCE = {"BERTH_NUMBERS_MAX_IN_FLIGHT_BINDINGS": "4"}
"""Three Bindings of groups at once: those of a group take several rounds."""


@dataclass(eq=False, kw_only=True)
class Gang:
    """A group and its members' names; all of them are its minimum."""

    name: str
    members: Sequence[str]


@dataclass(kw_only=True)
class Gangs:
    """Creates, replaces and ends; `chance` decides about each group."""

    work: Workload
    chance: random.Random
    nodes: list[str] = field(default_factory=list)
    wanted: list[Gang] = field(default_factory=list)
    ended: list[Gang] = field(default_factory=list)
    is_last_fault_over: bool = False
    kills_within: int = 0
    """How often a leading binder was killed while a part of a group was bound."""
    _numbers: itertools.count = field(default_factory=lambda: itertools.count(1))
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def room(self) -> int:
        """How many members fit."""
        return len(self.nodes) * PER_NODE

    async def prepare(self, count: int) -> None:
        """Create the nodes for at least so many members."""
        self.nodes = [f"gangs-{number:03}" for number in range(-(-count // PER_NODE))]
        await each([self.work.create_node(name, "1") for name in self.nodes])

    # --- users

    async def want(self) -> None:
        """Keep more wanted than fits until the last fault, and then no more than does."""
        while not self.is_last_fault_over:
            await self._replace_lost()
            while self._members() < self.room * TOO_MANY:
                await self._add()
            whole = [gang for gang in self.wanted if self._is_whole(gang)]
            if sum(len(gang.members) for gang in whole) >= self.room * NEARLY_ALL:
                ending = self.chance.sample(whole, max(1, int(len(whole) * ENDING)))
                await each([self.end(gang) for gang in ending])
            await asyncio.sleep(LOOK_SECONDS)
        for gang in sorted(self.wanted, key=lambda gang: len(self._bound(gang))):
            if self._members() > self.room:
                await self.end(gang)
        await self._replace_lost()

    def _members(self) -> int:
        return sum(len(gang.members) for gang in self.wanted)

    async def _add(self) -> None:
        number, size = next(self._numbers), self.chance.choice(SIZES)
        gang = Gang(name=f"gang-{number:05}", members=[f"gang-{number:05}-{one}" for one in range(size)])
        making = [self._create_group(gang), *(self._create_member(gang, name) for name in gang.members)]
        self.chance.shuffle(making)
        for made in making:
            await made
        self.wanted.append(gang)

    async def _create_group(self, gang: Gang) -> None:
        made = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": gang.name}}
        path = podgroups_path(self.work.world.user.namespace)
        await self.work.insist_created(path, {**made, "spec": {"minMember": len(gang.members)}})

    async def _create_member(self, gang: Gang, name: str) -> None:
        pod = self.work.pod(name, {"nodeSelector": {POOL: "gangs"}}, cpu=MEMBER_CPU)
        pod["metadata"].setdefault("labels", {})[GROUP_LABEL] = gang.name
        await self.work.create(pod)

    async def end(self, gang: Gang) -> None:
        """End its pods for good."""
        async with self._lock:
            if gang not in self.wanted:
                return
            self.wanted.remove(gang)
            self.ended.append(gang)
            await self._until_known(gang.members)
            await self.work.delete_pods(gang.members)
            await self._delete_group(gang)

    async def _until_known(self, names: Sequence[str]) -> None:
        # The judge must know whose deletion it sees.
        while not {_short(pod) for pod in self._pods()}.issuperset(names):  # noqa: ASYNC110 - etcd's history has no event
            await asyncio.sleep(LOOK_SECONDS)

    async def _delete_group(self, gang: Gang) -> None:
        path, api = podgroups_path(self.work.world.user.namespace), self.work.world.user.api
        await self.work.insist(lambda: api.delete(f"{path}/{gang.name}"))

    async def _replace_lost(self) -> None:
        """As a Job's controller."""
        async with self._lock:
            living = {_short(pod) for pod in self._pods() if not pod.left_at}
            known = {_short(pod) for pod in self._pods()}
            lost = [(gang, name) for gang in self.wanted for name in gang.members if name in known - living]
            await each([self._create_member(gang, name) for gang, name in lost])

    # --- what is seen of them

    def _pods(self) -> list[PodState]:
        return [pod for pod in self.work.world.judge.pods.values() if _short(pod).startswith("gang-")]

    def _bound(self, gang: Gang) -> set[str]:
        names = set(gang.members)
        return {name for pod in self._pods() if pod.node and not pod.left_at and (name := _short(pod)) in names}

    def _is_whole(self, gang: Gang) -> bool:
        return len(self._bound(gang)) == len(gang.members)

    def is_begun(self) -> bool:
        """Whether a part of some group is bound."""
        return any(0 < len(self._bound(gang)) < len(gang.members) for gang in self.wanted)

    def problems(self) -> list[str]:
        """Groups of which a member was bound before there were as many members as its minimum, or that are partial."""
        found = [
            f"{gang.name} is bound in part: {sorted(self._bound(gang))}" for gang in self.wanted if self._is_part(gang)
        ]
        of_gang: dict[str, list[PodState]] = {}
        for pod in self._pods():
            of_gang.setdefault(_short(pod).rpartition("-")[0], []).append(pod)
        for gang in (*self.wanted, *self.ended):
            pods = of_gang.get(gang.name, [])
            first = min((pod.bound_at for pod in pods if pod.bound_at), default=None)
            if first is None:
                continue
            # berth may overlook for a moment that somebody deletes members.
            since = first - self.work.world.judge.lag(first)
            there = len({_short(pod) for pod in pods if pod.created_at <= first and not 0 < pod.left_at <= since})
            if there < len(gang.members):
                found.append(f"{gang.name} was begun when {there} of {len(gang.members)} members were there")
        return found

    def _is_part(self, gang: Gang) -> bool:
        return 0 < len(self._bound(gang)) < len(gang.members)


def _short(pod: PodState) -> str:
    return pod.name.rpartition("/")[2]


# --- faults


async def kill_binder_within_a_group(gangs: Gangs, world: World, chance: random.Random, seconds: float) -> None:
    """Kill -9 of the leading binder as soon as a part of a group is bound. Bindings are slow, so that it is noticed."""
    end = asyncio.get_running_loop().time() + BEGUN_SECONDS
    pid = await world.leader("binder")
    for site in world.sites:
        site.api.delay(SLOW_SECONDS)
    try:
        with world.judge.blind(5.0):
            while asyncio.get_running_loop().time() < end:
                if gangs.is_begun():
                    gangs.kills_within += pid is not None and signalled(pid, SIGKILL)
                    return
                await asyncio.sleep(0.002)
    finally:
        for site in world.sites:
            site.api.heal()


async def delete_members(gangs: Gangs, world: World, chance: random.Random, seconds: float) -> None:
    """Some members are lost, whose controller makes others of their names."""
    names = [name for gang in chance.sample(gangs.wanted, len(gangs.wanted) // 4 + 1) for name in gang.members[::2]]
    known = {_short(pod) for pod in gangs._pods() if not pod.left_at}
    await gangs.work.delete_pods([name for name in names if name in known])


async def cordon_node(gangs: Gangs, world: World, chance: random.Random, seconds: float) -> None:
    """A node with members takes no new pods for a while."""
    node = chance.choice(gangs.nodes)
    await gangs.work.cordon(node, unschedulable=True)
    await asyncio.sleep(seconds)
    await gangs.work.cordon(node, unschedulable=False)


async def remake_groups(gangs: Gangs, world: World, chance: random.Random, seconds: float) -> None:
    """PodGroups are deleted under living pods, and made again with other uids."""
    async with gangs._lock:
        for gang in chance.sample(gangs.wanted, len(gangs.wanted) // 4 + 1):
            await gangs._delete_group(gang)
            await gangs._create_group(gang)
