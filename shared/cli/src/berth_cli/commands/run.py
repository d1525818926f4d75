"""``berth run``: places pods on a simulated cluster with the whole pipeline, and shows a live table."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Self

import msgspec
import typer
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.table import Table

from berth.bus.interface import Session, StoredMessage
from berth.errors import BerthError, DecodeError, TemporaryError
from berth.exits import Exit
from berth.kube.client import KubeClient
from berth.kube.credentials import KubeCredentials
from berth.kube.kubeconfig import source_for
from berth.messages.attempts import Decision, Outcome, Pending, Ranked
from berth.messages.encoding import decode
from berth.messages.livedata import decode_sample
from berth.messages.subjects import PodSubject, unescape
from berth.settings.settings import short_identity
from berth_cli.bus import connect_bus
from berth_cli.commands.config import configured
from berth_cli.options import Gates, Provider, countable_seconds, run_command, until_stopped
from berth_cli.pipeline.pipeline import Pipeline, PipelineOptions, pipeline
from berth_cli.pipeline.servers import MOST_NODES
from berth_cli.pods.choice import shown_candidates
from berth_cli.pods.explain import candidates_table, legend
from berth_cli.pods.timeline import OUTCOME_STYLES, TracedMessage, last_ranking, node_of, subject_table, with_meaning
from berth_cli.rendering import natural, new_table, open_console, plain, print_line, print_rich, print_text
from berth_sim.nodes import pod_manifest

app = typer.Typer()

_CREATES_AT_ONCE = 16
_REDRAW = timedelta(seconds=0.1)
_LINE_EVERY = timedelta(seconds=1)
START_DEADLINE = timedelta(seconds=60)  # for all services to become ready; usually it takes 2 s
SAMPLES_DEADLINE: Final = timedelta(seconds=10)  # for the collector's first samples: two polls

Traffic = Mapping[str, float]  # received bytes per second, by node


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    pods: int = 1000
    nodes: int = 100
    scorers: int = 2
    verbosity: int = 0
    deadline: timedelta = timedelta(minutes=5)
    algorithm_provider: str | None = None
    """The preset that the profile starts from, as typed; NetworkTraffic is added."""
    feature_gates: str | None = None
    """Feature gates of the preset, as typed."""


@app.command()
def run(  # noqa: PLR0913, PLR0917 - one parameter a flag, given by name
    pods: Annotated[int, typer.Option(metavar="N", help="Number of pods.", min=1)] = 1000,
    nodes: Annotated[int, typer.Option(metavar="N", help="Number of nodes.", min=1, max=MOST_NODES)] = 100,
    scorers: Annotated[int, typer.Option(metavar="N", help="Number of scorers.", min=1, max=64)] = 2,
    deadline: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Seconds after which to give up.", min=1, callback=countable_seconds),
    ] = 300,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
) -> None:
    """See berth work: it places pods on a simulated cluster.

    The whole pipeline, with a live table.
    """
    configured(None, algorithm_provider, feature_gates)
    options = RunOptions(
        pods=pods,
        nodes=nodes,
        scorers=scorers,
        deadline=timedelta(seconds=deadline),
        algorithm_provider=algorithm_provider,
        feature_gates=feature_gates,
    )
    if run_command(until_stopped(_run(options)), interrupted=Exit.DONE) is False:
        raise typer.Exit(Exit.NO)


async def _run(options: RunOptions) -> bool:
    scorers = f"{options.scorers} scorers" if options.scorers > 1 else "1 scorer"
    print_rich(
        f"berth: {options.nodes} simulated nodes, watcher, binder, metrics collector, {scorers}, "
        "each in its own process, connected by an embedded NATS server"
    )
    pipeline_options = PipelineOptions(
        nodes=options.nodes,
        scorers=options.scorers,
        weighs_traffic=True,
        algorithm_provider=options.algorithm_provider,
        feature_gates=options.feature_gates,
        verbosity=options.verbosity,
        keep_services_quiet=True,
    )
    console = open_console()
    starting = console.status("starting the NATS server and the simulated cluster")
    starting.start()
    try:
        async with pipeline(pipeline_options, lambda text: console.print(text, markup=False)) as running:
            await _until_ready(running, starting, options.deadline)
            return await _schedule(running, starting, options)
    finally:
        starting.stop()


async def _until_ready(running: Pipeline, starting: Status, deadline: timedelta) -> None:
    """Show the missing services until all are ready.

    Raises:
        TemporaryError: services are not ready at the deadline; the ends of their logs have been printed.
    """
    end = time.monotonic() + min(deadline, START_DEADLINE).total_seconds()
    while missing := running.not_ready():
        starting.update(f"starting {', '.join(missing)}")
        if time.monotonic() > end:
            running.report_logs(missing)
            raise TemporaryError(f"starting the services: not ready in time: {', '.join(missing)}")
        await asyncio.sleep(_REDRAW.total_seconds())


async def _schedule(running: Pipeline, starting: Status, options: RunOptions) -> bool:
    observed = Observed(pod=_pod_name(options.pods))
    session = await connect_bus(running.nats, is_own=True)
    credentials = await KubeCredentials.from_source(source_for(str(running.kubeconfig)))
    try:
        starting.update("waiting for the first samples of the nodes' traffic")
        traffic = await first_samples(session, options.nodes)
        starting.stop()
        await session.subscribe_stored("berth.>", observed.add)
        async with KubeClient(credentials) as client:
            began = time.monotonic()
            async with _creating_pods(client, options.pods) as creating:
                await _watch(observed, options, creating)
                took = time.monotonic() - began
                await creating
            bound = await _bound_pods(client)
    finally:
        await session.close()
    _explain(observed)
    print_line("")
    print_line(traffic_summary(traffic, observed.counts.nodes))
    _summarise(observed, options, bound, took)
    print_text(next_steps(sys.argv[0]))
    return bound == options.pods


def _pod_name(number: int) -> str:
    return f"web-{number}"


@asynccontextmanager
async def _creating_pods(client: KubeClient, count: int) -> AsyncIterator[asyncio.Task[None]]:
    """Create the pods in the block, and send no request after it."""
    creating = asyncio.create_task(_create_pods(client, count))
    try:
        yield creating
    finally:
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)


async def _create_pods(client: KubeClient, count: int) -> None:
    numbers = iter(range(1, count + 1))

    async def create() -> None:
        for number in numbers:
            pod = pod_manifest(_pod_name(number), scheduler="berth", cpu="100m", memory="128Mi")
            answer = await client.request("POST", "/api/v1/namespaces/default/pods", body=msgspec.json.encode(pod))
            if not answer.succeeded:
                raise BerthError(f"creating pod {_pod_name(number)!r}: {answer.message}")

    await asyncio.gather(*(create() for _ in range(_CREATES_AT_ONCE)))


async def _bound_pods(client: KubeClient) -> int:
    answer = await client.request("GET", "/api/v1/pods", params={"fieldSelector": "spec.nodeName!="})
    return len(msgspec.json.decode(answer.body)["items"])


async def _watch(observed: Observed, options: RunOptions, creating: asyncio.Task[None]) -> None:
    """Print the progress until all pods are bound or the deadline passes: a live table on a terminal, else lines."""
    progress = Progress(
        TextColumn("bound"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeElapsedColumn()
    )
    bar = progress.add_task("bound", total=options.pods, rate="")
    began = time.monotonic()
    console = open_console()
    with Live(refresh_per_second=10, console=console) if console.is_terminal else _Lines() as display:
        while len(observed.counts.bound) < options.pods and time.monotonic() - began < options.deadline.total_seconds():
            if creating.done():
                creating.result()
            await asyncio.sleep(_REDRAW.total_seconds())
            _advance(progress, bar, observed.counts, began)
            display.update(Group(progress, _stages(observed.counts)))
        display.update(Group(progress, _stages(observed.counts)), refresh=True)


class _Lines:
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
            print_line(f"bound {int(task.completed)} of {int(task.total or 0)}")
            self._next = time.monotonic() + _LINE_EVERY.total_seconds()


def _advance(progress: Progress, bar: TaskID, counts: MessageCounts, began: float) -> None:
    bound = len(counts.bound)
    progress.update(bar, completed=bound, rate=f"{bound / (time.monotonic() - began):.0f} pods/s")


def _stages(counts: MessageCounts) -> Table:
    table = new_table("MESSAGE", "BY", "NUMBER", "", numbers=("NUMBER",))
    table.add_row("pending", "watcher", str(counts.stages["pending"]))
    for scorer, number in sorted(counts.scorers.items(), key=lambda item: natural(short_identity(item[0]))):
        table.add_row("ranked", plain(short_identity(scorer)), str(number))
    for outcome in sorted(counts.outcomes):
        what = plain(with_meaning(outcome, outcome), OUTCOME_STYLES.get(outcome, ""))
        if outcome is Outcome.BOUND:
            what.append_text(plain(f", pods per node {counts.spread()}"))
        table.add_row("decision", "binder", str(counts.outcomes[outcome]), what)
    return table


def _explain(observed: Observed) -> None:
    print_rich(
        "",
        f"The messages of one pod, as `nats sub 'berth.*.*.default.{observed.pod}'` shows them:",
        subject_table(observed.messages),
    )
    if ranked := last_ranking(observed.messages):
        node = node_of(observed.messages)
        shown = shown_candidates(ranked.candidates, node)
        table = candidates_table(shown, weights=ranked.weights, chosen=node, among=ranked.candidates)
        print_rich("", table, *legend(shown))


def _summarise(observed: Observed, options: RunOptions, bound: int, took: float) -> None:
    counts = observed.counts
    numbers = sorted(counts.outcomes.items())
    outcomes = ", ".join(with_meaning(outcome, f"{outcome} {number}") for outcome, number in numbers)
    print_line(f"messages: pending {counts.stages['pending']}, ranked {counts.stages['ranked']}, decisions: {outcomes}")
    print_line(f"nodes: {len(counts.nodes)} of {options.nodes} used, pods per node {counts.spread()}")
    print_line(f"bound {bound}/{options.pods} in {took:.1f} s ({bound / took:.0f} pods/s)")


def next_steps(program: str) -> str:
    """Commands to type after the run; ``program`` is how it was called."""
    path, here = Path(program).absolute(), Path.cwd()
    berth = str(path.relative_to(here)) if path.is_relative_to(here) else "berth"
    steps = {
        f"{berth} up --nodes 12": "the same until Ctrl-C; it prints the path of a kubeconfig",
        "kubectl run web --image=nginx": "in another terminal, with that path as KUBECONFIG",
        f"{berth} why default/web": "why it is on its node",
        f"{berth} console": "all of it in a browser",
    }
    width = max(map(len, steps))
    return "\n".join(("", "next:", *(f"  {typed:{width}}  # {text}" for typed, text in steps.items())))


class MessageCounts:
    """Counts messages of ``berth.>`` by stage, scorer and outcome, and bound pods by node."""

    def __init__(self) -> None:
        self.stages: Counter[str] = Counter()
        self.scorers: Counter[str] = Counter()
        self.outcomes: Counter[Outcome] = Counter()
        self.nodes: Counter[str] = Counter()
        self.bound: set[str] = set()
        self.unreadable = 0

    def add(self, subject: str, data: bytes) -> None:
        """Count a message, as unreadable if it cannot be decoded."""
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
        """The fewest and the most pods on a node, among nodes with pods."""
        return f"{min(self.nodes.values())}..{max(self.nodes.values())}" if self.nodes else "none"


@dataclass(slots=True, kw_only=True)
class Observed:
    """Counts all messages on the bus, and keeps those about one pod."""

    pod: str
    counts: MessageCounts = field(default_factory=MessageCounts)
    messages: list[TracedMessage] = field(default_factory=list)

    def add(self, stored: StoredMessage) -> None:
        subject, data = stored.subject, stored.data
        self.counts.add(subject, data)
        if subject.endswith(f".{self.pod}") and PodSubject.parse(subject).pod == self.pod:
            self.messages.append(TracedMessage(at=time.monotonic(), subject=subject, data=data))


async def first_samples(session: Session, nodes: int) -> Traffic:
    """The collector's samples of that many nodes, or of fewer at the deadline."""
    traffic: dict[str, float] = {}
    try:
        async with asyncio.timeout(SAMPLES_DEADLINE.total_seconds()), session.read_bucket("bandwidth") as reader:
            async for batch in reader.batches():
                for entry in batch:
                    if entry.data is not None:
                        _add_sample(traffic, entry.key, entry.data)
                if len(traffic) >= nodes:
                    break
    except TimeoutError:
        pass
    return traffic


def _add_sample(traffic: dict[str, float], key: str, data: bytes) -> None:
    try:
        received = decode_sample(data).receive
    except DecodeError:
        return
    if received is not None:
        traffic[unescape(key.partition(".")[2])] = received


def traffic_summary(traffic: Traffic, pods: Mapping[str, int]) -> str:
    """One line: the quieter and the busier half of the nodes, with the number of their pods."""
    order = sorted(traffic, key=lambda node: (traffic[node], node))
    if not order:
        return "traffic: no samples"
    half = (len(order) + 1) // 2
    quiet, busy = order[:half], order[half:]
    return f"traffic: {_half('quieter', quiet, traffic, pods)}, {_half('busier', busy, traffic, pods)}"


def _half(which: str, nodes: list[str], traffic: Traffic, pods: Mapping[str, int]) -> str:
    if not nodes:
        return f"no {which} half"
    mean = sum(traffic[node] for node in nodes) / len(nodes)
    return f"{which} half of the nodes ({mean / 1e6:.0f} MB/s on average) got {sum(pods.get(n, 0) for n in nodes)} pods"
