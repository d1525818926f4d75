"""Live data that plugins may read besides objects: bandwidth of nodes, and facts.

The bucket ``bandwidth`` holds one sample per query and node, under ``<query>.<node>``; plugin and collector use the
same name for a query. Amounts are bytes per second; only annotations and arguments are in bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from berth.decoding import check_size, decode_json, decoding
from berth.errors import DecodeError
from berth.messages.attempts import Versioned, decode_versioned, encode

BANDWIDTH: Final = "bandwidth"


FACTS: Final = "facts"


LiveBucket = Literal["bandwidth", "facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSource:
    """All keys ``<name>.<node>`` of a bucket."""

    bucket: LiveBucket
    name: str


class Bandwidth(Versioned, frozen=True, kw_only=True):
    """The traffic of one node's devices. ``None`` is unknown, never 0.

    ``receive`` and ``transmit`` are bytes per second, averaged over the query's range up to ``sampled_at``, the time of
    the last scrape (Prometheus's clock, RFC 3339), not of the query. ``capacity`` is bytes per second of the link in
    each direction. ``by`` is the collector that wrote it: a random name of its process, for other collectors.
    """

    receive: float | None = None
    transmit: float | None = None
    capacity: float | None = None
    sampled_at: datetime
    by: str = ""


MAX_AUTHOR: Final = 64  # characters of ``by``
# Bytes per second; a million times the fastest network card. A higher amount is an error.
MAX_RATE: Final = 1e15
# Bytes per second of a link; less than one bit is no link, and a share of it would be no number.
MIN_CAPACITY: Final = 1 / 8


def encode_bandwidth(bandwidth: Bandwidth) -> bytes:
    return encode(bandwidth)


def decode_bandwidth(data: bytes) -> Bandwidth:
    """Read a value.

    Raises:
        UnknownSchemaError: of another schema.
        DecodeError: malformed in any other way; also impossible amounts and times without a zone.
    """
    bandwidth = decode_versioned(data, Bandwidth, "a bandwidth")
    amounts = (bandwidth.receive, bandwidth.transmit, bandwidth.capacity)
    if any(amount is not None and not 0 <= amount <= MAX_RATE for amount in amounts):
        raise DecodeError(f"decoding a bandwidth: want bytes per second of 0 to {MAX_RATE:g}, got {amounts}")
    if bandwidth.capacity is not None and 0 < bandwidth.capacity < MIN_CAPACITY:
        want = f"want a capacity of 0, or {MIN_CAPACITY:g} or more"
        raise DecodeError(f"decoding a bandwidth: {want}, got {bandwidth.capacity}")
    if len(bandwidth.by) > MAX_AUTHOR:
        raise DecodeError(f"decoding a bandwidth: want at most {MAX_AUTHOR} characters of by, got {len(bandwidth.by)}")
    if bandwidth.sampled_at.tzinfo is None:
        raise DecodeError(f"decoding a bandwidth: want sampled_at with a time zone, got {bandwidth.sampled_at}")
    with decoding("a bandwidth"):
        bandwidth.sampled_at.timestamp()  # Some dates have no Unix time.
    return bandwidth


# A plugin's reader decodes each fact anew for every node and pod.
FACT_BYTES: Final = 64 * 1024

_raw: Final = msgspec.json.Decoder(msgspec.Raw)


def decode_fact(data: bytes) -> msgspec.Raw:
    """A fact: any JSON, which a plugin decodes.

    Raises:
        DecodeError: no JSON, more than ``FACT_BYTES``, or nested deeper than readers allow.
    """
    check_size(data, "a fact", most=FACT_BYTES)
    return msgspec.Raw(bytes(decode_json(_raw, data, "a fact")))


def utc_time(seconds: float) -> datetime:
    """The time of Unix seconds from Prometheus, to the millisecond."""
    return datetime.fromtimestamp(math.floor(seconds * 1000) / 1000, tz=UTC)
