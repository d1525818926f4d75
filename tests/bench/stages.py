"""What each stage can do: watcher, scorers and binder one after the other, each on one core and fed from a full stream.

All pods wait in PENDING before a scorer ranks one, and all in RANKED before there is a binder, so no service waits for
another, and each finds as many messages as it can take. The services share one core, NATS and the API server have the
other. Figures are CPU milliseconds a pod. What a service does in a stage of another is in them too: when pods are
bound, the watcher reads Decisions and writes the mirror, and every scorer reads both.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.drain import Cost, children, costs
from bench.growth import LONGEST_SECONDS, SERVERS, Load, between, filled, until_quiet, waiting_pods
from berth.bus.interface import Session
from berth_cli.bus import connect_bus
from harness.servers.child_processes import stop
from harness.servers.nats_server import nats_server
from harness.worlds.cluster_user import eventually
from harness.worlds.etcd_filling import EtcdFilling
from harness.worlds.installation import PROGRAMS, Replica, ServicePod

NATS = "nats-server"
SERVICE_CORE, SERVER_CORE = 0, 1
FIRST_SHARE = 0.1
"""Of a stage's pods, not measured: the start of a service is in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The figures of one run, as in the results."""

    nodes: int
    pods: int
    scorers: int
    cpu_milliseconds: dict[str, dict[str, float]]
    """A pod, by stage (queue, rank, bind) and process; all scorers together."""
    pods_per_second: dict[str, float]
    """Of rank and bind. How fast pods come into the queue is how fast they are created."""


async def stage_by_stage(assets: Path, *, nodes: int, pods: int, scorers: int) -> Stages:
    """Run the stages on a new cluster."""
    async with filled(assets, Load(nodes=nodes, waiting=0)) as (plane, user):
        with nats_server() as nats, tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
            session = await connect_bus(nats.address)
            await session.apply()
            servers = {**children(*SERVERS), NATS: nats.pid or 0}
            for pid in servers.values():
                _pin(pid, SERVER_CORE)
            pipeline = _Pipeline(_programs(nats.address, plane.kubeconfig_path, pods, Path(folder)), session, servers)
            try:
                pipeline.start("watcher")
                await pipeline.ready()
                waiting = waiting_pods(Load(waiting=pods), user.namespace)
                await pipeline.fill(EtcdFilling(plane, user).add(waiting, together=1), pods)
                pipeline.start("scorer", scorers)
                await pipeline.measure("rank", "RANKED", pods)
                pipeline.start("binder")
                await pipeline.measure("bind", "DECISIONS", pods)
            finally:
                pipeline.stop()
                await session.close()
    return Stages(
        nodes=nodes, pods=pods, scorers=scorers, cpu_milliseconds=pipeline.costs, pods_per_second=pipeline.rates
    )


def _programs(address: str, kubeconfig: Path, pods: int, folder: Path) -> dict[str, ServicePod]:
    environment = {
        "PATH": f"{PROGRAMS}:{os.defpath}",
        "BERTH_NATS_URL": address,
        "BERTH_KUBECONFIG": str(kubeconfig),
        "BERTH_NUMBERS_WINDOW_FLOOR": str(2 * pods),
        "BERTH_NUMBERS_SILENT_ATTEMPT": "600s",  # else pods that wait for their stage are published again
    }
    return {
        name: ServicePod(service=name, command=[f"berth-{name}"], environment=environment, files=folder / name)
        for name in ("watcher", "scorer", "binder")
    }


class _Pipeline:
    """The services that run, and what has been counted."""

    def __init__(self, programs: Mapping[str, ServicePod], session: Session, servers: Mapping[str, int]) -> None:
        self._programs = programs
        self._session = session
        self._servers = servers
        self._running: dict[str, list[Replica]] = {}
        self.costs: dict[str, dict[str, float]] = {}
        self.rates: dict[str, float] = {}

    def start(self, name: str, count: int = 1) -> None:
        """Start so many at once."""
        self._running[name] = [self._programs[name].start(number) for number in range(count)]
        for replica in self._running[name]:
            _pin(replica.process.pid, SERVICE_CORE)

    async def ready(self) -> None:
        """Wait until every service is ready and has nothing to do."""
        for replicas in self._running.values():
            for replica in replicas:
                await eventually(partial(asyncio.to_thread, replica.is_ready), "a service to be ready", LONGEST_SECONDS)
        await until_quiet(self._pids())

    async def fill(self, creating: Awaitable[None], pods: int) -> None:
        """The first stage: count from the first pod that is created until all are in PENDING."""
        before = self._costs()
        await creating
        await self._messages("PENDING", pods)
        await self._count("queue", before, pods)

    async def measure(self, stage: str, stream: str, pods: int) -> None:
        """Count from the first tenth of the stage's messages until every pod has one."""
        skipped = await self._messages(stream, round(pods * FIRST_SHARE))
        before, began = self._costs(), time.monotonic()
        await self._messages(stream, pods)
        self.rates[stage] = round((pods - skipped) / (time.monotonic() - began), 1)
        await self._count(stage, before, pods - skipped)

    async def _count(self, stage: str, before: Mapping[str, Cost], pods: int) -> None:
        """What was spent by the time when all processes have nothing left to do."""
        await until_quiet(self._pids())
        spent = _by_service(between(before, self._costs()))
        self.costs[stage] = {name: round(seconds / pods * 1000, 4) for name, seconds in spent.items()}

    async def _messages(self, stream: str, least: int) -> int:
        async def enough() -> int | None:
            for name, replicas in self._running.items():
                for replica in replicas:
                    assert replica.process.poll() is None, f"a {name} ended with {replica.process.returncode}"
            found = (await self._session.state(stream)).messages
            return found if found >= least else None

        return await eventually(enough, f"{least} messages in {stream}", LONGEST_SECONDS)

    def _pids(self) -> dict[str, int]:
        named = {
            f"{name}-{number}": replica.process.pid
            for name, replicas in self._running.items()
            for number, replica in enumerate(replicas, 1)
        }
        return {**named, **self._servers}

    def _costs(self) -> dict[str, Cost]:
        return costs(self._pids())

    def stop(self) -> None:
        stop([replica.process for replicas in self._running.values() for replica in replicas])


def _by_service(spent: Mapping[str, float]) -> dict[str, float]:
    """The replicas of a service together."""
    names = dict.fromkeys(name if name in (*SERVERS, NATS) else name.rpartition("-")[0] for name in spent)
    return {name: sum(seconds for each, seconds in spent.items() if each.startswith(name)) for name in names}


def _pin(pid: int, core: int) -> None:
    """Keep a process on one core, each of its threads: what these start later stays there too."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
