"""The cost of a cluster event while pods wait that no node fits, and of the scheduling queue with 200,000 pods.

    make bench-requeue ARGS="--waiting 3000"

Each event is compared with the waiting pods in two ways, in the same run: by asking the plugins' queueing hints for
every pod, and with the index of `berth_watcher.queue.hints`, as the watcher does it. The events help nobody, which is
the case that must cost nothing. Figures are CPU microseconds per event.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from time import process_time_ns
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from bench.population import applications, nodes
from berth.api.config.load import default_configuration
from berth.api.config.presets import DEFAULT
from berth.api.meta import LabelSelector, ObjectMeta
from berth.api.node import Node
from berth.api.pod import Affinity, Container, Pod, PodAffinity, PodAffinityTerm, PodSpec, ResourceRequirements
from berth.framework.events import Action, ClusterEvent, Resource, node_update_actions
from berth.framework.profile import Profile, build_profiles
from berth.kube.listwatch import Listed, Upserted
from berth.memory import keep_freed_memory
from berth.messages.subjects import Term
from berth.plugins.registry import BUILT_IN
from berth_watcher.core import WatcherCore
from berth_watcher.events import BucketComplete, KeyWritten, PublishPending, StreamsRead, WriteKey
from berth_watcher.queue.hints import QueueingHints, UnschedulablePods
from berth_watcher.queue.queuedpod import EventClock, QueuedPod, Timestamp
from berth_watcher.queue.schedulingqueue import QueuePlugins
from berth_watcher.settings import AttemptSettings
from berth_watcher.store import ObjectStore

RESULTS = Path(__file__).parent / "results"
EVENTS = 2
EVENTS_WITH_INDEX = 200
MANY_TERMS = 5000
KINDS = ("pod", "node", "namespace")

console = Console(highlight=False, soft_wrap=True)
Figures = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Scenario:
    """Waiting pods that one plugin rejected, and events that help none of them."""

    name: str
    plugin: str
    pods: list[Pod]
    events: Callable[[int], tuple[ClusterEvent, object, object]]


def scenarios(waiting: int) -> Iterator[Scenario]:
    few, terms = min(waiting, 10), apart()
    yield Scenario(
        "equal requests, allocatable changes", "NodeResourcesFit", [a_pod(n) for n in range(waiting)], resized
    )
    yield Scenario(
        "requests of their own, allocatable changes",
        "NodeResourcesFit",
        [a_pod(n, cpu=f"{100_000 + n}m") for n in range(waiting)],
        resized,
    )
    yield Scenario(
        "a node selector of their own, labels change",
        "NodeAffinity",
        [a_pod(n, node_selector={"for": f"pod-{n}"}) for n in range(waiting)],
        relabelled,
    )
    yield Scenario(
        "affinity to an application of their own, a pod goes",
        "InterPodAffinity",
        [a_pod(n, affinity=together(n)) for n in range(waiting)],
        departed,
    )
    yield Scenario(
        f"{few} pods with {MANY_TERMS} terms each, labels change",
        "InterPodAffinity",
        [a_pod(n, affinity=terms) for n in range(few)],
        relabelled,
    )
    yield Scenario(
        f"{few} pods with {MANY_TERMS} terms each, a pod goes",
        "InterPodAffinity",
        [a_pod(n, affinity=terms) for n in range(few)],
        departed,
    )


def a_pod(number: int, cpu: str = "100", namespace: str = "default", **spec: object) -> Pod:
    requests = {"cpu": cpu, "memory": "1Gi"}
    container = Container(name="main", resources=ResourceRequirements(requests=requests))
    metadata = ObjectMeta(name=f"waiting-{number}", namespace=namespace, uid=f"uid-{number}", labels={"app": "waits"})
    return Pod(metadata=metadata, spec=PodSpec(scheduler_name="berth", containers=[container], **spec))


def together(number: int) -> Affinity:
    return Affinity(pod_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[a_term(number)]))


def apart() -> Affinity:
    terms = [a_term(number) for number in range(MANY_TERMS)]
    return Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=terms))


def a_term(number: int) -> PodAffinityTerm:
    return PodAffinityTerm(
        topology_key="kubernetes.io/hostname", label_selector=LabelSelector(match_labels={"app": f"app-{number}"})
    )


NODES = list(nodes(100))


def resized(number: int) -> tuple[ClusterEvent, Node, Node]:
    """A node gets a little more memory, which is not what the pods lack."""
    node = NODES[number % len(NODES)]
    allocatable = {**(node.status.allocatable or {}), "memory": f"{32 * 2**20 + number}Ki"}
    return _update(
        node, msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, allocatable=allocatable))
    )


def relabelled(number: int) -> tuple[ClusterEvent, Node, Node]:
    node = NODES[number % len(NODES)]
    labels = {**(node.metadata.labels or {}), "changed": str(number)}
    return _update(node, msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels=labels)))


def departed(number: int) -> tuple[ClusterEvent, Pod, None]:
    """A pod of an application that nobody waits for is deleted."""
    return ClusterEvent(Resource.POD, Action.DELETE), applications()[number % 100].pod(number, "node-00001"), None


def _update(old: Node, new: Node) -> tuple[ClusterEvent, Node, Node]:
    return ClusterEvent(Resource.NODE, node_update_actions(old, new)), old, new


def measure(waiting: int) -> Figures:
    profile = build_profiles(default_configuration(BUILT_IN, DEFAULT), BUILT_IN)["berth"]
    return {scenario.name: compare(scenario, profile) for scenario in scenarios(waiting)}


def compare(scenario: Scenario, profile: Profile) -> dict[str, float]:
    """Median microseconds of an event in both ways, and the time to put one pod into the index."""
    hints, indexed = index_of(profile)
    waiting = []
    began = process_time_ns()
    for pod in scenario.pods:
        queued = QueuedPod(pod=pod, timestamp=datetime.now(UTC))
        queued.unschedulable_plugins = frozenset((scenario.plugin,))
        indexed.add(queued)
        waiting.append(queued)
    adding = (process_time_ns() - began) / 1000 / len(scenario.pods)
    numbers = count()

    def each_pod(event: ClusterEvent, old: object, new: object) -> None:
        for pod in waiting:
            hints.may_help(pod, event, old, new)

    def with_index(event: ClusterEvent, old: object, new: object) -> None:
        for _ in indexed.helped_by(event, old, new):
            pass

    before = microseconds(EVENTS, lambda: scenario.events(next(numbers)), each_pod)
    after = microseconds(EVENTS_WITH_INDEX, lambda: scenario.events(next(numbers)), with_index)
    return {"every pod": before, "index": after, "ratio": round(before / after, 1), "adding a pod": round(adding, 1)}


def index_of(profile: Profile) -> tuple[QueueingHints, UnschedulablePods]:
    profiles = {"berth": profile}
    clock = EventClock(Timestamp(monotonic=0.0, wall=datetime.now(UTC)))
    hints = QueueingHints(profiles, QueuePlugins(profiles, clock), lambda _: False)
    return hints, UnschedulablePods(profiles, hints)


def microseconds(
    rounds: int,
    event: Callable[[], tuple[ClusterEvent, object, object]],
    work: Callable[[ClusterEvent, object, object], None],
) -> float:
    """The median CPU time, without the first events."""
    spent = []
    for _ in range(rounds + 1):
        given = event()
        start = process_time_ns()
        work(*given)
        spent.append((process_time_ns() - start) / 1000)
    return round(statistics.median(spent[1:]), 1)


def measure_queue(pods: int) -> dict[str, float]:
    """The watcher's core with this many waiting pods: time and memory of each, and how long an important one takes."""
    profiles = build_profiles(default_configuration(BUILT_IN, DEFAULT), BUILT_IN)
    store, sequences = ObjectStore(KINDS), count(1)
    store.apply(Listed(kind="node", objects=NODES, resource_version="1"))
    first = [application.pod(0) for application in applications()]
    waiting = [named(first[n % len(first)], f"waiting-{n}") for n in range(pods)]
    core = WatcherCore(
        term=Term(1),
        store=store,
        profiles=profiles,
        settings=AttemptSettings(),
        started=Timestamp(monotonic=0.0, wall=datetime.now(UTC)),
        max_writes=256,
    )
    effects = [*chain.from_iterable(core.begin(0.0)), *core.handle([BucketComplete(position=0), StreamsRead()], 0.0)]
    while writes := [effect for effect in effects if isinstance(effect, WriteKey)]:
        effects = core.handle([KeyWritten(key=write.key, sequence=next(sequences)) for write in writes], 0.0)
    gc.collect()
    held, start = _mebibytes(), process_time_ns()
    for begin in range(0, pods, 500):
        core.handle([Upserted(kind="pod", object=pod) for pod in waiting[begin : begin + 500]], 0.0)
    adding = (process_time_ns() - start) / 1000 / pods
    gc.collect()
    memory = _mebibytes() - held
    important = on(a_pod(10**6, cpu="1"), priority=10**6)
    start = process_time_ns()
    core.handle([Upserted(kind="pod", object=important)], 1.0)
    effects = core.handle([Upserted(kind="pod", object=on(waiting[0], node_name="node-00001"))], 1.0)
    spent = (process_time_ns() - start) / 1000
    published = [effect.message.pod.uid for effect in effects if isinstance(effect, PublishPending)]
    if published != [important.uid]:
        raise SystemExit(f"want the important pod published first, got {published[:3]}")
    return {
        "pods": pods,
        "microseconds to queue one": round(adding, 1),
        "bytes of queue for one": round(memory * 2**20 / pods),
        "microseconds until an important one is published": round(spent, 1),
    }


def named(pod: Pod, name: str) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, name=name, uid=name))


def on(pod: Pod, **spec: object) -> Pod:
    """The pod with other members of its spec."""
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, **spec))


def _mebibytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def main(
    waiting: Annotated[int, typer.Option(min=10, help="Waiting pods.")] = 3000,
    queue: Annotated[int, typer.Option(min=0, help="Pods for the measurement of the queue; 0 skips it.")] = 200_000,
    out: Annotated[Path, typer.Option(help="Folder for the figures as JSON.")] = RESULTS,
) -> None:
    """Measure, print tables, write the figures. A slow result is not an error."""
    keep_freed_memory()
    figures = measure(waiting)
    show(waiting, figures)
    held = measure_queue(queue) if queue else None
    if held is not None:
        console.print(", ".join(f"{name}: {value:g}" for name, value in held.items()))
    console.print(f"written to {write(waiting, figures, held, out)}")


def show(waiting: int, figures: Figures) -> None:
    table = Table(
        "waiting pods and event",
        "asked for every pod, us",
        "with the index, us",
        "ratio",
        "to add a pod, us",
        title=f"{waiting} waiting pods",
        title_justify="left",
    )
    for name, each in figures.items():
        values = (each["every pod"], each["index"], each["ratio"], each["adding a pod"])
        table.add_row(name, *(f"{value:.0f}" for value in values))
    console.print(table)


def write(waiting: int, figures: Figures, queue: dict[str, float] | None, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    path = folder / f"requeue-{now:%Y%m%dT%H%M%SZ}.json"
    results = {
        "at": now.isoformat(),
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()},
        "waiting": waiting,
        "cpu_microseconds_per_event": figures,
        "queue": queue,
    }
    path.write_text(json.dumps(results, indent=2) + "\n")
    return path


if __name__ == "__main__":
    typer.run(main)
