"""``berth queue``: lists the waiting pods by queue, or explains why a pod waits. The leading watcher answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import typer
from rich.console import RenderableType

from berth.exits import UsageError
from berth.messages.queue import IN_FLIGHT, QUEUES, QueueAnswer
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth_cli.configflags import ConfigurationFlags
from berth_cli.options import (
    EveryRow,
    Gates,
    Output,
    OutputFormat,
    PodArgument,
    PodNamespace,
    Provider,
    ServicesConfig,
    parse_pod,
    print_document,
    run_command,
)
from berth_cli.pods.waiting import (
    may_be_helped,
    print_detail,
    queue_counts,
    queue_json,
    queue_table,
    queued_pod,
    read_queue,
    rows_of,
)
from berth_cli.remedies.groups import advise_groups, group_lines
from berth_cli.remedies.remedy import Advice
from berth_cli.rendering import MOST_ROWS, and_more, plain, print_rich
from berth_cli.services import DRAINING, what_stops

app = typer.Typer(name="queue", help="List waiting pods, or explain why a pod waits.", invoke_without_command=True)
# Pods that are read for a table without --all: enough for what would help, and few requests to the watcher.
MOST_READ: Final = 1000
_NAMES: Final = ", ".join(f"'{name}'" if " " in name else name for name in (*QUEUES, IN_FLIGHT))

OneQueue = Annotated[
    str | None,
    typer.Option("--queue", metavar="QUEUE", help=f"Only {_NAMES}.", show_default=False),
]
ListedNamespace = Annotated[
    str | None, typer.Option("-n", "--namespace", metavar="NS", help="Only this namespace.", show_default=False)
]
ShownAdvice = Annotated[
    bool,
    typer.Option("--advice/--no-advice", help="Print what would help; this reads the mirror."),
]


@app.callback()
@app.command("list")
def list_queue(  # noqa: PLR0913 - one parameter a flag, given by name
    context: typer.Context,
    *,
    queue: OneQueue = None,
    namespace: ListedNamespace = None,
    every_row: EveryRow = False,
    advice: ShownAdvice = True,
    config: ServicesConfig = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """List the waiting pods, by queue.

    Active, backoff, unschedulable, gated, with their group, in flight; and what would help the unschedulable ones.
    """
    if context.invoked_subcommand is None:
        configuration = ConfigurationFlags(file=config, provider=algorithm_provider, gates=feature_gates)
        asked = _QueueAsked(NatsServer(nats, nats_context), output, configuration)
        run_command(_list(asked, queue=queue, namespace=namespace, every_row=every_row, advice=advice))


@dataclass(frozen=True, slots=True)
class _QueueAsked:
    server: NatsServer
    output: OutputFormat
    configuration: ConfigurationFlags


async def _list(asked: _QueueAsked, *, queue: str | None, namespace: str | None, every_row: bool, advice: bool) -> None:
    if queue is not None and queue not in {*QUEUES, IN_FLIGHT}:
        raise UsageError(f"listing queue {queue!r}: want one of {_NAMES}")
    async with open_session(asked.server, name="queue", is_named=not asked.output.is_document) as session:
        limit = 0 if every_row or asked.output.is_document else MOST_READ
        answer, complete = await read_queue(session, queue=queue or "", namespace=namespace or "", limit=limit)
        if not asked.output.is_document:
            _print_list(answer, queue, namespace, rows=None if every_row else MOST_ROWS, complete=complete)
        refused = answer.pods if advice else []
        groups = await advise_groups(session, refused, asked.configuration)
    if asked.output.is_document:
        document = {**queue_json(answer, complete=complete), "groups": [group.as_json() for group in groups]}
        print_document(document, asked.output)
    else:
        print_rich(*group_lines(groups))


def _print_list(
    answer: QueueAnswer, queue: str | None, namespace: str | None, *, rows: int | None, complete: bool
) -> None:
    print_rich(queue_counts(answer))
    if answer.draining:
        print_rich(plain(DRAINING, "yellow"))
    if answer.pods:
        print_rich("", *pod_lines(answer, rows=rows, complete=complete))
    elif namespace is not None or queue is not None:
        where = f" in namespace {namespace!r}" if namespace is not None else ""
        print_rich("", plain(f"no pod waits{where}{f' as {queue!r}' if queue is not None else ''}", "yellow"))


def pod_lines(answer: QueueAnswer, *, rows: int | None, complete: bool) -> Iterator[RenderableType]:
    """The first pods of the answer; ``None`` rows are all. ``complete``: the answer has every pod."""
    pods = rows_of(answer.pods)
    yield queue_table(msgspec.structs.replace(answer, pods=pods[:rows]))
    yield from and_more(len(pods) - (rows or len(pods)), is_complete=complete)


@app.command("why")
def why(  # noqa: PLR0913 - one parameter a flag, given by name
    pod: PodArgument,
    *,
    namespace: PodNamespace = None,
    config: ServicesConfig = None,
    algorithm_provider: Provider = None,
    feature_gates: Gates = None,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Print why a pod waits, and until when.

    What would help, the plugins that rejected it, and the events that requeue it.
    """
    configuration = ConfigurationFlags(file=config, provider=algorithm_provider, gates=feature_gates)
    run_command(_why(pod, namespace, _QueueAsked(NatsServer(nats, nats_context), output, configuration)))


async def _why(pod: str, namespace: str | None, asked: _QueueAsked) -> None:
    name = parse_pod(pod, namespace)
    async with open_session(asked.server, name="queue", is_named=not asked.output.is_document) as session:
        answer = await queued_pod(session, name)
        if answer.detail is None:
            from berth_cli.pods.podgroups import or_group  # noqa: PLC0415 - imports the mirror's reader, and NumPy

            nowhere = f"looking for pod {str(name)!r}: it does not wait for berth"
            raise await or_group(session, name, nowhere, f": `berth why {name}` shows where it is")
        stuck, advice = await what_stops(session), Advice()
        if may_be_helped(answer.detail):
            from berth_cli.remedies.asking import advice_on  # noqa: PLC0415 - imports every plugin

            advice = await advice_on(session, name, asked.configuration.read(), answer.detail.object)
    print_detail(answer, answer.detail, stuck, advice, asked.output)
