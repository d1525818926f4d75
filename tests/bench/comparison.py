"""The comparison with kube-scheduler in one run: what a pod costs, how fast, how soon, how often it is ranked.

    make bench ARGS="--rounds 3"

On a real API server, with kube-scheduler in the folder of KUBEBUILDER_ASSETS; the two run in turn. Every row names what
was measured, both figures, and what berth is to reach (`goal`): a ratio to kube-scheduler, or an amount. It takes half
an hour; `--rounds 1` a third of that. `bench.drain`, `bench.latency` and `bench.placement` explain the figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.contenders import KUBE_SCHEDULER, Berth, Contender, KubeScheduler, Running, kube_scheduler
from bench.drain import Drain, Form, waiting_pod
from bench.latency import latencies
from bench.observer import Bound
from bench.placement import measure as measure_placements
from bench.run import RESULTS, UNREACHABLE, add_nodes, drain_in_turn
from harness.servers.control_plane import HOW_TO_GET_IT, ControlPlane, assets_folder, control_plane
from harness.servers.nats_server import nats_server
from harness.worlds.cluster_user import cluster_user, eventually
from harness.worlds.placements import scenarios

MANY, FEW, WITH_DEVICES = 5000, 1000, 500
"""Nodes."""
LONG = 6000
"""Pods of a drain in which the second or more that it takes four scorers to start does not count."""
SERVERS = ("etcd", "kube-apiserver")
RATES = (100.0, 200.0)
LATENCY_SECONDS = 20.0
FIRST_SECONDS = 120.0

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table. ``goal``: what ``reached`` is to be at least, or at most where less is better."""

    what: str
    kube_scheduler: str
    berth: str
    reached: float
    goal: float
    at_most: bool = False

    @property
    def is_met(self) -> bool:
        return self.reached <= self.goal if self.at_most else self.reached >= self.goal


def faster(what: str, drains: Sequence[Drain], rate: Callable[[Drain], float | None], goal: float) -> Row:
    """Pods a second, and berth's as a ratio to kube-scheduler's."""
    ours, theirs = _medians(drains, rate)
    return Row(what=what, kube_scheduler=f"{theirs:.0f}", berth=f"{ours:.0f}", reached=ours / theirs, goal=goal)


def cheaper(what: str, drains: Sequence[Drain], goal: float) -> Row:
    """CPU ms a pod of the scheduler and its bus, all processes together."""
    ours, theirs = _medians(drains, _cpu)
    return Row(what=what, kube_scheduler=f"{theirs:.2f}", berth=f"{ours:.2f}", reached=ours, goal=goal, at_most=True)


def _cpu(one: Drain) -> float:
    return sum(seconds for name, seconds in one.cpu_seconds_per_1000.items() if name not in SERVERS)


def _medians(drains: Sequence[Drain], figure: Callable[[Drain], float | None]) -> tuple[float, float]:
    """Of berth, of kube-scheduler."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for each in drains:
        if (value := figure(each)) is not None:
            found[each.scheduler == KUBE_SCHEDULER].append(value)
    return statistics.median(found[False]), statistics.median(found[True])


async def on_many_nodes(plane: ControlPlane, peer: KubeScheduler, rounds: int) -> list[Row]:
    """What is measured on 5,000 nodes."""
    await add_nodes(plane, MANY)
    both: list[Contender] = [Berth(), peer]
    equal = await drain_in_turn(both, plane, pods=5000, form=Form.EQUAL, rounds=rounds)
    zones = await drain_in_turn(both, plane, pods=3000, form=Form.ZONES, rounds=rounds)
    apart = await drain_in_turn(both, plane, pods=2000, form=Form.APART, rounds=rounds)
    first, again = await starts(plane, pods=5000)
    rows = [
        faster("5,000 equal pods, bound/s", equal, lambda one: one.bound_per_second, 1.4),
        faster("3,000 spread over zones, bound/s", zones, lambda one: one.bound_per_second, 2.5),
        faster("2,000 one on each node, bound/s", apart, lambda one: one.bound_per_second, 2.0),
        cheaper(f"CPU ms a pod, {MANY:,} nodes", equal, 1.0),
        _start("start to first Binding, s", equal, first),
        _start("the same, started again, s", equal, again),
    ]
    return [*rows, *await _latency_rows(plane, both)]


def _start(what: str, drains: Sequence[Drain], seconds: float) -> Row:
    _, theirs = _medians(drains, lambda one: one.to_first_seconds)
    return Row(
        what=what, kube_scheduler=f"{theirs:.1f}", berth=f"{seconds:.1f}", reached=seconds, goal=2.0, at_most=True
    )


async def starts(plane: ControlPlane, *, pods: int) -> tuple[float, float]:
    """Seconds from the start of `berth up` to the first Binding, on an empty NATS and on the same one again."""
    took = []
    with nats_server() as nats, tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        contender = Berth(flags=("--nats", nats.address))
        for _ in range(2):
            async with cluster_user(plane.kubeconfig_path) as seen:
                await seen.create(waiting_pod(f"web-{number}", seen.namespace, contender) for number in range(pods))
                version = (await seen.api.get(seen.api.pods, limit=1)).version
                watched = Bound()
                watching = asyncio.create_task(watched.watch(seen, version))
                began = time.monotonic()
                with contender.run(plane, Path(folder)) as running:

                    async def one_is_bound(watched: Bound = watched, running: Running = running) -> bool:
                        running.must_run()
                        return bool(watched.at)

                    await eventually(one_is_bound, "a first pod to be bound", FIRST_SECONDS)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                took.append(next(iter(watched.at.values())) - began)
    first, again = took
    return first, again


async def _latency_rows(plane: ControlPlane, both: Sequence[Contender]) -> list[Row]:
    ours, theirs = [await latencies(one, plane, RATES, LATENCY_SECONDS) for one in both]
    rows = []
    for mine, other, goals in zip(ours, theirs, ((2.0, 40.0), (3.0, 60.0)), strict=True):
        for name, goal in zip(("p50", "p99"), goals, strict=True):
            rows.append(
                Row(
                    what=f"creation to node at {mine.rate:g}/s, {name} ms",
                    kube_scheduler=f"{getattr(other, name):.1f}",
                    berth=f"{getattr(mine, name):.1f}",
                    reached=getattr(mine, name),
                    goal=goal,
                    at_most=True,
                )
            )
    return rows


async def on_few_nodes(plane: ControlPlane, peer: KubeScheduler, rounds: int) -> list[Row]:
    """What is measured on 1,000 nodes."""
    await add_nodes(plane, FEW)
    drains = await drain_in_turn([Berth(), peer], plane, pods=2000, form=Form.EQUAL, rounds=rounds)
    scaled = await drain_in_turn(
        [Berth(name="1 scorer"), Berth(name="4 scorers", scorers=4)], plane, pods=LONG, form=Form.EQUAL, rounds=rounds
    )
    one, four = (
        statistics.median(each.bound_per_second for each in scaled if each.scheduler == name)
        for name in ("1 scorer", "4 scorers")
    )
    return [
        faster("2,000 equal pods with Events, per s", drains, lambda one: one.with_events_per_second, 1.0),
        cheaper(f"CPU ms a pod, {FEW:,} nodes", drains, 0.9),
        Row(
            what="4 scorers against 1, bound/s",
            kube_scheduler="-",
            berth=f"{four:.0f}, {one:.0f}",
            reached=four / one,
            goal=0.95,
        ),
    ]


async def with_devices(plane: ControlPlane, peer: KubeScheduler, rounds: int) -> list[Row]:
    """What is measured with 8 GPUs on each of 500 nodes."""
    await add_nodes(plane, WITH_DEVICES, Form.CLAIMS)
    both: list[Contender] = [Berth(), peer]
    claims = await drain_in_turn(both, plane, pods=2000, form=Form.CLAIMS, rounds=rounds)
    templates = await drain_in_turn(both, plane, pods=2000, form=Form.TEMPLATES, rounds=rounds)
    _, theirs = _medians(claims, _cpu)
    return [
        faster("2,000 pods with a GPU by a claim, bound/s", claims, lambda one: one.bound_per_second, 1.5),
        faster("the same, claims of a template, bound/s", templates, lambda one: one.bound_per_second, 1.5),
        cheaper("CPU ms a pod with a claim", claims, round(theirs, 2)),
    ]


async def repeats(plane: ControlPlane) -> list[Row]:
    """How often pods are ranked, with several scorers."""
    wanted = [one for one in scenarios(FEW) if one.name in {"three sizes", "live bandwidth"}]
    rows = []
    for found in await measure_placements(wanted, [1, 2, 4], plane.kubeconfig_path):
        if found["scorers"] > 1:
            attempts = 100 + found["repeats_per_100"]
            rows.append(
                Row(
                    what=f"attempts per 100 pods, {found['cluster']}, {found['scorers']} scorers",
                    kube_scheduler="100",
                    berth=f"{attempts:.0f}",
                    reached=attempts,
                    goal=103,
                    at_most=True,
                )
            )
    return rows


def show(rows: Iterable[Row]) -> None:
    table = Table("", KUBE_SCHEDULER, "berth", "reached", "goal", "")
    for row in rows:
        goal = f"{'≤' if row.at_most else '≥'} {row.goal:g}"
        table.add_row(
            row.what, row.kube_scheduler, row.berth, f"{row.reached:.2f}", goal, "met" if row.is_met else "not met"
        )
    console.print(table)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="Drains of each scheduler, of which the median counts.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
) -> None:
    """Measure, print the table, write the figures."""
    assets, peer = assets_folder(), kube_scheduler()
    if assets is None or peer is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}, with kube-scheduler in the same folder\n")
        raise typer.Exit(UNREACHABLE)
    rows: list[Row] = []
    with control_plane(assets) as plane:
        rows += asyncio.run(on_many_nodes(plane, peer, rounds))
    with control_plane(assets) as plane:
        rows += asyncio.run(on_few_nodes(plane, peer, rounds))
    with control_plane(assets) as plane:
        rows += asyncio.run(with_devices(plane, peer, rounds))
    with control_plane(assets) as plane:
        rows += asyncio.run(repeats(plane))
    show(rows)
    now = datetime.now(UTC)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"comparison-{now:%Y%m%dT%H%M%SZ}.json"
    machine = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
    results = {"at": now.isoformat(), "machine": machine, "rounds": rounds, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"written to {path}")


if __name__ == "__main__":
    typer.run(main)
