"""Builds the view of a scorer or a shadow, and follows its changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final

from berth.bus.interface import BucketReader, Session, StoredMessage, StreamReader
from berth.bus.topology import CLUSTER, DECISIONS, RANKED
from berth.cluster.buckets import LiveDataReader
from berth.lifecycle.livedata import follow_live
from berth.lifecycle.sessions import UndecodableReporter
from berth.messages.subjects import all_of
from berth_scorer.events import DecisionsRead, LiveDataRead, MirrorRead, PeerRankingRead, ReadEvent

# DECISIONS is read back this many lifetimes of a proposal, so that no decided proposal counts.
DECISIONS_READ: Final = 2

# Copies of RANKED in 5 s: twice what a binder binds. Beyond it NATS sends none until the time is over, because a
# flood of a hostile scorer would take this scorer's time, or end its connection.
MOST_COPIES: Final = 5_000

Put = Callable[[ReadEvent], None]


async def follow(  # noqa: PLR0913 - what is read, where it goes, and who holds it open
    session: Session,
    put: Put,
    on_ranked: Callable[[StoredMessage], None],
    live_data: LiveDataReader,
    *,
    lifetime: timedelta,
    undecodable: UndecodableReporter,
    stack: AsyncExitStack,
    tasks: asyncio.TaskGroup,
) -> None:
    """Read the mirror, RANKED and the last minute of DECISIONS; then follow changes in tasks (docs/protocol.md, 4.1).

    ``on_ranked`` gets all new messages of RANKED. It is subscribed before RANKED is scanned.
    """

    def on_live_data(bucket: str, position: int) -> None:
        put(LiveDataRead(bucket=bucket, position=position))

    await session.subscribe_stored(all_of("ranked"), on_ranked, most=MOST_COPIES)
    cluster = await stack.enter_async_context(session.read_bucket(CLUSTER))
    tasks.create_task(_read_cluster(cluster, put), name="cluster")
    await cluster.caught_up.wait()
    await follow_live(session, live_data, stack, tasks, on_live_data, undecodable)
    async for stored in session.scan(RANKED, all_of("ranked")):
        put(PeerRankingRead(stored=stored))
    decisions = await stack.enter_async_context(session.read_stream(DECISIONS, since=DECISIONS_READ * lifetime))
    tasks.create_task(_read_decisions(decisions, put), name="decisions")
    await decisions.caught_up.wait()


async def _read_cluster(reader: BucketReader, put: Put) -> None:
    async for batch in reader.batches():
        put(MirrorRead(entries=batch, position=reader.position))


async def _read_decisions(reader: StreamReader, put: Put) -> None:
    async for batch in reader.batches():
        put(DecisionsRead(batch=batch, position=reader.position))
