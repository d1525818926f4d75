"""How long until the first Binding when berth is new to a large, busy cluster, and when NATS has lost its store.

    make bench-recovery ARGS="--nodes 5000 --bound 50000 --waiting 20000"

The cluster is filled through the API server, a few minutes for the sizes above. Then `berth up` is started, and the
seconds until the first Binding are those since its start, Python's own included. After some Bindings NATS is killed,
its store is removed, and it is started again.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from berth.sim.nodes import node_manifest, pod_manifest
from faults.judge import Judge, judging
from faults.world import API_FLAGS
from harness.servers.control_plane import HOW_TO_GET_IT, ControlPlane, assets_folder, control_plane
from harness.servers.nats_server import NatsServer, nats_server
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import berth_up

LONGEST_SECONDS = 300.0
SETTLED_BINDINGS = 200
"""Bindings after which NATS loses its store: the pipeline works."""
UNREACHABLE = 3

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
            await user.create(_nodes(nodes))
            await user.create(_bound(bound, nodes, user.namespace))
            await user.create(_waiting(waiting, user.namespace))
            await eventually(lambda: _seen(judge, bound + waiting), "the judge to see every pod", LONGEST_SECONDS)
            console.print(f"{nodes} nodes, {bound + waiting} pods created in {time.monotonic() - started:.0f} s")
            judge.binding_times.clear()
            yield plane, judge, user


async def _seen(judge: Judge, count: int) -> bool:
    return len(judge.pods) >= count


async def _until(judge: Judge, count: int) -> None:
    async def so_many() -> bool:
        return len(judge.binding_times) >= count

    await eventually(so_many, f"{count} Bindings", LONGEST_SECONDS)


async def measure(assets: Path, folder: Path, *, nodes: int, bound: int, waiting: int, scorers: int) -> None:
    """Measure both and print them."""
    with nats_server() as nats:
        async with filled(assets, nodes=nodes, bound=bound, waiting=waiting) as (plane, judge, _):
            started = time.monotonic()
            arguments = ("--kubeconfig", plane.kubeconfig_path, "--nats", nats.address, "--scorers", scorers)
            with berth_up(*arguments, folder=folder):
                await _until(judge, 1)
                console.print(
                    f"new to the cluster: first Binding {judge.binding_times[0] - started:.1f} s after its start"
                )
                await _until(judge, SETTLED_BINDINGS)
                await _lose(nats, judge)


async def _lose(nats: NatsServer, judge: Judge) -> None:
    lost = time.monotonic()
    nats.lose_store()
    await asyncio.to_thread(nats.start)
    up = time.monotonic()
    before = len(judge.binding_times)  # what was on its way has arrived by now
    await _until(judge, before + 1)
    first = judge.binding_times[before]
    console.print(
        f"store lost: first Binding {first - lost:.1f} s after the kill, {first - up:.1f} s after NATS was back"
    )


def main(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of 16 CPU.")] = 5000,
    bound: Annotated[int, typer.Option(min=0, help="Pods that are bound already.")] = 50_000,
    waiting: Annotated[int, typer.Option(min=1000, help="Pods that wait.")] = 20_000,
    scorers: Annotated[int, typer.Option(min=1, help="Number of scorers.")] = 1,
    logs: Annotated[Path | None, typer.Option(help="Folder for berth's output; else it is removed.")] = None,
) -> None:
    """Measure and print."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    with tempfile.TemporaryDirectory(prefix="berth-recovery-") as folder:
        asyncio.run(measure(assets, logs or Path(folder), nodes=nodes, bound=bound, waiting=waiting, scorers=scorers))


if __name__ == "__main__":
    typer.run(main)
