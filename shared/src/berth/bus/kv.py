"""Buckets: keys as subjects, removals as markers, and writes that name the sequence that they expect."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from berth.bus.connection import Connection
from berth.bus.interface import Entry, StoredMessage
from berth.bus.streams import EXPECTED_SEQUENCE, last, publish
from berth.bus.topology import bucket_prefix, bucket_stream

OPERATION: Final = "KV-Operation"
PURGE: Final = "PURGE"
ROLLUP: Final = "Nats-Rollup"
TTL: Final = "Nats-TTL"
_REMOVALS: Final = frozenset({"DEL", PURGE})
_EXPIRED: Final = "Nats-Marker-Reason"


def entry(bucket: str, stored: StoredMessage) -> Entry:
    """A message of the bucket's stream as an entry. A marker has no data, whoever made it."""
    removed = stored.headers.get(OPERATION) in _REMOVALS or _EXPIRED in stored.headers
    return Entry(
        key=stored.subject[len(bucket_prefix(bucket)) :],
        sequence=stored.sequence,
        data=None if removed else stored.data,
        time=stored.time,
    )


def purge_headers(marker_ttl: timedelta) -> dict[str, str]:
    """What makes a publish the removal of its key: a marker in the place of all that was there, gone after a while.

    nats-py's own calls take either the time to live or the expected sequence.
    """
    return {OPERATION: PURGE, ROLLUP: "sub", TTL: f"{int(marker_ttl.total_seconds())}s"}


def expecting(sequence: int | None) -> dict[str, str]:
    """The header of a write that must find the key at this sequence."""
    return {} if sequence is None else {EXPECTED_SEQUENCE: str(sequence)}


async def get(connection: Connection, bucket: str, key: str) -> Entry | None:
    """The key's last entry, a marker included."""
    stored = await last(connection, bucket_stream(bucket), bucket_prefix(bucket) + key)
    return None if stored is None else entry(bucket, stored)


async def put(connection: Connection, bucket: str, key: str, data: bytes, expected: int | None) -> int:
    """Write a key; returns its sequence."""
    ack = await publish(connection, bucket_prefix(bucket) + key, data, headers=expecting(expected))
    return ack.sequence


async def purge(connection: Connection, bucket: str, key: str, expected: int | None) -> int:
    """Put a marker in the key's place; returns the marker's sequence."""
    headers = purge_headers(connection.settings.topology.marker_ttl) | expecting(expected)
    ack = await publish(connection, bucket_prefix(bucket) + key, b"", headers=headers)
    return ack.sequence
