"""Hours of pods that come and go, with a fault every few seconds: does memory stay flat, and what NATS stores?

    make soak ARGS="--minutes 30 --rate 50 --every 10"

Decisions are kept for 5 minutes in place of an hour, and markers of removed keys for 10: so the streams of a run of 30
minutes are flat over its last 20, since it begins 2 minutes before they count. A shorter run (`--minutes 5`) finds
failures, while its streams still grow.

Prints, for each process, the resident memory at the beginning and at the end of the last two thirds, the slope over
them, and the same for messages and bytes of each stream. In the first third each watcher and binder leads for a while:
a leader keeps more than one that stands by, and the first change of leaders is no growth. NATS collects its garbage
before each look: without that its memory swings by a tenth and more with the buffers of its streams. What it has in
use then is shown beside its resident memory, which Go gives back late. Faults that end a process are left out unless
--kills is given: a new process says nothing about growth. Ends with 1 when a memory grew by more than --limit percent,
or for what would be a problem in a run of faults (`faults.run`).
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from faults.bus import Bus
from faults.kinds import KINDS
from faults.plan import Fault, draw
from faults.run import UNREACHABLE, Outcome, Size, all_faults, judge_the_end, recover
from faults.workload import Workload
from faults.world import World, faketime, world
from harness.servers.control_plane import HOW_TO_GET_IT, assets_folder

SAMPLE_SECONDS = 5.0
FILL_SECONDS = 120.0
"""Before the minutes of a run count. Pods live for half a minute, and the markers of their keys for 10 minutes: what
NATS stores grows until the first ones go, which would be after the first third of 30 minutes."""
STEP_SECONDS = 0.2
LONGEST_STEP_SECONDS = 30.0
"""What is not created while the API server is away is created afterwards, so that as many pods come in every minute,
and what NATS stores of them stays the same. More than a machine can make up for is left out."""
ALIVE = 1500
"""Pods that are there at a time; the oldest is deleted for each new one. They fit on the nodes of the run."""
NODES = 200
DECISIONS_AGE = {"BERTH_NATS_DECISIONS_AGE": "5m"}
ENDS_A_PROCESS = ("kill", "loses", "disk full", "clock")
"""Words in the names of faults after which another process goes on (or, of a clock, that a long run does not need)."""
CHANGES = 3
PAUSE_SECONDS = 20.0
"""Of a leader whose Lease runs out after 15 s."""
_RSS = re.compile(r"^VmRSS:\s+(\d+) kB$", re.MULTILINE)

console = Console(highlight=False, soft_wrap=True)


@dataclass
class Samples:
    """Measurements by name, each with the second at which it was taken."""

    values: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    pids: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))

    def trends(self, start: float, end: float) -> Mapping[str, Trend]:
        """The trend of each measurement between two seconds."""
        found = {}
        for name, values in sorted(self.values.items()):
            late = [(at, value) for at, value in values if start <= at < end]
            if len(late) >= 6:
                found[name] = _trend(late)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Medians of the first and last sixth, and the growth that a straight line through all values has."""

    first: float
    last: float
    growth_percent: float


def _trend(values: Sequence[tuple[float, float]]) -> Trend:
    part = max(1, len(values) // 6)
    times, amounts = [at for at, _ in values], [amount for _, amount in values]
    slope = statistics.linear_regression(times, amounts).slope
    mean = statistics.fmean(amounts)
    return Trend(
        first=statistics.median(amounts[:part]),
        last=statistics.median(amounts[-part:]),
        growth_percent=100 * slope * (times[-1] - times[0]) / mean if mean else 0.0,
    )


async def soak(size: Size, assets: Path, folder: Path, *, seconds: float, rate: float) -> tuple[Outcome, Samples]:
    """One run."""
    chance = random.Random(size.faults)
    durations = {name: KINDS[name].seconds for name in size.kinds}
    plan = [
        fault
        for fault in draw(1, faults=size.faults, gap_seconds=size.gap_seconds, kinds=durations)
        if fault.at < seconds
    ]
    plan = sorted([*plan, *_changes_of_leaders(seconds / 3)], key=lambda fault: fault.at)
    outcome, samples = Outcome(seed=1, faults=len(plan)), Samples()
    async with world(assets, folder, scorers=size.scorers, environment=DECISIONS_AGE) as around:
        work = Workload(world=around, chance=chance)
        await work.prepare(nodes=size.nodes, tight=0, pods=0)
        bus = Bus(around)
        around.before_loss = bus.collect_decisions
        sampling = asyncio.create_task(_sample(around, samples))
        kubelet = asyncio.create_task(work.end_evicted_pods())
        try:
            _, reached = await asyncio.gather(
                all_faults(plan, around, work, console.print), _come_and_go(work, seconds, rate)
            )
            console.print(f"{reached:.0f} pods/s came and went")
            await recover(around, outcome, size, console.print)
            await judge_the_end(around, work, bus, outcome)
        finally:
            sampling.cancel()
            kubelet.cancel()
    outcome.problems += around.judge.problems
    return outcome, samples


def _changes_of_leaders(seconds: float) -> list[Fault]:
    """Pauses longer than a Lease, one after another, so that everything that may lead has led after this time."""
    pauses = ("pause leading watcher", "pause leading binder") * CHANGES
    step = seconds / (len(pauses) + 1)
    return [
        Fault(at=(number + 0.5) * step, kind=kind, seconds=PAUSE_SECONDS, seed=number)
        for number, kind in enumerate(pauses)
    ]


async def _come_and_go(work: Workload, seconds: float, rate: float) -> float:
    """Create pods at this rate; once enough are there, delete as many, the oldest first. Returns the rate reached.

    What is not created in LONGEST_STEP_SECONDS is left out.
    """
    started, made = time.monotonic(), 0
    last, judge = started, work.world.judge
    while (now := time.monotonic()) < started + seconds:
        due = round(min(now - last, LONGEST_STEP_SECONDS) * rate)
        last, made = now, made + due
        await work.add_pods(due)
        alive = [pod.name.rpartition("/")[2] for pod in judge.pods.values() if not pod.is_going]
        await work.delete_pods(alive[: max(0, len(alive) - ALIVE)])
        judge.forget_those_gone()
        await asyncio.sleep(STEP_SECONDS)
    return made / seconds


async def _sample(around: World, samples: Samples) -> None:
    started = time.monotonic()
    while True:
        at = time.monotonic() - started
        for name, in_use in await asyncio.to_thread(_collect_garbage, around):
            samples.values[f"MiB in use in {name}"].append((at, in_use / 2**20))
        for name, pid in _processes(around):
            if (kibibytes := _rss(pid)) is not None:
                samples.pids[name].add(pid)
                samples.values[f"MiB of {name}"].append((at, kibibytes / 1024))
        for name, messages, size in await asyncio.to_thread(_streams, around):
            samples.values[f"messages in {name}"].append((at, messages))
            samples.values[f"KiB in {name}"].append((at, size / 1024))
        await asyncio.sleep(SAMPLE_SECONDS)


def _collect_garbage(around: World) -> list[tuple[str, int]]:
    """What each NATS server has in use afterwards, in bytes."""
    in_use = [(f"NATS {server.settings.name}", server.collect_garbage()) for server in around.nats]
    return [(name, size) for name, size in in_use if size is not None]


def _processes(around: World) -> list[tuple[str, int]]:
    servers = [(f"NATS {server.settings.name}", server.pid) for server in around.nats if server.pid is not None]
    return [*around.processes(), *servers]


def _rss(pid: int) -> int | None:
    try:
        found = _RSS.search(Path(f"/proc/{pid}/status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(found[1]) if found else None


def _streams(around: World) -> list[tuple[str, int, int]]:
    port = around.nats[0].settings.monitoring_port
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/jsz?streams=true", timeout=5) as answer:
            accounts = json.load(answer).get("account_details", [])
    except OSError:
        return []
    return [
        (stream["name"], stream["state"]["messages"], stream["state"]["bytes"])
        for account in accounts
        for stream in account.get("stream_detail", [])
    ]


def main(
    minutes: Annotated[float, typer.Option(min=0.5, help="How long pods come and go.")] = 30.0,
    rate: Annotated[float, typer.Option(min=1, help="Pods that are created, and deleted, in a second.")] = 50.0,
    every: Annotated[float, typer.Option(min=0.5, help="Mean seconds between two faults.")] = 10.0,
    limit: Annotated[float, typer.Option(help="Growth of a process's memory that is allowed, in percent.")] = 5.0,
    scorers: Annotated[int, typer.Option(min=1, help="Scorers of each of the two pipelines.")] = 1,
    kills: Annotated[bool, typer.Option("--kills", help="Also faults that end processes.")] = False,  # noqa: FBT002 - a flag
    out: Annotated[Path | None, typer.Option(help="File for all samples, as JSON: when did what grow?")] = None,
) -> None:
    """Run, print the trends, end with 1 when something grew or was wrong."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    kinds = [name for name in KINDS if kills or not any(word in name for word in ENDS_A_PROCESS)]
    if faketime() is None and "clock off by 30 s" in kinds:
        kinds.remove("clock off by 30 s")
    seconds = FILL_SECONDS + 60 * minutes
    size = Size(nodes=NODES, tight=0, faults=int(seconds / every) + 1, gap_seconds=every, scorers=scorers, kinds=kinds)
    with tempfile.TemporaryDirectory(prefix="berth-soak-") as folder:
        outcome, samples = asyncio.run(soak(size, assets, Path(folder), seconds=seconds, rate=rate))
    if out is not None:
        out.write_text(json.dumps(samples.values))
    grown = show(samples, seconds - 40 * minutes, seconds, limit)
    for problem in outcome.problems:
        console.print(f"PROBLEM {problem}")
    console.print(str(outcome))
    raise typer.Exit(bool(grown or outcome.problems))


def show(samples: Samples, start: float, end: float, limit: float) -> list[str]:
    """Print the trends; the names of processes whose memory grew by more than the limit."""
    table = Table("", "first", "last", "growth", "processes", title_justify="left")
    table.title = "the last two thirds: medians of their first and last sixth, growth of the line through all"
    grown = []
    for name, trend in samples.trends(start, end).items():
        pids = samples.pids.get(name.removeprefix("MiB of "), set())
        is_too_much = len(pids) == 1 and trend.growth_percent > limit
        grown += [name] if is_too_much else []
        mark = " (!)" if is_too_much else ""
        table.add_row(
            name,
            f"{trend.first:.1f}",
            f"{trend.last:.1f}",
            f"{trend.growth_percent:+.1f} %{mark}",
            str(len(pids) or ""),
        )
    console.print(table)
    return grown


if __name__ == "__main__":
    typer.run(main)
