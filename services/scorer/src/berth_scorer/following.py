"""How a scorer and a shadow come to their view, and follow what changes it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final, Protocol

from berth.bus.interface import BucketReader, Entry, Session, StoredMessage, StreamReader
from berth.bus.topology import CLUSTER, DECISIONS, RANKED
from berth.cluster.buckets import LiveDataReader
from berth.lifecycle.livedata import follow_live
from berth.lifecycle.sessions import UndecodableReporter
from berth.messages.subjects import all_of

DECISIONS_READ: Final = 2
"""How far back DECISIONS is read at the start, in lifetimes of a proposal, so that no decided proposal counts."""


class Follower(Protocol):
    """Takes what is read. ``position``: up to which its source has been read."""

    def on_ranked(self, stored: StoredMessage) -> None:
        """A scorer has published RANKED."""

    def count_ranked(self, stored: StoredMessage) -> None:
        """RANKED had this message when it was read at the start."""

    def on_mirror(self, entries: Sequence[Entry], position: int) -> None:
        """Entries of the bucket ``cluster``."""

    def on_decisions(self, batch: Sequence[StoredMessage], position: int) -> None:
        """Messages of DECISIONS."""

    def on_live_data(self, bucket: str, position: int) -> None:
        """Entries of a bucket of live data; the reader has taken them into the Snapshot."""


async def follow(  # noqa: PLR0913 - what is read, by whom, and who holds it open
    session: Session,
    follower: Follower,
    live_data: LiveDataReader,
    *,
    lifetime: timedelta,
    undecodable: UndecodableReporter,
    stack: AsyncExitStack,
    tasks: asyncio.TaskGroup,
) -> None:
    """Read the mirror to its end, RANKED, and the last minute of DECISIONS; then everything new, in tasks.

    The subscription to RANKED begins before the scan of it, so that no message is missed in between.
    """
    await session.subscribe_stored(all_of("ranked"), follower.on_ranked)
    cluster = await stack.enter_async_context(session.read_bucket(CLUSTER))
    tasks.create_task(_read_cluster(cluster, follower), name="cluster")
    await cluster.caught_up.wait()
    await follow_live(session, live_data, stack, tasks, follower.on_live_data, undecodable)
    async for stored in session.scan(RANKED, all_of("ranked")):
        follower.count_ranked(stored)
    decisions = await stack.enter_async_context(session.read_stream(DECISIONS, since=DECISIONS_READ * lifetime))
    tasks.create_task(_read_decisions(decisions, follower), name="decisions")
    await decisions.caught_up.wait()


async def _read_cluster(reader: BucketReader, follower: Follower) -> None:
    async for batch in reader.batches():
        follower.on_mirror(batch, reader.position)


async def _read_decisions(reader: StreamReader, follower: Follower) -> None:
    async for batch in reader.batches():
        follower.on_decisions(batch, reader.position)
