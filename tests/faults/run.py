"""Runs of random faults on real servers and processes, each from a seed; a run can be repeated with its seed.

    make faults ARGS="--seed 7 --faults 100"
    make faults ARGS="--seed 1 --seeds 10 --faults 100"                  1,000 faults
    make faults ARGS="--seed 3 --faults 20 --kinds 'kill NATS,API half open'"
    make faults ARGS="--seed 1 --faults 100 --devices 48 --pods 500"
    make faults ARGS="--seed 1 --faults 100 --groups 60 --pods 500"

Prints each fault as it begins and what was wrong; ends with 1 when anything was. The processes' scheduling is not in
the seed's hands: a repeated run has the same faults at the same instants, not the same interleaving.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from faults.bus import Bus
from faults.devices import Devices
from faults.gangs import FEW_AT_ONCE, Gangs
from faults.kinds import KINDS, OF_A_NATS_CLUSTER, OF_DEVICES, OF_GROUPS
from faults.plan import Fault, draw
from faults.workload import Workload
from faults.world import World, faketime, world
from harness.servers.control_plane import HOW_TO_GET_IT, assets_folder
from harness.worlds.cluster_user import eventually

RECOVERED_SECONDS = 60.0
"""A minute after the last fault every pod that fits is bound."""
SETTLED_SECONDS = 30.0
PREPARED_SECONDS = 120.0
STEP_SECONDS = 2.0
"""Pods arrive in bursts, so that several scorers rank at once."""
UNREACHABLE = 3
ALL_KINDS = {**KINDS, **OF_A_NATS_CLUSTER, **OF_DEVICES, **OF_GROUPS}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large a run is."""

    nodes: int = 200
    tight: int = 20
    """Nodes full of unimportant pods, each of which is evicted for an important one; as many that get exactly full."""
    pods: int = 2000
    devices: int = 0
    """Devices, always all wanted; on nodes of their own."""
    groups: int = 0
    """Room for so many members of groups, always all wanted; on nodes of their own."""
    faults: int = 100
    gap_seconds: float = 3.0
    scorers: int = 2
    nats_servers: int = 1
    kinds: Sequence[str] = tuple(KINDS)
    recovered_seconds: float = RECOVERED_SECONDS


@dataclass(kw_only=True)
class Outcome:
    """What one run came to."""

    seed: int
    problems: list[str] = field(default_factory=list)
    bound: int = 0
    recovered_seconds: float = 0.0
    longest_gap_seconds: float = 0.0
    evicted: int = 0
    faults: int = 0
    devices: int = 0
    waves: int = 0
    groups: int = 0
    kills_within: int = 0

    def __str__(self) -> str:
        devices = f"{self.devices} devices became free and wanted at once {self.waves} times, " if self.devices else ""
        groups = f"{self.groups} groups, a binder killed in {self.kills_within} of them, " if self.groups else ""
        return (
            f"seed {self.seed}: {self.faults} faults, {self.bound} pods bound, {self.evicted} evicted, "
            f"{devices}{groups}"
            f"all that fit bound {self.recovered_seconds:.1f} s after the last fault, longest time without a Binding "
            f"{self.longest_gap_seconds:.1f} s, {len(self.problems)} problems"
        )


async def run(seed: int, size: Size, assets: Path, folder: Path, say: Say) -> Outcome:
    """One run."""
    durations = {name: ALL_KINDS[name].seconds for name in size.kinds}
    plan = draw(seed, faults=size.faults, gap_seconds=size.gap_seconds, kinds=durations)
    outcome = Outcome(seed=seed, faults=len(plan))
    servers = {"scorers": size.scorers, "nats_servers": size.nats_servers}
    environment = FEW_AT_ONCE if size.groups else {}
    async with world(assets, folder, **servers, environment=environment, has_groups=bool(size.groups)) as around:
        work = Workload(world=around, chance=random.Random(f"pods {seed}"))
        await work.prepare(nodes=size.nodes, tight=size.tight, pods=size.pods)
        await eventually(lambda: all_bound(around), "the pool to be full", PREPARED_SECONDS)
        bus = Bus(around)
        around.before_loss = bus.collect_decisions
        background = [asyncio.create_task(work.end_evicted_pods())]
        if size.devices:
            devices = work.devices = Devices(work=work, chance=random.Random(f"devices {seed}"))
            await devices.prepare(size.devices)
            background.append(asyncio.create_task(devices.control()))
        if size.groups:
            work.gangs = Gangs(work=work, chance=random.Random(f"groups {seed}"))
            await work.gangs.prepare(size.groups)
        started = time.monotonic()
        try:
            wanted = [each for each in (work.devices, work.gangs) if each]
            wanting = [asyncio.create_task(each.want()) for each in wanted]
            await asyncio.gather(all_faults(plan, around, work, say), _arrivals(plan, work, size))
            for each in wanted:
                each.is_last_fault_over = True
            await asyncio.gather(*wanting)
            ended = time.monotonic()
            await recover(around, outcome, size, say)
            await judge_the_end(around, work, bus, outcome)
        finally:
            await cancelled(background)
        outcome.longest_gap_seconds = _longest_gap(around.judge.binding_times, started, ended)
    outcome.problems += around.judge.problems
    return outcome


async def cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End them; raises why one has ended by itself."""
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def all_bound(around: World) -> bool:
    return bool(around.judge.pods) and not around.judge.waiting()


async def all_faults(plan: Sequence[Fault], around: World, work: Workload, say: Say) -> None:
    started = time.monotonic()

    async def one(fault: Fault) -> None:
        await asyncio.sleep(max(0.0, started + fault.at - time.monotonic()))
        say(str(fault))
        await ALL_KINDS[fault.kind].act(around, work, random.Random(fault.seed), fault.seconds)

    async with asyncio.TaskGroup() as tasks:
        for fault in plan:
            tasks.create_task(one(fault))


async def _arrivals(plan: Sequence[Fault], work: Workload, size: Size) -> None:
    """Pods arrive in bursts until the last fault, and the important ones of the pool `tight` among them."""
    seconds = max((fault.at for fault in plan), default=0.0) or STEP_SECONDS
    started, made = time.monotonic(), 0
    while made < size.pods:
        part = min(1.0, (time.monotonic() - started) / seconds)
        due = int(size.pods * part) - made
        await work.add_pods(due)
        made += due
        while work.vips < int(size.tight * part):
            await work.add_vip()
        await asyncio.sleep(STEP_SECONDS)


async def recover(around: World, outcome: Outcome, size: Size, say: Say) -> None:
    """Wait until every pod that fits is bound, and the important ones that need an eviction."""
    started = time.monotonic()
    say(f"last fault healed; {len(around.judge.waiting())} pods wait")
    while waiting := around.judge.waiting():
        if time.monotonic() - started > size.recovered_seconds:
            names = ", ".join(sorted(pod.name for pod in waiting)[:5])
            fit = len(around.judge.waiting_that_fit())
            outcome.problems.append(
                f"{len(waiting)} pods wait {size.recovered_seconds:.0f} s after the last fault, {fit} of them fit: "
                f"{names}"
            )
            break
        await asyncio.sleep(0.1)
    outcome.recovered_seconds = time.monotonic() - started


async def judge_the_end(around: World, work: Workload, bus: Bus, outcome: Outcome) -> None:
    outcome.problems += _missing(around)
    outcome.problems += await bus.left_over(SETTLED_SECONDS)
    await bus.collect_decisions()
    for uid, node in bus.bound.items():
        around.judge.check_decision(uid, node)
    outcome.problems += await bus.differences_of_the_mirror(SETTLED_SECONDS)
    outcome.bound = len(around.judge.bound())
    if work.devices:
        outcome.devices, outcome.waves = work.devices.count, work.devices.waves
        outcome.problems += await work.devices.leaks(SETTLED_SECONDS)
    if work.gangs:
        outcome.groups = len(work.gangs.wanted) + len(work.gangs.ended)
        outcome.kills_within = work.gangs.kills_within
        outcome.problems += work.gangs.problems()
    evicted = around.judge.evicted.values()
    outcome.evicted = len(evicted)
    outcome.problems += [f"{pod.name} evicted from {pod.node}" for pod in evicted if not pod.node.startswith("tight-")]
    if outcome.evicted > work.vips:
        outcome.problems.append(f"{outcome.evicted} pods evicted for {work.vips} that needed one eviction each")


def _missing(around: World) -> list[str]:
    return [
        f"{site.name}/{name} is not running (`berth up`: {_state(site.berth.returncode)})"
        for site in around.sites
        for name in site.missing()
    ]


def _state(code: int | None) -> str:
    return "runs" if code is None else f"ended with {code}"


def _longest_gap(times: Sequence[float], started: float, ended: float) -> float:
    inside = [started, *(at for at in times if started < at < ended), ended]
    return max(later - earlier for earlier, later in pairwise(inside))


def main(
    seed: Annotated[int, typer.Option(help="Seed of the first run.")] = 1,
    seeds: Annotated[int, typer.Option(min=1, help="Runs, each with the next seed.")] = 1,
    faults: Annotated[int, typer.Option(min=0, help="Faults of a run.")] = 100,
    pods: Annotated[int, typer.Option(min=1, help="Pods that arrive during a run.")] = 2000,
    nodes: Annotated[int, typer.Option(min=2, help="Nodes on which they fit.")] = 200,
    tight: Annotated[
        int, typer.Option(min=0, help="Nodes where a pod is evicted for another, and nodes that get exactly full.")
    ] = 20,
    gap: Annotated[float, typer.Option(min=0.1, help="Mean seconds between the beginnings of two faults.")] = 3.0,
    scorers: Annotated[int, typer.Option(min=1, help="Scorers of each of the two pipelines.")] = 2,
    devices: Annotated[int, typer.Option(min=0, help="Devices, all wanted at once; four on a node.")] = 0,
    groups: Annotated[int, typer.Option(min=0, help="Room for members of groups, all wanted at once.")] = 0,
    nats_servers: Annotated[int, typer.Option(help="1, or 3 with R3 streams and further faults.")] = 1,
    kinds: Annotated[str, typer.Option(help="Only these faults, separated by commas.")] = "",
    recovered: Annotated[float, typer.Option(help="Seconds after which pods that fit are bound.")] = RECOVERED_SECONDS,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the logs of runs without problems too.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Run, print what was wrong, end with 1 when anything was."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    further = {**(OF_DEVICES if devices else {}), **(OF_GROUPS if groups else {})}
    known = [*KINDS, *(OF_A_NATS_CLUSTER if nats_servers > 1 else ()), *further]
    chosen = [name.strip() for name in kinds.split(",") if name.strip()] or known
    if unknown := set(chosen).difference(known):
        raise typer.BadParameter(f"--kinds: {', '.join(sorted(unknown))}: want some of {', '.join(known)}")
    if "clock off by 30 s" in chosen and faketime() is None:
        _say("left out: clock off by 30 s: no libfaketime (Debian: apt-get install libfaketime)")
        chosen.remove("clock off by 30 s")
    size = Size(
        nodes=nodes,
        tight=tight,
        pods=pods,
        devices=devices,
        groups=groups,
        faults=faults,
        gap_seconds=gap,
        scorers=scorers,
        nats_servers=nats_servers,
        kinds=chosen,
        recovered_seconds=recovered,
    )
    outcomes = [_one(each, size, assets, keep=keep) for each in range(seed, seed + seeds)]
    for outcome in outcomes:
        _say(str(outcome))
    raise typer.Exit(any(outcome.problems for outcome in outcomes))


def _one(seed: int, size: Size, assets: Path, *, keep: bool) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"berth-faults-{seed}-"))
    _say(f"seed {seed}; logs in {folder}")
    outcome = asyncio.run(run(seed, size, assets, folder, _say))
    for problem in outcome.problems:
        _say(f"PROBLEM {problem}")
    if not outcome.problems and not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    typer.run(main)
