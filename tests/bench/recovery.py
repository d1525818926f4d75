"""How long until the first Binding when berth is new to a large, busy cluster, and when NATS has lost its store.

    make bench-recovery ARGS="--nodes 5000 --bound 50000 --waiting 20000"

    make bench-recovery ARGS="--nodes 5000 --late-nodes"

The last counts evictions and Events when the only free nodes are the last ones that a new store gets to know.

The cluster is filled through etcd. Then `berth up` is started, and the seconds until the first Binding are those since
its start, Python's own included; CPU time is that since then. After some Bindings NATS is killed, its store is removed,
and it is started again.
With --important so many pods of a high priority are created one after the other, while all others wait:

    make bench-recovery ARGS="--nodes 5000 --bound 0 --waiting 200000 --important 10 --keep-store"
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from berth_sim.nodes import node_manifest, pod_manifest
from faults.judge import Judge, PodState, judging
from faults.world import API_FLAGS
from harness.servers.control_plane import HOW_TO_GET_IT, ControlPlane, assets_folder, control_plane
from harness.servers.nats_server import NatsServer, nats_server
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.etcd_filling import EtcdFilling
from harness.worlds.late_nodes import starts_on_late_nodes
from harness.worlds.pipeline import berth_up

LONGEST_SECONDS = 900.0
SETTLED_BINDINGS = 200
"""Bindings after which NATS loses its store: the pipeline works."""
PAUSE_SECONDS = 1.0
QUIET_SHARE = 0.2
"""Of one core: an API server that uses less has read all that it was given."""
UNREACHABLE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is in the cluster."""

    nodes: int
    bound: int
    waiting: int


console = Console(highlight=False, soft_wrap=True)


def _nodes(count: int) -> Iterator[dict]:
    for number in range(count):
        yield node_manifest(f"node-{number:05}", cpu="16", memory="64Gi", zone=f"zone-{number % 3}")


def _bound(count: int, nodes: int, namespace: str) -> Iterator[dict]:
    for number in range(count):
        node = f"node-{number % nodes:05}"
        yield pod_manifest(f"bound-{number:06}", namespace=namespace, labels=_labels(number), node=node)


def _waiting(count: int, namespace: str) -> Iterator[dict]:
    for number in range(count):
        yield pod_manifest(f"waiting-{number:06}", namespace=namespace, labels=_labels(number))


def _labels(number: int) -> dict[str, str]:
    return {"app": f"app-{number % 200}"}


@asynccontextmanager
async def filled(
    assets: Path, *, nodes: int, bound: int, waiting: int
) -> AsyncIterator[tuple[ControlPlane, Judge, ClusterUser]]:
    """A cluster with these nodes and pods."""
    with control_plane(assets, api_flags=API_FLAGS) as plane:
        async with judging(plane.etcd_url) as judge, cluster_user(plane.kubeconfig_path, cleans_up=False) as user:
            started = time.monotonic()
            filling = EtcdFilling(plane, user)
            await filling.add(_nodes(nodes))
            await filling.add(_bound(bound, nodes, user.namespace))
            await filling.add(_waiting(waiting, user.namespace))
            await eventually(lambda: _seen(judge, bound + waiting), "the judge to see every pod", LONGEST_SECONDS)
            console.print(f"{nodes} nodes, {bound + waiting} pods created in {time.monotonic() - started:.0f} s")
            await _quiet(_api_server(plane)["kube-apiserver"])
            judge.binding_times.clear()
            yield plane, judge, user


async def _quiet(pid: int) -> None:
    """Wait until the API server has read what was written to etcd: it would do so in the time that is measured."""
    before = _cpu_seconds(pid)

    async def does_little() -> bool:
        nonlocal before
        await asyncio.sleep(PAUSE_SECONDS)
        spent, before = _cpu_seconds(pid) - before, _cpu_seconds(pid)
        return spent < QUIET_SHARE * PAUSE_SECONDS

    await eventually(does_little, "the API server to be quiet", LONGEST_SECONDS)


async def _seen(judge: Judge, count: int) -> bool:
    return len(judge.pods) >= count


async def _until(judge: Judge, count: int) -> None:
    async def so_many() -> bool:
        return len(judge.binding_times) >= count

    await eventually(so_many, f"{count} Bindings", LONGEST_SECONDS)


async def measure(assets: Path, folder: Path, sizes: Sizes, *, scorers: int, important: int, lose: bool) -> None:
    """Measure and print."""
    with nats_server() as nats:
        async with filled(assets, nodes=sizes.nodes, bound=sizes.bound, waiting=sizes.waiting) as (plane, judge, user):
            servers = {"nats-server": nats.pid, **_api_server(plane)}
            before = {name: _cpu_seconds(pid) for name, pid in servers.items()}
            started = time.monotonic()
            arguments = ("--kubeconfig", plane.kubeconfig_path, "--nats", nats.address, "--scorers", scorers)
            with berth_up(*arguments, folder=folder) as berth:
                await _until(judge, 1)
                own = {"berth up": berth.pid, "fork server": berth.fork_server, **berth.pids}
                spent = _spent({**own, **servers}, before)
                first = judge.binding_times[0] - started
                console.print(f"new to the cluster: first Binding {first:.1f} s after its start; {spent}")
                await _until(judge, SETTLED_BINDINGS)
                if important:
                    await _measure_important(judge, user, important)
                    console.print(_spent(berth.pids, {}))
                if lose:
                    await _lose(nats, judge)


def _api_server(plane: ControlPlane) -> dict[str, int]:
    etcd, server = plane.processes
    return {"etcd": etcd.pid, "kube-apiserver": server.pid}


def _spent(pids: Mapping[str, int], before: Mapping[str, float]) -> str:
    """CPU time, less what had been used before, and memory of processes."""
    used = {name: _cpu_seconds(pid) - before.get(name, 0.0) for name, pid in pids.items()}
    each = ", ".join(f"{name} {used[name]:.1f} s CPU {_mebibytes(pid):.0f} MiB" for name, pid in pids.items())
    return f"{each}; together {sum(used.values()):.1f} s CPU"


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _mebibytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def _measure_important(judge: Judge, user: ClusterUser, count: int) -> None:
    """Create pods of a high priority while the others wait."""
    priority_class = await user.add_priority_class("important", 1_000_000)
    waiting, took = len(judge.waiting()), []
    for number in range(count):
        name = f"important-{number}"
        await user.create([pod_manifest(name, namespace=user.namespace, priority_class=priority_class)])

        async def is_bound(suffix: str = f"/{name}") -> PodState | None:
            found = (pod for pod in judge.pods.values() if pod.name.endswith(suffix) and pod.node)
            return next(found, None)

        pod = await eventually(is_bound, f"{name} to be bound", LONGEST_SECONDS)
        took.append(pod.bound_at - pod.created_at)
        await asyncio.sleep(PAUSE_SECONDS)
    shown = ", ".join(f"{seconds:.2f}" for seconds in sorted(took))
    console.print(f"{waiting} pods wait: important ones bound after {shown} s")


async def _lose(nats: NatsServer, judge: Judge) -> None:
    """The longest time without a Binding counts: some that were on their way still arrive."""
    lost = time.monotonic()
    nats.lose_store()
    await asyncio.to_thread(nats.start)
    up = time.monotonic()
    await asyncio.sleep(PAUSE_SECONDS)
    before = len(judge.binding_times)
    await _until(judge, before + SETTLED_BINDINGS)
    times = [lost, *(at for at in judge.binding_times if at > lost)]
    gap, first = max((later - earlier, later) for earlier, later in pairwise(times))
    console.print(
        f"store lost: {gap:.1f} s without a Binding, until {first - lost:.1f} s after the kill, "
        f"{first - up:.1f} s after NATS was back"
    )


async def _start_on_late_nodes(assets: Path, folder: Path, nodes: int) -> None:
    with control_plane(assets, api_flags=API_FLAGS) as plane:
        for start in await starts_on_late_nodes(plane, folder, nodes=nodes):
            console.print(str(start))


def main(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of 16 CPU.")] = 5000,
    bound: Annotated[int, typer.Option(min=0, help="Pods that are bound already.")] = 50_000,
    waiting: Annotated[int, typer.Option(min=1000, help="Pods that wait.")] = 20_000,
    scorers: Annotated[int, typer.Option(min=1, help="Number of scorers.")] = 1,
    important: Annotated[int, typer.Option(min=0, help="Pods of a high priority, while the others wait.")] = 0,
    keep_store: Annotated[bool, typer.Option("--keep-store", help="Do not take NATS's store away.")] = False,  # noqa: FBT002 - a flag
    late_nodes: Annotated[bool, typer.Option("--late-nodes", help="Only starts on full nodes.")] = False,  # noqa: FBT002
    logs: Annotated[Path | None, typer.Option(help="Folder for berth's output; else it is removed.")] = None,
) -> None:
    """Measure and print."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    with tempfile.TemporaryDirectory(prefix="berth-recovery-") as folder:
        if late_nodes:
            asyncio.run(_start_on_late_nodes(assets, logs or Path(folder), nodes))
            return
        sizes = Sizes(nodes=nodes, bound=bound, waiting=waiting)
        measuring = measure(
            assets, logs or Path(folder), sizes, scorers=scorers, important=important, lose=not keep_store
        )
        asyncio.run(measuring)


if __name__ == "__main__":
    typer.run(main)
