"""Reads the buckets of live data into a Snapshot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from berth.bus.interface import BucketReader, Session
from berth.cluster.buckets import LiveDataReader
from berth.errors import DecodeError
from berth.lifecycle.sessions import UndecodableReporter

# Called with a bucket and the position up to which the Snapshot contains its entries.
Reached = Callable[[str, int], None]


async def follow_live(  # noqa: PLR0913, PLR0917 - what is read, where to, in which tasks, and what it calls
    session: Session,
    live: LiveDataReader,
    stack: AsyncExitStack,
    tasks: asyncio.TaskGroup,
    reached: Reached,
    undecodable: UndecodableReporter,
) -> list[asyncio.Task[None]]:
    """Read each bucket of live data into the Snapshot, in tasks of the group. Returns once all have caught up."""
    begun = []
    for bucket in live.buckets:
        following = await stack.enter_async_context(session.read_bucket(bucket))
        begun.append(tasks.create_task(_follow(bucket, following, live, reached, undecodable), name=bucket))
        await following.caught_up.wait()
    return begun


async def _follow(
    bucket: str, following: BucketReader, live: LiveDataReader, reached: Reached, undecodable: UndecodableReporter
) -> None:
    # Facts come from outside: an invalid entry keeps the former value.
    async for batch in following.batches():
        for entry in batch:
            try:
                live.apply(bucket, entry.key, entry.data, entry.time)
            except DecodeError as exc:
                undecodable.report(f"{bucket} {entry.key}", str(exc))
        reached(bucket, following.position)
