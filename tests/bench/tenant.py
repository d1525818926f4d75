"""How long a tenant's pod waits while another tenant creates as many and as large pods as the API server lets him.

    make bench-tenant ARGS="--pods 50000 --seconds 60"

On a real API server. One namespace has thousands of pods that fit until the cluster is full and then wait for room, and
a pod with 10,000 affinity terms. It creates and deletes pods all the time; each deletion makes room for which waiting
pods are woken. Another namespace creates a pod now and then, which fits on nodes that the first cannot use. Its latency
is from the answer to the creation until a watch shows the pod bound; it is shown before the attack and during it.

Beside each of these pods there is one that no scheduler schedules: the benchmark binds it itself as soon as it is
created. It waits for the API server and the observer alone, which is the least that any scheduler can do in this attack
on this machine. `--scheduler kube-scheduler` attacks kube-scheduler of the same release in place of berth. In which of
berth's services a pod spends its time is computed from NATS's times of its messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.contenders import KUBE_SCHEDULER, Berth, Contender, Running, kube_scheduler
from bench.drain import costs, machine_busy_seconds
from bench.observer import Bound
from berth.bus.topology import DECISIONS, PENDING, RANKED
from berth.messages.attempts import DecisionSummary
from berth.messages.encoding import decode
from berth.messages.subjects import PodSubject
from berth_sim.nodes import node_manifest, pod_manifest
from harness.servers.control_plane import HOW_TO_GET_IT, ControlPlane, assets_folder, control_plane
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually, node_of
from harness.worlds.pipeline import BerthUp

RESULTS = Path(__file__).parent / "results"
UNREACHABLE = 3
TERMS = 10_000
NOISY_NODES = 20
PODS_PER_NODE = 100
QUIET_NODES = 5
QUIET = "quiet"
BARE = "-bare"
"""The end of the names of pods that the benchmark binds itself."""
NOBODY = "nobody"
POLL_SECONDS = 0.02
MOST_AT_ONCE = 32
BEFORE_SECONDS = 10.0
LONGEST_SECONDS = 120.0
GOAL_SECONDS = 1.0

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long pods waited, in seconds."""

    pods: int
    median: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Waits:
        waits = sorted(seconds)
        return cls(
            pods=len(waits),
            median=round(statistics.median(waits), 3),
            p99=round(waits[min(len(waits) - 1, int(len(waits) * 0.99))], 3),
            longest=round(waits[-1], 3),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietWaits:
    """The quiet tenant's pods: those of the scheduler, those that the benchmark bound itself, and where berth's were.

    A stage is a service with its queue: the watcher until PENDING is stored, the scorer until RANKED is, the binder
    until the Decision is, which is after the Binding.
    """

    scheduled: Waits
    bound_directly: Waits
    stages: dict[str, Waits]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The result of a run. ``noisy_bound``: the noisy tenant's bound pods, of those that were there at the end."""

    scheduler: str
    before: QuietWaits
    during: QuietWaits
    noisy_created: int
    noisy_deleted: int
    noisy_bound: int
    noisy_left: int
    refusal: str
    """What berth told the pod with too many terms."""
    cpu_percent: dict[str, float]
    """Of one core, during the attack: the scheduler's processes, the API server with etcd, and the benchmark."""
    messages_per_second: dict[str, float]
    """What berth stored in each stream during the attack: attempts begun, ranked and decided."""
    load_average: float


@dataclass(kw_only=True)
class Noisy:
    """The tenant who attacks."""

    user: ClusterUser
    scheduler: str
    created: int = 0
    deleted: int = 0
    _names: list[str] = field(default_factory=list)

    def pods(self, count: int) -> Iterator[dict[str, Any]]:
        for _ in range(count):
            self.created += 1
            self._names.append(f"noisy-{self.created}")
            yield pod_manifest(
                self._names[-1], namespace=self.user.namespace, scheduler=self.scheduler, cpu="1m", memory="1Mi"
            )

    async def come_and_go(self, rate: float) -> None:
        """Create and delete so many pods a second, the oldest first: those are bound, and their room is free then.

        Where the API server is slower than that, it is as many as it takes.
        """
        last = time.monotonic()
        while True:
            due = min(int((time.monotonic() - last) * rate), MOST_AT_ONCE)
            last = time.monotonic() if due else last
            oldest, self._names = self._names[:due], self._names[due:]
            await asyncio.gather(self.user.create(self.pods(due)), *(self.user.delete_pod(name) for name in oldest))
            self.deleted += len(oldest)
            await asyncio.sleep(POLL_SECONDS)

    async def with_many_terms(self) -> None:
        # Below the API server's limit for a request of 3 MiB, and below etcd's of 1.5 MiB for an object.
        term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
        terms = [{**term, "topologyKey": f"z{number}"} for number in range(TERMS)]
        anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        huge = pod_manifest("huge", namespace=self.user.namespace, scheduler=self.scheduler, spec={"affinity": anti})
        await self.user.create([huge])


@dataclass(kw_only=True)
class Quiet:
    """The tenant whose pods are measured."""

    user: ClusterUser
    scheduler: str
    _created: dict[str, float] = field(default_factory=dict)
    """On the wall clock, since NATS's times are compared with it."""

    async def waits(self, name: str, rate: float, seconds: float, running: Running) -> QuietWaits:
        """Create pods at this rate, see when each is bound, and delete them."""
        self._created.clear()
        bound = Bound(clock=time.time)
        version = (await self.user.api.get(self.user.api.pods, limit=1)).version
        watching = asyncio.create_task(bound.watch(self.user, version))
        creating = asyncio.create_task(self._create(name, rate, seconds))
        deadline = time.time() + seconds + LONGEST_SECONDS
        try:
            while time.time() < deadline and not (creating.done() and bound.at.keys() >= self._created.keys()):
                if watching.done():
                    watching.result()
                await asyncio.sleep(POLL_SECONDS)
            await creating
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        waits = {pod: bound.at.get(pod, deadline) - at for pod, at in self._created.items()}
        stages = await self._stages(running) if isinstance(running, BerthUp) else {}
        for pod in self._created:
            await self.user.delete_pod(pod)
        return QuietWaits(
            scheduled=Waits.of(wait for pod, wait in waits.items() if not pod.endswith(BARE)),
            bound_directly=Waits.of(wait for pod, wait in waits.items() if pod.endswith(BARE)),
            stages=stages,
        )

    async def _create(self, name: str, rate: float, seconds: float) -> None:
        for number in range(int(rate * seconds)):
            await self._one(f"{name}-{number}", self.scheduler)
            bare = f"{name}-{number}{BARE}"
            await self._one(bare, NOBODY)
            await self.user.bind(bare, f"{QUIET}-{number % QUIET_NODES}")
            await asyncio.sleep(1 / rate)

    async def _one(self, pod: str, scheduler: str) -> None:
        spec = {"nodeSelector": {QUIET: "yes"}, "tolerations": [{"key": QUIET, "operator": "Exists"}]}
        form = {"namespace": self.user.namespace, "scheduler": scheduler, "cpu": "1m", "memory": "1Mi", "spec": spec}
        await self.user.create([pod_manifest(pod, **form)])
        self._created[pod] = time.time()

    async def _stages(self, berth: BerthUp) -> dict[str, Waits]:
        pods = {
            str(PodSubject(stage="decision", profile=self.scheduler, namespace=self.user.namespace, pod=pod)): at
            for pod, at in self._created.items()
            if not pod.endswith(BARE)
        }
        found: dict[str, list[float]] = {"watcher": [], "scorer": [], "binder": []}
        session = await berth.session()
        try:
            async for stored in session.last_of_each(DECISIONS, list(pods)):
                decision = decode(stored.data, DecisionSummary)
                if decision.asked_at is None or decision.ranked_at is None:
                    continue
                asked, ranked = decision.asked_at.timestamp(), decision.ranked_at.timestamp()
                found["watcher"].append(asked - pods[stored.subject])
                found["scorer"].append(ranked - asked)
                found["binder"].append(stored.time.timestamp() - ranked)
        finally:
            await session.close()
        return {stage: Waits.of(seconds) for stage, seconds in found.items() if seconds}


class Busy:
    """The CPU time of everything that takes part, from here on."""

    def __init__(self, plane: ControlPlane, running: Running) -> None:
        names = ("etcd", "kube-apiserver")
        servers = {name: process.pid for name, process in zip(names, plane.processes, strict=True)}
        self._pids = {**running.pids, **servers, "benchmark": os.getpid()}
        self._running = running
        self._before = costs(self._pids)
        self._machine, self._began = machine_busy_seconds(), time.monotonic()
        self._stored: dict[str, int] = {}

    async def begin(self) -> None:
        """Count messages from here on."""
        self._stored = await self._last_sequences()

    async def messages_per_second(self) -> dict[str, float]:
        """What berth has stored in each stream since `begin`; nothing for another scheduler."""
        took = time.monotonic() - self._began
        return {
            stream: round((last - self._stored[stream]) / took, 1)
            for stream, last in (await self._last_sequences()).items()
        }

    async def _last_sequences(self) -> dict[str, int]:
        if not isinstance(self._running, BerthUp):
            return {}
        session = await self._running.session()
        try:
            return {stream: (await session.state(stream)).last_sequence for stream in (PENDING, RANKED, DECISIONS)}
        finally:
            await session.close()

    def percent(self) -> dict[str, float]:
        """Of one core; ``machine`` is everything that ran on it."""
        took = time.monotonic() - self._began
        seconds = {
            name: cost.cpu_seconds - self._before[name].cpu_seconds
            for name, cost in costs(self._pids).items()
            if name in self._before
        }
        seconds["machine"] = machine_busy_seconds() - self._machine
        return {name: round(spent / took * 100, 1) for name, spent in seconds.items()}


async def measure(
    contender: Contender, plane: ControlPlane, *, pods: int, churn: float, rate: float, seconds: float
) -> Figures:
    """The whole run, on a control plane of its own."""
    scheduler = contender.scheduler_name
    # Nothing is cleaned up: everything ends with its API server, which would delete 50,000 pods for minutes.
    async with (
        cluster_user(plane.kubeconfig_path, cleans_up=False) as attacker,
        cluster_user(plane.kubeconfig_path, cleans_up=False) as user,
    ):
        noisy, quiet = Noisy(user=attacker, scheduler=scheduler), Quiet(user=user, scheduler=scheduler)
        await attacker.create(node_manifest(f"node-{n}", cpu="64", pods=PODS_PER_NODE) for n in range(NOISY_NODES))
        taint = {"key": QUIET, "value": "yes", "effect": "NoSchedule"}
        await attacker.create(
            node_manifest(f"{QUIET}-{n}", cpu="64", pods=1000, labels={QUIET: "yes"}, taints=[taint])
            for n in range(QUIET_NODES)
        )
        with (
            tempfile.TemporaryDirectory(prefix="berth-tenant-") as folder,
            contender.run(plane, Path(folder)) as running,
        ):
            if isinstance(running, BerthUp):
                await asyncio.to_thread(running.wait_until_ready)
            before = await quiet.waits("before", rate, BEFORE_SECONDS, running)
            console.print(f"before: {before}")
            await noisy.with_many_terms()
            await attacker.create(noisy.pods(pods))
            console.print(f"{noisy.created} pods of the noisy tenant")
            churning = asyncio.create_task(noisy.come_and_go(churn))
            busy = Busy(plane, running)
            await busy.begin()
            try:
                during = await quiet.waits("during", rate, seconds, running)
            finally:
                churning.cancel()
                await asyncio.gather(churning, return_exceptions=True)
            cpu_percent, messages = busy.percent(), await busy.messages_per_second()
            console.print(f"during: {during}; CPU percent: {cpu_percent}; messages a second: {messages}")
            refusal = await eventually(lambda: _told(attacker, "huge"), "the pod with many terms to be told", 60)
            placed, left = await attacker.placed(), len(await attacker.pods())
    return Figures(
        scheduler=contender.name,
        before=before,
        during=during,
        noisy_created=noisy.created,
        noisy_deleted=noisy.deleted,
        noisy_bound=len(placed),
        noisy_left=left,
        refusal=refusal,
        cpu_percent=cpu_percent,
        messages_per_second=messages,
        load_average=round(os.getloadavg()[0], 1),
    )


async def _told(user: ClusterUser, name: str) -> str:
    """What became of a pod, in words: kube-scheduler schedules what berth refuses."""
    pod = (await user.pods())[name]
    return f"bound to {node_of(pod)}" if node_of(pod) else (await user.condition(name)).get("message", "")


def write(figures: Figures, asked: dict[str, float], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"tenant-{figures.scheduler}-{now:%Y%m%dT%H%M%SZ}.json"
    machine = {"cores": os.cpu_count()}
    found = {"at": now.isoformat(), "machine": machine, "asked": asked, "goal_p99_seconds": GOAL_SECONDS}
    path.write_text(json.dumps({**found, "figures": asdict(figures)}, indent=2) + "\n")
    return path


def main(
    pods: Annotated[int, typer.Option(min=1, help="Pods of the noisy tenant.")] = 50_000,
    churn: Annotated[float, typer.Option(min=0, help="Pods that it creates and deletes in a second.")] = 100.0,
    rate: Annotated[float, typer.Option(min=0.1, help="Pods of the quiet tenant in a second.")] = 5.0,
    seconds: Annotated[float, typer.Option(min=1, help="How long the quiet tenant's pods are measured.")] = 60.0,
    scheduler: Annotated[str, typer.Option(help="berth, or kube-scheduler, whose program must be there.")] = "berth",
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
) -> None:
    """Measure, print and write the figures. A slow result is not an error."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    contender = {"berth": Berth(), KUBE_SCHEDULER: kube_scheduler()}.get(scheduler)
    if contender is None:
        sys.stderr.write(f"{scheduler!r}: want berth, or {KUBE_SCHEDULER} with its program beside kube-apiserver\n")
        raise typer.Exit(UNREACHABLE)
    with control_plane(assets) as plane:
        figures = asyncio.run(measure(contender, plane, pods=pods, churn=churn, rate=rate, seconds=seconds))
    show("before the attack", figures.before)
    show("during it", figures.during)
    console.print(figures)
    path = write(figures, {"pods": pods, "churn": churn, "rate": rate, "seconds": seconds}, out)
    console.print(f"written to {path}")


def show(when: str, waits: QuietWaits) -> None:
    rows = {"another tenant's pod": waits.scheduled, "one bound directly": waits.bound_directly, **waits.stages}
    for name, row in rows.items():
        console.print(
            f"{when}, {name}: median {row.median:.2f} s, p99 {row.p99:.2f} s, longest {row.longest:.2f} s of {row.pods}"
        )


if __name__ == "__main__":
    typer.run(main)
