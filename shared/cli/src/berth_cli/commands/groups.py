"""``berth groups``: the PodGroups of the cluster, what is bound of each, and why it waits."""

from __future__ import annotations

import typer

from berth.bus.topology import DECISIONS
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_session
from berth_cli.commands.queue import ListedNamespace
from berth_cli.options import EveryRow, Output, OutputFormat, print_document, run_command
from berth_cli.pods.podgroups import read_groups, summary_lines
from berth_cli.rendering import MOST_ROWS, print_rich

app = typer.Typer()


@app.command()
def groups(
    *,
    namespace: ListedNamespace = None,
    every_row: EveryRow = False,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """List PodGroups: what is bound of each, and why it waits.

    PodGroups and bound pods as the mirror has them, waiting pods as the leading watcher has them. -o json has each
    member with its node, or why it waits.
    """
    run_command(_list(NatsServer(nats, nats_context), namespace, output, every_row=every_row))


async def _list(server: NatsServer, namespace: str | None, output: OutputFormat, *, every_row: bool) -> None:
    async with open_session(server, name="groups", is_named=not output.is_document) as session:
        found, problem = await read_groups(session, namespace or "")
        now = (await session.state(DECISIONS)).now
    if output.is_document:
        print_document({"groups": [each.as_json() for each in found], "now": now, "problem": problem}, output)
    else:
        print_rich(*summary_lines(found, now, rows=None if every_row else MOST_ROWS, problem=problem))
