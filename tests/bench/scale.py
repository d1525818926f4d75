"""How cost grows with nodes, waiting pods, classes, bound pods and scorers; what each stage does alone on a core.

    make bench-scale                        # everything: ten minutes
    make bench-scale ARGS="nodes waiting"   # these parts

Each part writes its figures to docs/scale, from which `docs/generate` draws the plots of docs/performance.md.
`bench.growth`, `bench.classes` and `bench.stages` explain the figures. Needs KUBEBUILDER_ASSETS with etcd and
kube-apiserver.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench.classes import in_own_process
from bench.growth import MEASURED, SKIPPED, Growth, Load, grow
from bench.run import UNREACHABLE
from bench.stages import stage_by_stage
from harness.servers.control_plane import HOW_TO_GET_IT, assets_folder
from harness.worlds.plugin_site import installed_plugin

RESULTS = Path(__file__).parents[2] / "docs" / "scale"
NODES = (100, 1000, 5000, 10_000, 20_000, 50_000)
WAITING = (1000, 5000, 20_000, 50_000, 100_000, 200_000)
CLASSES = (1, 5, 20, 50, 100, 200, 400, 1000, 5000)
CLASSES_NODES = (1000, 5000)
BOUND = (0, 50_000, 150_000)
SCORERS = (1, 2, 4, 8)
BIG = 5000
"""Nodes of the cluster with many bound pods."""
PAUSE_MILLISECONDS = 20
PODS_PER_SCORER = 300
STAGES = ((1000, 1), (5000, 1), (5000, 2))
"""Nodes and scorers."""
STAGE_PODS = 5000
UNDISTURBED_CORES = 0.15
"""What others may use. A run in which they used more is repeated; the last of its tries counts."""
TRIES = 3

PLUGIN = f'''
"""Takes its time for each pod and no CPU: a scorer with an expensive cycle, as if it had a core of its own."""

import time

from berth.api.config.types import Point
from berth.framework.interface import PreScorePlugin
from berth.framework.status import SUCCESS
from berth.plugins.factory import PluginFactory


class Pause(PreScorePlugin):
    name = "Pause"

    def pre_score(self, state, pod, nodes):
        time.sleep({PAUSE_MILLISECONDS / 1000})
        return SUCCESS


FACTORY = PluginFactory(name="Pause", points=(Point.PRE_SCORE,), build=lambda _args: Pause())
'''
CONFIGURATION = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: berth, plugins: {preScore: {enabled: [{name: Pause}]}}}]
"""

Row = dict[str, Any]
console = Console(highlight=False, soft_wrap=True)


def by_nodes(assets: Path, rounds: int) -> Iterator[Row]:
    """The same equal pods on clusters of other sizes."""
    yield from _grown(assets, [Load(nodes=count) for count in NODES] * rounds)


def by_waiting(assets: Path, rounds: int) -> Iterator[Row]:
    """The first pods of so many that wait, without the very first; of few pods all that are left."""
    loads = []
    for count in WAITING:
        skipped = min(SKIPPED, count // 5)
        loads.append(Load(waiting=count, skipped=skipped, measured=min(MEASURED, count - skipped)))
    yield from _grown(assets, loads * rounds)


def by_bound(assets: Path, rounds: int) -> Iterator[Row]:
    """A start in a cluster with so many bound pods."""
    yield from _grown(assets, [Load(nodes=BIG, bound=count) for count in BOUND] * rounds)


def by_scorers(assets: Path, rounds: int) -> Iterator[Row]:
    """More scorers, each of which needs 20 ms a pod."""
    with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
        config = Path(folder, "config.yaml")
        config.write_text(CONFIGURATION)
        site = installed_plugin(Path(folder, "site"), "Pause", PLUGIN)
        loads = [
            Load(
                scorers=count,
                skipped=PODS_PER_SCORER * count // 5,
                measured=PODS_PER_SCORER * count,
                waiting=2 * PODS_PER_SCORER * count,
                flags=("--config", config),
                environment={"PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
            )
            for count in SCORERS
        ]
        yield from _grown(assets, loads * rounds)


def by_classes(assets: Path, rounds: int) -> Iterator[Row]:
    """Cycles alone, without servers."""
    del assets
    for nodes in CLASSES_NODES:
        for count in CLASSES * rounds:
            yield _said(dataclasses.asdict(in_own_process(nodes, count)))


def by_stage(assets: Path, rounds: int) -> Iterator[Row]:
    for nodes, scorers in STAGES * rounds:
        done = asyncio.run(stage_by_stage(assets, nodes=nodes, pods=STAGE_PODS, scorers=scorers))
        yield _said(dataclasses.asdict(done))


Part = Callable[[Path, int], Iterator[Row]]
PARTS: Mapping[str, Part] = {
    "nodes": by_nodes,
    "waiting": by_waiting,
    "bound": by_bound,
    "scorers": by_scorers,
    "classes": by_classes,
    "stages": by_stage,
}
"""By name, which is that of the file with the results."""


def _grown(assets: Path, loads: list[Load]) -> Iterator[Row]:
    for load in loads:
        for _ in range(TRIES):
            done: Growth = asyncio.run(grow(assets, load))
            if done.cores_taken_by_others <= UNDISTURBED_CORES:
                break
            console.print(f"others used {done.cores_taken_by_others} cores")
        yield _said(dataclasses.asdict(done))


def _said(row: Row) -> Row:
    console.print(json.dumps(row))
    return row


def write(part: str, rows: list[Row], rounds: int, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{part}.json"
    machine = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
    results = {"at": datetime.now(UTC).isoformat(), "machine": machine, "rounds": rounds, "rows": rows}
    path.write_text(json.dumps(results, indent=2) + "\n")
    return path


def show(part: str, rows: list[Row]) -> None:
    """The numbers of each run; the JSON has those by process."""
    plain = {name: None for row in rows for name, value in row.items() if not isinstance(value, dict)}
    table = Table(*plain, title=part, title_justify="left")
    for row in rows:
        table.add_row(*(str(row[name]) for name in plain))
    console.print(table)


def main(
    parts: Annotated[list[str] | None, typer.Argument(help=f"Some of {', '.join(PARTS)}; all by default.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each size, in turn.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
) -> None:
    """Measure, print, write the figures."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    wanted = parts or list(PARTS)
    if unknown := [part for part in wanted if part not in PARTS]:
        raise typer.BadParameter(f"{', '.join(unknown)}: want some of {', '.join(PARTS)}")
    for part in wanted:
        rows = list(PARTS[part](assets, rounds))
        show(part, rows)
        console.print(f"written to {write(part, rows, rounds, out)}; draw the plots: .venv/bin/python docs/generate")


if __name__ == "__main__":
    typer.run(main)
