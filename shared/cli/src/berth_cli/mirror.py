"""Reads the mirror of the cluster from the buckets of the bus: completely at first, then each change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime

from berth.bus.interface import BucketReader, Entry, Session
from berth.bus.topology import BANDWIDTH, CLUSTER
from berth.cluster.buckets import KindComplete, LiveDataReader, MirroredSnapshot
from berth.cluster.snapshot import Snapshot
from berth.errors import DecodeError
from berth.messages.livedata import LiveSource, NodeSample, decode_sample
from berth.messages.subjects import parse_key


class MirrorReader:
    """The Snapshot and the live data, built from bucket entries."""

    def __init__(self, sources: Collection[LiveSource] = ()) -> None:
        self.snapshot = Snapshot()
        # by kind, the time on NATS's clock up to which the mirror is complete
        self.watermarks: dict[str, datetime] = {}
        self.bandwidth: dict[str, dict[str, NodeSample]] = {}  # samples by node and query
        self.unreadable = 0  # number of entries that could not be decoded
        self._mirror = MirroredSnapshot(self.snapshot)
        self._live_data = LiveDataReader(self.snapshot.live, sources)

    @property
    def live_buckets(self) -> tuple[str, ...]:
        return self._live_data.buckets

    def apply(self, bucket: str, entry: Entry) -> None:
        try:
            self._apply(bucket, entry)
        except DecodeError:
            self.unreadable += 1

    def oldest_watermark(self) -> datetime | None:
        return min(self.watermarks.values(), default=None)

    def _apply(self, bucket: str, entry: Entry) -> None:
        self.snapshot.live.observe_time(entry.time.timestamp())
        if bucket == CLUSTER:
            change = self._mirror.apply(entry.key, entry.data)
            if isinstance(change, KindComplete):
                self.watermarks[change.kind] = entry.time
            return
        if bucket in self._live_data.buckets:
            self._live_data.apply(bucket, entry.key, entry.data, entry.time)
        if bucket == BANDWIDTH:
            self._apply_bandwidth(entry)

    def _apply_bandwidth(self, entry: Entry) -> None:
        query, node = parse_key(entry.key)
        samples = self.bandwidth.setdefault(node, {})
        if entry.data is None:
            samples.pop(query, None)
        else:
            samples[query] = decode_sample(entry.data)


def newest_traffic(samples: Iterable[NodeSample]) -> NodeSample | None:
    return _newest(sample for sample in samples if sample.has_traffic)


def newest_usage(samples: Iterable[NodeSample]) -> NodeSample | None:
    return _newest(sample for sample in samples if sample.has_usage)


def _newest(samples: Iterable[NodeSample]) -> NodeSample | None:
    return max(samples, key=lambda sample: sample.sampled_at, default=None)


@asynccontextmanager
async def open_mirror(
    session: Session, *, sources: Collection[LiveSource] = (), also: Collection[str] = ()
) -> AsyncIterator[MirrorReader]:
    """The mirror, complete when the block starts and updated in it. ``also``: further buckets to read."""
    mirror = MirrorReader(sources)
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        for bucket in dict.fromkeys((CLUSTER, *mirror.live_buckets, *also)):
            reader = await stack.enter_async_context(session.read_bucket(bucket))
            task = tasks.create_task(_follow(mirror, bucket, reader))
            stack.callback(task.cancel)
            await reader.caught_up.wait()
        yield mirror


async def _follow(mirror: MirrorReader, bucket: str, reader: BucketReader) -> None:
    async for batch in reader.batches():
        for entry in batch:
            mirror.apply(bucket, entry)
