"""One run: a cluster, a bus, and the shipped services on them, under one loop and one seed."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Self
from zlib import crc32

from berth.api.config.configuration import KubeSchedulerConfiguration
from berth.api.kinds import Kind
from berth.api.pod import Pod
from berth.clock import Clock
from berth.errors import BerthError
from berth.framework.interface import Nomination
from berth.framework.preemption import Evictions
from berth.framework.profile import Profile
from berth.lifecycle.peers import Peers
from berth.lifecycle.process import Process
from berth.messages.livedata import NodeSample
from berth.profiles.configuration import profiles_of
from berth.ranking.ranker import Ranker
from berth.settings.settings import NatsSettings, Numbers, Settings
from berth_binder import service as binder_service
from berth_binder.settings import binder_settings
from berth_metrics_collector import service as collector_service
from berth_metrics_collector.nodenames import MirroredNodes
from berth_metrics_collector.poller import MatchedSamples, TrafficMeasurement
from berth_metrics_collector.prometheus import Prometheus
from berth_metrics_collector.samples import NodeSamples
from berth_metrics_collector.service import MeasuredQuery
from berth_metrics_collector.settings import CollectorSettings, traffic_queries_of
from berth_scorer import service as scorer_service
from berth_sim.apiserver.kinds import NAMESPACES, NODES, PODS, PRIORITY_CLASSES
from berth_sim.nodes import Kubelet, KubeletSettings
from berth_watcher import service as watcher_service
from berth_watcher.settings import watcher_settings
from simulation import patches
from simulation.api import SimulatedApiServer, SimulatedClient
from simulation.bus import Endpoint, SimulatedBus
from simulation.configurations import configuration
from simulation.loop import OWNER, START_SECONDS, WORLD_CONTEXT, SimulatedProcess, VirtualLoop
from simulation.network import Network
from simulation.truth import READ_KINDS

LAST_SECONDS: Final = 20.0
"""How long cancelled services take to end."""
EVENT_CHARACTERS: Final = 60
LOST_AT_START: Final = 0.05
SLOW_AT_START: Final = 3.0
"""Share of the requests of a process that starts on a bad network; seconds by which what it mirrors is late."""
WALL_SECONDS: Final = 30.0
"""How far a wall clock may be off."""
STEADY_SECONDS: Final = 1e6
"""How long ago a machine may have started before the others."""
HOSTILE: Final = "hostile"
COLLECTOR: Final = "metrics-collector"
ANSWER_SECONDS: Final = 0.3
"""How long an extender takes to answer, at most."""
POLL: Final = timedelta(seconds=5)
"""Between two rounds of the collector."""
SCRAPE: Final = timedelta(seconds=15)
MAXIMUM_AGE: Final = timedelta(minutes=5)
"""Between two scrapes of a node: no new one is what ends what somebody else has written."""
WITHOUT_API: Final = ("scorer", COLLECTOR)


class SilentMeter:
    """Counts nothing."""

    def count(self, *_args: Any, **_labels: Any) -> None: ...

    def set(self, *_args: Any, **_labels: Any) -> None: ...

    def clear(self, *_args: Any) -> None: ...

    def observe(self, *_args: Any, **_labels: Any) -> None: ...


class QuietLinks:
    """What Prometheus says in these clusters, in place of the collector's Poller: no link is busy.

    Each collector has a server of its own, which scrapes a third of the nodes never, and the others every 15 s.
    """

    def __init__(self, *_args: Any, **_more: Any) -> None:
        self._left_out = random.randrange(3)
        self._offset = timedelta(seconds=random.uniform(0.0, SCRAPE.total_seconds()))

    async def poll(self, nodes: MirroredNodes) -> MatchedSamples:
        now = patches.true_time()
        sampled_at = now - (now - patches.EPOCH + self._offset) % SCRAPE
        sample = NodeSample(receive=1e6, transmit=1e6, capacity=1.25e8, sampled_at=sampled_at)
        measured = (name for name in sorted(nodes.names.names) if crc32(name.encode()) % 3 != self._left_out)
        return MatchedSamples(found=NodeSamples(samples=dict.fromkeys(measured, sample)))


class SlowExtenders:
    """Extenders that keep every eviction, in place of HTTP: it takes a while until they have said so."""

    def __init__(self, *_args: Any, **_more: Any) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def ask_about_evictions(self, _pod: Pod, candidates: Sequence[Nomination], _victims: object) -> Evictions:
        await asyncio.sleep(random.uniform(0.01, ANSWER_SECONDS))
        return Evictions(left=tuple(candidates))


class ProcessClock(Clock):
    """The monotonic clock of one process."""

    def __init__(self, process: SimulatedProcess, loop: VirtualLoop) -> None:
        self._process = process
        self._loop = loop

    def now(self) -> float:
        return self._loop.time() + self._process.steady_offset

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:  # type: ignore[override] - one frame less
        return asyncio.sleep(seconds)


@dataclass(eq=False)
class Service:
    """A service that is running: its process, and what it is made of."""

    role: str
    process: SimulatedProcess
    life: Process
    client: SimulatedClient | None
    configuration: KubeSchedulerConfiguration
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TraceLine:
    """Something that happened."""

    seconds: float
    who: str
    what: str
    particulars: str

    def __str__(self) -> str:
        return f"{self.seconds:9.3f}  {self.who:<12} {self.what:<14} {self.particulars}"


class World:
    """The parts of a run. The script creates objects, starts services and makes faults."""

    read_kinds: tuple[Kind[Any], ...] = READ_KINDS
    """What the services of the run read."""
    group_earmark_seconds = 0

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:  # noqa: PLR0915 - the parts of a run
        self.seed = seed
        self.chance = random.Random(seed)
        random.seed(seed)
        self.loop = VirtualLoop()
        self.loop.on_error = lambda error: self.problem(f"a callback of {OWNER.get().name} has raised {error!r}")
        patches.use(self.loop)
        self.network = Network(loop=self.loop, chance=random.Random(self.chance.random()))
        self.api = SimulatedApiServer(self.loop, self.network, patches.true_time)
        self.bus = SimulatedBus(self.loop, self.network)
        self.keep_trace = keep_trace
        self.trace: list[TraceLine] = []
        self.problems: list[str] = []
        self.events: Counter[str] = Counter()
        """How often the services have logged what: which of their ways were taken."""
        self.services: list[Service] = []
        self.processes: list[SimulatedProcess] = []
        self.started: dict[str, int] = {}
        self.restarts = True
        self.on_ended: list[Callable[[SimulatedProcess], object]] = []
        """Called when a service ends without an error."""
        self.on_evicting: list[Callable[[SimulatedProcess], object]] = []
        """Called once, when a binder begins to evict pods."""
        self.rough_until = 0.0
        """Until then processes start with a connection to NATS that loses requests, or with a mirror that lags."""
        self.stolen: set[str] = set()
        """Attempts whose message of PENDING a hostile client has got: no rule of berth's services binds it."""
        self.hostile = 0
        """How many hostile clients are there now."""
        self.deeds: frozenset[str] = frozenset()
        """What hostile clients do; empty: everything."""
        self.touched: dict[str, float] = {}
        """By uid, when a hostile client last got a message about the pod, or published one."""
        self.is_calm = False
        """Whether the run has no fault."""
        self.is_only_attacked = False
        """Whether the run has no other faults than hostile clients, kubelets and tenants."""
        self.clocks_apart = False
        """Whether each process has a clock of its own."""
        self.is_meddled = False
        """Whether somebody has deleted a Lease: then two may lead for a moment."""
        self.logged_at: dict[str, float] = {}
        """When a line was last logged, in the run's seconds."""
        self.configuration = configuration("one")
        self.numbers = Numbers()
        self.nats = NatsSettings()
        """Of all services of the run."""
        for name in ("default", "kube-system", "berth"):
            self.api.resources.create(NAMESPACES, "", {"metadata": {"name": name}})
        for name, value in (("low", 0), ("middle", 1000), ("high", 100_000)):
            body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"}
            self.api.resources.create(PRIORITY_CLASSES, "", body)
        self.kubelet = Kubelet(self.api.resources, KubeletSettings())
        self.in_world(self.kubelet.start)
        self.run_for(0)

    # --- time

    @property
    def now(self) -> float:
        """Seconds since the start of the run."""
        return self.loop.time() - START_SECONDS

    def smooth(self) -> None:
        """The network is good again."""
        for link in self.network.links.values():
            link.lost = link.slow_mirror = 0.0

    def in_world(self, callback: Callable[..., object], *args: Any, after: float = 0.0) -> None:
        """Call back later, on behalf of no process."""
        self.loop.in_world(after, callback, *args)

    def run_for(self, seconds: float) -> None:
        self.loop.run_until(self.loop.time() + seconds)

    def note(self, who: str, what: str, particulars: str) -> None:
        if self.keep_trace:
            self.trace.append(TraceLine(seconds=self.now, who=who, what=what, particulars=particulars))

    def problem(self, sentence: str) -> None:
        """An invariant does not hold."""
        self.note("INVARIANT", "broken", sentence)
        self.problems.append(f"{self.now:.3f} s: {sentence}")

    def log(self, _logger: Any, method: str, event: dict[str, Any]) -> Any:
        """A log line of a service; the processor of structlog while runs last."""
        name = str(event.get("event"))[:EVENT_CHARACTERS].split(":")[0]
        self.events[name] += 1
        self.logged_at[name] = self.now
        if name == "leading" and OWNER.get().name.startswith("binder"):
            self.network.release()
        if self.keep_trace:
            text = " ".join(f"{key}={value!r}" for key, value in event.items() if key not in ("event", "exc_info"))
            self.note(OWNER.get().name, method, f"{event.get('event')} {text}")

    # --- services

    def start(self, role: str, chosen: KubeSchedulerConfiguration | None = None) -> Service:
        """Start one more process of a service."""
        number = self.started[role] = self.started.get(role, 0) + 1
        process = SimulatedProcess(f"{role}-{number}")
        if self.clocks_apart:
            process.wall_offset = self.chance.uniform(-WALL_SECONDS, WALL_SECONDS)
            process.steady_offset = self.chance.uniform(0.0, STEADY_SECONDS)
        self.processes.append(process)
        self.network.link(process, "api"), self.network.link(process, "bus")
        if self.now < self.rough_until:
            link = self.network.link(process, "bus")
            link.lost, link.slow_mirror = self.chance.choice(((LOST_AT_START, 0.0), (0.0, SLOW_AT_START)))
        context = WORLD_CONTEXT.copy()
        context.run(OWNER.set, process)
        service = context.run(self._make, role, process, chosen or self.configuration)
        self.services.append(service)
        self.note(process.name, "started", "")
        return service

    def start_hostile(self, work: Callable[[Endpoint], Coroutine[Any, Any, None]]) -> SimulatedProcess:
        """Start a client of the bus with a stolen credential; ``end_client`` ends it."""
        self.hostile += 1
        process = SimulatedProcess(HOSTILE)
        self.processes.append(process)
        self.network.link(process, "bus")
        context = WORLD_CONTEXT.copy()
        context.run(OWNER.set, process)
        endpoint = self.bus.endpoint(process)
        context.run(self.loop.create_task, self._until_it_fails(work(endpoint)), name=HOSTILE)
        return process

    async def _until_it_fails(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except* BerthError:
            pass

    def is_served_to_hostile(self) -> bool:
        """Whether NATS carries out the request of a hostile client."""
        return self.bus.serving is not None and self.bus.serving.name == HOSTILE

    def end_client(self, process: SimulatedProcess) -> None:
        self.hostile -= 1
        process.is_dead = True
        for session in self.bus.sessions_of(process):
            session.lose("the process is gone")

    def _make(self, role: str, process: SimulatedProcess, configuration: KubeSchedulerConfiguration) -> Service:
        life = Process(
            name=role,
            metrics=SilentMeter(),
            settings=Settings(
                identity=process.name,
                numbers=self.numbers,
                nats=self.nats,
                group_earmark_seconds=self.group_earmark_seconds,
            ),
            clock=ProcessClock(process, self.loop),
            peers=Peers(service=role, identity=process.name),
        )
        client = SimulatedClient(self.api, process) if role not in WITHOUT_API else None
        service = Service(role=role, process=process, life=life, client=client, configuration=configuration)
        work = getattr(self, f"_{role.removeprefix('metrics-')}")(service, configuration)
        self.loop.create_task(self._live(service, configuration, work), name=process.name)
        return service

    def _watcher(self, service: Service, configuration: KubeSchedulerConfiguration) -> Coroutine[Any, Any, None]:
        settings = watcher_settings(service.life.settings, configuration)
        endpoint = self.bus.endpoint(service.process)
        return watcher_service.serve(endpoint, service.client, service.life, configuration, settings)

    def _binder(self, service: Service, configuration: KubeSchedulerConfiguration) -> Coroutine[Any, Any, None]:
        settings = binder_settings(service.life.settings)
        endpoint = self.bus.endpoint(service.process)
        clients = binder_service.Clients(bus=endpoint, api=service.client, events=service.client)
        return binder_service.serve(clients, service.life, configuration, settings)

    def _scorer(self, service: Service, configuration: KubeSchedulerConfiguration) -> Coroutine[Any, Any, None]:
        ranker = Ranker(
            profiles=profiles_of(configuration),
            config=configuration.digest,
            identity=service.process.name,
            best=service.life.settings.numbers.best,
        )
        service.parts["ranker"] = ranker
        return scorer_service.serve(service.life, self.bus.endpoint(service.process), ranker)

    def _collector(self, service: Service, configuration: KubeSchedulerConfiguration) -> Coroutine[Any, Any, None]:
        settings = CollectorSettings(interval=POLL)
        sources = [
            MeasuredQuery.of(query, TrafficMeasurement(query, Prometheus(query.url), inventory_rounds=1), MAXIMUM_AGE)
            for query in traffic_queries_of(configuration)
        ]
        return collector_service.serve(service.life, self.bus.endpoint(service.process), sources, settings)

    async def _live(
        self, service: Service, configuration: KubeSchedulerConfiguration, work: Coroutine[Any, Any, None]
    ) -> None:
        """The supervisor's view: a service that ends with an error is a problem, and is started again."""
        try:
            await work
            self.note(service.process.name, "ended", "")
            for callback in self.on_ended:
                callback(service.process)
        except BaseException as error:  # noqa: BLE001 - a service must not raise
            if not service.process.is_dead:
                self.problem(f"{service.process.name} ended: {error!r}")
        self.loop.in_world(0.0, self._gone, service, configuration)

    def _gone(self, service: Service, configuration: KubeSchedulerConfiguration) -> None:
        self.forget(service)
        if self.restarts:
            self.in_world(self.start, service.role, configuration, after=1.0)

    def evicting(self) -> None:
        """The running process begins to evict pods."""
        waiting, self.on_evicting = self.on_evicting, []
        for callback in waiting:
            callback(OWNER.get())

    def client_of(self, process: SimulatedProcess) -> SimulatedClient | None:
        """A process's client of the API server."""
        return next((each.client for each in self.services if each.process is process), None)

    def forget(self, service: Service) -> None:
        """The process is gone: its connections end."""
        service.process.is_dead = True
        if service in self.services:
            self.services.remove(service)
        for session in self.bus.sessions_of(service.process):
            session.lose("the process is gone")
        self.api.cut_watches(service.process)

    def close(self) -> None:
        """The end of the run: nothing of it runs any more."""
        self.keep_trace = self.restarts = False
        self.api.is_down = True
        self.api.observers.clear()
        self.api.answered.clear()
        for process in self.processes:
            process.is_dead = False
            self.loop.resume(process)
        for session in list(self.bus.sessions):
            session.lose("the run is over")
        self.bus.stop()
        self.loop.most_steps = 10**9
        self.problem = lambda _sentence: None  # type: ignore[method-assign] - nothing of it counts any more
        self.loop.end(LAST_SECONDS)

    # --- the cluster

    def add_node(self, manifest: dict[str, Any]) -> None:
        self.api.resources.create(NODES, "", manifest)

    def add_pod(self, manifest: dict[str, Any]) -> None:
        namespace = manifest["metadata"].get("namespace", "default")
        self.api.resources.create(PODS, namespace, manifest)

    def fresh_profiles(self) -> Mapping[str, Profile]:
        """The profiles of the run's configuration, with empty caches."""
        return profiles_of(self.configuration)

    def pods(self) -> list[dict[str, Any]]:
        """All pods, as stored."""
        return [stored.value for stored in self.api.store.table(PODS).in_order()]
