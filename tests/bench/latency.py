"""How long a pod waits for its node while pods are created at a steady rate: berth and kube-scheduler in turn.

    make bench-latency ARGS="--nodes 5000 --rate 100 --rate 200 --seconds 20"
    make bench-latency ARGS="--shadow"     berth without and with a shadow in turn, twice

On a real API server. A pod's latency is from the answer to its creation until a watch shows it on its node, both in the
benchmark's own process: it has what the API server takes to store the Binding and to tell of it, and nothing of the
creation. Pods are created evenly in time, whatever the scheduler does. The first pods, while caches fill, do not count.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.contenders import Berth, Contender, Running, kube_scheduler
from bench.drain import waiting_pod
from bench.observer import Bound
from bench.run import UNREACHABLE, add_nodes
from harness.servers.control_plane import HOW_TO_GET_IT, ControlPlane, assets_folder, control_plane
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually

WARM_UP = 100
"""Pods that do not count."""
READY_SECONDS = 120.0
LONGEST_SECONDS = 60.0

PACKED = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}, {name: memory, weight: 1}]}}
"""

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Of one scheduler at one rate. Milliseconds from a pod's creation to its node."""

    scheduler: str
    rate: float
    pods: int
    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, scheduler: str, rate: float, seconds: Iterable[float]) -> Latencies:
        waits = sorted(each * 1000 for each in seconds)
        return cls(
            scheduler=scheduler,
            rate=rate,
            pods=len(waits),
            p50=round(statistics.median(waits), 1),
            p99=round(waits[min(len(waits) - 1, int(len(waits) * 0.99))], 1),
            longest=round(waits[-1], 1),
        )


async def latencies(
    contender: Contender, plane: ControlPlane, rates: Sequence[float], seconds: float
) -> list[Latencies]:
    """One run of the scheduler, and each rate in it."""
    found = []
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder, contender.run(plane, Path(folder)) as running:
        for rate in rates:
            async with cluster_user(plane.kubeconfig_path) as seen:
                waits = await _waits(contender, running, seen, rate, seconds)
            found.append(Latencies.of(contender.name, rate, waits))
    return found


async def _waits(contender: Contender, running: Running, seen: ClusterUser, rate: float, seconds: float) -> list[float]:
    version = (await seen.api.get(seen.api.pods, limit=1)).version
    watched, created = Bound(), {}
    watching = asyncio.create_task(watched.watch(seen, version))

    async def create(number: int) -> None:
        name = f"web-{number}"
        await seen.create([waiting_pod(name, seen.namespace, contender)])
        created[name] = time.monotonic()

    async def all_bound() -> bool:
        running.must_run()
        if watching.done():
            watching.result()
        return len(watched.at) == len(created)

    try:
        for number in range(WARM_UP):
            await create(number)
        await eventually(all_bound, f"{WARM_UP} pods to be bound", READY_SECONDS)
        started, count = time.monotonic(), round(rate * seconds)
        async with asyncio.TaskGroup() as creating:
            for number in range(count):
                await asyncio.sleep(max(0.0, started + number / rate - time.monotonic()))
                creating.create_task(create(WARM_UP + number))
        await eventually(all_bound, f"{count} pods to be bound", LONGEST_SECONDS)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    measured = list(created)[WARM_UP:]
    return [max(0.0, watched.at[name] - created[name]) for name in measured]


def with_and_without_shadow(scorers: int, folder: Path) -> list[Contender]:
    """berth alone and beside a shadow with another configuration, in turn: what the machine does meanwhile shows."""
    configuration = folder / "packed.yaml"
    configuration.write_text(PACKED)
    flags = ("--shadow", f"packed={configuration}")
    turn = (Berth(scorers=scorers), Berth(scorers=scorers, flags=flags, name="berth with a shadow"))
    return [*turn, *turn]


def show(found: Sequence[Latencies], nodes: int) -> None:
    table = Table("scheduler", "pods/s", "pods", "p50 ms", "p99 ms", "longest ms", title_justify="left")
    table.title = f"from creation to node, {nodes} nodes"
    for each in found:
        table.add_row(each.scheduler, f"{each.rate:g}", str(each.pods), f"{each.p50}", f"{each.p99}", f"{each.longest}")
    console.print(table)


def main(
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes, each with 4 CPU, 16 GiB and 110 pods.")] = 5000,
    rate: Annotated[list[float] | None, typer.Option(help="Pods a second, repeatable.  [default: 100, 200]")] = None,
    seconds: Annotated[float, typer.Option(min=1, help="For so long at each rate.")] = 20.0,
    scorers: Annotated[int, typer.Option(min=1, help="Number of berth's scorers.")] = 1,
    shadow: Annotated[bool, typer.Option("--shadow", help="berth without and with a shadow, twice in turn.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Measure and print."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)

    async def measure() -> list[Latencies]:
        await add_nodes(plane, nodes)
        return [each for one in contenders for each in await latencies(one, plane, rate or [100.0, 200.0], seconds)]

    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder, control_plane(assets) as plane:
        contenders: list[Contender] = (
            with_and_without_shadow(scorers, Path(folder))
            if shadow
            else [Berth(scorers=scorers), *filter(None, [kube_scheduler()])]
        )
        show(asyncio.run(measure()), nodes)


if __name__ == "__main__":
    typer.run(main)
