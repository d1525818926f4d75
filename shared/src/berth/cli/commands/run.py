"""Counting what passes on the bus: how many messages of each stage, by whom, with what outcome.

``berth run``: the main job on the embedded default, from nothing to every pod bound, under a live table.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

import msgspec
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.table import Table

from berth.api.errors import BerthError, DecodeError, TemporaryError
from berth.api.messages import Decision, Outcome, Pending, Ranked, decode
from berth.api.subjects import PodSubject
from berth.cli.commands.top import natural
from berth.cli.journey import OUTCOME_STYLES, Step, by_subject, candidates_of, node_of
from berth.cli.pipeline.pipeline import Pipeline, PipelineOptions, pipeline
from berth.cli.pipeline.programs import ServiceOptions
from berth.cli.pipeline.reachable import open_bus
from berth.cli.pipeline.traffic import first_samples, where_pods_went
from berth.cli.reasons import Weights, best_nodes
from berth.cli.rendering import columns, page, plain, say, short_identity, show
from berth.kube.client import KubeClient
from berth.kube.credentials import KubeCredentials, source_for
from berth.plugins.presets import DEFAULT_NAME
from berth.process.configuration import profiles_of, read_configuration
from berth.sim.nodes import make_pod


class MessageCounts:
    """The counts so far. Feed it every message of ``berth.>``."""

    def __init__(self) -> None:
        self.stages: Counter[str] = Counter()
        self.scorers: Counter[str] = Counter()
        self.outcomes: Counter[Outcome] = Counter()
        self.nodes: Counter[str] = Counter()
        self.bound: set[str] = set()
        self.unreadable = 0

    def hear(self, subject: str, data: bytes) -> None:
        """Count one message; what cannot be read is counted as such."""
        try:
            self._count(PodSubject.parse(subject).stage, data)
        except DecodeError:
            self.unreadable += 1

    def _count(self, stage: str, data: bytes) -> None:
        if stage == "ranked":
            self.scorers[decode(data, Ranked).scorer] += 1
        elif stage == "decision":
            self._count_decision(decode(data, Decision))
        else:
            decode(data, Pending)
        self.stages[stage] += 1

    def _count_decision(self, decision: Decision) -> None:
        self.outcomes[decision.outcome] += 1
        if decision.outcome is Outcome.BOUND and decision.uid not in self.bound:
            self.bound.add(decision.uid)
            self.nodes[decision.node] += 1

    def spread(self) -> str:
        """Fewest and most pods that a node got, of those that got any."""
        return f"{min(self.nodes.values())}..{max(self.nodes.values())}" if self.nodes else "none"


_CREATES_AT_ONCE = 16

_REDRAW = timedelta(seconds=0.1)

_LINE_EVERY = timedelta(seconds=1)

START_DEADLINE = timedelta(seconds=60)
"""How long the services may take to be ready; it is 2 s where nothing else happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How much to do."""

    pods: int = 1000
    nodes: int = 100
    scorers: int = 2
    verbosity: int = 0
    deadline: timedelta = timedelta(minutes=5)
    """When to give up and say how far it came."""
    algorithm_provider: str | None = None
    """Name of the preset that the profile starts from, as it was typed; NetworkTraffic comes on top."""
    feature_gates: str | None = None
    """Its gates, as they were typed."""


@dataclass(slots=True, kw_only=True)
class Observed:
    """What was heard on the bus: everything counted, one pod's messages kept."""

    pod: str
    tally: MessageCounts = field(default_factory=MessageCounts)
    steps: list[Step] = field(default_factory=list)

    def hear(self, subject: str, data: bytes, headers: Mapping[str, str]) -> None:
        """Take one message of ``berth.>``."""
        del headers
        self.tally.hear(subject, data)
        if subject.endswith(f".{self.pod}") and PodSubject.parse(subject).pod == self.pod:
            self.steps.append(Step(at=time.monotonic(), subject=subject, data=data))


async def run(options: RunOptions) -> bool:
    """Do the main job; whether every pod was bound."""
    scorers = f"{options.scorers} scorers" if options.scorers > 1 else "1 scorer"
    show(
        f"berth: {options.nodes} simulated nodes, watcher, binder, metrics collector, {scorers}, "
        "each a process of its own, meeting on an embedded NATS server"
    )
    what = PipelineOptions(
        nodes=options.nodes,
        scorers=options.scorers,
        weighs_traffic=True,
        algorithm_provider=options.algorithm_provider,
        feature_gates=options.feature_gates,
        verbosity=options.verbosity,
        keep_services_quiet=True,
    )
    console = page()
    starting = console.status("starting the NATS server and the simulated cluster")
    starting.start()
    try:
        async with pipeline(what, lambda text: console.print(text, markup=False)) as running:
            await _until_ready(running, starting, options.deadline)
            return await _schedule(running, starting, options)
    finally:
        starting.stop()


async def _until_ready(running: Pipeline, starting: Status, deadline: timedelta) -> None:
    """Wait until every service works, under a line that says for whom.

    Raises:
        TemporaryError: somebody is not ready at the deadline; the last words of each of them have been shown.
    """
    end = time.monotonic() + min(deadline, START_DEADLINE).total_seconds()
    while missing := running.not_ready():
        starting.update(f"starting {', '.join(missing)}")
        if time.monotonic() > end:
            running.tell_last_words(missing)
            raise TemporaryError(f"starting the services: not ready in time: {', '.join(missing)}")
        await asyncio.sleep(_REDRAW.total_seconds())


async def _schedule(running: Pipeline, starting: Status, options: RunOptions) -> bool:
    observed = Observed(pod=_pod_name(options.pods))
    session = await open_bus(running.nats)
    credentials = await KubeCredentials.from_source(source_for(str(running.kubeconfig)))
    try:
        starting.update("waiting for the first samples of the nodes' traffic")
        traffic = await first_samples(session, options.nodes)
        starting.stop()
        await session.subscribe("berth.>", observed.hear)
        async with KubeClient(credentials) as client:
            began = time.monotonic()
            creating = asyncio.create_task(_create_pods(client, options.pods))
            await _watch(observed, options, creating)
            took = time.monotonic() - began
            await creating
            bound = await _bound(client)
    finally:
        await session.close()
    _explain(observed, running.options)
    say("")
    say(where_pods_went(traffic, observed.tally.nodes))
    _summarise(observed, options, bound, took)
    return bound == options.pods


def _pod_name(number: int) -> str:
    return f"web-{number}"


async def _create_pods(client: KubeClient, count: int) -> None:
    numbers = iter(range(1, count + 1))

    async def create() -> None:
        for number in numbers:
            pod = make_pod(_pod_name(number), scheduler="berth", cpu="100m", memory="128Mi")
            answer = await client.request("POST", "/api/v1/namespaces/default/pods", body=msgspec.json.encode(pod))
            if not answer.succeeded:
                raise BerthError(f"creating pod {_pod_name(number)!r}: {answer.message}")

    await asyncio.gather(*(create() for _ in range(_CREATES_AT_ONCE)))


async def _bound(client: KubeClient) -> int:
    """How many pods the API server shows on a node: what counts in the end."""
    answer = await client.request("GET", "/api/v1/pods", params={"fieldSelector": "spec.nodeName!="})
    return len(msgspec.json.decode(answer.body)["items"])


async def _watch(observed: Observed, options: RunOptions, creating: asyncio.Task[None]) -> None:
    """Show how it goes until every pod is bound or the time is over: a live table on a terminal, lines elsewhere."""
    progress = Progress(
        TextColumn("bound"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn()
    )
    bar = progress.add_task("bound", total=options.pods, rate="")
    began = time.monotonic()
    console = page()
    with Live(refresh_per_second=10, console=console) if console.is_terminal else _Lines() as shown:
        while len(observed.tally.bound) < options.pods and time.monotonic() - began < options.deadline.total_seconds():
            if creating.done():
                creating.result()
            await asyncio.sleep(_REDRAW.total_seconds())
            _advance(progress, bar, observed.tally, began)
            shown.update(Group(progress, _stages(observed.tally)))
        shown.update(Group(progress, _stages(observed.tally)), refresh=True)


class _Lines:
    """In the place of the live table when nobody looks at a terminal: a line a second."""

    def __init__(self) -> None:
        self._next = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return

    def update(self, shown: Group, *, refresh: bool = False) -> None:
        del refresh
        progress = shown.renderables[0]
        if isinstance(progress, Progress) and time.monotonic() >= self._next:
            task = progress.tasks[0]
            say(f"bound {int(task.completed)} of {int(task.total or 0)}")
            self._next = time.monotonic() + _LINE_EVERY.total_seconds()


def _advance(progress: Progress, bar: TaskID, tally: MessageCounts, began: float) -> None:
    bound = len(tally.bound)
    progress.update(bar, completed=bound, rate=f"{bound / (time.monotonic() - began):.0f} pods/s")


def _stages(tally: MessageCounts) -> Table:
    table = columns("MESSAGE", "BY", "NUMBER", "", numbers=("NUMBER",))
    table.add_row("pending", "watcher", str(tally.stages["pending"]))
    for scorer, number in sorted(tally.scorers.items(), key=lambda item: natural(short_identity(item[0]))):
        table.add_row("ranked", plain(short_identity(scorer)), str(number))
    for outcome in sorted(tally.outcomes):
        what = plain(outcome, OUTCOME_STYLES.get(outcome, ""))
        if outcome is Outcome.BOUND:
            what.append(f", pods per node {tally.spread()}", style="")
        table.add_row("decision", "binder", str(tally.outcomes[outcome]), what)
    return table


def _explain(observed: Observed, told: ServiceOptions) -> None:
    show("", f"One pod's way, as `nats sub 'berth.*.*.default.{observed.pod}'` shows it:", by_subject(observed.steps))
    if candidates := candidates_of(observed.steps):
        show("", best_nodes(candidates, weights=_weights(told), chosen=node_of(observed.steps)))


def _weights(told: ServiceOptions) -> Weights:
    """Those of the one profile that there is."""
    provider, gates = told.algorithm_provider or DEFAULT_NAME, told.feature_gates or ""
    (profile,) = profiles_of(read_configuration(told.config, provider=provider, gates=gates)).values()
    return profile.weights


def _summarise(observed: Observed, options: RunOptions, bound: int, took: float) -> None:
    tally = observed.tally
    outcomes = ", ".join(f"{outcome} {tally.outcomes[outcome]}" for outcome in sorted(tally.outcomes))
    say(f"messages: pending {tally.stages['pending']}, ranked {tally.stages['ranked']}, decisions: {outcomes}")
    say(f"nodes: {len(tally.nodes)} of {options.nodes} used, pods per node {tally.spread()}")
    say(f"bound {bound}/{options.pods} in {took:.1f} s ({bound / took:.0f} pods/s)")
