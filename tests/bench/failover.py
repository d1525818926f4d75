"""How long no pod is bound when a service stops, is killed or is replaced, and when NATS dies, at 50 pods a second.

    make bench-failover ARGS="--rate 50 --rounds 3"

Watcher, binder and scorer run twice, each as a process of its own with an identity of its own, as in a Deployment: a
killed leader is replaced by its standby once its Lease has run out. (`berth up` restarts a child under the same
identity, which gets its Lease back at once.) A gap is the longest time between two Bindings, by the history in etcd,
from the fault on; the one of the seconds before it is shown beside it.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from berth_sim.nodes import node_manifest, pod_manifest
from faults.judge import Judge, judging
from faults.world import API_FLAGS, LEASES
from harness.servers.child_processes import free_ports, spawn, stop
from harness.servers.control_plane import HOW_TO_GET_IT, ControlPlane, assets_folder, control_plane
from harness.servers.nats_server import NatsServer, nats_server
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually

NODES = 300
PODS_PER_NODE = 250
BEFORE_SECONDS = 5.0
AFTER_SECONDS = 10.0
"""Pods go on arriving for so long after the first Binding that follows the fault."""
LONGEST_SECONDS = 60.0
STEP_SECONDS = 0.02
READY_SECONDS = 90.0
ROLES = ("watcher", "binder", "scorer")
UNREACHABLE = 3

console = Console(highlight=False, soft_wrap=True)


@dataclass(slots=True)
class Service:
    """One process of a role."""

    role: str
    process: subprocess.Popen[bytes]
    identity: str
    port: int
    """Where it serves its health."""

    async def is_ready(self) -> bool:
        """Whether it works, or stands by."""
        return await asyncio.to_thread(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2) as answer:
                return answer.status == HTTPStatus.OK
        except OSError:
            return False


@dataclass(kw_only=True)
class Cluster:
    """Everything that runs, without a supervisor."""

    plane: ControlPlane
    nats: NatsServer
    user: ClusterUser
    judge: Judge
    folder: Path
    services: list[Service] = field(default_factory=list)
    _started: int = 0

    def start(self, role: str) -> Service:
        """Start one more process of a role."""
        self._started += 1
        identity, port = f"host_{self._started}", free_ports(1)[0]
        command = [sys.executable, "-m", f"berth_{role}", "--nats", self.nats.address, "--identity", identity]
        command += ["--health-port", str(port)]
        command += [] if role == "scorer" else ["--kubeconfig", str(self.plane.kubeconfig_path)]
        service = Service(role, spawn(command, self.folder / f"{role}-{self._started}.log"), identity, port)
        self.services.append(service)
        return service

    async def leader(self, role: str) -> Service | None:
        """The process that holds the role's Lease."""
        spec = (await self.user.api.get(f"{LEASES}/berth-{role}")).body.get("spec", {})
        holder = spec.get("holderIdentity")
        return next((each for each in self.services if each.identity == holder and each.process.poll() is None), None)

    async def leads(self, role: str) -> Service:
        return await eventually(lambda: self.leader(role), f"a {role} to lead", READY_SECONDS)

    def of(self, role: str) -> list[Service]:
        return [each for each in self.services if each.role == role and each.process.poll() is None]

    async def all_ready(self) -> None:
        """Wait until every process works or stands by."""
        for service in [each for role in ROLES for each in self.of(role)]:
            await eventually(service.is_ready, f"{service.role} to be ready", READY_SECONDS)

    def end(self) -> None:
        stop([each.process for each in self.services if each.process.poll() is None])


@asynccontextmanager
async def cluster(assets: Path, folder: Path) -> AsyncIterator[Cluster]:
    """Start everything twice; all processes have ended when the block has."""
    async with AsyncExitStack() as stack:
        plane = stack.enter_context(control_plane(assets, api_flags=API_FLAGS))
        nats = stack.enter_context(nats_server())
        judge = await stack.enter_async_context(judging(plane.etcd_url))
        user = await stack.enter_async_context(cluster_user(plane.kubeconfig_path, cleans_up=False))
        await user.create(node_manifest(f"node-{n}", cpu="64", pods=PODS_PER_NODE) for n in range(NODES))
        around = Cluster(plane=plane, nats=nats, user=user, judge=judge, folder=folder)
        stack.callback(around.end)
        for role in (*ROLES, *ROLES):
            around.start(role)
        await around.leads("watcher")
        await around.leads("binder")
        await around.all_ready()
        yield around


# --- what happens


async def stop_binder(around: Cluster) -> None:
    (await around.leads("binder")).process.terminate()


async def kill_binder(around: Cluster) -> None:
    (await around.leads("binder")).process.kill()


async def stop_watcher(around: Cluster) -> None:
    (await around.leads("watcher")).process.terminate()


async def kill_watcher(around: Cluster) -> None:
    (await around.leads("watcher")).process.kill()


async def kill_scorer(around: Cluster) -> None:
    around.of("scorer")[0].process.kill()


async def roll(around: Cluster) -> None:
    """Replace every process, one after the other: the new one runs before the old one is stopped."""
    for old in [each for role in ROLES for each in around.of(role)]:
        new = around.start(old.role)
        await eventually(new.is_ready, f"the new {new.role} to be ready", READY_SECONDS)
        old.process.terminate()
        await asyncio.to_thread(old.process.wait, READY_SECONDS)


async def kill_nats(around: Cluster) -> None:
    around.nats.kill()
    await asyncio.to_thread(around.nats.start)


async def lose_nats(around: Cluster) -> None:
    around.nats.lose_store()
    await asyncio.to_thread(around.nats.start)


SCENES: Mapping[str, tuple[Callable[[Cluster], Awaitable[None]], float]] = {
    "leading binder stopped": (stop_binder, 1.0),
    "leading binder killed": (kill_binder, 17.0),
    "leading watcher stopped": (stop_watcher, 1.0),
    "leading watcher killed": (kill_watcher, 17.0),
    "all replaced in turn": (roll, 1.0),
    "scorer killed": (kill_scorer, 3.0),
    "NATS killed": (kill_nats, 2.0),
    "NATS killed and its store lost": (lose_nats, 2.0),
}
"""What happens, and the gap in seconds that is the goal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The longest time between two Bindings, before the fault and after it."""

    scene: str
    before_seconds: float
    seconds: float
    at: str
    """The time of day of the fault, as in the logs."""


async def measure(around: Cluster, scene: str, rate: float) -> Gap:
    """Let pods arrive, let it happen, and go on until pods have been bound for a while again."""
    act, _ = SCENES[scene]
    arriving = asyncio.create_task(_arrive(around, rate))
    times = around.judge.binding_times
    try:
        count = len(times)
        await eventually(lambda: _beyond(times, count), "pods to be bound", READY_SECONDS)
        started = time.monotonic()
        await asyncio.sleep(BEFORE_SECONDS)
        happened, at = time.monotonic(), datetime.now(UTC).isoformat()[11:23]
        await act(around)
        await asyncio.sleep(AFTER_SECONDS)
        deadline = happened + LONGEST_SECONDS
        while not _is_over(times, happened, rate) and time.monotonic() < deadline:  # noqa: ASYNC110 - of the judge
            await asyncio.sleep(0.5)
        ended = time.monotonic()
    finally:
        arriving.cancel()
    await eventually(lambda: _none_waits(around), "the last pods to be bound", READY_SECONDS)
    _restore(around)
    await around.leads("watcher")
    await around.leads("binder")
    await around.all_ready()
    return Gap(
        scene=scene,
        before_seconds=longest(times, started, happened),
        seconds=longest(times, happened, ended),
        at=at,
    )


async def _arrive(around: Cluster, rate: float) -> None:
    started, made = time.monotonic(), 0
    name = f"p{time.monotonic_ns()}"
    while True:
        due = int((time.monotonic() - started) * rate) - made
        await around.user.create(
            pod_manifest(f"{name}-{made + number}", namespace=around.user.namespace, cpu="1m", memory="1Mi")
            for number in range(due)
        )
        made += max(due, 0)
        await asyncio.sleep(STEP_SECONDS)


async def _beyond(times: list[float], count: int) -> bool:
    return len(times) > count


async def _none_waits(around: Cluster) -> bool:
    return not around.judge.waiting()


def _is_over(times: list[float], happened: float, rate: float) -> bool:
    """Whether pods have been bound at their rate for the last seconds."""
    since = max(happened, time.monotonic() - AFTER_SECONDS)
    return sum(at > since for at in times) > AFTER_SECONDS * rate * 0.8


def longest(times: list[float], start: float, end: float) -> float:
    """The longest time without a Binding between two moments."""
    inside = [start, *(at for at in times if start < at < end), end]
    return max(later - earlier for earlier, later in pairwise(inside))


def _restore(around: Cluster) -> None:
    """Two processes of each role again."""
    for role in ROLES:
        for _ in range(2 - len(around.of(role))):
            around.start(role)


def main(
    rate: Annotated[float, typer.Option(min=1, help="Pods that arrive in a second.")] = 50.0,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each.")] = 1,
    only: Annotated[str, typer.Option(help="Only these, separated by commas.")] = "",
    logs: Annotated[
        Path | None, typer.Option(help="Folder for the logs of the services; else they are removed.")
    ] = None,
) -> None:
    """Measure and print a table."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    chosen = [name.strip() for name in only.split(",") if name.strip()] or list(SCENES)
    if unknown := set(chosen) - SCENES.keys():
        raise typer.BadParameter(f"--only: {', '.join(sorted(unknown))}: want some of {', '.join(SCENES)}")
    gaps = asyncio.run(_all(assets, chosen, rate, rounds, logs))
    table = Table("what happens", "gap", "goal", "all rounds", "before it", title_justify="left")
    table.title = f"longest time without a Binding at {rate:.0f} pods/s, median of {rounds}"
    for name in chosen:
        mine = [gap for gap in gaps if gap.scene == name]
        each = [gap.seconds for gap in mine]
        table.add_row(
            name,
            f"{statistics.median(each):.2f} s",
            f"{SCENES[name][1]:.0f} s",
            ", ".join(f"{seconds:.2f}" for seconds in each),
            f"{statistics.median(gap.before_seconds for gap in mine):.2f} s",
        )
    console.print(table)


async def _all(assets: Path, chosen: list[str], rate: float, rounds: int, logs: Path | None) -> list[Gap]:
    gaps = []
    with tempfile.TemporaryDirectory(prefix="berth-failover-") as folder:
        async with cluster(assets, logs or Path(folder)) as around:
            for number in range(rounds):
                for scene in chosen:
                    gaps.append(gap := await measure(around, scene, rate))
                    console.print(f"round {number + 1}, {gap.at}: {scene}: {gap.seconds:.2f} s")
    return gaps


if __name__ == "__main__":
    typer.run(main)
