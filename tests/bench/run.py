"""Throughput on a real API server: berth and, if its program is there, kube-scheduler, in turn on one cluster.

    make bench-drain ARGS="--nodes 5000 --pods 2000 --rounds 3 --scorers 2"
    make bench-drain ARGS="--nodes 5000 --pods 4000 --form racks --members 100"

Needs KUBEBUILDER_ASSETS with etcd and kube-apiserver. With kube-scheduler in the same folder the two are compared.
`bench.drain` explains the figures. Each round has new pods; the nodes stay.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.claims import add_devices
from bench.contenders import KUBE_SCHEDULER, Berth, Contender, kube_scheduler
from bench.drain import Drain, Form, drain
from bench.gangs import add_racks
from berth_sim.nodes import ZONES
from harness.servers.control_plane import HOW_TO_GET_IT, ControlPlane, assets_folder, control_plane
from harness.worlds.cluster_user import cluster_user
from harness.worlds.podgroups import GATES, SERVED

RESULTS = Path(__file__).parent / "results"
UNREACHABLE = 3

console = Console(highlight=False, soft_wrap=True)


def main(
    nodes: Annotated[int, typer.Option(min=1, help="Number of nodes, each with 4 CPU, 16 GiB and 110 pods.")] = 1000,
    pods: Annotated[int, typer.Option(min=2, help="Pods that wait when a scheduler starts.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each scheduler.")] = 3,
    scorers: Annotated[int, typer.Option(min=1, help="Number of berth's scorers.")] = 1,
    form: Annotated[
        Form,
        typer.Option(help="What pods ask for: spread over zones, one on each node, a GPU by a claim, all or none."),
    ] = Form.EQUAL,
    members: Annotated[int, typer.Option(min=1, help="Pods of each group, for gangs and racks.")] = 100,
    only: Annotated[str, typer.Option(help="Measure only berth or only kube-scheduler.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
) -> None:
    """Measure, print a table, write the figures."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    other = kube_scheduler(GATES if form.has_groups else ())
    present: list[Contender] = [Berth(scorers=scorers), *filter(None, [other])]
    contenders = [each for each in present if only in {"", each.name}]
    if not contenders:
        raise typer.BadParameter(f"--only {only!r}: want one of {', '.join(each.name for each in present)}")
    with control_plane(assets, api_flags=SERVED if form.has_groups else ()) as plane:
        measuring = measure(contenders, plane, nodes=nodes, pods=pods, form=form, members=members, rounds=rounds)
        drains = asyncio.run(measuring)
    show(drains, nodes=nodes, pods=pods)
    path = write(drains, out, {"nodes": nodes, "pods": pods, "members": members, "rounds": rounds, "scorers": scorers})
    console.print(f"written to {path}")


async def measure(
    contenders: Sequence[Contender],
    plane: ControlPlane,
    *,
    nodes: int,
    pods: int,
    form: Form,
    members: int,
    rounds: int,
) -> list[Drain]:
    """Run the schedulers in turn, `rounds` times each, every second round in the opposite order."""
    await add_nodes(plane, nodes, form)
    return await drain_in_turn(contenders, plane, pods=pods, form=form, members=members, rounds=rounds)


async def add_nodes(plane: ControlPlane, count: int, form: Form = Form.EQUAL) -> None:
    """Equal nodes in three zones, with what the form needs: 8 GPUs each, or racks.

    They end with their API server: deleting 5,000 takes long.
    """
    async with cluster_user(plane.kubeconfig_path, cleans_up=False) as cluster:
        if form.has_groups:
            await add_racks(cluster, count)
            return
        for number, zone in enumerate(ZONES):
            await cluster.add_nodes(len(range(number, count, len(ZONES))), zone=zone)
        if form.needs_devices:
            await add_devices(cluster)


async def drain_in_turn(
    contenders: Sequence[Contender], plane: ControlPlane, *, pods: int, form: Form, members: int = 1, rounds: int
) -> list[Drain]:
    drains = []
    for number in range(rounds):
        for contender in contenders[:: -1 if number % 2 else 1]:
            drains.append(done := await _round(contender, plane, pods, form, members))
            console.print(f"round {number + 1}: {_sentence(done)}")
    return drains


async def _round(contender: Contender, plane: ControlPlane, pods: int, form: Form, members: int) -> Drain:
    async with cluster_user(plane.kubeconfig_path) as seen:
        with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
            return await drain(contender, seen, plane, Path(folder), pods, form, members)


def _sentence(done: Drain) -> str:
    return (
        f"{done.scheduler} bound {done.pods} pods ({done.form}) at {done.bound_per_second:.0f}/s, with Events "
        f"{_rate(done.with_events_per_second)}/s, {done.to_first_seconds:.1f} s from start to first, "
        f"{done.from_start_seconds:.1f} to last pod; "
        f"{done.events} Events, pods per node {done.pods_per_node}; others used {done.cores_taken_by_others:.1f} cores"
    )


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}"


def show(drains: Sequence[Drain], *, nodes: int, pods: int) -> None:
    """Print medians, costs, and the ratio to kube-scheduler."""
    table = Table("scheduler", "bound/s", "with Events/s", "start to last", title_justify="left")
    table.title = f"{pods} waiting pods on {nodes} nodes, median of {_rounds(drains)}"
    costs = Table("scheduler", "process", "CPU s per 1,000 pods", "peak MiB")
    for name in dict.fromkeys(each.scheduler for each in drains):
        mine = [each for each in drains if each.scheduler == name]
        table.add_row(name, *_speeds(mine))
        for process, cpu, peak in _costs(mine):
            costs.add_row(name, process, f"{cpu:.2f}", f"{peak:.0f}")
    console.print(table, costs)
    for what, ratio in ratios(drains).items():
        console.print(f"berth / {KUBE_SCHEDULER}, {what}: {ratio:.2f}")


def _speeds(drains: Sequence[Drain]) -> list[str]:
    start = _median([each.from_start_seconds for each in drains])
    return [
        _rate(_median([each.bound_per_second for each in drains])),
        _rate(_median([each.with_events_per_second for each in drains])),
        f"{start:.1f} s",
    ]


def _costs(drains: Sequence[Drain]) -> Iterator[tuple[str, float, float]]:
    """For each process the medians of CPU seconds per 1,000 pods and of peak mebibytes."""
    for name in sorted({name for each in drains for name in each.cpu_seconds_per_1000}):
        cpu = [each.cpu_seconds_per_1000[name] for each in drains if name in each.cpu_seconds_per_1000]
        peak = [each.peak_mebibytes[name] for each in drains if name in each.peak_mebibytes]
        yield name, statistics.median(cpu), statistics.median(peak)


def ratios(drains: Sequence[Drain]) -> dict[str, float]:
    """Medians of berth divided by those of kube-scheduler; empty without kube-scheduler."""
    figures = {}
    for what in ("bound_per_second", "with_events_per_second"):
        ours, theirs = (
            _median([getattr(each, what) for each in drains if (each.scheduler == KUBE_SCHEDULER) is is_peer])
            for is_peer in (False, True)
        )
        if ours and theirs:
            figures[what] = round(ours / theirs, 3)
    return figures


def _rounds(drains: Sequence[Drain]) -> int:
    return sum(each.scheduler == drains[0].scheduler for each in drains)


def _median(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def write(drains: Sequence[Drain], folder: Path, asked: dict[str, int]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"drain-{asked['nodes']}-nodes-{now:%Y%m%dT%H%M%SZ}.json"
    machine = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
    rounds = [dataclasses.asdict(each) for each in drains]
    results = {"at": now.isoformat(), "machine": machine, **asked, "ratios": ratios(drains), "rounds_measured": rounds}
    path.write_text(json.dumps(results, indent=2) + "\n")
    return path


if __name__ == "__main__":
    typer.run(main)
