"""One run of the whole pipeline on a cluster of a given size: the CPU of a pod by process, the rate, the memory.

The cluster is a real API server, filled through etcd, so that 50,000 nodes or 200,000 pods take seconds. Then `berth
up` is started. The first Bindings are skipped: they have the start of the processes in them.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.drain import Cost, children, costs, machine_busy_seconds
from bench.observer import Bound
from berth_sim.nodes import node_manifest, pod_manifest
from faults.world import API_FLAGS
from harness.servers.control_plane import ControlPlane, control_plane
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.etcd_filling import EtcdFilling
from harness.worlds.pipeline import berth_up

LONGEST_SECONDS = 280.0
SKIPPED = 500
"""Bindings before anything is measured."""
MEASURED = 3000
QUIET_SHARE = 0.2
"""Of one core: an API server that uses less has read all that was written to etcd, a service has nothing left to do."""
PAUSE_SECONDS = 1.0
BENCH = "bench"
"""This process, whose cost is no part of the figures."""
SERVERS = ("etcd", "kube-apiserver")
NODE = {"cpu": "64", "memory": "256Gi"}
MEMORY = "64Mi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is in the cluster when berth starts, and how berth is started."""

    nodes: int = 1000
    bound: int = 0
    waiting: int = SKIPPED + MEASURED
    classes: int = 1
    """Forms of waiting pods, in turn."""
    scorers: int = 1
    flags: tuple[object, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    skipped: int = SKIPPED
    measured: int = MEASURED


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The figures of one run, as in the results. Memory is the peak of the process, what it shares included."""

    nodes: int
    bound: int
    waiting: int
    classes: int
    scorers: int
    to_first_seconds: float
    bound_per_second: float
    cpu_milliseconds: dict[str, float]
    """A pod, by process."""
    start_cpu_seconds: dict[str, float]
    """By process, from its start to the first Binding; of the servers from the start of berth."""
    peak_mebibytes: dict[str, int]
    cores_taken_by_others: float


@asynccontextmanager
async def filled(assets: Path, load: Load) -> AsyncIterator[tuple[ControlPlane, ClusterUser]]:
    """An API server that has read all of it."""
    with control_plane(assets, api_flags=API_FLAGS) as plane:
        async with cluster_user(plane.kubeconfig_path, cleans_up=False) as user:
            filling = EtcdFilling(plane, user)
            await filling.add(_nodes(load.nodes))
            await filling.add(_bound(load.bound, load.nodes, user.namespace))
            await filling.add(waiting_pods(load, user.namespace))
            await until_quiet(children("kube-apiserver"))
            yield plane, user


def _nodes(count: int) -> Iterator[dict]:
    for number in range(count):
        yield node_manifest(f"node-{number:05}", **NODE, zone=f"zone-{number % 3}")


def _bound(count: int, nodes: int, namespace: str) -> Iterator[dict]:
    for number in range(count):
        node, labels = f"node-{number % nodes:05}", {"app": f"app-{number % 200}"}
        yield pod_manifest(f"bound-{number:06}", namespace=namespace, labels=labels, cpu="100m", node=node)


def waiting_pods(load: Load, namespace: str) -> Iterator[dict]:
    for number in range(load.waiting):
        cpu = f"{100 + number % load.classes}m"
        yield pod_manifest(f"waiting-{number:06}", namespace=namespace, labels={"app": "web"}, cpu=cpu, memory=MEMORY)


async def until_quiet(pids: Mapping[str, int]) -> None:
    """Wait until these processes have done what they have to do."""
    before = costs(pids)

    async def do_little() -> bool:
        nonlocal before
        await asyncio.sleep(PAUSE_SECONDS)
        spent = between(before, now := costs(pids))
        before = now
        return all(seconds < QUIET_SHARE * PAUSE_SECONDS for seconds in spent.values())

    await eventually(do_little, f"{', '.join(pids)} to be quiet", LONGEST_SECONDS)


async def grow(assets: Path, load: Load) -> Growth:
    """Fill a cluster, run berth on it until enough pods are bound, and count."""
    async with filled(assets, load) as (plane, user):
        watched, version = Bound(), (await user.api.get(user.api.pods, limit=1)).version
        watching = asyncio.create_task(watched.watch(user, version))
        servers = {**children(*SERVERS), BENCH: os.getpid()}
        at_start, began = costs(servers), time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
                arguments = ("--kubeconfig", plane.kubeconfig_path, "--scorers", load.scorers, *load.flags)
                with berth_up(*arguments, folder=Path(folder), environment=load.environment) as berth:

                    async def count(so_many: int) -> dict[str, Cost]:
                        def reached() -> bool:
                            berth.must_run()
                            return len(watched.at) >= so_many

                        await _until(reached, watching, f"{so_many} pods to be bound")
                        return costs({**berth.pids, **servers})

                    first = await count(1)
                    before, busy, since = await count(load.skipped), machine_busy_seconds(), time.monotonic()
                    after = await count(load.skipped + load.measured)
                    busy, took = machine_busy_seconds() - busy, time.monotonic() - since
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    times = list(watched.at.values())
    spent = between(before, after)
    counted = times[load.skipped : load.skipped + load.measured]
    return Growth(
        nodes=load.nodes,
        bound=load.bound,
        waiting=load.waiting,
        classes=load.classes,
        scorers=load.scorers,
        to_first_seconds=round(times[0] - began, 2),
        bound_per_second=round((len(counted) - 1) / (counted[-1] - counted[0]), 1),
        cpu_milliseconds={
            name: round(seconds / load.measured * 1000, 3) for name, seconds in spent.items() if name != BENCH
        },
        start_cpu_seconds={
            name: round(seconds, 2) for name, seconds in between(at_start, first).items() if name != BENCH
        },
        peak_mebibytes={name: round(cost.peak_mebibytes) for name, cost in after.items() if name != BENCH},
        cores_taken_by_others=round((busy - sum(spent.values())) / took, 2),
    )


async def _until(met: Callable[[], bool], watching: asyncio.Task[None], what: str) -> None:
    async def is_met() -> bool:
        if watching.done():
            watching.result()
        return met()

    await eventually(is_met, what, LONGEST_SECONDS)


def between(before: Mapping[str, Cost], after: Mapping[str, Cost]) -> dict[str, float]:
    """CPU seconds by process; one that was started in between has all of its own."""
    return {
        name: cost.cpu_seconds - (before[name].cpu_seconds if name in before else 0.0) for name, cost in after.items()
    }
