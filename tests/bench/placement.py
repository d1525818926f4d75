"""Where pods go on the real pipeline with one and with many scorers, and how often they are ranked.

The promise: docs/design.md, 3.9.

    make bench-placement ARGS="--nodes 1000 --scorers 1 --scorers 2 --scorers 4 --scorers 8"

`berth up` with an embedded nats-server and the services as they ship, on a real API server when KUBEBUILDER_ASSETS has
one, else on the simulated one. The scorers are ready when the pods are created. Each run has nodes of its own; one
scorer runs first, and the others are compared with it. `tests/simulation/test_many_scorers.py` compares the same
clusters in a simulation.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from berth.bus.interface import Session
from berth.messages.attempts import Decision, Outcome
from berth.messages.encoding import decode
from berth.messages.livedata import NodeSample, encode_sample
from berth.messages.subjects import Attempt, key
from berth.profiles.configuration import profiles_of, read_configuration
from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import node_manifest, pod_manifest
from harness.servers.control_plane import assets_folder, control_plane
from harness.worlds.cluster_user import ClusterUser, cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up
from harness.worlds.placements import Placements, Scenario, per_kind, placements, scenarios

RESULTS = Path(__file__).parent / "results"
BOUND_SECONDS = 600.0
REPEATS_PER_100 = 3.0
MISPLACED_PERCENT = 3.0
PEOPLE, COLLECTOR = "people", "collector"
"""Users of the embedded NATS server: one reads the Decisions, one writes the bandwidth."""

console = Console(highlight=False, soft_wrap=True)


def main(
    nodes: Annotated[int, typer.Option(min=30, help="Nodes of the large clusters; pods are in proportion.")] = 1000,
    scorers: Annotated[list[int] | None, typer.Option(help="Number of scorers; may be repeated.")] = None,
    only: Annotated[str, typer.Option(help="Only clusters with this in their name.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
) -> None:
    """Run, print a line for each run, write the figures."""
    counts = sorted({1, *(scorers or [2, 4, 8])})
    wanted = [scenario for scenario in scenarios(nodes) if only in scenario.name]
    with api_server() as (server, kubeconfig):
        rows = asyncio.run(measure(wanted, counts, kubeconfig))
    path = write(rows, out, nodes=nodes, server=server)
    console.print(f"written to {path}")
    if not all(row["within_limits"] for row in rows):
        sys.stderr.write("some pods were ranked again or placed elsewhere more often than the design promises\n")


@contextmanager
def api_server() -> Iterator[tuple[str, Path | None]]:
    """What it is, and its kubeconfig; None: each run starts a simulated one."""
    assets = assets_folder()
    if assets is None:
        yield "simulated", None
        return
    with control_plane(assets) as plane:
        yield "kube-apiserver", plane.kubeconfig_path


async def measure(wanted: list[Scenario], counts: list[int], kubeconfig: Path | None) -> list[dict[str, Any]]:
    rows = []
    for scenario in wanted:
        by_one: Placements | None = None
        for count in counts:
            placed, seconds = await run(scenario, count, kubeconfig)
            by_one = by_one or placed
            rows.append(row := figures(scenario, count, placed, by_one, seconds))
            console.print(sentence(row))
    return rows


async def run(scenario: Scenario, scorers: int, kubeconfig: Path | None) -> tuple[Placements, float]:
    """Place the pods once; also how many seconds it took from the first creation to the last Binding."""
    async with cluster(kubeconfig) as path, cluster_user(path) as user:
        await user.create(node for kind in scenario.kinds for node in manifests(kind, user, scenario))
        with tempfile.TemporaryDirectory(prefix="berth-bench-") as folder:
            config = written(scenario.config, Path(folder, "config.yaml"))
            options = ("--kubeconfig", path, "--scorers", scorers, "--config", config)
            with berth_up(*options, "--algorithm-provider", scenario.provider, folder=Path(folder)) as berth:
                await asyncio.to_thread(berth.wait_until_ready)
                async with session_of(berth, COLLECTOR) as session:
                    await put_samples(session, scenario, config)
                async with session_of(berth, PEOPLE) as session:
                    return await place(scenario, user, session)


@asynccontextmanager
async def session_of(berth: BerthUp, user: str) -> AsyncIterator[Session]:
    session = await berth.session(user)
    try:
        yield session
    finally:
        await session.close()


def written(text: str, path: Path) -> Path:
    path.write_text(text)
    return path


@asynccontextmanager
async def cluster(kubeconfig: Path | None) -> AsyncIterator[Path]:
    if kubeconfig is not None:
        yield kubeconfig
        return
    async with SimulatedCluster() as simulated:
        yield simulated.kubeconfig_path


def manifests(kind: Any, user: ClusterUser, scenario: Scenario) -> Iterator[dict]:
    """The nodes of a kind, with the pods that are on them from the start."""
    for name in kind.nodes():
        yield node_manifest(name, cpu=kind.cpu, memory=kind.memory, labels=kind.labels)
        for number in range(kind.present):
            yield pod(scenario, number, f"{name}-{number}", user.namespace, node=name)


def pod(scenario: Scenario, number: int, name: str, namespace: str, *, node: str = "") -> dict:
    labels = scenario.labels_of(number)
    return pod_manifest(name, namespace=namespace, cpu=scenario.cpu, memory=scenario.memory, labels=labels, node=node)


async def put_samples(session: Session, scenario: Scenario, config: Path) -> None:
    """The traffic of each node, as the collector would write it."""
    (profile,) = profiles_of(read_configuration(config, provider=scenario.provider)).values()
    for source in profile.live_sources:
        for kind in scenario.kinds:
            sample = NodeSample(receive=kind.traffic, transmit=kind.traffic, sampled_at=datetime.now(UTC))
            for name in kind.nodes() if kind.traffic is not None else ():
                await session.put(source.bucket, key(source.name, name), encode_sample(sample))
    await asyncio.sleep(1 if profile.live_sources else 0)  # until scorers have read them


async def place(scenario: Scenario, user: ClusterUser, session: Session) -> tuple[Placements, float]:
    began = time.monotonic()
    names = {f"pod-{number}": number for number in range(scenario.pods)}
    await user.create(pod(scenario, number, name, user.namespace) for name, number in names.items())
    attempts: dict[str, tuple[str, int]] = {}
    after = 0

    async def all_bound() -> bool:
        nonlocal after
        async for stored in session.scan("DECISIONS", "berth.decision.>", after=after):
            after = max(after, stored.sequence)
            decision = decode(stored.data, Decision)
            if decision.outcome is Outcome.BOUND and decision.pod in names:
                attempts[decision.pod] = decision.node, Attempt.parse(decision.attempt).n
        return len(attempts) == scenario.pods

    await eventually(all_bound, f"{scenario.pods} pods to be bound", BOUND_SECONDS)
    seconds = time.monotonic() - began
    on_api = await user.placed()
    assert {name: on_api[name] for name in names} == {name: node for name, (node, _) in attempts.items()}
    return placements(scenario, ((names[name], node, n) for name, (node, n) in attempts.items())), seconds


def figures(scenario: Scenario, scorers: int, placed: Placements, by_one: Placements, seconds: float) -> dict[str, Any]:
    repeats, misplaced = placed.repeats_per_100, placed.misplaced_percent(by_one)
    shunned, widest = placed.on_shunned(by_one), placed.widest
    allowed = max(MISPLACED_PERCENT, 100 / scenario.pods)  # of thirty pods a single one is more than 3 %
    return {
        "cluster": scenario.name,
        "nodes": scenario.node_count,
        "pods": scenario.pods,
        "scorers": scorers,
        "repeats_per_100": round(repeats, 2),
        "misplaced_percent": round(misplaced, 2),
        "on_nodes_that_one_scorer_leaves_alone": shunned,
        "widest_difference_between_equal_nodes": widest,
        "pods_by_kind": per_kind(placed),
        "pods_per_second": round(scenario.pods / seconds),
        "within_limits": repeats <= REPEATS_PER_100 and misplaced <= allowed and not shunned,
    }


def sentence(row: dict[str, Any]) -> str:
    return (
        f"{row['cluster']}, {row['pods']} pods on {row['nodes']} nodes, {row['scorers']} scorers: "
        f"{row['repeats_per_100']} repeats per 100, {row['misplaced_percent']} % misplaced, "
        f"{row['on_nodes_that_one_scorer_leaves_alone']} on nodes that one scorer leaves alone, equal nodes differ by "
        f"{row['widest_difference_between_equal_nodes']}; {row['pods_by_kind']}; {row['pods_per_second']} pods/s"
    )


def write(rows: list[dict[str, Any]], folder: Path, *, nodes: int, server: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"placement-{nodes}-nodes-{now:%Y%m%dT%H%M%SZ}.json"
    machine = {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}
    results = {"at": now.isoformat(), "machine": machine, "api_server": server, "runs": rows}
    path.write_text(json.dumps(results, indent=2) + "\n")
    return path


if __name__ == "__main__":
    typer.run(main)
