"""``berth top``: queues, lag, services and nodes; live on a terminal, once elsewhere."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Annotated, Final

import typer
from rich.console import Group
from rich.live import Live

from berth.api.bandwidth import Bandwidth
from berth.api.resources import CPU, MEMORY
from berth.bus.port import Session, Stored, StreamFollowing
from berth.bus.stages import OUTCOME
from berth.bus.topology import BANDWIDTH, DEAD, DECISIONS, PENDING, RANKED
from berth.cli.asking import Form, NatsUrl, Output, asking
from berth.cli.console import page, say_json, show
from berth.cli.ending import finish
from berth.cli.mirrored import Mirror, mirror
from berth.cli.overview import NodeLine, Overview, as_json, told
from berth.service.exits import Exit

WINDOW: Final = timedelta(seconds=10)
"""Over which Decisions are counted: long enough for a steady rate, short enough to be read at the start."""
STREAMS: Final = (PENDING, RANKED, DECISIONS, DEAD)
FEWEST_NODES: Final = 3
"""Shown on the smallest terminal too."""

Watch = Annotated[
    bool | None,
    typer.Option("--watch/--once", help="Go on until Ctrl-C, or not; by default on a terminal.", show_default=False),
]
Interval = Annotated[float, typer.Option("--interval", help="Seconds between two looks.", min=0.2)]


def top(*, watch: Watch = None, interval: Interval = 2.0, output: Output = Form.TABLE, nats: NatsUrl = None) -> None:
    """Show queues, lag, services, nodes with their pods and bandwidth, and dead letters."""
    goes_on = page().is_terminal and output is Form.TABLE if watch is None else watch
    work = _watch(nats, output, timedelta(seconds=interval)) if goes_on else _once(nats, output)
    finish(work, interrupted=Exit.DONE)


async def _once(nats: str | None, form: Form) -> None:
    async with _looking(nats) as look:
        overview = await look.look()
    if form is Form.JSON:
        say_json(as_json(overview))
    else:
        show(*told(overview, rows=None))


async def _watch(nats: str | None, form: Form, interval: timedelta) -> None:
    async with _looking(nats) as look:
        if form is Form.JSON or not page().is_terminal:
            while True:
                _print(await look.look(), form)
                await asyncio.sleep(interval.total_seconds())
        console = page()
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                overview = await look.look()
                beside = len(console.render_lines(Group(*told(overview, rows=0))))
                rows = max(FEWEST_NODES, console.height - beside)
                live.update(Group(*told(overview, rows=rows)), refresh=True)
                await asyncio.sleep(interval.total_seconds())


def _print(overview: Overview, form: Form) -> None:
    if form is Form.JSON:
        say_json(as_json(overview), indent=0)
    else:
        show(*told(overview, rows=None), "")


@asynccontextmanager
async def _looking(nats: str | None) -> AsyncIterator[Look]:
    async with (
        asking(nats, name="top") as session,
        mirror(session, also=(BANDWIDTH,)) as kept,
        session.follow(DECISIONS, since=WINDOW) as following,
    ):
        look = Look(session, kept)
        counting = asyncio.create_task(look.count(following))
        await following.caught_up.wait()
        try:
            yield look
        finally:
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)


class Look:
    """Looks at everything, again and again, on one session."""

    def __init__(self, session: Session, kept: Mirror) -> None:
        self._session = session
        self._mirror = kept
        self._decided: deque[tuple[datetime, str]] = deque()

    async def count(self, following: StreamFollowing) -> None:
        """Remember what was decided lately."""
        async for batch in following.batches():
            self._decided.extend((stored.time, outcome_of(stored)) for stored in batch)
            self._forget(self._decided[-1][0] if self._decided else None)

    def _forget(self, now: datetime | None) -> None:
        while now is not None and self._decided and now - self._decided[0][0] > WINDOW:
            self._decided.popleft()

    async def look(self) -> Overview:
        """How things stand now. Raises as :meth:`Session.state`."""
        streams = [await self._session.state(stream) for stream in STREAMS]
        now = streams[-1].now
        self._forget(now)
        return Overview(
            now=now,
            streams=streams,
            services=await self._session.present(),
            watermarks=dict(self._mirror.watermarks),
            outcomes=Counter(outcome for _, outcome in self._decided),
            window=WINDOW,
            nodes=list(node_lines(self._mirror)),
        )


def outcome_of(stored: Stored) -> str:
    """What a Decision's header says, so that its payload need not be read."""
    return stored.headers.get(OUTCOME, "unknown")


def node_lines(kept: Mirror) -> list[NodeLine]:
    """Every node of the mirror with what is known of it."""
    return [line for name in kept.snapshot.node_names() if (line := _node_line(kept, name)) is not None]


def _node_line(kept: Mirror, name: str) -> NodeLine | None:
    info = kept.snapshot.node_info(name)
    if info is None:
        return None
    sample = newest(kept.bandwidth.get(name, {}).values())
    return NodeLine(
        name=name,
        pods=info.pods,
        cpu=(info.requested(CPU), info.allocatable(CPU)),
        memory=(info.requested(MEMORY), info.allocatable(MEMORY)),
        receive=sample.receive if sample else None,
        transmit=sample.transmit if sample else None,
        sampled_at=sample.sampled_at if sample else None,
    )


def newest(samples: Iterable[Bandwidth]) -> Bandwidth | None:
    """Of several questions about a node, the answer that was measured last."""
    return max(samples, key=lambda sample: sample.sampled_at, default=None)
