"""Groups in a run: who makes PodGroups and their members, controllers that remake members, and what must hold of them.

What a group needs is told from the API server's own objects. A binder is held to what its own cache shows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from berth.api.kinds import COSCHEDULING_POD_GROUP, POD_GROUP
from berth.api.pod import Pod
from berth.api.podgroups import (
    GROUP_LABEL,
    TOPOLOGY_ANNOTATION,
    Dialect,
    GroupKey,
    Members,
    PodGroup,
    group_of,
    of_coscheduling,
    of_upstream,
)
from berth.framework.profile import Profile
from berth.groups.planner import plan_at_once
from berth.groups.question import GroupQuestion
from berth.messages.subjects import Attempt, Term, Uid
from berth_binder.cache import Cache
from berth_sim.apiserver.kinds import PODS
from berth_sim.apiserver.resources import DeleteOptions
from berth_sim.apiserver.status import StatusError
from berth_sim.nodes import pod_manifest
from simulation.loop import OWNER, SimulatedProcess
from simulation.truth import Truth, decoded, simulated
from simulation.world import World

KINDS: Final = {
    Dialect.COSCHEDULING: simulated(COSCHEDULING_POD_GROUP),
    Dialect.UPSTREAM: simulated(POD_GROUP),
}
ZONE: Final = "topology.kubernetes.io/zone"
REMADE_SECONDS: Final = (0.0, 2.0)
"""After which a controller makes a member again."""
WAVE_SECONDS: Final = 5.0
"""Bindings of one group that are sent within this time belong to one wave."""
WHOLE_SECONDS: Final = 5.0
"""How long a group stays partly bound where nothing has failed."""
REHEARSED_SECONDS: Final = 1.0
"""Bindings of a group that was rehearsed before a policy came have been sent after this time."""
SHARES: Final = (0.1, 0.4)
"""Of the groups: those whose PodGroup comes late, and those whose members come one after the other."""


@dataclass
class Gang:
    """A group as its users want it. ``members``: names that its controller keeps alive."""

    key: GroupKey
    cpu: str
    minimum: int
    zone: bool
    priority: str
    goes_as_one: bool
    leader: str
    """Its first member, which may be larger."""
    members: list[str]
    remakes: bool


class GroupUsers:
    """Acts on the API server directly, as ``ClusterUsers`` does."""

    def __init__(self, world: World, chance: random.Random, count: Callable[[str], None]) -> None:
        """``count`` notes what somebody does."""
        self._world = world
        self._chance = chance
        self._count = count
        self._resources = world.api.resources
        self._gangs: list[Gang] = []
        self._pods = 0
        self.forbidden: dict[GroupKey, float] = {}
        """Fresh groups whose leader no Binding may bind, and since when."""
        world.api.store.table(PODS).listeners[self._on_pod] = None

    def _touch(self, gang: Gang, what: str) -> None:
        self._count(what)
        self._world.note("users", what, f"{gang.key} {gang.minimum} of {len(gang.members)}")

    def _later(self, act: Any, *args: Any, after: float) -> None:
        self._world.in_world(act, *args, after=after)

    # --- what users do

    def add_gang(self) -> None:
        """A group of two to four members, all or all but one of which are needed."""
        chance, number = self._chance, len(self._gangs) + 1
        size = chance.choice((2, 2, 3, 3, 4))
        gang = Gang(
            key=GroupKey(chance.choice(list(Dialect)), "default", f"g{number}"),
            cpu=chance.choice(("300m", "500m", "1", "1", "1500m")),
            minimum=size - (chance.random() < SHARES[1] and size > 2),
            zone=chance.random() < 0.25,
            priority=chance.choice(("", "", "", "middle")),
            goes_as_one=chance.random() < 0.3,
            leader=f"g{number}-0" if chance.random() < 0.3 else "",
            members=[f"g{number}-{member}" for member in range(size)],
            remakes=chance.random() < 0.7,
        )
        self._gangs.append(gang)
        self._touch(gang, "group added")
        late = chance.uniform(0.0, 6.0) if chance.random() < SHARES[0] else 0.0
        self._later(self._make_group, gang, after=late)
        between = chance.uniform(0.0, 2.0) if chance.random() < SHARES[1] else 0.0
        for place, name in enumerate(gang.members):
            self._later(self._make_member, gang, name, after=place * between)

    def forbid_leader(self) -> None:
        """For a while a policy denies the Binding of a fresh group's leader, which is in a class of its own."""
        needed = [gang for gang in self._gangs if gang.leader in gang.members and gang.minimum == len(gang.members)]
        fresh = [gang for gang in needed if not self._is_begun(gang)]
        if fresh:
            gang = self._chance.choice(fresh)
            self._touch(gang, "leader forbidden")
            key = (gang.key.namespace, gang.leader)
            self._world.api.forbidden.add(key)
            self.forbidden[gang.key] = self._world.now
            self._later(self._allow, gang, key, after=self._chance.uniform(3.0, 12.0))

    def _allow(self, gang: Gang, key: tuple[str, str]) -> None:
        self._world.api.forbidden.discard(key)
        self.forbidden.pop(gang.key, None)
        self._touch(gang, "leader allowed")

    def _is_begun(self, gang: Gang) -> bool:
        pods = map(self._pod, gang.members)
        return any(stored is not None and stored.value["spec"].get("nodeName") for stored in pods)

    def _some_gang(self) -> Gang | None:
        return self._chance.choice(self._gangs) if self._gangs else None

    def delete_member(self) -> None:
        """A member is gone; its controller, if it has one, makes another in its place."""
        gang = self._some_gang()
        if gang is not None and gang.members:
            self._touch(gang, "member deleted")
            self._delete(self._chance.choice(gang.members), self._chance.choice((0, 0, None)))

    def finish_member(self) -> None:
        gang = self._some_gang()
        stored = None if gang is None else self._pod(self._chance.choice(gang.members or [""]))
        if gang is not None and stored is not None and stored.value["spec"].get("nodeName"):
            self._touch(gang, "member finished")
            gang.members.remove(stored.key[1])
            status = {**stored.value["status"], "phase": "Succeeded"}
            self._resources.store.put(PODS, stored.key, {**stored.value, "status": status})

    def delete_gang(self) -> None:
        """The job has ended: its pods go, and then its group."""
        gang = self._some_gang()
        if gang is not None:
            self._touch(gang, "group deleted")
            self._gangs.remove(gang)
            names, gang.members = gang.members, []
            for name in names:
                self._delete(name, 0)
            self._later(self._remove_group, gang, after=self._chance.choice((0.0, 1.0)))

    def remake_group(self) -> None:
        """A controller deletes the PodGroup under living pods, and makes it again, perhaps of another size."""
        gang = self._some_gang()
        if gang is not None:
            gang.minimum = max(1, min(len(gang.members), gang.minimum + self._chance.choice((-1, 0, 0, 1))))
            self._touch(gang, "group remade")
            self._remove_group(gang)
            self._later(self._make_group, gang, after=self._chance.choice((0.0, 0.02, 1.0)))

    def change_minimum(self) -> None:
        """Coscheduling's PodGroups change at any time."""
        gang = self._some_gang()
        if gang is None or gang.key.dialect is not Dialect.COSCHEDULING:
            return
        kind = KINDS[gang.key.dialect]
        stored = self._world.api.store.table(kind).items.get(gang.key[1:])
        if stored is not None:
            gang.minimum = max(1, min(len(gang.members), gang.minimum + self._chance.choice((-1, 1))))
            self._touch(gang, "minimum changed")
            self._resources.update(kind, stored, {**stored.value, "spec": _spec(gang)}, "")

    def delete_everything(self) -> None:
        self._gangs.clear()
        for kind in KINDS.values():
            for stored in list(self._world.api.store.table(kind).in_order()):
                self._resources.store.remove(kind, stored.key)

    # --- objects

    def _make_group(self, gang: Gang) -> None:
        if gang not in self._gangs:
            return
        metadata: dict[str, Any] = {"name": gang.key.name, "namespace": gang.key.namespace}
        if gang.zone and gang.key.dialect is Dialect.COSCHEDULING:
            metadata["annotations"] = {TOPOLOGY_ANNOTATION: ZONE}
        self._touch(gang, "PodGroup made")
        try:
            self._resources.create(
                KINDS[gang.key.dialect], gang.key.namespace, {"metadata": metadata, "spec": _spec(gang)}
            )
        except StatusError as error:
            self._world.note("users", "refused", error.message)

    def _remove_group(self, gang: Gang) -> None:
        kind = KINDS[gang.key.dialect]
        if gang.key[1:] in self._world.api.store.table(kind).items:
            self._resources.store.remove(kind, gang.key[1:])

    def _make_member(self, gang: Gang, name: str) -> None:
        if name not in gang.members:
            return
        self._touch(gang, "member made")
        labels = {"app": self._chance.choice(("a", "b"))} if self._chance.random() < 0.2 else {}
        spec: dict[str, Any] = {"terminationGracePeriodSeconds": self._chance.choice((0, 1))}
        if gang.key.dialect is Dialect.COSCHEDULING:
            labels[GROUP_LABEL] = gang.key.name
        else:
            spec["schedulingGroup"] = {"podGroupName": gang.key.name}
        cpu = "1200m" if name == gang.leader else gang.cpu
        manifest = pod_manifest(
            name, cpu=cpu, memory="64Mi", labels=labels, scheduler="berth", priority_class=gang.priority, spec=spec
        )
        job = {"apiVersion": "batch/v1", "kind": "Job", "name": gang.key.name, "uid": f"job-{gang.key.name}"}
        manifest["metadata"]["ownerReferences"] = [{**job, "controller": True}]
        try:
            self._resources.create(PODS, gang.key.namespace, manifest)
        except StatusError as error:
            self._world.note("users", "refused", error.message)

    def _on_pod(self, change: Any) -> None:
        """A controller makes a member again under another name."""
        if change.after is not None:
            return
        for gang in self._gangs:
            if change.key[1] in gang.members:
                gang.members.remove(change.key[1])
                if gang.remakes:
                    self._pods += 1
                    name = f"{gang.key.name}-r{self._pods}"
                    gang.members.append(name)
                    self._later(self._make_member, gang, name, after=self._chance.uniform(*REMADE_SECONDS))

    def _pod(self, name: str) -> Any:
        return self._world.api.store.table(PODS).items.get(("default", name))

    def _delete(self, name: str, grace: int | None) -> None:
        if self._pod(name) is not None:
            self._resources.delete(PODS, ("default", name), DeleteOptions(grace_seconds=grace))


def _spec(gang: Gang) -> dict[str, Any]:
    if gang.key.dialect is Dialect.COSCHEDULING:
        return {"minMember": gang.minimum}
    topology = {"schedulingConstraints": {"topology": [{"key": ZONE}]}} if gang.zone else {}
    mode = {"disruptionMode": "PodGroup"} if gang.goes_as_one else {}
    return {"schedulingPolicy": {"gang": {"minCount": gang.minimum}}, **topology, **mode}


class GroupInvariants:
    """What must hold of groups."""

    def __init__(
        self, world: World, users: GroupUsers, last_act: Callable[[], float], schedulers: frozenset[str]
    ) -> None:
        """``last_act``: when somebody last did something, in the world's seconds."""
        self._world = world
        self._users = users
        self._last_act = last_act
        self._schedulers = schedulers
        self._waves: dict[tuple[str, GroupKey], float] = {}
        """By process and group, when it last sent a Binding of a member."""
        world.api.store.table(PODS).listeners[self._on_pod] = None

    # --- at each Binding

    def posting(self, pod: Pod) -> None:
        """A group is not begun before enough members are assumed, by the binder's own cache (ADR 72)."""
        key, process = group_of(pod), OWNER.get()
        cache = _cache_of(process)
        if key is None or cache is None:
            return
        before = self._waves.get((process.name, key), -WAVE_SECONDS)
        self._waves[process.name, key] = self._world.now
        if self._world.now - before < WAVE_SECONDS:
            return
        group = cache.groups.get(key)
        if group is None:
            self._world.problem(f"{pod.key} is about to be bound, and the binder lacks its PodGroup {key}")
            return
        members = Members.of(cache.groups.pods(key).values(), self._schedulers)
        placed = {each.uid for each in members.pending if cache.snapshot.node_of(each.uid) is not None}
        if len(placed) < members.wanted(group):
            self._world.problem(
                f"{pod.key} of group {key} is about to be bound with {len(placed)} members assumed, and "
                f"{members.wanted(group)} are needed together"
            )

    # --- at each change

    def _on_pod(self, change: Any) -> None:
        if change.after is None or not change.after.value["spec"].get("nodeName"):
            return
        if change.before is not None and change.before.value["spec"].get("nodeName"):
            return
        pod = decoded(change.after)
        since = self._users.forbidden.get(group_of(pod)) if pod is not None else None
        if since is not None and self._world.now - since > REHEARSED_SECONDS:
            self._world.problem(f"{pod.key} is bound, and a policy denies the Binding of its group's leader")
        if self._world.is_calm and pod is not None and (key := group_of(pod)) is not None:
            self._world.in_world(self._check_whole, key, self._world.now, after=WHOLE_SECONDS)

    def _check_whole(self, key: GroupKey, bound_at: float) -> None:
        """Without a fault, and where nobody has meddled, a group stays partly bound for no longer than its Bindings."""
        group, members = self.groups().get(key), Members.of(self.pods_of(key), self._schedulers)
        if group is None or not members.need(group) or not members.is_begun:
            return
        if self._last_act() < bound_at - WHOLE_SECONDS:
            self._world.problem(
                f"group {key} is partly bound for {WHOLE_SECONDS:g} s: {len(members.bound)} of {group.minimum}"
            )

    # --- the end

    def groups(self) -> dict[GroupKey, PodGroup]:
        found: dict[GroupKey, PodGroup] = {}
        for dialect, kind in KINDS.items():
            form_of: Any = of_coscheduling if dialect is Dialect.COSCHEDULING else of_upstream
            for stored in self._world.api.store.table(kind).in_order():
                form = form_of(decoded(stored))
                found[form.key] = form
        return found

    def pods_of(self, key: GroupKey) -> Iterator[Pod]:
        for stored in self._world.api.store.table(PODS).in_order():
            pod = decoded(stored)
            if pod is not None and group_of(pod) == key:
                yield pod

    def is_single(self, pod: Pod, groups: Mapping[GroupKey, PodGroup]) -> bool:
        """Whether the pod is placed like one without a group, anywhere."""
        key = group_of(pod)
        if key is None:
            return True
        group = groups.get(key)
        return (
            group is not None
            and group.topology is None
            and not Members.of(self.pods_of(key), self._schedulers).need(group)
        )

    def placeable(self, truth: Truth, profile: Profile) -> dict[str, str]:
        """Groups that one scheduler would place now, and where: fresh ones, and the rest of begun ones."""
        found = {}
        for key, group in self.groups().items():
            members = Members.of(self.pods_of(key), self._schedulers)
            wanted = members.wanted(group)
            if (
                key in self._users.forbidden
                or not wanted
                or not members.pending
                or group.is_terminating
                or group.problems
            ):
                continue
            if not members.is_begun and not members.are_enough(group):
                continue
            plan = plan_at_once(_question(group, members, wanted), truth.snapshot, profile)
            if plan.is_found:
                found[f"group {key}, {len(members.bound)} of {group.minimum} bound,"] = ", ".join(plan.nodes)
        return found

    def question_of(self, pod: Pod, truth: Truth) -> GroupQuestion | None:
        """The group of a member that is placed with others, by what some process knows; None for others."""
        key = group_of(pod)
        group = self.groups().get(key) if key is not None else None
        if group is None:
            return None
        members = Members.of((each for each in truth.pods.values() if group_of(each) == key), self._schedulers)
        wanted = members.wanted(group)
        return _question(group, members, wanted) if wanted and members.pending else None

    def assumed(self, process: SimulatedProcess) -> dict[str, str]:
        """The members of groups that a binder has assumed, and where."""
        cache = _cache_of(process)
        if cache is None:
            return {}
        placed = ((uid, cache.snapshot.node_of(uid)) for uid, held in cache.assumed_pods.items() if group_of(held.pod))
        return {uid: node for uid, node in placed if node is not None}

    def uids(self, of: Iterable[str]) -> set[str]:
        """Members of the groups with these uids."""
        wanted = set(of)
        keys = {key for key, group in self.groups().items() if group.uid in wanted}
        pods = (decoded(stored) for stored in self._world.api.store.table(PODS).in_order())
        return {pod.uid for pod in pods if pod is not None and group_of(pod) in keys}


def _question(group: PodGroup, members: Members, wanted: int) -> GroupQuestion:
    return GroupQuestion(
        group=group,
        attempt=Attempt(uid=Uid(group.uid), term=Term(1), n=1),
        members=members.pending,
        need=wanted,
        bound=[pod.uid for pod in members.bound],
    )


def _cache_of(process: SimulatedProcess) -> Cache | None:
    caches = [part for part in process.parts if isinstance(part, Cache)]
    return caches[-1] if caches else None
