"""The cost of one scheduling cycle: CPU microseconds per pod, by kind of pod and by what the caches hold for it.

    make bench-cycle ARGS="--nodes 5000 --rounds 300"

Each cycle filters and scores every node with the whole default profile, in one thread. The nodes are those of a busy
cluster (`bench.population`), with ten pods each from several hundred applications. A figure is the CPU time of the
process, so other load on the machine has little effect. `bench.scorer_memory` measures the memory of a scorer process.
"A class" in the figures is an equivalence class of pods.
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
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from bench.population import HOSTNAME, ZONE, applications, namespaces, nodes, pods
from bench.scorer_memory import ScorerMemory, scorer_memory
from berth.api.config.load import default_configuration, load
from berth.api.config.presets import DEFAULT
from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.pod import (
    Affinity,
    Container,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    ResourceRequirements,
    TopologySpreadConstraint,
    Volume,
)
from berth.api.workloads import ReplicaSet, Service
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import BEST, Ranking, RankOptions, check, rank
from berth.framework.profile import Profile, build_profiles
from berth.memory import keep_freed_memory
from berth.messages.attempts import Pending
from berth.messages.encoding import decode, encode
from berth.messages.livedata import MeasuredUsage, NodeSample
from berth.messages.subjects import Attempt, Term, Uid
from berth.plugins.registry import BUILT_IN
from berth.profiles.configuration import profiles_of
from berth.ranking.ranker import Ranker
from berth.ranking.view import View
from berth.settings.settings import Numbers

RESULTS = Path(__file__).parent / "results"
PODS_PER_NODE = 10
WARM_UP = 20
RENEWALS = 20  # of all samples
SCRAPE_SECONDS = 15.0
FIRST_SAMPLE = 1_700_000_000.0  # Unix seconds
WITH_LOAD = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins: {{multiPoint: {{enabled: [{{name: {plugin}, weight: 3}}]}}}}
  pluginConfig: [{{name: {plugin}, args: {args}}}]
"""
BY_LOAD = {
    "NodeLoad": ("NodeLoad", "{}"),
    "NodeLoad, usageThresholds": ("NodeLoad", "{usageThresholds: {cpu: 90, memory: 95}}"),
    "TargetLoadPacking": ("TargetLoadPacking", "{}"),
    "LoadVariationRiskBalancing": ("LoadVariationRiskBalancing", "{}"),
    "LoadAwareScheduling": ("LoadAwareScheduling", "{usageThresholds: {cpu: 90, memory: 95}}"),
}
"""Plugin and arguments."""
EXPLAINED = Numbers().explained
BUDGET_NODES = 5000
BUDGET_MEBIBYTES = 300
BUDGETS: Mapping[str, int] = {
    "known class": 250,
    "new class": 1000,
    "spread over zones": 1000,
    "apart by host": 1000,
}
"""CPU microseconds at 5,000 nodes. The names are keys of the committed results."""

console = Console(highlight=False, soft_wrap=True)
Figures = dict[str, dict[str, float]]


@dataclass
class LoadedCluster:
    """A busy cluster, the default profile, and numbers for new pods."""

    view: View
    profile: Profile
    numbers: Iterator[int]

    @property
    def snapshot(self) -> Snapshot:
        return self.view.snapshot

    def answer(self, pending: bytes) -> bytes:
        """From PENDING to RANKED, as a scorer does, whose proposal counts from then on."""
        ranker = Ranker(profiles={"berth": self.profile}, config="", identity="bench", best=BEST, explained=EXPLAINED)
        return encode(ranker.answer(decode(pending, Pending), self.view, 0.0))

    def place(self, pod: Pod) -> None:
        """Rank a pod and place it on the best node, as a scorer does."""
        self.snapshot.place(pod, self.rank(pod).candidates[0].node)

    def rank(self, pod: Pod) -> Ranking:
        """As a scorer with its default settings does."""
        return rank(
            pod, self.snapshot, self.profile, attempt=first_attempt(pod), options=RankOptions(explained=EXPLAINED)
        )


def loaded_cluster(node_count: int) -> LoadedCluster:
    view = View()
    snapshot = view.snapshot
    for namespace in namespaces():
        snapshot.set_namespace(namespace)
    for application in applications():
        replica_set, service = application.owners()
        snapshot.objects(ReplicaSet).set(application.name, replica_set)
        snapshot.objects(Service).set(application.name, service)
    for node in nodes(node_count):
        snapshot.set_node(node)
    for pod in pods(node_count, PODS_PER_NODE):
        snapshot.place(pod, pod.spec.node_name, bound_at=0.0)
    profile = build_profiles(default_configuration(BUILT_IN, DEFAULT), BUILT_IN)["berth"]
    return LoadedCluster(view, profile, count(10**7))


def measured_cluster(node_count: int, plugin: str, args: str) -> LoadedCluster:
    """The same with this plugin in the profile, and a recent sample of every node."""
    cluster = loaded_cluster(node_count)
    configured = load(WITH_LOAD.format(plugin=plugin, args=args), known=BUILT_IN, preset=DEFAULT)
    cluster.profile = profiles_of(configured)["berth"]
    renew_samples(cluster)
    return cluster


def renew_samples(cluster: LoadedCluster) -> None:
    """A new sample of every node, as after a scrape: 10 to 60 % of CPU and memory are used."""
    live, number = cluster.snapshot.live, next(cluster.numbers)
    live.observe_time(max(live.now, FIRST_SAMPLE) + SCRAPE_SECONDS)
    (source,) = cluster.profile.live_sources
    for row, name in enumerate(cluster.snapshot.rows.names):
        cpu, memory = (
            MeasuredUsage(average=amount, deviation=amount / 8, allocatable=allocatable)
            for resource, factor in (("cpu", 7919), ("memory", 104_729))
            for allocatable in (cluster.snapshot.columns.allocatable.item(resource, row),)
            for amount in (allocatable * (0.1 + (row * factor + number) % 500 / 1000),)
        )
        sampled_at = datetime.fromtimestamp(live.now - row % 15, tz=UTC)
        live.set_sample(source.name, name, NodeSample(cpu=cpu, memory=memory, sampled_at=sampled_at))


def measure(node_count: int, rounds: int) -> Figures:
    """All figures for one number of nodes."""
    cluster = loaded_cluster(node_count)
    gc.freeze()  # as a service does: later collections skip the objects that exist at the start
    figures = {name: microseconds(rounds, work)[0] for name, work in scenarios(cluster, node_count)}
    return figures | by_load(rounds, node_count) if node_count == BUDGET_NODES else figures


def by_load(rounds: int, node_count: int) -> Figures:
    """A cycle with each plugin by measured load and one without, in turn, so that they meet the same machine."""
    without = loaded_cluster(node_count)
    measured = {name: measured_cluster(node_count, *form) for name, form in BY_LOAD.items()}
    gc.freeze()
    figures: Figures = {}
    for what, work_of in (("known class", place_next), ("PENDING to RANKED", answer_next)):
        works = [work_of(cluster, rounds + WARM_UP) for cluster in (without, *measured.values())]
        before, *after = microseconds(rounds, *works)
        figures[f"{what}, in turn with the next"] = before
        for name, spent in zip(measured, after, strict=True):
            figures[f"{what}, {name}"] = spent
            figures[f"{what}, {name} by without"] = {each: round(spent[each] / before[each], 3) for each in before}
    for name, cluster in measured.items():
        figures[f"known class, {name}, all samples new"] = first_after_new_samples(cluster)
    return figures


def place_next(cluster: LoadedCluster, _: int = 1) -> Callable[[], None]:
    return lambda: cluster.place(plain(next(cluster.numbers)))


def answer_next(cluster: LoadedCluster, times: int) -> Callable[[], bytes]:
    pods = [plain(next(cluster.numbers)) for _ in range(times)]
    messages = iter([encode(Pending(attempt=str(first_attempt(pod)), profile="berth", pod=pod)) for pod in pods])
    return lambda: cluster.answer(next(messages))


def first_after_new_samples(cluster: LoadedCluster) -> dict[str, float]:
    new, place = [], place_next(cluster)
    for _ in range(RENEWALS):
        renew_samples(cluster)
        start = process_time_ns()
        place()
        new.append((process_time_ns() - start) / 1000)
    return {"median": round(statistics.median(new), 1), "p99": round(max(new), 1)}


def scenarios(cluster: LoadedCluster, node_count: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured, by name. After `place` the next cycle finds one node changed."""
    snapshot, profile, numbers = cluster.snapshot, cluster.profile, cluster.numbers
    few, every = applications()[50:60:2], applications()
    millis = count(101)

    yield "known class", lambda: cluster.place(plain(next(numbers)))
    yield "known class, nothing changed", lambda: cluster.rank(plain(next(numbers)))
    yield "new class", lambda: cluster.rank(plain(next(numbers), f"{next(millis)}m"))
    yield "new class, refused by every node", lambda: cluster.rank(plain(next(numbers), f"{1000 + next(millis)}"))
    yield "known class, refused by every node", lambda: cluster.rank(plain(next(numbers), "1000"))
    yield "spread over zones", lambda: cluster.place(spread(next(numbers)))
    yield "apart by host", lambda: cluster.place(apart(next(numbers)))
    yield "of a replica set", lambda: cluster.place(every[5].pod(next(numbers)))
    yield "of one of 5 classes", lambda: cluster.place(plain(n := next(numbers), f"{n % 5 * 50 + 110}m"))
    yield "of one of 5 replica sets", lambda: cluster.place(few[(n := next(numbers)) % 5].pod(n))
    yield "of one of 400 replica sets", lambda: cluster.place(every[(n := next(numbers)) % 400].pod(n))
    yield "check of one node", lambda: check(plain(n := next(numbers)), _node(n, node_count), snapshot, profile)
    yield (
        "check of one node, spread over zones",
        lambda: check(spread(n := next(numbers)), _node(n, node_count), snapshot, profile),
    )
    yield "placing a pod", lambda: snapshot.place(every[5].pod(n := next(numbers)), _node(n, node_count))


def _node(number: int, node_count: int) -> str:
    return f"node-{number % node_count:05d}"


def first_attempt(pod: Pod) -> Attempt:
    return Attempt(uid=Uid(pod.uid), term=Term(1), n=1)


def plain(number: int, cpu: str = "100m", memory: str = "128Mi", *, app: str = "plain", **spec: Any) -> Pod:
    """A pod without an owner. Equal requests mean one equivalence class, although each pod has its own token volume."""
    container = Container(
        name="main",
        image="registry.example.com/plain:v1",
        resources=ResourceRequirements(requests={"cpu": cpu, "memory": memory}),
    )
    token = Volume(name=f"kube-api-access-{number:x}")
    metadata = ObjectMeta(name=f"{app}-{number}", namespace="default", uid=f"{app}-{number}", labels={"app": app})
    return Pod(metadata=metadata, spec=PodSpec(scheduler_name="berth", containers=[container], volumes=[token], **spec))


def spread(number: int) -> Pod:
    """A pod with a topology spread constraint over zones."""
    by_zone = TopologySpreadConstraint(
        max_skew=1,
        topology_key=ZONE,
        when_unsatisfiable="DoNotSchedule",
        label_selector=LabelSelector(match_labels={"app": "spread"}),
    )
    return plain(number, app="spread", topology_spread_constraints=[by_zone])


def apart(number: int) -> Pod:
    """A pod with anti-affinity to its own kind on the same node."""
    by_host = PodAffinityTerm(topology_key=HOSTNAME, label_selector=LabelSelector(match_labels={"app": "apart"}))
    anti = PodAffinity(required_during_scheduling_ignored_during_execution=[by_host])
    return plain(number, app="apart", affinity=Affinity(pod_anti_affinity=anti))


def microseconds(rounds: int, *works: Callable[[], object]) -> list[dict[str, float]]:
    """Median and 99th percentile of the CPU time of a run of each, in turn, without the first runs."""
    spent: list[list[float]] = [[] for _ in works]
    for _ in range(rounds + WARM_UP):
        for work, runs in zip(works, spent, strict=True):
            start = process_time_ns()
            work()
            runs.append((process_time_ns() - start) / 1000)
    return [
        {"median": round(statistics.median(runs), 1), "p99": round(statistics.quantiles(runs, n=100)[98], 1)}
        for runs in (each[WARM_UP:] for each in spent)
    ]


def main(
    nodes: Annotated[list[int] | None, typer.Option(help="Number of nodes; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=10, help="Measured runs per figure.")] = 300,
    scorer_nodes: Annotated[
        int, typer.Option(min=0, help="Nodes for the measurement of a scorer's memory; 0 skips it.")
    ] = 5000,
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
) -> None:
    """Measure, print tables, write the figures. A slow result is not an error."""
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
    """Print one table; a median that has a budget is also shown as a fraction of it."""
    table = Table("pod", "median us", "p99 us", "median / budget", title=f"{node_count} nodes", title_justify="left")
    for name, spent in figures.items():
        table.add_row(name, f"{spent['median']:.4g}", f"{spent['p99']:.4g}", _share(name, node_count, spent["median"]))
    console.print(table)


def _share(name: str, node_count: int, median: float) -> str:
    budget = BUDGETS.get(name)
    return "" if budget is None or node_count != BUDGET_NODES else f"{median / budget:.2f}"


def show_memory(held: ScorerMemory) -> None:
    console.print(
        f"memory of a scorer with {held.nodes} nodes and {held.pods} pods: {held.ready_mebibytes} MiB when ready after "
        f"{held.start_seconds} s (peak {held.ready_peak_mebibytes}); {held.ranked_mebibytes} MiB after ranking "
        f"{held.classes} classes (peak {held.ranked_peak_mebibytes}, "
        f"{held.ranked_peak_mebibytes / BUDGET_MEBIBYTES:.2f} of the budget)"
    )


def write(figures: Mapping[int, Figures], held: ScorerMemory | None, rounds: int, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"cycle-{now:%Y%m%dT%H%M%SZ}.json"
    results = {
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
    path.write_text(json.dumps(results, indent=2) + "\n")
    return path


if __name__ == "__main__":
    typer.run(main)
