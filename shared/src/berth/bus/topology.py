"""Streams, buckets and shared consumers, declared once. Only data: ``admin`` applies it to the server.

The rule: docs/protocol.md, 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from berth.api.subjects import PREFIX, all_of
from berth.bus.settings import TopologySettings

PENDING: Final = "PENDING"
RANKED: Final = "RANKED"
DECISIONS: Final = "DECISIONS"
DEAD: Final = "dead"

CLUSTER: Final = "cluster"
BANDWIDTH: Final = "bandwidth"
FACTS: Final = "facts"
CONTROL: Final = "control"
TRIES: Final = "tries"
"""Rankings that scorers have begun and not finished. A bucket of its own: scorers may not write to ``control``."""
BUCKETS: Final = (CLUSTER, BANDWIDTH, FACTS, TRIES, CONTROL)
_TRIES_AGE: Final = timedelta(hours=1)
"""A count whose pod has gone is forgotten after this."""

SCORER: Final = "scorer"
"""The durable of PENDING that all scorers share."""
BINDER_PREFIX: Final = "binder-"
"""The durables of RANKED, one per epoch: ``binder-<epoch>``."""

BUS_ID_KEY: Final = "bus.id"
"""Key of ``control``: identifies the store, so that every client notices a new one."""

STORED_PREFIX: Final = "stored."
"""A stream republishes what it has stored under this prefix: ``stored.berth.ranked...``, ``stored.$KV.cluster...``."""

UNLIMITED: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A stream as declared. A limit of -1 and an age of zero mean unlimited."""

    name: str
    subjects: tuple[str, ...]
    description: str
    retention: Literal["workqueue", "limits"] = "limits"
    discard: Literal["old", "new"] = "old"
    max_msgs_per_subject: int = UNLIMITED
    max_age: timedelta = timedelta(0)
    max_bytes: int = UNLIMITED
    key_value: bool = False
    """A bucket: keys can be rolled up, single messages can expire, and messages cannot be deleted without a marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSpec:
    """A durable pull consumer: explicit acks, unlimited redelivery, any number of unacknowledged messages."""

    stream: str
    name: str
    ack_wait: timedelta


def bucket_stream(bucket: str) -> str:
    """The stream under a bucket."""
    return f"KV_{bucket}"


def bucket_prefix(bucket: str) -> str:
    """The prefix that makes a key of the bucket a subject."""
    return f"$KV.{bucket}."


def declared_streams(settings: TopologySettings) -> tuple[StreamSpec, ...]:
    """Every stream, those of the buckets included. ``control`` is last: a client that finds it finds all of them."""
    return (
        _work_queue(PENDING, "pending", "pods that wait to be ranked"),
        _work_queue(RANKED, "ranked", "ranked pods that wait to be bound"),
        StreamSpec(
            name=DECISIONS,
            subjects=(all_of("decision"),),
            description="berth: what became of every attempt",
            max_age=settings.decisions_age,
            max_bytes=settings.decisions_bytes,
        ),
        StreamSpec(
            name=DEAD,
            subjects=(f"{PREFIX}.dead.>",),
            description="berth: messages that could not be decoded or that failed, with the reason",
            max_age=settings.dead_age,
            max_bytes=settings.dead_bytes,
        ),
        *(_bucket(name, max_age=_TRIES_AGE if name == TRIES else timedelta(0)) for name in BUCKETS),
    )


def stream_subjects(settings: TopologySettings, name: str) -> tuple[str, ...]:
    """The subjects of a declared stream; for any other name one that no stream has."""
    return next((one.subjects for one in declared_streams(settings) if one.name == name), (name,))


def declared_consumers(settings: TopologySettings) -> tuple[ConsumerSpec, ...]:
    """The consumers that ``apply`` creates."""
    return (ConsumerSpec(stream=PENDING, name=SCORER, ack_wait=settings.scorer_ack_wait),)


def declared_consumer(settings: TopologySettings, stream: str, name: str) -> ConsumerSpec | None:
    """The declared consumer of that name; ``None`` when there is none on that stream."""
    if stream == RANKED and name.startswith(BINDER_PREFIX):
        return ConsumerSpec(stream=stream, name=name, ack_wait=settings.binder_ack_wait)
    return next((one for one in declared_consumers(settings) if (one.stream, one.name) == (stream, name)), None)


def _work_queue(name: str, stage: str, what: str) -> StreamSpec:
    """One message per subject: a pod's newer attempt replaces the older one, even when that has been delivered."""
    return StreamSpec(
        name=name,
        subjects=(all_of(stage),),
        description=f"berth: {what}",
        retention="workqueue",
        max_msgs_per_subject=1,
    )


def _bucket(name: str, *, max_age: timedelta) -> StreamSpec:
    """Configured as the NATS CLI does it, so that ``nats kv`` works."""
    return StreamSpec(
        name=bucket_stream(name),
        subjects=(f"{bucket_prefix(name)}>",),
        description=f"berth: bucket {name}",
        discard="new",
        max_msgs_per_subject=1,
        max_age=max_age,
        key_value=True,
    )
