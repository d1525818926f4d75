"""One seed: which cluster, which services, which faults and when; then a quiet time, and the judgement at its end."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import structlog

from berth.bus.settings import MEBIBYTE, TopologySettings
from berth.leader import clients
from berth.ranking.view import View
from berth.settings.settings import NatsSettings, Numbers
from berth_binder import apicalls
from berth_binder import service as binder_service
from berth_binder.cache import Cache
from berth_binder.core import BinderCore
from berth_binder.decisions.conflictcheck import ConflictCheck
from berth_metrics_collector import service as collector_service
from berth_scorer.backlog import Backlog
from berth_scorer.core import ScorerCore
from berth_scorer.effects import RankingPublisher
from berth_watcher import service as watcher_service
from berth_watcher.core import WatcherCore
from berth_watcher.queue import requeue
from simulation import patches
from simulation.cluster import ACTS, KINDS_OF_PODS, ClusterUsers
from simulation.configurations import SECOND, configuration
from simulation.devices import DeviceInvariants, DeviceUsers
from simulation.earmarks import EarmarkInvariants
from simulation.faults import (
    APART,
    CLAIMS_LATE,
    CLAIMS_LOST,
    FAULTS,
    GROUP_LOST,
    GROUP_STOPPED,
    HANDED_OVER,
    HOSTILE,
    HOSTILE_CLIENTS,
    STREAM_LOST,
    Faults,
)
from simulation.grouprules import GroupRules
from simulation.groups import GroupInvariants, GroupUsers
from simulation.invariants import Invariants
from simulation.loop import OWNER, START_SECONDS, STEP_SECONDS, TooManyStepsError
from simulation.rules import Rules
from simulation.truth import DEVICE_KINDS, GROUP_KINDS, READ_KINDS
from simulation.world import COLLECTOR, QuietLinks, SlowExtenders, World

QUIET_SECONDS: Final = 60.0
"""Within which every pod that fits must be bound after the last fault."""
MOST_STEPS: Final = 400_000
HARMLESS: Final = frozenset({"strangers' fences", "garbage on the bus"})
"""Faults that must end no leadership."""
PROMPT_SECONDS: Final = 25.0
"""The same in a run without any fault: two of the longest back-off, and a provisioner's time. Ten seconds after hostile
clients have gone, this holds as well."""
ROUGH_SECONDS: Final = 5.0
BUDGETED: Final = 0.2
"""Share of the runs with disruption budgets."""
STALLED: Final = "stalled, giving up the lead"
STALL_SECONDS: Final = 20.0
"""Later than this after the last fault nothing stands still: a stall that began with a fault has shown before."""
EVENT_BYTES: Final = 1024 * 1024
"""Bytes of each log of events in these runs: few pods fill them."""
EMPTY_SECONDS: Final = 75.0
"""After which nothing of deleted pods is left: two lifetimes of a proposal, and some."""


@dataclass(frozen=True, kw_only=True)
class Focus:
    """Between what a seed may choose. A mutation is looked for where it can show."""

    faults: tuple[str, ...] = tuple(name for name in FAULTS if name not in APART)
    fault_counts: tuple[int, ...] = (0, 1, 1, 2, 3, 5)
    acts: tuple[int, ...] = (0, 5, 15)
    nodes: tuple[int, int] = (3, 8)
    pods: tuple[int, int] = (3, 20)
    kinds: tuple[str, ...] = KINDS_OF_PODS
    things: tuple[str, ...] = tuple(ACTS)
    """What users do."""
    watchers: tuple[int, ...] = (1, 2, 2)
    binders: tuple[int, ...] = (1, 2, 2)
    scorers: tuple[int, ...] = (1, 1, 2, 2, 3, 4, 8)
    variants: tuple[str, ...] = ("one", "one", "two", "watcher only", "some scorers")
    window_floors: tuple[int, ...] = (2, 8, 64)
    in_flight: tuple[int, ...] = (1, 4, 32)
    habits: tuple[float, ...] = (0.0, 0.0, 0.0, 0.2)
    """Shares of the pods that are deleted as soon as they are nominated or bound."""
    rough: float = 0.1
    """Share of the runs whose services start on a bad network."""
    graces: tuple[int, ...] = (0, 1, 30)
    """How many seconds evicted pods take to go."""
    apart: float = 0.3
    """Share of the runs in which each process has clocks of its own."""
    warm_up: tuple[float, float] = (4.0, 4.0)
    """How long the services start and bind the first pods, in seconds."""
    seconds: tuple[float, float] = (20.0, 20.0)
    """In which users act and faults begin."""
    message_bytes: int = TopologySettings().message_bytes
    """The largest message that the bus takes."""
    stream_mebibytes: int = 0
    """The size of every stream and bucket; 0: as berth declares it."""
    deeds: tuple[str, ...] = ()
    """What hostile clients do, by name; empty: everything."""
    patient: float = 1.0
    """Share of the runs that wait until no fault has an effect any more; others end when nothing is left to do."""
    has_devices: bool = False
    gangs: tuple[int, int] = (0, 0)
    """How many groups there are from the begin."""
    earmark_seconds: tuple[int, ...] = ()
    """After which nodes are earmarked for a group that waits."""
    meddling: tuple[float, ...] = (0.0, 0.0, 0.3)
    """Shares of the pods with claims about which somebody changes his mind while they are being bound."""
    empties: int = 10
    """One run in so many deletes all pods at its end, and looks at what the services keep of them."""


MEDIUM: Final = Focus(patient=0.3)
SMALL: Final = Focus(
    fault_counts=(0, 1, 1, 2, 2, 3),
    acts=(0, 2, 4),
    nodes=(2, 5),
    pods=(2, 6),
    watchers=(1, 1, 1, 2),
    binders=(1, 1, 2),
    scorers=(1, 1, 2),
    window_floors=(1, 2, 64),
    warm_up=(0.5, 3.0),
    seconds=(1.0, 12.0),
    patient=0.1,
)
LARGE: Final = Focus(
    fault_counts=(3, 5, 8), acts=(15, 30), nodes=(6, 25), pods=(20, 60), scorers=(2, 4, 8), seconds=(20.0, 40.0)
)
VOLUMES: Final = replace(
    SMALL,
    kinds=("static", "static", "static", "volume", "plain"),
    things=("add_pod", "add_pod", "add_volume", "take_volume", "replace_pod", "delete_pod", "add_important_pod"),
)
"""Pods whose claims take volumes that are there, or wait until there is one."""
LARGE_OBJECTS: Final = replace(SMALL, kinds=("large", "large", "plain"), message_bytes=64 * 1024, pods=(4, 10))
"""Pods that are larger than what the bus takes, and such that are so with a message's other parts."""
DEVICES: Final = replace(
    SMALL,
    kinds=("device", "device", "device", "two claims", "shared", "shared", "template", "template", "extended", "plain"),
    things=(
        "add_pod", "add_three_pods", "replace_pod", "delete_pod", "finish_pod", "add_important_pod", "restart_driver",
        "replace_claim", "remove_node", "add_node", "change_node",
    ),
    faults=(*SMALL.faults, CLAIMS_LOST, CLAIMS_LATE, HANDED_OVER),
    pods=(3, 8),
    has_devices=True,
)  # fmt: skip
"""Few devices, which all pods want."""
GROUPS: Final = replace(
    SMALL,
    kinds=("plain", "plain", "selector", "tolerant", "gated"),
    things=(
        *("add_gang",) * 4, "delete_member", "delete_member", "finish_member", "delete_gang", "remake_group",
        "change_minimum", "forbid_leader", "forbid_leader", "add_pod", "delete_pod", "change_node", "add_node",
        "remove_node", "move_member", "change_in_flight", "change_in_flight", "add_large_gang", "add_rivals",
        "lose_place", "lose_two", "add_important_gang",
    ),
    faults=(*SMALL.faults, *(GROUP_LOST,) * 4, GROUP_STOPPED),
    acts=(0, 3, 6, 10),
    pods=(0, 3),
    gangs=(1, 3),
    variants=("one",),
)  # fmt: skip
"""Groups whose members want all of the nodes."""
ANOTHER_SCHEDULER: Final = replace(
    DEVICES, things=("add_pod", "add_pod", "take_device", "take_device", "delete_pod"), acts=(5, 10)
)
"""Somebody else gives the same devices."""
SMALLEST: Final = replace(
    SMALL,
    fault_counts=(0, 1, 1, 2),
    acts=(0, 1, 2, 3),
    nodes=(1, 3),
    pods=(1, 4),
    watchers=(1,),
    binders=(1,),
    scorers=(1,),
    warm_up=(0.3, 1.5),
    seconds=(0.5, 4.0),
    empties=50,
)
"""One process of each kind, a few pods, a fault or two. Such a run takes half of the time of a small one; to delete
all pods and wait would take four times as long.

What does not need several processes shows sooner: of 16 mutations that small runs or these find within 3 s of CPU, ten
are found sooner by these, one of them by these only; one alike; five later or not at all.
"""
LOST_STREAMS: Final = replace(
    SMALL,
    faults=(*SMALL.faults, *(STREAM_LOST,) * 10),
    fault_counts=(1, 2, 3),
)
"""Positions of one stream begin anew, among other faults."""
ATTACKS: Final = replace(
    SMALL,
    faults=("hostile scorer", "hostile scorer", *HOSTILE),
    fault_counts=(1, 1, 2),
    acts=(3, 6),
    nodes=(2, 4),
    pods=(4, 10),
    things=(*ACTS, "add_important_pod"),
    window_floors=(1, 2, 64),
    variants=("one", "two", "live", "live"),
    message_bytes=64 * 1024,
    stream_mebibytes=1,
    empties=6,
)
"""Stolen credentials, few slots in the window, and streams that are soon full."""
SIZES: Final = (
    *(SMALL,) * 34, *(MEDIUM,) * 5, LARGE, *(VOLUMES,) * 4, *(LARGE_OBJECTS,) * 2, *(LOST_STREAMS,) * 2,
    *(ATTACKS,) * 2, *(DEVICES,) * 3,
)  # fmt: skip
"""What seeds choose among: most runs are small, since a fault needs few pods to show, and many seeds.

What is added at the end leaves most seeds as they were.
"""


@dataclass
class Result:
    """What a seed showed."""

    seed: int
    problems: list[str]
    faults: dict[str, int]
    users: dict[str, int]
    bindings: int
    evictions: int
    outcomes: dict[str, int]
    events: dict[str, int]
    steps: int
    virtual_seconds: float
    cpu_seconds: float
    digest: str
    trace: list[str] = field(default_factory=list)


_current: list[tuple[World, Invariants | None]] = []


PARTS: Final = (WatcherCore, BinderCore, Cache, View, Backlog, ScorerCore, RankingPublisher)
"""What is looked at when nothing is left to do: its tables must be empty again."""


def _noting(part: type) -> Callable[..., None]:
    begin = part.__init__

    def noted(self: Any, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        OWNER.get().parts.append(self)

    return noted


@contextlib.contextmanager
def simulating() -> Iterator[None]:
    """Replace what has to be replaced once for any number of seeds."""
    send, evict, examined = apicalls.ApiRequests._send, apicalls.evict_pods, ConflictCheck.examine

    async def sent(self: Any, request: Any) -> Any:
        if (invariants := _current[0][1]) is not None:
            invariants.sending(request, self._client.seen)
        return await send(self, request)

    async def evict_pods(client: Any, effect: Any, *args: Any, **more: Any) -> Any:
        if (invariants := _current[0][1]) is not None:
            invariants.evicting(effect.pod, effect.node, list(effect.victims))
            _current[0][0].evicting()
        return await evict(client, effect, *args, **more)

    def examine(self: Any, ranked: Any, pod: Any) -> Any:
        world, invariants = _current[0]
        if invariants is not None and (client := world.client_of(OWNER.get())) is not None:
            invariants.examining(pod, client.seen)
        return examined(self, ranked, pod)

    def log(logger: Any, method: str, event: Any) -> Any:
        _current[0][0].log(logger, method, event)
        raise structlog.DropEvent

    apicalls.ApiRequests._send, apicalls.evict_pods = sent, evict_pods  # type: ignore[method-assign] - the same
    ConflictCheck.examine = examine  # type: ignore[method-assign] - it only looks on
    poller, collector_service.Poller = collector_service.Poller, QuietLinks  # type: ignore[misc,assignment]
    extenders, binder_service.Extenders = binder_service.Extenders, SlowExtenders  # type: ignore[misc,assignment]
    log_defaults = requeue.EventLog.__init__.__kwdefaults__
    event_bytes, log_defaults["max_bytes"] = log_defaults["max_bytes"], EVENT_BYTES
    kinds = clients.WATCHED_KINDS, watcher_service.WATCHED_KINDS
    # The other kinds have no objects in these clusters, and reading them takes a third of a run.
    clients.WATCHED_KINDS = watcher_service.WATCHED_KINDS = READ_KINDS
    beginnings = [(part, part.__init__) for part in PARTS]
    for part in PARTS:
        part.__init__ = _noting(part)
    logging.disable(logging.CRITICAL)
    try:
        with patches.simulated(log):
            yield
    finally:
        apicalls.ApiRequests._send, apicalls.evict_pods = send, evict  # type: ignore[method-assign]
        ConflictCheck.examine = examined  # type: ignore[method-assign]
        collector_service.Poller = poller  # type: ignore[misc]
        binder_service.Extenders = extenders  # type: ignore[misc]
        log_defaults["max_bytes"] = event_bytes
        for part, begin in beginnings:
            part.__init__ = begin
        clients.WATCHED_KINDS, watcher_service.WATCHED_KINDS = kinds
        logging.disable(logging.NOTSET)


def run_seed(seed: int, *, keep_trace: bool = False, focus: Focus | None = None) -> Result:
    """Run one seed, of any size unless a focus is given. Call it inside ``simulating``."""
    began = time.process_time()
    world = World(seed, keep_trace=keep_trace)
    world.loop.most_steps = MOST_STEPS
    _current[:] = [(world, None)]
    script = Script(world, focus)
    _current[:] = [(world, script.invariants)]
    try:
        script.run()
    except TooManyStepsError as error:
        world.problem(f"a service works without end: {error}")
    trace = [str(line) for line in world.trace]
    seconds, steps = world.now, world.loop.steps
    state = repr((steps, seconds, world.problems, script.invariants.bindings, world.api.store.revision))
    result = Result(
        seed=seed,
        problems=list(world.problems),
        faults=dict(world.network.faults),
        users=dict(script.users.counts),
        bindings=script.invariants.bindings,
        evictions=script.invariants.evictions,
        outcomes=dict(script.outcomes),
        events=dict(world.events),
        steps=steps,
        virtual_seconds=seconds,
        cpu_seconds=0.0,
        digest=hashlib.blake2b(state.encode(), digest_size=8).hexdigest(),
        trace=trace,
    )
    world.close()
    result.cpu_seconds = time.process_time() - began
    return result


class Script:
    """The course of one run."""

    def __init__(self, world: World, chosen: Focus | None) -> None:
        self.world = world
        self.chance = random.Random(world.chance.random())
        self.focus = focus = chosen or self.chance.choice(SIZES)
        world.bus.take_at_most(focus.message_bytes, focus.stream_mebibytes * MEBIBYTE)
        world.deeds = frozenset(focus.deeds)
        if focus.stream_mebibytes:
            world.nats = NatsSettings(ranked_mebibytes=focus.stream_mebibytes)
        self.users = ClusterUsers(
            world, random.Random(world.chance.random()), focus.kinds, self.chance.choice(focus.habits)
        )
        devices = None
        if focus.has_devices:
            meddling = world.chance.choice(focus.meddling)
            devices = DeviceUsers(world, random.Random(world.chance.random()), meddling)
        self.users.devices = devices
        groups = None
        if focus.gangs[1]:
            groups = GroupUsers(world, random.Random(world.chance.random()), self.users.count)
            groups.rooms, groups.add_claim = self.users.rooms, self.users.add_claim
        self.users.groups = groups
        of_run = (*(DEVICE_KINDS if focus.has_devices else ()), *(GROUP_KINDS if groups is not None else ()))
        world.read_kinds = (*READ_KINDS, *of_run)
        clients.WATCHED_KINDS = watcher_service.WATCHED_KINDS = world.read_kinds
        world.clocks_apart = self.chance.random() < focus.apart
        self.users.graces = focus.graces
        if self.chance.random() < focus.rough:
            world.rough_until = ROUGH_SECONDS
            self._later(ROUGH_SECONDS, world.smooth)
        self.faults = Faults(world, random.Random(world.chance.random()))
        world.numbers = Numbers(
            window_floor=self.chance.choice(focus.window_floors),
            max_in_flight_bindings=self.chance.choice(focus.in_flight),
            scorer_hold=self.chance.choice((2, 64)),
        )
        self.variant = self.chance.choice(focus.variants)
        if self.variant in ("live", "asked"):
            world.configuration = configuration(self.variant)
        elif self.variant != "one":
            world.configuration = configuration("two")
        schedulers = {"berth", SECOND} if self.variant in ("two", "some scorers") else {"berth"}
        self.invariants = Invariants(world, frozenset(schedulers))
        if devices is not None:
            self.invariants.devices = self.invariants.messages.devices = DeviceInvariants(world, devices)
        if groups is not None:
            self._judge_groups(groups, frozenset(schedulers))
        self.rules = Rules(world)
        self.outcomes = self.invariants.messages.outcomes
        self.planned = 0
        self.chosen: set[str] = set()
        """The faults of this run."""

    def _judge_groups(self, users: GroupUsers, schedulers: frozenset[str]) -> None:
        world = self.world
        judge = GroupInvariants(world, users, lambda: self.users.last_act, schedulers)
        self.invariants.groups = judge
        GroupRules(world, judge, schedulers)
        self.invariants.earmarks = EarmarkInvariants(world, judge)
        if self.focus.earmark_seconds:
            world.group_earmark_seconds = self.chance.choice(self.focus.earmark_seconds)

    def run(self) -> None:
        chance, world = self.chance, self.world
        self._add_cluster()
        pods = chance.randint(*self.focus.pods)
        self.users.add_pods(pods // 2)
        self._start_services()
        world.run_for(chance.uniform(*self.focus.warm_up))
        self.users.add_pods(pods - pods // 2)
        last = self._plan()
        if self.chosen & HOSTILE_CLIENTS.keys() and world.numbers.window_floor >= max(self.focus.window_floors):
            self._later(1.0, self._look_on)
        world.run_for(last + 0.1)
        world.run_for(max(0.0, self.faults.ends_at - world.now))
        while self.users.groups is not None and self.users.groups.ends_at > world.now:
            # At least a step: the loop's time, which is larger, may not have room for the difference.
            world.run_for(max(STEP_SECONDS, self.users.groups.ends_at - world.now))
        if chance.random() < self.focus.patient or "hostile collector" in self.chosen:
            world.run_for(max(0.0, self.faults.settled_at - world.now))
        self._look_at_samples()
        self._quiet()
        if self.chosen & {*HOSTILE}:
            for sentence in self.invariants.heavy():
                world.problem(sentence)
        if world.logged_at.get(STALLED, 0.0) > self.faults.settled_at + STALL_SECONDS:
            world.problem(f"{STALLED}: nothing was begun long after the last fault")
        if self.chosen <= HARMLESS and not world.rough_until and world.events["leading ended"]:
            world.problem("a leadership has ended though nothing had failed")
        if world.seed % self.focus.empties == 0 and not world.problems:
            self._empty()

    def _add_cluster(self) -> None:
        chance = self.chance
        for _ in range(chance.randint(*self.focus.nodes)):
            self.users.add_node()
        if chance.random() < BUDGETED:
            self.users.add_budgets()
        if self.users.groups is not None:
            for _ in range(chance.randint(*self.focus.gangs)):
                self.users.groups.add_gang()

    def _look_at_samples(self) -> None:
        """Ten seconds after the last hostile client has gone."""
        if self.variant == "live" and "hostile collector" in self.chosen and self.world.is_only_attacked:
            for sentence in self.invariants.wrong_samples():
                self.world.problem(f"10 s after a hostile collector has gone {sentence}")

    def _look_on(self) -> None:
        """Each second of an attack. Of a collector's, pods may wait: its samples are believed."""
        if self.world.hostile and "hostile collector" not in self.chosen:
            self.invariants.look_on()
        if self.world.now < self.faults.ends_at:
            self._later(1.0, self._look_on)

    def _start_services(self) -> None:
        chance, focus = self.chance, self.focus
        for role, counts in (("watcher", focus.watchers), ("binder", focus.binders), ("scorer", focus.scorers)):
            for number in range(chance.choice(counts)):
                knows_one = role == "scorer" and (
                    self.variant == "watcher only" or (self.variant == "some scorers" and number == 1)
                )
                chosen = (
                    configuration("one") if knows_one or (role == "binder" and self.variant == "watcher only") else None
                )
                self._later(chance.uniform(0.0, 1.0), self.world.start, role, chosen)
        if self.variant == "live":
            for _ in range(chance.choice((1, 1, 2))):
                self.world.start(COLLECTOR)

    def _plan(self) -> float:
        """Faults and what users do, at random times; returns when the last of them begins."""
        chance, last = self.chance, 0.0
        self.planned = chance.choice(self.focus.fault_counts)
        seconds = chance.uniform(*self.focus.seconds)
        self.world.is_calm = not self.planned and not self.world.rough_until
        self.world.is_only_attacked = not self.world.rough_until
        for _ in range(self.planned):
            at, name = chance.uniform(0.0, seconds), chance.choice(self.focus.faults)
            self._later(at, self.faults.act, name)
            self.chosen.add(name)
            self.world.is_only_attacked &= name in HOSTILE
            last = max(last, at)
        for _ in range(chance.choice(self.focus.acts)):
            at = chance.uniform(0.0, seconds)
            self._later(at, self.users.act, chance.choice(self.focus.things))
            last = max(last, at)
        return last

    def _later(self, seconds: float, act: Callable[..., object], *args: object) -> None:
        self.world.in_world(act, *args, after=seconds)

    def _quiet(self) -> None:
        """Nothing happens any more. The run is over when nothing is left to do, and too long after a minute."""
        world = self.world
        is_calm = not self.planned and not world.rough_until
        limit = PROMPT_SECONDS if is_calm or world.is_only_attacked else QUIET_SECONDS
        while world.now < self._last_event() + limit:
            world.run_for(1.0)
            if world.loop.time() >= world.network.late_until and self.invariants.is_done():
                return
        for sentence in self.invariants.left_to_do():
            self.world.problem(f"{limit:g} s after the last fault {sentence}")

    def _last_event(self) -> float:
        """When something last happened that the services did not do, in the world's seconds."""
        return max(
            self.users.last_act,
            self.users.devices.broken_at if self.users.devices is not None else 0.0,
            self.faults.settled_at,
            self.world.rough_until,
            self.world.network.late_until - START_SECONDS,
        )

    def _empty(self) -> None:
        """All pods are deleted: what the services keep of them goes too."""
        self.users.delete_everything()
        self.world.run_for(EMPTY_SECONDS)
        for sentence in self.invariants.kept():
            self.world.problem(f"{EMPTY_SECONDS:g} s after all pods were deleted {sentence}")
