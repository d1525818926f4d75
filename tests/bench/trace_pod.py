"""One pod's way through the code: the calls of berth's functions in each service for the first pod that it sees.

    make trace-pod
    make trace-pod ARGS=--calls

The pipeline of `berth run --nodes 3 --pods 1 --scorers 1` runs with `sys.setprofile` in every process, its caches cold.
The table has, by part of the way, the calls, the functions, their modules, and the module changes: how often a call is
in another module than the call before it. A part begins with a message of the pod on the bus, and ends once what it
caused is stored or acknowledged. Calls of tasks that run at any time and know no pod, such as the renewal of the Lease,
are left out (OTHER_TASKS); `--all` counts them too. `--modules` also prints every module with its functions, `--calls`
every call in order with its task, `--pairs 10` the pairs of modules with the most changes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from berth.bus.interface import Session, StoredMessage
from berth.kube.client import KubeClient
from berth.kube.credentials import KubeCredentials
from berth.kube.kubeconfig import source_for
from berth_cli.bus import connect_bus
from berth_cli.commands.run import first_samples
from berth_cli.pipeline.pipeline import PipelineOptions, pipeline
from berth_sim.nodes import pod_manifest

RECORDER: Final = Path(__file__).parent / "calls"
"""The folder on every process's path with the `sitecustomize` that records calls."""
NODES: Final = 3
AFTERWARDS_SECONDS: Final = 0.5
"""After the mirror has the bound pod, until the processes are stopped: the last calls must be in the files too."""
DEADLINE_SECONDS: Final = 120.0


class End(NamedTuple):
    """A part ends once all functions of `done` were called, with the next call of `then`."""

    done: frozenset[str]
    then: str


PENDING_STORED: Final = End(frozenset({"EffectRunner._on_published"}), "Inbox.wait")
ACKNOWLEDGED: Final = End(frozenset({"NatsDelivery.ack"}), "Outbox._write")
MIRRORED: Final = End(frozenset({"WatcherCore._on_decision", "Mirror.on_written"}), "Inbox.wait")

OTHER_TASKS: Final = frozenset(
    {
        # Leading: the Lease, and who else leads.
        *("ElectedLease.keep", "UnelectedLease.follow", "Elector._follow", "LeaderSession.watch"),
        *(f"LeaderSession._watch_{name}" for name in ("connection", "lease", "number_on_lease", "control", "others")),
        *("LeaderChecks.check_progress", "LeaderChecks.check_orphans"),
        # The process: its event loop, its session's streams, what it tells others about itself.
        *("Watchdog._beat", "StoreWatch.run", "sessions.<locals>.announce", "present.<locals>.announce"),
        *("WatcherTerm._show_figures", "WatcherTerm._end_messages", "BinderEpoch._set_gauges"),
        *("BinderEpoch._keep_alive", "BinderEpoch._ask_about_fences", "count_waiting", "report_foreign_bindings"),
        # Deadlines of all requests, once in a while.
        *("Connection._sweep", "ConnectionPool._give_up_overdue"),
    }
)
"""Tasks and timers that know no pod, by the coroutine or function with which they begin."""


class Call(NamedTuple):
    at: int
    task: str
    module: str
    function: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When the messages of the pod were stored, in nanoseconds since 1970; `created`: before the POST of the pod."""

    created: int
    pending: int
    ranked: int
    decision: int
    mirrored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The calls of one service in one part of the way."""

    name: str
    calls: Sequence[Call]

    def row(self) -> tuple[str, ...]:
        functions = {(call.module, call.function) for call in self.calls}
        modules = {call.module for call in self.calls}
        return self.name, *(f"{n:,}" for n in (len(self.calls), len(functions), len(modules), self.changes.total()))

    @property
    def changes(self) -> Counter[tuple[str, str]]:
        """The module changes, by the modules that they join in either direction."""
        pairs = itertools.pairwise(call.module for call in self.calls)
        return Counter((min(pair), max(pair)) for pair in pairs if pair[0] != pair[1])


async def run_pod(folder: Path) -> Times:
    """Run the pipeline with one pod; the calls of each process are in `folder` then."""
    os.environ["BERTH_CALLS"] = str(folder)
    os.environ["PYTHONPATH"] = str(RECORDER)
    options = PipelineOptions(nodes=NODES, scorers=1, weighs_traffic=True, keep_services_quiet=True)
    async with asyncio.timeout(DEADLINE_SECONDS), pipeline(options, print) as running:
        await running.ready()
        session = await connect_bus(running.nats, is_own=True)
        try:
            await first_samples(session, NODES)
            credentials = await KubeCredentials.from_source(source_for(str(running.kubeconfig)))
            async with KubeClient(credentials) as client:
                return await place_pod(session, client)
        finally:
            await session.close()


async def place_pod(session: Session, client: KubeClient) -> Times:
    """Create the pod, and wait until the mirror has it on its node."""
    stored: dict[str, StoredMessage] = {}
    await session.subscribe_stored("berth.>", lambda message: stored.setdefault(message.subject.split(".")[1], message))
    async with session.read_bucket("cluster") as reader:
        created = time.time_ns()
        pod = pod_manifest("web-1", scheduler="berth", cpu="100m", memory="128Mi")
        answer = await client.request("POST", "/api/v1/namespaces/default/pods", body=msgspec.json.encode(pod))
        if not answer.succeeded:
            raise SystemExit(f"creating the pod: {answer.message}")
        async for batch in reader.batches():
            mirrored = [
                entry for entry in batch if entry.key.startswith("pod.") and b'"nodeName"' in (entry.data or b"")
            ]
            if mirrored:
                break
    await asyncio.sleep(AFTERWARDS_SECONDS)
    at = {stage: _nanoseconds(message.time.timestamp()) for stage, message in stored.items()}
    return Times(created=created, **at, mirrored=_nanoseconds(mirrored[0].time.timestamp()))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)


def calls_by_service(folder: Path) -> Mapping[str, Sequence[Call]]:
    """The calls of each process that has called functions of exactly one service."""
    found = {}
    for file in folder.iterdir():
        calls = [_call(line) for line in file.read_text(encoding="utf-8").splitlines()]
        services = {package for call in calls if (package := call.module.partition(".")[0]).startswith("berth_")}
        services &= {"berth_watcher", "berth_scorer", "berth_binder"}
        if len(services) == 1:
            found[services.pop()] = calls
    return found


def _call(line: str) -> Call:
    at, task, module, function = line.split(" ", 3)
    return Call(int(at), task, module, function)


def of_the_pod(calls: Mapping[str, Sequence[Call]]) -> Mapping[str, Sequence[Call]]:
    """The calls without those of OTHER_TASKS."""
    return {service: [call for call in each if call.task not in OTHER_TASKS] for service, each in calls.items()}


def parts_of(calls: Mapping[str, Sequence[Call]], times: Times) -> list[Part]:
    watcher, scorer, binder = (calls[f"berth_{name}"] for name in ("watcher", "scorer", "binder"))
    return [
        Part(
            name="watcher: watch event to PENDING stored",
            calls=_until(watcher, times.created, times.pending, PENDING_STORED),
        ),
        Part(
            name="scorer: PENDING to its acknowledgement",
            calls=_until(scorer, times.pending, times.ranked, ACKNOWLEDGED),
        ),
        Part(
            name="binder: RANKED to its acknowledgement",
            calls=_until(binder, times.ranked, times.decision, ACKNOWLEDGED),
        ),
        Part(
            name="watcher: Decision; bound pod into the mirror",
            # From RANKED on: the watch may show the bound pod before the Decision is stored.
            calls=_until(watcher, times.ranked, times.ranked, MIRRORED),
        ),
    ]


def _until(calls: Sequence[Call], begin: int, stored: int, end: End) -> list[Call]:
    """The calls from `begin` to the end of the part, whose last message was `stored` then."""
    later = [call for call in calls if call.at >= begin]
    first = {call.function: place for place, call in reversed([*enumerate(later)]) if call.at >= stored}
    if missing := end.done - first.keys():
        raise SystemExit(f"want a call of {', '.join(sorted(missing))} at the end of a part: was it renamed?")
    done = max(first[function] for function in end.done)
    last = next((place for place in range(done, len(later)) if later[place].function == end.then), len(later))
    return later[: last + 1]


def print_parts(parts: Sequence[Part], console: Console) -> None:
    table = Table("part of the way", "calls", "functions", "modules", "module changes")
    for part in parts:
        table.add_row(*part.row())
    together = [call for part in parts for call in part.calls]
    _, calls, functions, modules, _ = Part(name="", calls=together).row()
    changes = sum(part.changes.total() for part in parts)
    table.add_row("together", calls, functions, modules, f"{changes:,}", style="bold")
    console.print(table)
    modules_of_plugins = {call.module for call in together if call.module.startswith("berth.plugins")}
    console.print(f"of the modules, plugins: {len(modules_of_plugins)}")


def print_modules(parts: Sequence[Part], console: Console) -> None:
    """Every module with its functions, the most called first."""
    called = Counter((call.module, call.function) for part in parts for call in part.calls)
    for module, functions in itertools.groupby(sorted(called), key=lambda each: each[0]):
        console.print(module, style="bold", highlight=False)
        for each in sorted(functions, key=called.__getitem__, reverse=True):
            console.print(f"{called[each]:5} {each[1]}", highlight=False)


def main(
    *,
    calls: Annotated[bool, typer.Option(help="Print every call in order.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Count tasks that know no pod too.")] = False,
    modules: Annotated[bool, typer.Option(help="Print every module with the functions that are called.")] = False,
    pairs: Annotated[int, typer.Option(help="Print so many pairs of modules between which most changes are.")] = 0,
) -> None:
    """Trace one pod's way through the code."""
    with tempfile.TemporaryDirectory(prefix="berth-trace-") as folder:
        times = asyncio.run(run_pod(Path(folder)))
        called = calls_by_service(Path(folder))
    parts = parts_of(called if all_ else of_the_pod(called), times)
    console = Console()
    for part in parts if calls or pairs else ():
        console.print(part.name, style="bold")
        for call in part.calls if calls else ():
            console.print(f"{call.task} {call.module}:{call.function}", soft_wrap=True, highlight=False)
        for (one, other), count in part.changes.most_common(pairs):
            console.print(f"{count:5} {one} - {other}", highlight=False)
    if modules:
        print_modules(parts, console)
    print_parts(parts, console)


if __name__ == "__main__":
    typer.run(main)
