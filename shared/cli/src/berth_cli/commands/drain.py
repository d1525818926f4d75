"""``berth drain``: stops publishing pods, and ends when no pod is under way. ``--stop`` undoes it.

The key ``drain`` in the bucket ``control`` stops every leading watcher. The pipeline stays drained when services
restart, but not when NATS loses its store.
"""

from __future__ import annotations

import asyncio
import getpass
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer

from berth.bus.interface import Session
from berth.bus.topology import CONTROL, DRAIN_KEY, PENDING, RANKED
from berth.errors import BerthError
from berth_cli.bus import NatsContext, NatsServer, NatsUrl, open_admin_session
from berth_cli.options import (
    Output,
    OutputFormat,
    countable_seconds,
    print_document,
    run_command,
)
from berth_cli.pods.waiting import WATCHER
from berth_cli.rendering import note, print_rich
from berth_cli.services import leader, seen

app = typer.Typer()

LOOK_SECONDS: Final = 0.5  # between two reads of the streams
# Answers without a leader after which no watcher leads. A busy watcher may answer late.
LEADERLESS_LOOKS: Final = 6

Stop = Annotated[bool, typer.Option("--stop", help="Publish pods again.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Maximum seconds to wait; berth stays drained afterwards.",
        min=0,
        show_default=False,
        callback=countable_seconds,
    ),
]


class NotEmptyError(BerthError):
    """Pods are still under way at the deadline; the exit code is 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderWay:
    """Pods under way. ``leads``: a watcher leads; ``has_stopped``: it publishes no more pods."""

    pending: int
    ranked: int
    in_flight: int
    waiting: int
    leads: bool
    has_stopped: bool

    @property
    def is_empty(self) -> bool:
        return not (self.pending or self.ranked or self.in_flight)

    def __str__(self) -> str:
        still = "" if self.has_stopped or not self.leads else "the watcher has not stopped publishing yet; "
        no_leader = "" if self.leads else "; no watcher leads"
        return f"{still}{self.pending} pods to be ranked, {self.ranked} to be bound; {self.waiting} wait{no_leader}"


@app.command()
def drain(
    *,
    stop: Stop = False,
    timeout: Timeout = None,
    output: Output = OutputFormat.TABLE,
    nats: NatsUrl = None,
    nats_context: NatsContext = None,
) -> None:
    """Stop publishing pods, and end when no pod is under way. Needs NATS's user `apply`, an admin's.

    Lasts until `berth drain --stop`, also when services restart. To drain a single service, send it SIGTERM.
    """
    server = NatsServer(nats, nats_context)
    run_command(_stop(server, output) if stop else _drain(server, timeout, output))


async def _stop(server: NatsServer, output: OutputFormat) -> None:
    async with open_admin_session(server, name="drain", is_named=not output.is_document) as session:
        entry = await session.get(CONTROL, DRAIN_KEY)
        was_draining = entry is not None and entry.data is not None
        if was_draining:
            await session.purge(CONTROL, DRAIN_KEY)
    if output.is_document:
        print_document({"draining": False, "was_draining": was_draining}, output)
    else:
        print_rich("pods are published again" if was_draining else "it was not drained")


async def _drain(server: NatsServer, most_seconds: float | None, output: OutputFormat) -> None:
    async with open_admin_session(server, name="drain", is_named=not output.is_document) as session:
        about = {"since": datetime.now(UTC), "by": f"{getpass.getuser()}@{socket.gethostname()}"}
        await session.put(CONTROL, DRAIN_KEY, msgspec.json.encode(about))
        note("no pod is published until `berth drain --stop`; Ctrl-C ends only this command")
        found = await _until_empty(session, most_seconds)
    if output.is_document:
        print_document({"draining": True, "empty": True, "waiting": found.waiting}, output)
    else:
        print_rich(f"drained: no pod is under way, {found.waiting} pods wait; `berth drain --stop` publishes them")


async def _until_empty(session: Session, most_seconds: float | None) -> UnderWay:
    """Poll until no pod is under way, and print each change.

    Raises:
        NotEmptyError: pods are under way at the deadline.
    """
    loop = asyncio.get_running_loop()
    end = None if most_seconds is None else loop.time() + most_seconds
    printed, leaderless = "", 0
    while True:
        found_now = await read_what_is_under_way(session)
        leaderless = 0 if found_now.leads else leaderless + 1
        if found_now.is_empty and (found_now.has_stopped or leaderless >= LEADERLESS_LOOKS):
            return found_now
        if str(found_now) != printed:
            printed = str(found_now)
            note(printed)
        if end is not None and loop.time() >= end:
            raise NotEmptyError(f"draining: not empty after {most_seconds:g} s: {found_now}: see `berth top`")
        await asyncio.sleep(LOOK_SECONDS)


async def read_what_is_under_way(session: Session) -> UnderWay:
    watcher = leader(seen(await session.services(WATCHER)), "watcher")
    pending, ranked = [(await session.state(stream)).messages for stream in (PENDING, RANKED)]
    return UnderWay(
        pending=pending,
        ranked=ranked,
        in_flight=sum(watcher.statistics.in_flight.values()) if watcher else 0,
        waiting=sum(watcher.statistics.queues.values()) if watcher else 0,
        leads=watcher is not None,
        has_stopped=watcher is not None and watcher.statistics.draining,
    )
