"""How long a tenant's pod waits while another tenant creates as many and as large pods as the API server lets him.

    make bench-tenant ARGS="--pods 50000 --seconds 60"

On a real API server. One namespace has thousands of pods that fit until the cluster is full and then wait for room, and
a pod with 10,000 affinity terms. It creates and deletes pods all the time; each deletion makes room for which waiting
pods are woken. Another namespace creates a pod now and then, which fits on nodes that the first cannot use. Its latency
is from the answer to the creation until the pod is seen bound, to the 20 ms of the observer; it is shown before the
attack and during it.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.contenders import Berth
from berth.sim.nodes import node_manifest, pod_manifest
from harness.servers.control_plane import HOW_TO_GET_IT, ControlPlane, assets_folder, control_plane
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually, node_of

RESULTS = Path(__file__).parent / "results"
UNREACHABLE = 3
TERMS = 10_000
NOISY_NODES = 20
PODS_PER_NODE = 100
QUIET_NODES = 5
QUIET = "quiet"
POLL_SECONDS = 0.02
MOST_AT_ONCE = 32
BEFORE_SECONDS = 10.0
LONGEST_SECONDS = 120.0
GOAL_SECONDS = 1.0

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long the quiet tenant's pods waited, in seconds."""

    pods: int
    median: float
    p99: float
    longest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The result of a run. ``noisy_bound``: the noisy tenant's bound pods, of those that were there at the end."""

    before: Waits
    during: Waits
    noisy_created: int
    noisy_deleted: int
    noisy_bound: int
    noisy_left: int
    refusal: str
    """What the pod with too many terms was told."""
    load_average: float


@dataclass(kw_only=True)
class Noisy:
    """The tenant who attacks."""

    user: ClusterUser
    created: int = 0
    deleted: int = 0
    _names: list[str] = field(default_factory=list)

    def pods(self, count: int) -> Iterator[dict[str, Any]]:
        for _ in range(count):
            self.created += 1
            self._names.append(f"noisy-{self.created}")
            yield pod_manifest(self._names[-1], namespace=self.user.namespace, cpu="1m", memory="1Mi")

    async def come_and_go(self, rate: float) -> None:
        """Create and delete so many pods a second, the oldest first: those are bound, and their room is free then.

        Where the API server is slower than that, it is as many as it takes.
        """
        last = time.monotonic()
        while True:
            due = min(int((time.monotonic() - last) * rate), MOST_AT_ONCE)
            last = time.monotonic() if due else last
            oldest, self._names = self._names[:due], self._names[due:]
            await asyncio.gather(self.user.create(self.pods(due)), *(self.user.delete_pod(name) for name in oldest))
            self.deleted += len(oldest)
            await asyncio.sleep(POLL_SECONDS)

    async def with_many_terms(self) -> None:
        # Below the API server's limit for a request of 3 MiB, and below etcd's of 1.5 MiB for an object.
        term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}
        terms = [{**term, "topologyKey": f"z{number}"} for number in range(TERMS)]
        anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        await self.user.create([pod_manifest("huge", namespace=self.user.namespace, spec={"affinity": anti})])


async def quiet_waits(user: ClusterUser, name: str, rate: float, seconds: float) -> Waits:
    """Create the quiet tenant's pods at this rate, and see when each is bound."""
    created: dict[str, float] = {}
    bound: dict[str, float] = {}

    async def create() -> None:
        for number in range(int(rate * seconds)):
            pod = f"{name}-{number}"
            spec = {"nodeSelector": {QUIET: "yes"}, "tolerations": [{"key": QUIET, "operator": "Exists"}]}
            await user.create([pod_manifest(pod, namespace=user.namespace, cpu="1m", memory="1Mi", spec=spec)])
            created[pod] = time.monotonic()
            await asyncio.sleep(1 / rate)

    creating = asyncio.create_task(create())
    deadline = time.monotonic() + seconds + LONGEST_SECONDS
    while time.monotonic() < deadline and not (creating.done() and len(bound) == len(created)):
        for pod, found in (await user.pods()).items():
            if pod in created and node_of(found):
                bound.setdefault(pod, time.monotonic())
        await asyncio.sleep(POLL_SECONDS)
    await creating
    waits = sorted(bound.get(pod, deadline) - at for pod, at in created.items())
    for pod in created:
        await user.delete_pod(pod)
    return Waits(
        pods=len(waits),
        median=round(statistics.median(waits), 3),
        p99=round(waits[min(len(waits) - 1, int(len(waits) * 0.99))], 3),
        longest=round(waits[-1], 3),
    )


async def measure(plane: ControlPlane, *, pods: int, churn: float, rate: float, seconds: float) -> Figures:
    """The whole run, on a control plane of its own."""
    async with cluster_user(plane.kubeconfig_path) as attacker, cluster_user(plane.kubeconfig_path) as user:
        noisy = Noisy(user=attacker)
        for other in (attacker, user):
            other.nodes.clear()
        await attacker.create(node_manifest(f"node-{n}", cpu="64", pods=PODS_PER_NODE) for n in range(NOISY_NODES))
        taint = {"key": QUIET, "value": "yes", "effect": "NoSchedule"}
        await attacker.create(
            node_manifest(f"{QUIET}-{n}", cpu="64", pods=1000, labels={QUIET: "yes"}, taints=[taint])
            for n in range(QUIET_NODES)
        )
        attacker.nodes.clear()  # nothing is cleaned up: everything ends with its API server
        with tempfile.TemporaryDirectory(prefix="berth-tenant-") as folder, Berth().run(plane, Path(folder)) as berth:
            await asyncio.to_thread(berth.wait_until_ready)
            before = await quiet_waits(user, "before", rate, BEFORE_SECONDS)
            console.print(f"before: {before}")
            await noisy.with_many_terms()
            await attacker.create(noisy.pods(pods))
            console.print(f"{noisy.created} pods of the noisy tenant")
            churning = asyncio.create_task(noisy.come_and_go(churn))
            try:
                during = await quiet_waits(user, "during", rate, seconds)
            finally:
                churning.cancel()
                await asyncio.gather(churning, return_exceptions=True)
            refusal = await eventually(
                lambda: _condition_of(attacker, "huge"), "the pod with many terms to be told", 60
            )
            placed, left = await attacker.placed(), len(await attacker.pods())
    return Figures(
        before=before,
        during=during,
        noisy_created=noisy.created,
        noisy_deleted=noisy.deleted,
        noisy_bound=len(placed),
        noisy_left=left,
        refusal=refusal,
        load_average=round(os.getloadavg()[0], 1),
    )


async def _condition_of(user: ClusterUser, name: str) -> str:
    return (await user.condition(name)).get("message", "")


def write(figures: Figures, asked: dict[str, float], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"tenant-{now:%Y%m%dT%H%M%SZ}.json"
    machine = {"cores": os.cpu_count()}
    found = {"at": now.isoformat(), "machine": machine, "asked": asked, "goal_p99_seconds": GOAL_SECONDS}
    path.write_text(json.dumps({**found, "figures": asdict(figures)}, indent=2) + "\n")
    return path


def main(
    pods: Annotated[int, typer.Option(min=1, help="Pods of the noisy tenant.")] = 50_000,
    churn: Annotated[float, typer.Option(min=0, help="Pods that it creates and deletes in a second.")] = 100.0,
    rate: Annotated[float, typer.Option(min=0.1, help="Pods of the quiet tenant in a second.")] = 5.0,
    seconds: Annotated[float, typer.Option(min=1, help="How long the quiet tenant's pods are measured.")] = 60.0,
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
) -> None:
    """Measure, print and write the figures. A slow result is not an error."""
    assets = assets_folder()
    if assets is None:
        sys.stderr.write(f"{HOW_TO_GET_IT}\n")
        raise typer.Exit(UNREACHABLE)
    with control_plane(assets) as plane:
        figures = asyncio.run(measure(plane, pods=pods, churn=churn, rate=rate, seconds=seconds))
    show([("before the attack", figures.before), ("during it", figures.during)])
    console.print(figures)
    path = write(figures, {"pods": pods, "churn": churn, "rate": rate, "seconds": seconds}, out)
    console.print(f"written to {path}")


def show(rows: Sequence[tuple[str, Waits]]) -> None:
    for name, waits in rows:
        console.print(
            f"another tenant's pod {name}: median {waits.median:.2f} s, p99 {waits.p99:.2f} s "
            f"(goal {GOAL_SECONDS:.0f}), longest {waits.longest:.2f} s, of {waits.pods}"
        )


if __name__ == "__main__":
    typer.run(main)
