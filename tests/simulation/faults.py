"""The faults that a seed may choose: each happens at its time, and what lasts ends by itself."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from berth.api.podgroups import group_of
from berth.bus.admin import NAMED_IN_POSITIONS
from berth.bus.topology import PENDING, RANKED
from berth.errors import BerthError
from berth_sim.apiserver.kinds import LEASES, NODES, PODS
from berth_sim.apiserver.resources import DeleteOptions
from simulation.devices import CLAIMS, devices_of, users_of
from simulation.hostile import be_hostile
from simulation.intruders import Intruder
from simulation.loop import SimulatedProcess
from simulation.network import Link
from simulation.truth import decoded
from simulation.world import Service, World

STREAM_LOST: Final = "NATS lost a stream"
HOSTILE_CLIENTS: Final = {
    "hostile scorer": "scorer",
    "hostile collector": "collector",
    "hostile writer of facts": "facts",
    "hostile shadow": "shadow",
    "hostile person": "people",
}
"""The user of the credential that is stolen."""
INTRUDERS: Final = {"hostile kubelet": "kubelet", "hostile tenant": "tenant"}
HOSTILE: Final = (*HOSTILE_CLIENTS, *INTRUDERS)
CLAIMS_LOST: Final = "claims lost in mid-air"
CLAIMS_LATE: Final = "claims seen late"
HANDED_OVER: Final = "binder hands over"
RESERVED_LOST: Final = "binder and node lost with a claim"
GROUP_LOST: Final = "binder lost within a group"
GROUP_STOPPED: Final = "SIGTERM within a group"
APART: Final = frozenset(
    {STREAM_LOST, CLAIMS_LOST, CLAIMS_LATE, HANDED_OVER, RESERVED_LOST, GROUP_LOST, GROUP_STOPPED, *HOSTILE}
)
"""Faults that seeds choose only where they are asked for: most seeds stay as they were."""
FEWEST_NODES: Final = 2
LONGEST_PAUSE_SECONDS: Final = 40.0
LONGEST_ATTACK: Final = 45.0
AFTERMATH_SECONDS: Final = {
    "binder lost in mid-air": 20.0,
    GROUP_LOST: 20.0,
    CLAIMS_LOST: 20.0,
    "Bindings late": 30.0,
    "API cut off": 40.0,
    "half-open watches": 40.0,
    "API answers lost": 30.0,
    "bus answers lost": 30.0,
    "deliveries forgotten": 30.0,
    **dict.fromkeys(HOSTILE, 10.0),
}
"""How long a fault may have effects after it has been withdrawn."""


class Faults:
    """Makes faults in one world. ``act`` returns for how many seconds the fault lasts."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self.ends_at = 0.0
        """When the last of them is withdrawn, in the world's seconds."""
        self.settled_at = 0.0
        """When the last of them has no effect any more: what was late has arrived, what is silent has been noticed."""

    def act(self, name: str) -> None:
        """Make this fault now."""
        self._world.network.count(name)
        lasts = FAULTS[name](self)
        self._world.note("fault", name, f"for {lasts:.1f} s")
        ends_at = self._world.now + lasts
        self.ends_at = max(self.ends_at, ends_at)
        self.settled_at = max(self.settled_at, ends_at + AFTERMATH_SECONDS.get(name, 0.0))

    def _some(self, *roles: str) -> Service | None:
        found = [
            each for each in self._world.services if (not roles or each.role in roles) and not each.process.is_paused
        ]
        return self._chance.choice(found) if found else None

    def _later(self, seconds: float, callback: Callable[..., object], *args: object) -> float:
        self._world.in_world(callback, *args, after=seconds)
        return seconds

    # --- processes

    def kill(self) -> float:
        """kill -9 of one process; it starts again."""
        service = self._some()
        return self._kill(service) if service is not None else 0.0

    def _kill(self, service: Service) -> float:
        world = self._world
        world.note(service.process.name, "killed", "")
        world.forget(service)
        return self._later(self._chance.uniform(0.1, 3.0), world.start, service.role, service.configuration)

    def kill_all(self) -> float:
        return max((self._kill(each) for each in list(self._world.services)), default=0.0)

    def stop(self) -> float:
        """SIGTERM of one process; it starts again."""
        service = self._some()
        if service is None:
            return 0.0
        self._world.note(service.process.name, "SIGTERM", "")
        service.life.stopping.set()
        return 5.0

    def pause(self) -> float:
        """SIGSTOP, and SIGCONT later."""
        service = self._some()
        if service is None:
            return 0.0
        process, seconds = service.process, self._chance.choice((1.0, 5.0, 12.0, 18.0, 20.0, LONGEST_PAUSE_SECONDS))
        process.is_paused = True
        self._world.note(process.name, "paused", f"for {seconds} s")
        return self._later(seconds, self._resume, process)

    def _resume(self, process: SimulatedProcess) -> None:
        if not process.is_dead:
            self._world.note(process.name, "resumed", "")
            self._world.loop.resume(process)

    def lost_in_mid_air(self) -> float:
        """The leading binder is paused or killed, its Bindings on the way: they arrive when the next one leads."""
        leaders = [each for each in self._world.services if each.role == "binder" and each.life.health.is_working]
        if not leaders:
            return 0.0
        service, seconds = leaders[0], self._chance.uniform(0.1, 2.0)
        self._world.network.link(service.process, "api").held_bindings = True
        self._later(seconds, self._end_in_mid_air, service)
        return seconds + LONGEST_PAUSE_SECONDS

    def late_bindings(self) -> float:
        """For a while, Bindings arrive after their client has given up."""
        seconds = self._chance.uniform(2.0, 8.0)
        for service in self._world.services:
            if service.role == "binder":
                link = self._world.network.link(service.process, "api")
                link.late_bindings = True
                self._later(seconds, _mend, link)
        return seconds

    def _end_in_mid_air(self, service: Service) -> None:
        self._world.network.link(service.process, "api").held_bindings = False
        if self._chance.random() < 0.3:
            self.bus_wiped()
        if service.process.is_dead or service.process.is_paused:
            return
        if self._chance.random() < 0.5:
            self._kill(service)
        else:
            service.process.is_paused = True
            self._world.note(service.process.name, "paused", "")
            self._later(self._chance.uniform(16.0, LONGEST_PAUSE_SECONDS), self._resume, service.process)

    def lost_within_a_group(self) -> float:
        """The next binder that has bound a member of a group is killed or paused, its other Bindings on the way."""
        return self._once_begun(self._lose_within_a_group) + LONGEST_PAUSE_SECONDS

    def _lose_within_a_group(self, service: Service) -> None:
        if self._chance.random() < 0.7:
            self._world.network.link(service.process, "api").held_bindings = True
        self._later(self._chance.choice((0.0, 0.002, 0.02)), self._end_in_mid_air, service)

    def stopped_within_a_group(self) -> float:
        """SIGTERM of the next binder that has bound a member of a group; without other faults it binds the others."""
        return self._once_begun(self._stop_within_a_group) + 10.0

    def _stop_within_a_group(self, service: Service) -> None:
        self._world.note(service.process.name, "SIGTERM", "")
        service.life.stopping.set()

    def _once_begun(self, act: Callable[[Service], object]) -> float:
        """Act on the leading binder right after the first Binding of a group that has more to send."""
        pods = self._world.api.store.table(PODS)

        def on_pod(change: Any) -> None:
            after, before = change.after, change.before
            is_bound = after is not None and after.value["spec"].get("nodeName")
            if not is_bound or (before is not None and before.value["spec"].get("nodeName")):
                return
            leaders = [each for each in self._world.services if each.role == "binder" and each.life.health.is_working]
            if group_of(decoded(after)) is not None and leaders and not leaders[0].process.is_paused:
                pods.listeners.pop(on_pod, None)
                self._later(0.0, act, leaders[0])

        pods.listeners[on_pod] = None
        return self._later(20.0, pods.listeners.pop, on_pod, None)

    def claims_lost_in_mid_air(self) -> float:
        """As ``lost_in_mid_air``, once something is on its way; then some of the pods that wait are deleted."""
        leaders = [each for each in self._world.services if each.role == "binder" and each.life.health.is_working]
        if not leaders:
            return 0.0
        self._world.network.link(leaders[0].process, "api").held_bindings = True
        self._later(0.1, self._end_once_held, leaders[0], 100)
        return 10.0 + LONGEST_PAUSE_SECONDS

    def late_claims(self) -> float:
        """What binders hear of claims comes late: from now on, or as soon as a claim is reserved."""
        seconds = self._chance.uniform(2.0, 12.0)
        if self._chance.random() < 0.5:
            self._delay_claims(seconds)
            return seconds
        return self._once_reserved(lambda: self._delay_claims(2.0)) + 2.0

    def hand_over(self) -> float:
        """SIGTERM of the leading binder as soon as it has reserved a claim, of which the next one hears late."""
        self._delay_claims(20.0)
        return self._once_reserved(self._stop_leader) + 20.0

    def lose_reserved(self) -> float:
        """kill -9 of the leading binder as soon as it has reserved a claim, whose node goes before the pod is bound."""
        return self._once_reserved(self._lose_leader_and_node) + 20.0

    def _lose_leader_and_node(self) -> None:
        for service in list(self._world.services):
            if service.role == "binder" and service.life.health.is_working:
                self._kill(service)
        self._later(self._chance.uniform(0.0, 2.0), self._lose_node_of_a_claim)

    def _stop_leader(self) -> None:
        for service in self._world.services:
            if service.role == "binder" and service.life.health.is_working:
                service.life.stopping.set()

    def _once_reserved(self, act: Callable[[], object]) -> float:
        """Act right after the next reservation of a claim, if there is one in time."""
        claims = self._world.api.store.table(CLAIMS)

        def on_claim(change: Any) -> None:
            before = users_of(change.before.value) if change.before is not None else []
            if change.after is not None and len(users_of(change.after.value)) > len(before):
                claims.listeners.pop(on_claim, None)
                self._later(self._chance.choice((0.0, 0.002, 0.01)), act)

        claims.listeners[on_claim] = None
        return self._later(10.0, claims.listeners.pop, on_claim, None)

    def _delay_claims(self, seconds: float) -> None:
        for service in self._world.services:
            if service.role == "binder":
                link = self._world.network.link(service.process, "api")
                link.slow_kinds["resourceclaims"] = self._chance.choice((0.1, 1.0, 3.0, 10.0))
                self._later(seconds, link.slow_kinds.pop, "resourceclaims", None)

    def _end_once_held(self, service: Service, left: int) -> None:
        if left and not self._world.network.held:
            self._later(0.1, self._end_once_held, service, left - 1)
            return
        self._end_in_mid_air(service)
        for stored in self._world.api.store.table(PODS).in_order():
            if not stored.value["spec"].get("nodeName") and self._chance.random() < 0.5:
                self._later(self._chance.uniform(0.0, 15.0), self._delete_pod, stored.key)
        if self._chance.random() < 0.5:
            self._later(self._chance.uniform(0.0, 15.0), self._lose_node_of_a_claim)

    def _lose_node_of_a_claim(self) -> None:
        """A node goes whose devices are given."""
        claims, nodes = self._world.api.store.table(CLAIMS), self._world.api.store.table(NODES)
        given = {device[1] for stored in claims.in_order() for device in devices_of(stored.value)}
        names = sorted(name for _, name in nodes.items if name in given)
        if names and len(nodes.items) > FEWEST_NODES:
            self._world.api.resources.store.remove(NODES, ("", self._chance.choice(names)))

    def _delete_pod(self, key: tuple[str, str]) -> None:
        if key in self._world.api.store.table(PODS).items:
            self._world.api.resources.delete(PODS, key, DeleteOptions(grace_seconds=0))

    # --- strangers

    def garbage(self) -> float:
        """Somebody publishes messages that are none, to every stage and bucket."""
        for subject in (*(f"berth.{stage}.berth.default.evil" for stage in ("pending", "ranked", "decision")), *FACTS):
            self._put(subject, self._chance.choice(GARBAGE))
        return 1.0

    def hostile(self, user: str) -> float:
        """Somebody has a user's credential, and does harm with it for a while."""
        world, chance = self._world, random.Random(self._chance.random())
        process = world.start_hostile(lambda bus: be_hostile(bus, user, chance, self._steal, world.deeds))
        seconds = self._chance.choice((15.0, 15.0, 15.0, LONGEST_ATTACK))
        return self._later(self._chance.uniform(1.0, seconds), world.end_client, process)

    def intrude(self, kind: str) -> float:
        """Somebody harms through the API server: with a node, or with pods."""
        end = Intruder(self._world, random.Random(self._chance.random())).begin(kind)
        return self._later(self._chance.uniform(1.0, 15.0), end)

    def _steal(self, attempt: str) -> None:
        self._world.stolen.add(attempt)
        self._world.touched[attempt.partition(".")[0]] = self._world.now

    def _put(self, subject: str, data: bytes) -> None:
        with contextlib.suppress(BerthError):
            self._world.bus._store.store(subject, data, {})

    def strangers_fence(self) -> float:
        """Somebody writes a fence with a high number into the status of some pods."""
        resources = self._world.api.resources
        for stored in self._world.api.store.table(PODS).in_order():
            if self._chance.random() < 0.3:
                fence = {"type": "berth/fence", "status": "True", "reason": "Fence", "message": "999999"}
                status = {**stored.value["status"], "conditions": [fence]}
                resources.update(PODS, stored, {**stored.value, "status": status}, "status")
        return 1.0

    # --- the network

    def cut_bus(self) -> float:
        """One process's connection to NATS is half open, and lost after a while."""
        service = self._some()
        if service is None:
            return 0.0
        world, seconds = self._world, self._chance.uniform(1.0, 20.0)
        link = world.network.link(service.process, "bus")
        link.is_cut = True
        noticed = self._later(self._chance.uniform(0.5, 8.0), self._lose_sessions, service)
        return max(noticed, self._later(max(seconds, noticed), _mend, link))

    def _lose_sessions(self, service: Service) -> None:
        for session in self._world.bus.sessions_of(service.process):
            session.lose("the connection was lost")

    def cut_api(self) -> float:
        """One process does not reach the API server; its watches are half open."""
        service = self._some("watcher", "binder")
        if service is None:
            return 0.0
        link = self._world.network.link(service.process, "api")
        link.is_cut = True
        self._break_watches(service.process)
        self._perhaps_compact()
        return self._later(self._chance.uniform(1.0, 25.0), _mend, link)

    def half_open_watches(self) -> float:
        """Watches of one process become silent; requests pass."""
        service = self._some("watcher", "binder")
        if service is None:
            return 0.0
        self._break_watches(service.process)
        self._perhaps_compact()
        return 1.0

    def _perhaps_compact(self) -> None:
        """etcd is compacted before the watches are noticed to be silent: what has happened meanwhile is in no watch."""
        if self._chance.random() < 0.5:
            self._later(self._chance.uniform(1.0, 25.0), self._world.api.store.compact)

    def _break_watches(self, process: SimulatedProcess) -> None:
        for stream in list(self._world.api.watches):
            if stream.process is process and self._chance.random() < 0.7:
                stream.break_silently()

    def lossy(self, server: str, roles: tuple[str, ...]) -> float:
        """For a while, requests of some processes or their answers are lost, or late."""
        seconds = self._chance.uniform(2.0, 20.0)
        for service in list(self._world.services):
            if service.role in roles and self._chance.random() < 0.7:
                link = self._world.network.link(service.process, server)
                link.lost = self._chance.choice((0.05, 0.2, 0.5))
                self._later(seconds, _mend, link)
        return seconds

    def slow(self) -> float:
        """For a while, what servers send to some processes is late by different times: orders differ."""
        seconds = self._chance.uniform(5.0, 20.0)
        for service in list(self._world.services):
            for server in ("api", "bus"):
                if self._chance.random() < 0.5:
                    link = self._world.network.link(service.process, server)
                    link.slow_messages = self._chance.choice((0.05, 0.5, 3.0))
                    self._later(seconds, _mend, link)
        return seconds + 3.0

    def scorers_behind(self) -> float:
        """For a while scorers read old news only, and answer at once."""
        seconds = self._chance.uniform(5.0, 20.0)
        for service in list(self._world.services):
            if service.role == "scorer":
                link = self._world.network.link(service.process, "bus")
                link.slow_readers = self._chance.choice((1.0, 4.0, 10.0))
                self._later(seconds, _mend, link)
        return seconds + 10.0

    def watchers_behind(self) -> float:
        """For a while the watcher learns late of nodes, or of pods, and of all else at once."""
        seconds, kind = self._chance.uniform(5.0, 20.0), self._chance.choice(("nodes", "nodes", "pods"))
        for service in list(self._world.services):
            if service.role == "watcher":
                link = self._world.network.link(service.process, "api")
                link.slow_kinds[kind] = self._chance.choice((2.0, 6.0))
                self._later(seconds, _mend, link)
        return seconds + 6.0

    # --- the servers

    def refusals(self) -> float:
        """For a while the API server answers writes with 429, 500 and 503."""
        self._world.api.refusing = self._chance.choice((0.2, 0.6, 1.0))
        return self._later(self._chance.uniform(1.0, 12.0), self._accept)

    def _accept(self) -> None:
        self._world.api.refusing = 0.0

    def refused_and_deleted(self) -> float:
        """The API server refuses all writes, and the pods that waited meanwhile are deleted."""
        self._world.api.refusing = 1.0
        seconds = self._chance.uniform(1.0, 8.0)
        self._later(seconds - 0.01, self._delete_unbound)
        return self._later(seconds, self._accept)

    def _delete_unbound(self) -> None:
        for stored in list(self._world.api.store.table(PODS).in_order()):
            if not stored.value["spec"].get("nodeName"):
                self._world.api.resources.store.remove(PODS, stored.key)

    def lease_deleted(self) -> float:
        """Somebody deletes a Lease: for a moment two lead."""
        self._world.is_meddled = True
        self._delete_lease(self._chance.choice(("watcher", "binder")))
        return 1.0

    def usurped(self) -> float:
        """A binder takes over slowly; its Lease is deleted meanwhile, and another one takes over faster."""
        world = self._world
        standing_by = [each for each in world.services if each.role == "binder" and not each.life.health.is_working]
        if not standing_by:
            return 0.0
        slow = self._chance.choice(standing_by)
        bus, api = world.network.link(slow.process, "bus"), world.network.link(slow.process, "api")
        bus.delay, bus.slow_readers, api.delay = 0.1, 10.0, 0.7
        world.is_meddled = True
        for service in list(world.services):
            if service.role == "binder" and service is not slow and service not in standing_by:
                self._kill(service)
        world.network.on_leading.append(
            lambda: self._later(self._chance.uniform(0.0, 0.5), self._delete_lease, "binder")
        )
        self._later(30.0, _mend, api)
        return self._later(30.0, _mend, bus)

    def paused_while_evicting(self) -> float:
        """The next binder that evicts pods is paused between two of its requests, for longer than its Lease."""
        self._world.on_evicting.append(
            lambda process: self._later(self._chance.uniform(0.0, 0.006), self._pause, process)
        )
        return LONGEST_PAUSE_SECONDS

    def _pause(self, process: SimulatedProcess) -> None:
        if process.is_dead or process.is_paused:
            return
        process.is_paused = True
        self._world.note(process.name, "paused", "")
        seconds = self._later(self._chance.uniform(16.0, LONGEST_PAUSE_SECONDS), self._resume, process)
        self.ends_at = max(self.ends_at, self._world.now + seconds)
        self.settled_at = max(self.settled_at, self.ends_at)

    def _delete_lease(self, role: str) -> None:
        for stored in list(self._world.api.store.table(LEASES).in_order()):
            if stored.key[1].endswith(role):
                self._world.api.resources.store.remove(LEASES, stored.key)

    def api_restart(self) -> float:
        api = self._world.api
        api.is_down = True
        api.cut_watches()
        return self._later(self._chance.uniform(0.5, 8.0), self._api_up)

    def _api_up(self) -> None:
        self._world.api.is_down = False

    def compact(self) -> float:
        """etcd is compacted: watches that were cut have to list again."""
        self._world.api.store.compact()
        self._world.api.cut_watches()
        return 1.0

    def cut_watches(self) -> float:
        self._world.api.cut_watches()
        return 1.0

    def bus_restart(self) -> float:
        self._world.bus.stop()
        return self._later(self._chance.uniform(0.2, 10.0), self._world.bus.start)

    def bus_wiped(self) -> float:
        """NATS loses its store."""
        self._world.bus.stop()
        self._world.bus.wipe()
        return self._later(self._chance.uniform(0.2, 5.0), self._world.bus.start)

    def stream_lost(self) -> float:
        """NATS loses one of the streams whose positions messages name."""
        self._world.bus.stop()
        self._world.bus.lose_stream(self._chance.choice(NAMED_IN_POSITIONS))
        return self._later(self._chance.uniform(0.2, 5.0), self._world.bus.start)

    def deliveries_forgotten(self) -> float:
        """For a while consumers count what they deliver as acknowledged, as after a kill; the streams hold it."""
        streams = self._chance.choice(((PENDING,), (PENDING, RANKED)))
        self._world.bus.forgetting = dict.fromkeys(streams, self._chance.choice((0.1, 0.5)))
        return self._later(self._chance.uniform(0.5, 5.0), self._world.bus.forgetting.clear)

    def disk_full(self) -> float:
        self._world.bus.is_full = True
        return self._later(self._chance.uniform(1.0, 15.0), self._has_room)

    def _has_room(self) -> None:
        self._world.bus.is_full = False


NESTED: Final = b"[" * 2000 + b"]" * 2000
GARBAGE: Final = (
    b"", b"\xff\xfe", b"null", b"[]", b'{"schema":1}', NESTED, b'{"schema":1,"attempt":"x.1.1","pod":' + NESTED + b"}",
    b'{"schema":1,"attempt":"evil.' + b"9" * 4000 + b'.1","profile":"berth"}',
)  # fmt: skip
FACTS: Final = ("$KV.facts.load.n1", "$KV.bandwidth.q.n1", "$KV.facts." + "x" * 200)


def _mend(link: Link) -> None:
    link.is_cut = link.late_bindings = False
    link.delay = Link.delay
    link.slow_kinds.clear()
    link.lost = link.slow_messages = link.slow_readers = 0.0


FAULTS: Final[dict[str, Callable[[Faults], float]]] = {
    "kill -9": Faults.kill,
    "kill -9 of all": Faults.kill_all,
    "SIGTERM": Faults.stop,
    "pause": Faults.pause,
    "paused while evicting": Faults.paused_while_evicting,
    "binder lost in mid-air": Faults.lost_in_mid_air,
    CLAIMS_LOST: Faults.claims_lost_in_mid_air,
    CLAIMS_LATE: Faults.late_claims,
    HANDED_OVER: Faults.hand_over,
    RESERVED_LOST: Faults.lose_reserved,
    "Bindings late": Faults.late_bindings,
    GROUP_LOST: Faults.lost_within_a_group,
    GROUP_STOPPED: Faults.stopped_within_a_group,
    "strangers' fences": Faults.strangers_fence,
    "garbage on the bus": Faults.garbage,
    "bus cut off": Faults.cut_bus,
    "API cut off": Faults.cut_api,
    "half-open watches": Faults.half_open_watches,
    "API answers lost": lambda faults: faults.lossy("api", ("watcher", "binder")),
    "bus answers lost": lambda faults: faults.lossy("bus", ("watcher", "binder", "scorer")),
    "slow messages": Faults.slow,
    "scorers behind": Faults.scorers_behind,
    "watchers behind": Faults.watchers_behind,
    "API refuses writes": Faults.refusals,
    "API refuses, pods deleted": Faults.refused_and_deleted,
    "Lease deleted": Faults.lease_deleted,
    "binder usurped": Faults.usurped,
    "API restarted": Faults.api_restart,
    "etcd compacted": Faults.compact,
    "watches cut": Faults.cut_watches,
    "NATS restarted": Faults.bus_restart,
    "NATS lost its store": Faults.bus_wiped,
    "NATS's disk full": Faults.disk_full,
    "deliveries forgotten": Faults.deliveries_forgotten,
    STREAM_LOST: Faults.stream_lost,
    **{name: partial(Faults.intrude, kind=kind) for name, kind in INTRUDERS.items()},
    **{name: partial(Faults.hostile, user=user) for name, user in HOSTILE_CLIENTS.items()},
}
