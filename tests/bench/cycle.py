"""What one scheduling cycle costs: CPU microseconds a pod, by what the pod is and what is known of its like.

    make bench-cycle ARGS="--nodes 5000 --rounds 300"

Every node is looked at and scored by the whole default profile, in one thread. The nodes are those of a cluster at work
(`bench.population`): ten pods on each, of several hundred applications. A figure is the process's CPU time, so that who
else uses the machine hardly matters. The scorer's memory is that of a real process (`bench.scorer_memory`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from time import process_time_ns
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bench.population import applications, namespaces, nodes, pods
from bench.scorer_memory import ScorerMemory, scorer_memory
from bench.waiting import apart, attempt, of_application, plain, spread
from berth.api.config.load import default_configuration
from berth.api.pod import Pod
from berth.api.workloads import ReplicaSet, Service
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import check, rank
from berth.framework.profile import Profile, build_profiles
from berth.plugins.presets import DEFAULT
from berth.plugins.registry import BUILT_IN
from berth.process.lifecycle import keep_freed_memory

RESULTS = Path(__file__).parent / "results"
PODS_PER_NODE = 10
WARM_UP = 20
BUDGET_NODES = 5000
BUDGET_MEBIBYTES = 300
BUDGETS: Mapping[str, int] = {
    "known class": 250,
    "new class": 1000,
    "spread over zones": 1000,
    "apart by host": 1000,
}
"""CPU microseconds at 5,000 nodes."""

console = Console(highlight=False, soft_wrap=True)
Figures = dict[str, dict[str, float]]


@dataclass
class World:
    """A cluster at work and the default profile."""

    snapshot: Snapshot
    profile: Profile
    numbers: Iterator[int]

    def place(self, pod: Pod) -> None:
        """Rank a pod and count it where it goes best, as a scorer does."""
        best = rank(pod, self.snapshot, self.profile, attempt=attempt(pod)).candidates[0]
        self.snapshot.place(pod, best.node)


def world(node_count: int) -> World:
    """Nodes, their pods, and what says whose the pods are."""
    snapshot = Snapshot()
    for namespace in namespaces():
        snapshot.set_namespace(namespace)
    for application in applications():
        replica_set, service = application.owners()
        snapshot.objects(ReplicaSet).set(application.name, replica_set)
        snapshot.objects(Service).set(application.name, service)
    for node in nodes(node_count):
        snapshot.set_node(node)
    for pod in pods(node_count, PODS_PER_NODE):
        snapshot.place(pod, pod.spec.node_name)
    profile = build_profiles(default_configuration(BUILT_IN, DEFAULT), BUILT_IN)["berth"]
    return World(snapshot, profile, count(10**7))


def measure(node_count: int, rounds: int) -> Figures:
    """All figures for one number of nodes."""
    at_work = world(node_count)
    gc.freeze()  # as a service does: what was there at the start is not looked through again
    return {name: microseconds(rounds, work) for name, work in scenarios(at_work, node_count)}


def scenarios(at_work: World, node_count: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured. Pods are placed where they went best, and counted: so each finds one row changed."""
    snapshot, profile, numbers = at_work.snapshot, at_work.profile, at_work.numbers
    few, every = applications()[50:60:2], applications()
    millis = count(101)

    def ranked(pod: Pod) -> object:
        return rank(pod, snapshot, profile, attempt=attempt(pod))

    yield "known class", lambda: at_work.place(plain(next(numbers)))
    yield "known class, nothing changed", lambda: ranked(plain(next(numbers)))
    yield "new class", lambda: ranked(plain(next(numbers), f"{next(millis)}m"))
    yield "new class, refused by every node", lambda: ranked(plain(next(numbers), f"{1000 + next(millis)}"))
    yield "known class, refused by every node", lambda: ranked(plain(next(numbers), "1000"))
    yield "spread over zones", lambda: at_work.place(spread(next(numbers)))
    yield "apart by host", lambda: at_work.place(apart(next(numbers)))
    yield "of a replica set", lambda: at_work.place(of_application(every[5], next(numbers)))
    yield "of one of 5 classes", lambda: at_work.place(plain(n := next(numbers), f"{n % 5 * 50 + 110}m"))
    yield "of one of 5 replica sets", lambda: at_work.place(of_application(few[(n := next(numbers)) % 5], n))
    yield "of one of 400 replica sets", lambda: at_work.place(of_application(every[(n := next(numbers)) % 400], n))
    yield "check of one node", lambda: check(plain(n := next(numbers)), _node(n, node_count), snapshot, profile)
    yield (
        "check of one node, spread over zones",
        lambda: check(spread(n := next(numbers)), _node(n, node_count), snapshot, profile),
    )
    yield "placing a pod", lambda: snapshot.place(of_application(every[5], n := next(numbers)), _node(n, node_count))


def _node(number: int, node_count: int) -> str:
    return f"node-{number % node_count:05d}"


def microseconds(rounds: int, work: Callable[[], object]) -> dict[str, float]:
    """CPU time of each of many runs, the first ones left out."""
    spent = []
    for _ in range(rounds + WARM_UP):
        start = process_time_ns()
        work()
        spent.append((process_time_ns() - start) / 1000)
    measured = spent[WARM_UP:]
    return {"median": round(statistics.median(measured), 1), "p99": round(statistics.quantiles(measured, n=100)[98], 1)}


def main(
    nodes: Annotated[list[int] | None, typer.Option(help="Numbers of nodes, one after another.")] = None,
    rounds: Annotated[int, typer.Option(min=10, help="How often each is measured.")] = 300,
    scorer_nodes: Annotated[
        int, typer.Option(min=0, help="Nodes of the scorer whose memory is measured; 0: no.")
    ] = 5000,
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
) -> None:
    """Measure, print tables, write the figures. Nothing fails for being slow: figures are for people."""
    keep_freed_memory()
    figures = {}
    for node_count in nodes or [1000, 5000, 10_000, 50_000]:
        figures[node_count] = measure(node_count, rounds)
        show(node_count, figures[node_count])
    held = asyncio.run(scorer_memory(scorer_nodes, PODS_PER_NODE)) if scorer_nodes else None
    if held is not None:
        show_memory(held)
    console.print(f"written to {write(figures, held, rounds, out)}")


def show(node_count: int, figures: Figures) -> None:
    """One table: medians, and beside those that have a budget what part of it they are."""
    table = Table("pod", "median us", "p99 us", "of the budget", title=f"{node_count} nodes", title_justify="left")
    for name, spent in figures.items():
        table.add_row(name, f"{spent['median']:.0f}", f"{spent['p99']:.0f}", _share(name, node_count, spent["median"]))
    console.print(table)


def _share(name: str, node_count: int, median: float) -> str:
    budget = BUDGETS.get(name)
    return "" if budget is None or node_count != BUDGET_NODES else f"{median / budget:.2f}"


def show_memory(held: ScorerMemory) -> None:
    """What the scorer's process held."""
    console.print(
        f"a scorer of {held.nodes} nodes and {held.pods} pods: {held.ready_mebibytes} MiB when ready after "
        f"{held.start_seconds} s (peak {held.ready_peak_mebibytes}), {held.ranked_mebibytes} MiB after ranking "
        f"{held.classes} classes (peak {held.ranked_peak_mebibytes}), "
        f"{held.ranked_peak_mebibytes / BUDGET_MEBIBYTES:.2f} of the budget"
    )


def write(figures: Mapping[int, Figures], held: ScorerMemory | None, rounds: int, folder: Path) -> Path:
    """Write everything that was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"cycle-{now:%Y%m%dT%H%M%SZ}.json"
    told = {
        "at": now.isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.system(),
            "python": platform.python_version(),
            "numpy": np.__version__,
        },
        "profile": [ref.name for ref in DEFAULT.multi_point.enabled or ()],
        "pods_per_node": PODS_PER_NODE,
        "rounds": rounds,
        "budgets_microseconds_at_5000_nodes": dict(BUDGETS),
        "cpu_microseconds_by_nodes": {str(node_count): figures[node_count] for node_count in figures},
        "scorer": None if held is None else dataclasses.asdict(held),
    }
    path.write_text(json.dumps(told, indent=2) + "\n")
    return path


if __name__ == "__main__":
    typer.run(main)
