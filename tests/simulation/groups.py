"""Groups in a run: who makes PodGroups and their members, controllers that remake members, and what must hold of them.

What a group needs is told from the API server's own objects. A binder is held to what its own cache shows.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from berth.api.kinds import COSCHEDULING_POD_GROUP, POD_GROUP
from berth.api.pod import Pod, bound_at
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
from berth.api.resources import counted, pod_requests
from berth.bus.interface import PubAck
from berth.bus.topology import PENDING
from berth.framework.profile import Profile
from berth.groups.planner import plan_at_once
from berth.groups.question import GroupQuestion
from berth.messages.groupattempts import GROUP_SUBJECT
from berth.messages.subjects import Attempt, Term, Uid
from berth_binder.cache import Cache
from berth_sim.apiserver.kinds import NODES, PERSISTENT_VOLUME_CLAIMS, PODS
from berth_sim.apiserver.resources import DeleteOptions
from berth_sim.apiserver.status import StatusError
from berth_sim.nodes import pod_manifest
from simulation.faults import GROUP_STOPPED
from simulation.loop import OWNER, SimulatedProcess
from simulation.patches import true_time
from simulation.truth import Truth, decoded, requests_of, simulated
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
CHECKED_SECONDS: Final = (1.0, 30.0)
"""A group whose volumes are there is begun so soon after it was checked; on a slow API server."""
REHEARSED_SECONDS: Final = 1.0
"""Bindings of a group that was rehearsed before a policy came have been sent after this time."""
SHARES: Final = (0.1, 0.4)
"""Of the groups: those whose PodGroup comes late, and those whose members come one after the other."""
STREAM: Final = 50
STREAM_SECONDS: Final = 0.1
"""Pods of a stream, and how long after each other they come."""
SLOW_SECONDS: Final = 0.2
"""In which requests and answers come to a slow API server, and back."""
WAITS_SECONDS: Final = 3.0
"""After which a group that has found no room backs off no more."""
RUNS_SECONDS: Final = (0.5, 3.0)
PAUSES_SECONDS: Final = (0.02, 0.1, 0.5)
"""How long a rival runs, and stays away."""
MOST_RIVALS: Final = 24
"""Cores of the largest cluster that rivals fill."""


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
    reserve: str = ""
    """CPU that its minResources ask for."""
    modest: str = ""
    """A member of lower priority than the others."""
    has_volumes: bool = False


@dataclass
class Rival:
    """A group that runs for some seconds, ends, and comes again after a pause."""

    gang: Gang
    runs_for: float
    pause: float
    whole_since: float | None = None
    ends: list[float] = field(default_factory=list)
    came_at: float = 0.0
    """When its PodGroup and the last of its members were made."""


class GroupUsers:
    """Acts on the API server directly, as ``ClusterUsers`` does."""

    def __init__(self, world: World, chance: random.Random, count: Callable[[str], None]) -> None:
        """``count`` notes what somebody does."""
        self._world = world
        self._chance = chance
        self._count = count
        self._resources = world.api.resources
        self._gangs: list[Gang] = []
        self._rivals: list[Rival] = []
        self._numbers = itertools.count(1)  # of groups: one that was deleted has a name that no other gets
        self._streams = 0
        self.is_api_slow = False
        """Whether small pods have come in a stream while requests took long."""
        self._pods = 0
        self.rooms: Callable[[], Mapping[str, list[float]]] = dict
        """By node, the cores, bytes and pods that are free."""
        self.add_claim: Callable[[str], object] = lambda _name: None
        self.ends_at = 0.0
        """When they do the last of what they are about to do."""
        self.forbidden: dict[GroupKey, tuple[str, float]] = {}
        """Fresh groups whose leader no Binding may bind: its name, and since when."""
        self._at_next_pending: list[Callable[[Gang], object]] = []
        world.bus.on_stored.append(self._on_stored)
        world.api.store.table(PODS).listeners[self._on_pod] = None

    def _touch(self, gang: Gang, what: str) -> None:
        self._count(what)
        self._world.note("users", what, f"{gang.key} {gang.minimum} of {len(gang.members)}")

    def _later(self, act: Any, *args: Any, after: float) -> None:
        self.ends_at = max(self.ends_at, self._world.now + after)
        self._world.in_world(act, *args, after=after)

    # --- what users do

    def add_gang(self) -> None:
        """A group of two to four members, all or all but one of which are needed."""
        chance, number = self._chance, next(self._numbers)
        size = chance.choice((2, 2, 3, 3, 4))
        gang = Gang(
            key=GroupKey(chance.choice(list(Dialect)), "default", f"g{number}"),
            cpu=chance.choice(("300m", "500m", "1", "1", "1500m")),
            minimum=size - (chance.random() < SHARES[1] and size > 2),
            zone=chance.random() < 0.25,
            priority=chance.choice(("", "", "", "middle", "high")),
            goes_as_one=chance.random() < 0.3,
            leader=f"g{number}-0" if chance.random() < 0.3 else "",
            members=[f"g{number}-{member}" for member in range(size)],
            remakes=chance.random() < 0.7,
            has_volumes=chance.random() < SHARES[0],
        )
        if gang.key.dialect is Dialect.COSCHEDULING and chance.random() < SHARES[0]:
            gang.reserve = chance.choice(("1", "2", "4"))
        if gang.priority and chance.random() < SHARES[1]:
            gang.modest = chance.choice(gang.members)
        self._begin(gang)

    def add_important_gang(self) -> None:
        """One for which others may be evicted."""
        gang = _small_gang(self._chance, next(self._numbers), 2, cpu=self._chance.choice(("500m", "1")))
        gang.priority = "high"
        self._begin(gang)

    def _begin(self, gang: Gang) -> None:
        chance = self._chance
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
        gang = self._chance.choice(fresh or [_small_gang(self._chance, next(self._numbers), 2, cpu="300m")])
        if not fresh:
            gang.leader = gang.members[0]
            self._begin(gang)
        self._forbid(gang)

    def _forbid(self, gang: Gang) -> None:
        self._touch(gang, "leader forbidden")
        key = (gang.key.namespace, gang.leader)
        self._world.api.forbidden.add(key)
        self.forbidden[gang.key] = gang.leader, self._world.now
        self._later(self._allow, gang, key, after=self._chance.uniform(3.0, 12.0))

    def _allow(self, gang: Gang, key: tuple[str, str]) -> None:
        self._world.api.forbidden.discard(key)
        self.forbidden.pop(gang.key, None)
        self._touch(gang, "leader allowed")

    def _is_begun(self, gang: Gang) -> bool:
        return any(map(self._is_bound, gang.members))

    def _is_bound(self, name: str) -> bool:
        stored = self._pod(name)
        return stored is not None and bool(stored.value["spec"].get("nodeName"))

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
        if gang is not None:
            self._change_minimum(gang, gang.minimum + self._chance.choice((-1, 1)))

    def _change_minimum(self, gang: Gang, minimum: int) -> None:
        if gang.key.dialect is not Dialect.COSCHEDULING:
            return
        kind = KINDS[gang.key.dialect]
        stored = self._world.api.store.table(kind).items.get(gang.key[1:])
        if stored is not None:
            gang.minimum = max(1, min(len(gang.members), minimum))
            self._touch(gang, "minimum changed")
            self._resources.update(kind, stored, {**stored.value, "spec": _spec(gang)}, "")

    def move_member(self) -> None:
        """Somebody writes the label of a group to a pod that waits, or takes it away."""
        self._move(self._world.api.store.table(PODS).in_order())

    def _move(self, pods: Iterable[Any]) -> None:
        keys = [gang.key for gang in self._gangs if gang.key.dialect is Dialect.COSCHEDULING]
        waiting = [
            stored
            for stored in pods
            if stored is not None
            and not stored.value["spec"].get("nodeName")
            and "schedulingGroup" not in stored.value["spec"]
        ]
        if not waiting or not keys:
            return
        stored, key = self._chance.choice(waiting), self._chance.choice([*keys, None])
        metadata = stored.value["metadata"]
        labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name != GROUP_LABEL}
        for gang in self._gangs:
            if stored.key[1] in gang.members:
                gang.members.remove(stored.key[1])
            if gang.key == key:
                gang.members.append(stored.key[1])
        self._count("pod named another group")
        self._world.note("users", "moved", f"{stored.key[1]} to {key}")
        moved = {**metadata, "labels": labels if key is None else {**labels, GROUP_LABEL: key.name}}
        self._resources.update(PODS, stored, {**stored.value, "metadata": moved}, "")

    def change_in_flight(self) -> None:
        """As soon as a group is published, somebody changes it, or a member of it."""
        acts = (self._move_member_of, self._raise_minimum, self._lower_minimum, self._delete_member_of)
        act, after = self._chance.choice(acts), self._chance.choice((0.0, 0.001, 0.002, 0.003))
        self._at_next_pending.append(lambda gang: self._later(act, gang, after=after))

    def relabel_in_flight(self) -> None:
        """As soon as a group is published, somebody writes another label to a member of it."""
        after = self._chance.choice((0.0, 0.001, 0.002, 0.003))
        self._at_next_pending.append(lambda gang: self._later(self._relabel, gang, after=after))

    def _relabel(self, gang: Gang) -> None:
        waiting = [name for name in gang.members if self._pod(name) is not None and not self._is_bound(name)]
        if waiting:
            stored = self._pod(self._chance.choice(waiting))
            self._touch(gang, "member labelled")
            metadata = stored.value["metadata"]
            labels = {**(metadata.get("labels") or {}), "run": f"{self._world.now:.3f}"}
            self._resources.update(PODS, stored, {**stored.value, "metadata": {**metadata, "labels": labels}}, "")

    def _on_stored(self, subject: str, _data: bytes, _headers: object, ack: PubAck) -> None:
        if ack.stream == PENDING and GROUP_SUBJECT in subject and not ack.duplicate and self._at_next_pending:
            gang = next((each for each in self._gangs if subject.endswith(f"{GROUP_SUBJECT}{each.key.name}")), None)
            if gang is not None:
                waiting, self._at_next_pending = self._at_next_pending, []
                for act in waiting:
                    act(gang)

    def _raise_minimum(self, gang: Gang) -> None:
        self._change_minimum(gang, len(gang.members))

    def _lower_minimum(self, gang: Gang) -> None:
        self._change_minimum(gang, gang.minimum - 1)

    def _move_member_of(self, gang: Gang) -> None:
        self._move(map(self._pod, gang.members))

    def _delete_member_of(self, gang: Gang) -> None:
        names = [name for name in gang.members if not self._is_bound(name)]
        if names:
            self._touch(gang, "member deleted")
            self._delete(self._chance.choice(names), 0)

    def lose_two(self) -> None:
        """A begun group loses two members, and its controller makes one again: its minimum never exists any more."""
        gangs = [gang for gang in self._gangs if len(gang.members) >= 3 and not gang.remakes and self._is_whole(gang)]
        if gangs:
            gang = self._chance.choice(gangs)
            self._touch(gang, "two members lost")
            for name in gang.members[-2:]:
                self._delete(name, 0)
            self._pods += 1
            gang.members.append(f"{gang.key.name}-r{self._pods}")
            self._make_member(gang, gang.members[-1])

    def add_large_gang(self) -> None:
        """Small members, more than a small window has slots for, beside a stream of pods at a slow API server."""
        size = self._chance.choice((4, 5, 6))
        for service in self._world.services:
            if service.role == "binder":
                self._world.network.link(service.process, "api").delay = SLOW_SECONDS
                self.is_api_slow = True
        self.add_stream()
        self._later(self._begin, _small_gang(self._chance, next(self._numbers), size, cpu="100m"), after=0.5)

    def add_stream(self) -> None:
        """Small pods come one after the other, and each is deleted after a while."""
        self._streams += 1
        self._count("stream of pods")
        for number in range(STREAM):
            self._later(self._make_small_pod, f"s{self._streams}-{number}", after=number * STREAM_SECONDS)

    def _make_small_pod(self, name: str) -> None:
        self._resources.create(PODS, "default", pod_manifest(name, cpu="50m", memory="64Mi", scheduler="berth"))
        self._later(self._delete, name, 0, after=2.0)

    def add_rivals(self) -> None:
        """Two groups of 60 %, each of which ends a while after it is whole, and comes again."""
        chance, room = self._chance, self._cores()
        size = int(room * 0.6) + 1
        if room < MOST_RIVALS and self._rivals == []:
            for _ in range(2):
                gang = _small_gang(chance, next(self._numbers), size, cpu="1")
                self._rivals.append(Rival(gang, chance.uniform(*RUNS_SECONDS), chance.choice(PAUSES_SECONDS)))
                self._begin(gang)
            self._later(self._look_at_rivals, 100, after=0.1)

    def _cores(self) -> int:
        """How many members of one core fit into the untainted nodes, if nothing else is there."""
        nodes = [stored.value for stored in self._world.api.store.table(NODES).in_order()]
        free = [node for node in nodes if not node["spec"].get("taints") and not node["spec"].get("unschedulable")]
        return sum(int(float(node["status"]["allocatable"]["cpu"])) for node in free)

    def _look_at_rivals(self, left: int) -> None:
        """End each that is whole for long enough, and let it come again."""
        for rival in self._rivals:
            pods = [stored.value for name in rival.gang.members if (stored := self._pod(name)) is not None]
            if len(pods) < rival.gang.minimum or not self._has_group(rival.gang):
                rival.came_at = self._world.now
            is_whole = sum(bool(pod["spec"].get("nodeName")) for pod in pods) >= rival.gang.minimum
            if not is_whole:
                rival.whole_since = None
            elif rival.whole_since is None:
                rival.whole_since = self._world.now
            elif self._world.now - rival.whole_since >= rival.runs_for:
                self._end_rival(rival)
        if left:
            self._later(self._look_at_rivals, left - 1, after=0.1)

    def _end_rival(self, rival: Rival) -> None:
        """It comes again; the other one, if it has waited for this and the run before, is starved."""
        self._touch(rival.gang, "rival ended")
        other = next(each for each in self._rivals if each is not rival)
        if self._world.is_calm and len(rival.ends) > 1 and other.came_at < rival.ends[-2] and other.whole_since is None:
            self._world.problem(f"group {other.gang.key} waits while {rival.gang.key} has run three times")
        rival.ends.append(self._world.now)
        rival.whole_since, names = None, rival.gang.members
        rival.gang.members = [f"{name}x" for name in names]
        for name in names:
            self._delete(name, 0)
        self._remove_group(rival.gang)  # else it would be a restart, which keeps its place
        self._later(self._make_group, rival.gang, after=rival.pause)
        for name in rival.gang.members:
            self._later(self._make_member, rival.gang, name, after=rival.pause)
        rival.came_at = self._world.now + rival.pause

    def lose_place(self) -> None:
        """A begun group loses a member while a fresh one, which would fit there, waits on a full cluster."""
        gang = _small_gang(self._chance, next(self._numbers), 2, cpu="300m")
        gang.remakes = True
        self._begin(gang)
        self._later(self._crowd, gang, after=0.7)

    def _crowd(self, gang: Gang) -> None:
        if not self._is_whole(gang) or any(
            name.startswith("filler") for _, name in self._world.api.store.table(PODS).items
        ):
            return
        self._touch(gang, "place lost")
        for node, (cpu, _, pods) in self.rooms().items():
            if cpu > 0 and pods > 0:
                self._fill(node, 0, cpu)
        fresh = _small_gang(self._chance, next(self._numbers), 2, cpu="150m")
        self._gangs.append(fresh)
        self._make_group(fresh)
        for name in fresh.members:
            self._make_member(fresh, name)
        self._later(self._lose_member, gang, self._chance.choice(gang.members), after=WAITS_SECONDS)

    def _fill(self, node: str, number: int, cpu: float) -> None:
        manifest = pod_manifest(
            f"filler-{node}-{number}", cpu=f"{int(cpu * 1000)}m", memory="1Mi", scheduler="other", priority_class="high"
        )
        stored = self._resources.create(PODS, "default", manifest)
        self._resources.store.put(
            PODS, stored.key, {**stored.value, "spec": {**stored.value["spec"], "nodeName": node}}
        )

    def _lose_member(self, gang: Gang, name: str) -> None:
        """Perhaps somebody else takes its place for a while."""
        stored = self._pod(name)
        if stored is None or not stored.value["spec"].get("nodeName"):
            return
        node, cpu = stored.value["spec"]["nodeName"], requests_of(stored.value)[0]
        self._touch(gang, "member lost")
        self._delete(name, 0)
        if self._chance.random() < SHARES[1]:
            self._fill(node, 99, cpu)
            self._later(self._delete, f"filler-{node}-99", 0, after=self._chance.uniform(11.0, 13.0))

    def _is_whole(self, gang: Gang) -> bool:
        return bool(gang.members) and all(map(self._is_bound, gang.members))

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
        if self._has_group(gang):
            self._resources.store.remove(KINDS[gang.key.dialect], gang.key[1:])

    def _has_group(self, gang: Gang) -> bool:
        return gang.key[1:] in self._world.api.store.table(KINDS[gang.key.dialect]).items

    def _make_member(self, gang: Gang, name: str) -> None:
        if gang not in self._gangs or name not in gang.members:
            return
        self._touch(gang, "member made")
        labels = {"app": self._chance.choice(("a", "b"))} if self._chance.random() < 0.2 else {}
        spec: dict[str, Any] = {"terminationGracePeriodSeconds": self._chance.choice((0, 1))}
        if gang.key.dialect is Dialect.COSCHEDULING:
            labels[GROUP_LABEL] = gang.key.name
        else:
            spec["schedulingGroup"] = {"podGroupName": gang.key.name}
        cpu = "1200m" if name == gang.leader else gang.cpu
        if gang.has_volumes and self._chance.random() < SHARES[1]:
            self.add_claim(f"claim-{name}")
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": f"claim-{name}"}}]
        priority = "low" if name == gang.modest else gang.priority
        manifest = pod_manifest(
            name, cpu=cpu, memory="64Mi", labels=labels, scheduler="berth", priority_class=priority, spec=spec
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


def _small_gang(chance: random.Random, number: int, size: int, *, cpu: str) -> Gang:
    """Equal members, all of which are needed and none of which is made again."""
    return Gang(
        key=GroupKey(chance.choice(list(Dialect)), "default", f"g{number}"),
        cpu=cpu,
        minimum=size,
        zone=False,
        priority="",
        goes_as_one=False,
        leader="",
        members=[f"g{number}-{member}" for member in range(size)],
        remakes=False,
    )


def _spec(gang: Gang) -> dict[str, Any]:
    if gang.key.dialect is Dialect.COSCHEDULING:
        return {"minMember": gang.minimum, **({"minResources": {"cpu": gang.reserve}} if gang.reserve else {})}
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
        self.last_act = last_act
        self._schedulers = schedulers
        self._evicted_at: dict[GroupKey, float] = {}
        self._waves: dict[tuple[str, GroupKey], float] = {}
        """By process and group, when it last sent a Binding of a member, by the loop's time."""
        world.api.store.table(PODS).listeners[self._on_pod] = None
        world.on_ended.append(self._on_ended)

    def _on_ended(self, process: SimulatedProcess) -> None:
        """A binder that ends in good time has sent all Bindings of the groups that it has begun."""
        cache = cache_of(process)
        if cache is None or not self._world.network.faults.keys() <= {GROUP_STOPPED}:
            return
        left = [each.pod for each in cache.assumed_pods.values() if group_of(each.pod) and not each.is_bound]
        for pod in left:
            if any(by == process.name and key == group_of(pod) for by, key in self._waves):
                self._world.problem(f"{process.name} ends before it has bound {pod.key}, whose group it has begun")

    # --- at each Binding

    def posting(self, pod: Pod, node: str, *, is_repeated: bool) -> None:
        """A group is not begun before enough members are assumed, by the binder's own cache (ADR 72)."""
        key, process = group_of(pod), OWNER.get()
        cache = cache_of(process)
        if key is None or cache is None:
            return
        group = cache.groups.get(key)
        if group is None:
            self._world.problem(f"{pod.key} is about to be bound, and the binder lacks its PodGroup {key}")
            return
        self._check_domain(group, node, cache)
        before = self._waves.get((process.name, key))
        self._waves[process.name, key] = self._world.loop.time()
        # A binder that was paused in a wave goes on with it.
        if before is not None and self._world.loop.time() - max(before, process.resumed_at) < WAVE_SECONDS:
            return
        if before is not None and is_repeated:
            return
        if any(each.process is process and each.life.stopping.is_set() for each in self._world.services):
            self._world.problem(f"{process.name} begins group {key} though it is to stop")
        members = Members.of(cache.groups.pods(key).values(), self._schedulers)
        placed = {each.uid: node for each in members.pending if (node := cache.snapshot.node_of(each.uid)) is not None}
        wanted = members.wanted(group)
        if len(placed) < wanted:
            self._world.problem(
                f"{pod.key} of group {key} is about to be bound with {len(placed)} members assumed, and "
                f"{wanted} are needed together"
            )
        if wanted:
            self._check_begin(group, members, placed, cache)

    def _check_domain(self, group: PodGroup, node: str, cache: Cache) -> None:
        """Members go where the bound ones are, if the topology is required: also those beyond the minimum."""
        zone = _zone_of(cache, node)
        bound = Members.of(cache.groups.pods(group.key).values(), self._schedulers).bound
        zones = {_zone_of(cache, pod.spec.node_name) for pod in bound} - {None}
        if group.topology is not None and group.topology.required and zones and zone not in zones:
            self._world.problem(f"a member of {group.key} is about to be bound in {zone}, and others are in {zones}")

    def _check_begin(self, group: PodGroup, members: Members, placed: Mapping[str, str], cache: Cache) -> None:
        """What must hold of all members together before the first of them is bound, by the binder's own cache."""
        pods = [pod for pod in members.pending if pod.uid in placed]
        ready = [pod for pod in pods if self._has_volumes(pod)]
        if len(ready) < members.wanted(group):
            self._world.problem(f"group {group.key} is begun, and {len(pods) - len(ready)} of its pods lack a volume")
        nodes = {*placed.values(), *(pod.spec.node_name for pod in members.bound)}
        zones = {_zone_of(cache, name) for name in nodes if _node_of(cache, name) is not None}
        if group.topology is not None and group.topology.required and not members.is_begun and len(zones) > 1:
            self._world.problem(f"group {group.key} is begun in {len(zones)} zones")
        for resource, amount in counted(group.min_resources).items():
            have = sum(pod_requests(pod.spec).amounts.get(resource, 0) for pod in (*members.bound, *pods))
            columns, size = cache.snapshot.columns, cache.snapshot.size
            free = columns.allocatable.of(resource)[:size] - columns.requested.of(resource)[:size]
            left = free[columns.exists[:size]].clip(min=0).sum()
            if amount - have > left and amount - have > left + self._taken_since(group.key, pods, cache, resource):
                self._world.problem(f"group {group.key} is begun without its minResources: {amount - have} of {left}")

    def _has_volumes(self, pod: Pod) -> bool:
        claims = self._world.api.store.table(PERSISTENT_VOLUME_CLAIMS).items
        names = (each.persistent_volume_claim for each in pod.spec.volumes or ())
        found = [claims.get((pod.metadata.namespace, each.claim_name)) for each in names if each is not None]
        return all(claim is not None and claim.value["spec"].get("volumeName") for claim in found)

    # --- at each change

    def _on_pod(self, change: Any) -> None:
        if change.after is None or not change.after.value["spec"].get("nodeName"):
            return
        if change.before is not None and change.before.value["spec"].get("nodeName"):
            return
        pod = decoded(change.after)
        key = None if pod is None else group_of(pod)
        if key is None:
            return
        leader, since = self._users.forbidden.get(key, ("", self._world.now))
        if self._world.now - since > REHEARSED_SECONDS and self._needs_all(key, leader):
            self._world.problem(f"{pod.key} is bound, and a policy denies the Binding of its group's leader")
        if self._world.is_calm:
            self._world.in_world(self._check_whole, key, self._world.now, after=WHOLE_SECONDS)

    def _needs_all(self, key: GroupKey, leader: str) -> bool:
        """Whether no member is more than the minimum, which somebody may have lowered, and the leader still is one."""
        group, names = self.groups().get(key), [pod.metadata.name for pod in self.pods_of(key)]
        return group is not None and group.minimum >= len(names) and leader in names

    def _taken_since(self, key: GroupKey, members: Iterable[Pod], cache: Cache, resource: str) -> int:
        """What others have taken since the group was checked: minResources are no promise, and volumes take long."""
        has_volumes = any(pod.spec.volumes for pod in members)
        since = true_time().timestamp() - CHECKED_SECONDS[self.is_api_slow or has_volumes]
        pods = filter(None, map(decoded, self._world.api.store.table(PODS).in_order()))
        bound = [pod for pod in pods if pod.spec.node_name and bound_at(pod) >= since]
        later = {each.uid: each for each in (*bound, *(assumed.pod for assumed in cache.assumed_pods.values()))}
        others = [pod for pod in later.values() if group_of(pod) != key]
        return sum(pod_requests(pod.spec).amounts.get(resource, 0) for pod in others)

    def _check_whole(self, key: GroupKey, bound_at: float) -> None:
        """Without a fault, and where nobody has meddled, a group stays partly bound for no longer than its Bindings."""
        group, members = self.groups().get(key), Members.of(self.pods_of(key), self._schedulers)
        if group is None or not members.wanted(group) or not members.is_begun:
            return
        if max(self.last_act(), self._evicted_at.get(key, 0.0)) < bound_at - WHOLE_SECONDS:
            self._world.problem(
                f"group {key} is partly bound for {WHOLE_SECONDS:g} s: {len(members.bound)} of {group.minimum}"
            )

    @property
    def is_api_slow(self) -> bool:
        return self._users.is_api_slow

    def evicted(self, victim: Pod) -> None:
        """A binder evicts the pod: its group is no longer as users have left it."""
        if (key := group_of(victim)) is not None:
            self._evicted_at[key] = self._world.now

    def goes_as_one(self, victim: Pod, now: Truth) -> None:
        """A victim's group that goes as one goes whole."""
        key = group_of(victim)
        group = None if key is None else self.groups().get(key)
        if group is not None and group.goes_as_one and self._world.is_calm:
            others = [pod.uid for pod in now.pods.values() if group_of(pod) == key and pod.spec.node_name]
            self._world.in_world(self._check_gone, group, others, after=WHOLE_SECONDS)

    def _check_gone(self, group: PodGroup, uids: Iterable[str]) -> None:
        left = set(uids) & {pod.uid for pod in Members.of(self.pods_of(group.key), self._schedulers).bound}
        if left:
            self._world.problem(f"a member of {group.key}, which goes as one, is evicted, and {len(left)} stay")

    # --- the end

    def groups(self) -> dict[GroupKey, PodGroup]:
        forms = (form_of(stored) for kind in KINDS.values() for stored in self._world.api.store.table(kind).in_order())
        return {form.key: form for form in forms}

    def fits(self, group: PodGroup, members: Members, truth: Truth) -> bool:
        """Whether one scheduler would place all that the group needs."""
        profile = self._world.fresh_profiles()["berth"]
        return plan_at_once(_question(group, members, members.wanted(group)), truth.snapshot, profile).is_found

    def in_need(self) -> Iterator[PodGroup]:
        """Groups whose minimum exists and is not bound."""
        for key, group in self.groups().items():
            members = Members.of(self.pods_of(key), self._schedulers)
            if members.wanted(group) and (members.is_begun or members.are_enough(group)):
                yield group

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

    def placeable(self, truth: Truth, profile: Profile, waits_for_volumes: Callable[[Pod], bool]) -> dict[str, str]:
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
                or any(map(waits_for_volumes, members.pending))
            ):
                continue
            if not members.is_begun and not members.are_enough(group):
                continue
            plan = plan_at_once(_question(group, members, wanted), truth.snapshot, profile)
            if plan.is_found:
                found[f"group {key}, {len(members.bound)} of {group.minimum} bound,"] = ", ".join(plan.nodes)
        return found

    def question_of(self, pod: Pod, process: SimulatedProcess) -> GroupQuestion | None:
        """The group of a member that is placed with others, by what the binder knows; None for others."""
        key, cache = group_of(pod), cache_of(process)
        group = cache.groups.get(key) if key is not None and cache is not None else None
        if cache is None or group is None or group.is_ordinary(pod_requests(pod.spec).amounts):
            return None
        members = cache.members_of(group.key)
        wanted = members.wanted(group)
        return _question(group, members, wanted) if wanted and members.pending else None

    def assumed(self, process: SimulatedProcess) -> dict[str, str]:
        """The members of groups that a binder has assumed, and where."""
        cache = cache_of(process)
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


def _node_of(cache: Cache, name: str) -> Any:
    row = cache.snapshot.rows.of(name)
    return None if row is None else cache.snapshot.node_at(row)


def _zone_of(cache: Cache, name: str) -> str | None:
    node = _node_of(cache, name)
    return None if node is None else (node.metadata.labels or {}).get(ZONE)


@lru_cache(maxsize=1024)
def form_of(stored: Any) -> PodGroup:
    """A PodGroup of either dialect."""
    found = decoded(stored)
    return of_coscheduling(found) if stored.kind is KINDS[Dialect.COSCHEDULING] else of_upstream(found)


def _question(group: PodGroup, members: Members, wanted: int) -> GroupQuestion:
    return GroupQuestion(
        group=group,
        attempt=Attempt(uid=Uid(group.uid), term=Term(1), n=1),
        members=members.pending,
        need=wanted,
        bound=[pod.uid for pod in members.bound],
    )


def cache_of(process: SimulatedProcess) -> Cache | None:
    """The binder's cache."""
    caches = [part for part in process.parts if isinstance(part, Cache)]
    return caches[-1] if caches else None
