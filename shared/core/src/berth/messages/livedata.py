"""Live data that plugins may read besides objects: samples of nodes, and facts.

The bucket ``bandwidth`` holds one sample per query and node, under ``<query>.<node>``; plugin and collector use the
same name for a query. A sample has the node's traffic, or its use of CPU and memory, by what the query asks for.
Traffic is in bytes per second; only annotations and arguments are in bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from berth.decoding import check_size, decode_json, decoding
from berth.errors import DecodeError
from berth.messages.attempts import Time
from berth.messages.encoding import Versioned, decode_versioned, encode

BANDWIDTH: Final = "bandwidth"


FACTS: Final = "facts"


LiveBucket = Literal["bandwidth", "facts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSource:
    """All keys ``<name>.<node>`` of a bucket."""

    bucket: LiveBucket
    name: str


# The only facts that berth writes itself: the watcher, for the plugin NodeFailures.
POD_FAILURES: Final = LiveSource(bucket=FACTS, name="pod-failures")


class MeasuredUsage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one resource of a node was used over the query's range: millicores of CPU, bytes of memory.

    The mean, the standard deviation, and percentiles. ``None`` was not measured, or not asked for. ``allocatable`` is
    what pods may have of the node, for readers that do not know it.
    """

    average: float | None = None
    deviation: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    allocatable: float | None = None


class NodeSample(Versioned, frozen=True, kw_only=True):
    """What one query has measured on one node: its network, or its CPU and memory. ``None`` is unknown, never 0.

    ``receive`` and ``transmit`` are bytes per second of its devices, ``capacity`` those of the link in each direction.
    ``cpu`` and ``memory`` are what the whole node uses. All are over the query's range up to ``sampled_at``, the time
    of the last scrape (Prometheus's clock, RFC 3339), not of the query. ``by`` is the collector that wrote it: a random
    name of its process, for other collectors.
    """

    receive: float | None = None
    transmit: float | None = None
    capacity: float | None = None
    cpu: MeasuredUsage | None = None
    memory: MeasuredUsage | None = None
    sampled_at: datetime
    by: str = ""

    @property
    def has_traffic(self) -> bool:
        return self.receive is not None or self.transmit is not None

    @property
    def has_usage(self) -> bool:
        return self.cpu is not None or self.memory is not None


MAX_AUTHOR: Final = 64  # characters of ``by``
# Bytes per second; a million times the fastest network card. A higher amount is an error.
MAX_RATE: Final = 1e15
# Bytes per second of a link; less than one bit is no link, and a share of it would be no number.
MIN_CAPACITY: Final = 1 / 8
# Millicores or bytes of a node; a petabyte. A higher amount is an error.
MAX_USAGE: Final = 1e15
MAX_TIME: Final = 1e10  # Unix seconds above which a time is invalid: the year 2286, far below milliseconds
_RATES: Final = ("receive", "transmit", "capacity")
_UNITS: Final = {"cpu": "millicores", "memory": "bytes"}


def encode_sample(sample: NodeSample) -> bytes:
    return encode(sample)


def decode_sample(data: bytes) -> NodeSample:
    """Read a value.

    Raises:
        UnknownSchemaError: of another schema.
        DecodeError: malformed in any other way; also impossible amounts and times without a zone.
    """
    sample = decode_versioned(data, NodeSample, "a sample")
    for problem in impossible_amounts(sample):
        raise DecodeError(f"decoding a sample: {problem}")
    if len(sample.by) > MAX_AUTHOR:
        raise DecodeError(f"decoding a sample: want at most {MAX_AUTHOR} characters of by, got {len(sample.by)}")
    if sample.sampled_at.tzinfo is None:
        raise DecodeError(f"decoding a sample: want sampled_at with a time zone, got {sample.sampled_at}")
    with decoding("a sample"):
        sample.sampled_at.timestamp()  # Some dates have no Unix time.
    return sample


def impossible_amounts(sample: NodeSample) -> Iterator[str]:
    """A sentence for each amount that no node has, with the name of its field."""
    for name in _RATES:
        rate = getattr(sample, name)
        if rate is not None and not 0 <= rate <= MAX_RATE:
            yield f"{name}: want bytes per second of 0 to {MAX_RATE:g}, got {rate:g}"
    if sample.capacity is not None and 0 < sample.capacity < MIN_CAPACITY:
        yield f"capacity: want bytes per second of 0, or {MIN_CAPACITY:g} or more, got {sample.capacity:g}"
    for resource, unit in _UNITS.items():
        usage = getattr(sample, resource)
        if usage is None:
            continue
        for name in MeasuredUsage.__struct_fields__:
            amount = getattr(usage, name)
            if amount is not None and not 0 <= amount <= MAX_USAGE:
                yield f"{resource}.{name}: want {unit} of 0 to {MAX_USAGE:g}, got {amount:g}"


def check_time(at: datetime, what: str) -> None:
    """Check the time of a measurement; the error calls it ``what``.

    Raises:
        DecodeError: a year that is a mistake. Beyond the first and the last a time of another zone has no date in UTC.
    """
    if not 0 <= at.timestamp() <= MAX_TIME:
        raise DecodeError(f"{what}: want a year of 1970 to 2286, got {at.isoformat()}")


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


class WorkloadFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The last failure of a workload on a node: the pod (``namespace/name``), the kubelet's reason, and when."""

    pod: str
    reason: str
    at: Time


class FailuresOnNode(Versioned, frozen=True, kw_only=True):
    """The fact ``pod-failures.<node>``: the workloads that failed there of late, by their controllers' uids.

    A plugin takes a failure's age from ``written_at``, so that all services and every replay agree on it. The watcher
    writes the fact again when an age reaches a time that a profile's arguments name.
    """

    written_at: Time
    workloads: dict[str, WorkloadFailure]


def decode_failures(data: bytes | msgspec.Raw) -> FailuresOnNode:
    """Read a value.

    Raises:
        UnknownSchemaError: of another schema.
        DecodeError: malformed in any other way.
    """
    return decode_versioned(bytes(data), FailuresOnNode, "failures on a node")


def utc_time(seconds: float) -> datetime:
    """The time of Unix seconds from Prometheus, to the millisecond."""
    return datetime.fromtimestamp(math.floor(seconds * 1000) / 1000, tz=UTC)
