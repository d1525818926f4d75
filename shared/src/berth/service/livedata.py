"""Reading the buckets of live data into a Snapshot, as far as somebody's plugins have declared to read them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from berth.api.errors import DecodeError
from berth.bus.port import BucketFollowing, Entry, Session
from berth.cluster.heard import HeardData
from berth.service.logging import get_logger

log = get_logger()

Reached = Callable[[str, int], None]
"""Told of each bucket's position once everything up to it is in the Snapshot."""


async def follow_live(
    session: Session, heard: HeardData, stack: AsyncExitStack, tasks: asyncio.TaskGroup, reached: Reached
) -> list[asyncio.Task[None]]:
    """Follow each bucket that is read, in tasks of the group, which are returned once all of them have caught up."""
    begun = []
    for bucket in heard.buckets:
        following = await stack.enter_async_context(session.follow_bucket(bucket))
        begun.append(tasks.create_task(_follow(bucket, following, heard, reached), name=bucket))
        await following.caught_up.wait()
    return begun


async def _follow(bucket: str, following: BucketFollowing, heard: HeardData, reached: Reached) -> None:
    async for batch in following.batches():
        for entry in batch:
            _take(bucket, entry, heard)
        reached(bucket, following.position)


def _take(bucket: str, entry: Entry, heard: HeardData) -> None:
    """Anybody may put facts: what cannot be read is said, and what was known before stays."""
    try:
        heard.apply(bucket, entry.key, entry.data, entry.time)
    except DecodeError as exc:
        log.warning("left something out of the view", subject=f"{bucket} {entry.key}", reason=str(exc))
