"""One measurement: pods wait, a scheduler is started, and a watch of the API server records when each pod is bound.

All times are those of the observer:

- `bound`: from the first pod seen bound to the last, so the start of the processes is not included;
- `with_events`: from the same instant until the last pod's Event `Scheduled` exists;
- `to_first`, `from_start`: from the start of the process to the first and to the last pod bound.

CPU time and memory of the processes are read from /proc.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.claims import add_claims, control_claims, remove_claims, spec_with_claim, spec_with_template
from bench.contenders import Contender, Running
from bench.gangs import add_groups, group_of, remove_groups, spec_in_group
from bench.observer import Bound
from berth_sim.nodes import HOSTNAME_LABEL, ZONE_LABEL, pod_manifest
from harness.servers.control_plane import ControlPlane
from harness.worlds.cluster_user import ClusterUser, eventually

DRAIN_SECONDS = 300.0
EVENTS_SECONDS = 30.0
"""The wait for Events after the last Binding. A scheduler that drops Events under load never completes them."""
EVENTS_ASKED_SECONDS = 0.1
"""Each question costs the API server some milliseconds, which a scheduler pays whose Events come after its Bindings."""
BENCH = "bench"
"""This process, whose cost belongs to no scheduler."""
CPU = "100m"
MEMORY = "500Mi"
LABELS = {"app": "web"}
PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


class Form(StrEnum):
    """What the pods ask for, besides their requests."""

    EQUAL = "equal"
    ZONES = "zones"
    """At most one apart over the zones."""
    APART = "apart"
    """No two on one node."""
    CLAIMS = "claims"
    """One GPU by a ResourceClaim that is there already."""
    TEMPLATES = "templates"
    """One GPU by a claim of a template, which the controller makes from the start of the scheduler on."""
    GANGS = "gangs"
    """In groups, all or none, by Kubernetes' own PodGroups."""
    RACKS = "racks"
    """In such groups, each within one rack."""

    @property
    def needs_devices(self) -> bool:
        return self in {Form.CLAIMS, Form.TEMPLATES}

    @property
    def has_groups(self) -> bool:
        return self in {Form.GANGS, Form.RACKS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """The figures of one scheduler, as in the results. Rates are pods per second, costs per 1,000 pods."""

    scheduler: str
    pods: int
    form: Form = Form.EQUAL
    to_first_seconds: float
    bound_per_second: float
    with_events_per_second: float | None
    from_start_seconds: float
    events: int
    pods_per_node: str
    cpu_seconds_per_1000: dict[str, float]
    peak_mebibytes: dict[str, float]
    cores_taken_by_others: float
    """CPU used by everything else on the machine, in cores. Above a few tenths the rates are not reliable."""
    watch_resumed: int
    """How often the observer's watch ended and was resumed. Each time, pods are seen some milliseconds late."""


async def drain(
    contender: Contender,
    seen: ClusterUser,
    plane: ControlPlane,
    folder: Path,
    pods: int,
    form: Form = Form.EQUAL,
    members: int = 1,
) -> Drain:
    """Create the pods, start the scheduler, and measure until all are bound. Groups have `members` pods each."""
    names = [f"web-{number}" for number in range(pods)]
    if form is Form.CLAIMS:
        await add_claims(seen, names)
    if form.has_groups:
        await add_groups(seen, pods, members, in_one_rack=form is Form.RACKS)
    await seen.create(waiting_pod(name, seen.namespace, contender, form, members) for name in names)
    version = (await seen.api.get(seen.api.pods, limit=1)).version
    watched = Bound()
    watching = asyncio.create_task(watched.watch(seen, version))
    controlling = None
    try:
        began = time.monotonic()
        with contender.run(plane, folder) as running:
            if form is Form.TEMPLATES:
                controlling = asyncio.create_task(control_claims(seen, names))
            await _count_of(watched, 1, watching, running)
            before, busy = _spent_so_far(running.pids), machine_busy_seconds()
            from_here = time.monotonic()
            await _count_of(watched, pods, watching, running)
            events_at = await _events_there(seen, pods)
            after, busy = _spent_so_far(running.pids), machine_busy_seconds() - busy
            took = time.monotonic() - from_here
    finally:
        watching.cancel()
        await asyncio.gather(watching, *filter(None, [controlling]), return_exceptions=True)
        if form.needs_devices:
            await remove_claims(seen)
        if form.has_groups:
            await remove_groups(seen)
    times = list(watched.at.values())
    first, last = times[0], times[-1]
    spent = _between(before, after)
    return Drain(
        scheduler=contender.name,
        pods=pods,
        form=form,
        to_first_seconds=first - began,
        bound_per_second=(pods - 1) / (last - first),
        with_events_per_second=None if events_at is None else (pods - 1) / (events_at - first),
        from_start_seconds=last - began,
        events=await _count_events(seen),
        pods_per_node=_spread(watched),
        cpu_seconds_per_1000={
            name: round(seconds / pods * 1000, 3) for name, seconds in spent.items() if name != BENCH
        },
        peak_mebibytes={name: round(cost.peak_mebibytes) for name, cost in after.items() if name != BENCH},
        cores_taken_by_others=round((busy - sum(spent.values())) / took, 2),
        watch_resumed=watched.resumed,
    )


def waiting_pod(name: str, namespace: str, contender: Contender, form: Form = Form.EQUAL, members: int = 1) -> dict:
    return pod_manifest(
        name,
        namespace=namespace,
        cpu=CPU,
        memory=MEMORY,
        labels=LABELS,
        scheduler=contender.scheduler_name,
        spec=_spec(name, form, members),
    )


def _spec(name: str, form: Form, members: int) -> dict[str, Any]:
    if form is Form.CLAIMS:
        return spec_with_claim(name)
    return spec_in_group(group_of(name, members)) if form.has_groups else _SPECS[form]


_ITS_PODS = {"labelSelector": {"matchLabels": LABELS}}
_OVER_ZONES = {"maxSkew": 1, "topologyKey": ZONE_LABEL, "whenUnsatisfiable": "DoNotSchedule", **_ITS_PODS}
_APART = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": HOSTNAME_LABEL, **_ITS_PODS}]}
_SPECS: Mapping[Form, dict[str, Any]] = {
    Form.EQUAL: {},
    Form.ZONES: {"topologySpreadConstraints": [_OVER_ZONES]},
    Form.APART: {"affinity": {"podAntiAffinity": _APART}},
    Form.TEMPLATES: spec_with_template(),
}


def _spent_so_far(scheduler: Mapping[str, int]) -> dict[str, Cost]:
    return costs({**scheduler, **children("etcd", "kube-apiserver"), BENCH: os.getpid()})


async def _count_of(watched: Bound, count: int, watching: asyncio.Task[None], running: Running) -> None:
    async def reached() -> bool:
        running.must_run()
        if watching.done():
            watching.result()
        return len(watched.at) >= count

    await eventually(reached, f"{count} pods to be bound", DRAIN_SECONDS)


async def _events_there(seen: ClusterUser, count: int) -> float | None:
    """When the last Event existed, or None after a timeout."""
    deadline = time.monotonic() + EVENTS_SECONDS
    while time.monotonic() < deadline:
        answer = await seen.api.get(seen.api.new_events, limit=1)
        if len(answer.body["items"]) + answer.body["metadata"].get("remainingItemCount", 0) >= count:
            return time.monotonic()
        await asyncio.sleep(EVENTS_ASKED_SECONDS)
    return None


async def _count_events(seen: ClusterUser) -> int:
    return len({event["regarding"]["name"] for event in await seen.events("Scheduled")})


def _spread(watched: Bound) -> str:
    counts = Counter(watched.nodes.values())
    return f"{min(counts.values())}..{max(counts.values())} on {len(counts)}"


def _between(before: dict[str, Cost], after: dict[str, Cost]) -> dict[str, float]:
    """CPU seconds by process, from the first pod bound to the last Event."""
    return {name: after[name].cpu_seconds - before[name].cpu_seconds for name in after if name in before}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU seconds (user and system) and peak memory of one process since its start."""

    cpu_seconds: float
    peak_mebibytes: float


def costs(pids: Mapping[str, int]) -> dict[str, Cost]:
    """The cost of each process; processes that have ended are left out."""
    return {name: cost for name, pid in pids.items() if (cost := _cost(PROC / str(pid))) is not None}


def _cost(folder: Path) -> Cost | None:
    try:
        times = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        peak = _PEAK.search((folder / "status").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    cpu_seconds = sum(int(ticks) for ticks in times) / TICKS_PER_SECOND
    return Cost(cpu_seconds=cpu_seconds, peak_mebibytes=int(peak[1]) / 1024 if peak else 0.0)


def machine_busy_seconds() -> float:
    """CPU seconds of the whole machine since boot, without I/O wait."""
    fields = (PROC / "stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq, steal = (int(each) for each in fields[:8])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_SECOND


def children(*names: str) -> dict[str, int]:
    """Process ids of this process's children that run one of the named programs."""
    found = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (name := _child(entry)) in names:
            found[name] = int(entry.name)
    return found


def _child(folder: Path) -> str:
    try:
        parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        program = (folder / "cmdline").read_text(errors="replace").partition("\0")[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return Path(program).name if parent == os.getpid() else ""
