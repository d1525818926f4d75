"""The cluster as the buckets show it, read once to their end or kept up to date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime

from berth.api.errors import DecodeError
from berth.api.livedata import Bandwidth, LiveSource, decode_bandwidth
from berth.api.subjects import parse_key
from berth.bus.interface import BucketReader, Entry, Session
from berth.bus.topology import BANDWIDTH, CLUSTER
from berth.cluster.buckets import KindComplete, LiveDataReader, MirroredSnapshot
from berth.cluster.snapshot import Snapshot


class MirrorReader:
    """What the buckets say. ``unreadable`` counts entries that say nothing; times are NATS's."""

    def __init__(self, sources: Collection[LiveSource] = ()) -> None:
        self.snapshot = Snapshot()
        self.watermarks: dict[str, datetime] = {}
        """Up to when each kind is complete."""
        self.bandwidth: dict[str, dict[str, Bandwidth]] = {}
        """Samples by node and question."""
        self.unreadable = 0
        self._mirror = MirroredSnapshot(self.snapshot)
        self._heard = LiveDataReader(self.snapshot.live, sources)

    @property
    def live_buckets(self) -> tuple[str, ...]:
        """The buckets that the sources are in."""
        return self._heard.buckets

    def take(self, bucket: str, entry: Entry) -> None:
        """Take over one entry."""
        try:
            self._take(bucket, entry)
        except DecodeError:
            self.unreadable += 1

    def oldest_watermark(self) -> datetime | None:
        """Up to when everything is complete."""
        return min(self.watermarks.values(), default=None)

    def _take(self, bucket: str, entry: Entry) -> None:
        self.snapshot.live.observe_time(entry.time.timestamp())
        if bucket == CLUSTER:
            news = self._mirror.apply(entry.key, entry.data)
            if isinstance(news, KindComplete):
                self.watermarks[news.kind] = entry.time
            return
        if bucket in self._heard.buckets:
            self._heard.apply(bucket, entry.key, entry.data, entry.time)
        if bucket == BANDWIDTH:
            self._take_bandwidth(entry)

    def _take_bandwidth(self, entry: Entry) -> None:
        query, node = parse_key(entry.key)
        samples = self.bandwidth.setdefault(node, {})
        if entry.data is None:
            samples.pop(query, None)
        else:
            samples[query] = decode_bandwidth(entry.data)


@asynccontextmanager
async def mirror(
    session: Session, *, sources: Collection[LiveSource] = (), also: Collection[str] = ()
) -> AsyncIterator[MirrorReader]:
    """The mirror, complete when this is entered and kept up to date inside; ``also`` are further buckets to read."""
    kept = MirrorReader(sources)
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for bucket in dict.fromkeys((CLUSTER, *kept.live_buckets, *also)):
            following = await stack.enter_async_context(session.read_bucket(bucket))
            task = tasks.create_task(_follow(kept, bucket, following))
            stack.callback(task.cancel)
            await following.caught_up.wait()
        yield kept


async def _follow(kept: MirrorReader, bucket: str, following: BucketReader) -> None:
    async for batch in following.batches():
        for entry in batch:
            kept.take(bucket, entry)
