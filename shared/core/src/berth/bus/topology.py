"""Streams, buckets and shared consumers, declared once (docs/protocol.md, 2).

Only data: ``admin`` applies it to the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Final, Literal

from berth.bus.settings import TopologySettings
from berth.messages.subjects import all_of

PENDING: Final = "PENDING"
RANKED: Final = "RANKED"
DECISIONS: Final = "DECISIONS"
DEAD: Final = "dead"

CLUSTER: Final = "cluster"
BANDWIDTH: Final = "bandwidth"
FACTS: Final = "facts"
CONTROL: Final = "control"
TRIES: Final = "tries"  # Unfinished rankings. Apart from `control`, where scorers may not write.
COMMITS: Final = "commits"  # Unfinished Bindings. Only the binder may write here.
BUCKETS: Final = (CLUSTER, BANDWIDTH, FACTS, TRIES, COMMITS, CONTROL)
_TRIES_AGE: Final = timedelta(hours=1)  # A count expires when its pod is gone.

SCORER: Final = "scorer"  # Durable of PENDING that all scorers share.
BINDER_PREFIX: Final = "binder-"  # Durables of RANKED, one per epoch: `binder-<epoch>`.

# Temporary stream by which a watcher checks whether the server has room.
PROBE: Final = "berth-room"

DRAIN_KEY: Final = "drain"  # In `control`: while it exists, no pod is published to PENDING.
BUS_ID_KEY: Final = "bus.id"  # Key of `control`: identifies the store, so that every client notices a new one.

CLUSTER_ID_KEY: Final = "cluster.id"  # Key of `control`: uid of the namespace kube-system of the cluster it serves.

# Streams republish stored messages under this prefix: `stored.berth.ranked...`, `stored.$KV.cluster...`.
STORED_PREFIX: Final = "stored."

UNLIMITED: Final = -1

_BUCKETS_STREAM: Final = "KV_"
_KEYS: Final = "$KV."


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A declared stream. A limit of -1 and an age of zero mean unlimited."""

    name: str
    subjects: tuple[str, ...]
    description: str
    retention: Literal["workqueue", "limits"] = "limits"
    discard: Literal["old", "new"] = "old"
    max_msgs: int = UNLIMITED
    max_msgs_per_subject: int = UNLIMITED
    max_age: timedelta = timedelta(0)
    max_bytes: int = UNLIMITED
    # A bucket: keys can be rolled up, messages can expire, and cannot be deleted without a marker.
    key_value: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSpec:
    """A durable pull consumer: explicit acks, unlimited redelivery, any number of unacknowledged messages."""

    stream: str
    name: str
    ack_wait: timedelta


def bucket_stream(bucket: str) -> str:
    return f"{_BUCKETS_STREAM}{bucket}"


def bucket_prefix(bucket: str) -> str:
    """The subject of a key is this prefix and the key."""
    return f"{_KEYS}{bucket}."


# The streams that a service outside the account of the streams compares with their declaration at its start: those that
# it reads or consumes. Watcher and binder compare all.
COMPARED: Final[Mapping[str, tuple[str, ...]]] = {
    "scorer": (PENDING, RANKED, DECISIONS, *map(bucket_stream, (CLUSTER, BANDWIDTH, FACTS, TRIES))),
    "shadow": (RANKED, DECISIONS, *map(bucket_stream, (CLUSTER, BANDWIDTH, FACTS))),
    "collector": tuple(map(bucket_stream, (CLUSTER, BANDWIDTH))),
}


class Names:
    """Names of one berth on the server, with a prefix, which keeps several berths on one server apart.

    Above ``berth.bus`` every berth publishes, reads and logs names without prefix.
    """

    __slots__ = ("_before_key", "_before_subject", "_before_word", "prefix")

    def __init__(self, prefix: str = "") -> None:
        self.prefix: Final = prefix
        self._before_subject: Final = f"{prefix}." if prefix else ""
        self._before_word: Final = f"{prefix}-" if prefix else ""
        self._before_key: Final = f"{_KEYS}{self._before_word}"

    def subject(self, subject: str) -> str:
        """``east.berth.pending...`` for ``berth.pending...``. Called for each pod's message, so it must stay cheap."""
        return self._before_subject + subject if subject else ""  # refused, as without prefix

    def filter(self, subject: str) -> str:
        if subject.startswith(_KEYS):
            return self._before_key + subject.removeprefix(_KEYS)
        return subject if subject == _ALL else self.subject(subject)

    def own_subject(self, subject: str) -> str:
        """A subject or key of the server without prefix; another berth's is unchanged."""
        if not self.prefix:
            return subject
        if subject.startswith(self._before_key):
            return _KEYS + subject.removeprefix(self._before_key)
        return subject.removeprefix(self._before_subject)

    def word(self, name: str) -> str:
        """Name of a stream, bucket, service, account or user: ``east-PENDING`` for ``PENDING``."""
        return self._before_word + name

    def own_word(self, name: str) -> str:
        """The name without prefix; another berth's is unchanged."""
        return name.removeprefix(self._before_word)

    def stream(self, name: str) -> str:
        """A stream, also one under a bucket: ``KV_east-cluster`` for ``KV_cluster``."""
        if name.startswith(_BUCKETS_STREAM):
            return bucket_stream(self.word(name.removeprefix(_BUCKETS_STREAM)))
        return self.word(name)

    def own_stream(self, name: str) -> str:
        if not self.prefix:
            return name
        if name.startswith(_BUCKETS_STREAM):
            return bucket_stream(self.own_word(name.removeprefix(_BUCKETS_STREAM)))
        return self.own_word(name)

    def stream_of(self, subject: str) -> str:
        """The server's stream that stores this subject of the server."""
        if subject.startswith(_KEYS):
            return bucket_stream(subject.split(".", 2)[1])
        return self.stream(self.store_of(subject))

    def store_of(self, subject: str) -> str:
        """The declared stream or bucket of a subject, without prefix; else the subject."""
        tokens = self.own_subject(subject).split(".")
        if tokens[0] == "$KV":
            return tokens[1]
        return _BY_STAGE.get(tokens[1], subject) if len(tokens) > 1 else subject


_ALL: Final = ">"

_BY_STAGE: Final[Mapping[str, str]] = {"pending": PENDING, "ranked": RANKED, "decision": DECISIONS, "dead": DEAD}


# Bytes of a large ranking: RANKED has no more messages than its bytes hold of these. Shorter ones of a hostile scorer
# wait before the next honest one: the binder drops 7,000 a second of those that no pod waits for (ADR 65).
RANKED_BYTES: Final = 8192
RANKED_LEAST: Final = 1000  # messages, however small RANKED is
# Age of a message that no scorer settles, such as one of a deleted pod that a hostile scorer has put off. The watcher
# replaces the message of a waiting pod sooner, after 80 minutes with the longest settings.
_PENDING_AGE: Final = timedelta(hours=2)


@lru_cache(maxsize=8)
def declared_streams(settings: TopologySettings) -> tuple[StreamSpec, ...]:
    """Every stream, buckets' included. ``control`` is last: a client that finds it finds all of them.

    Names and subjects are the server's, with the prefix.
    """
    names = Names(settings.prefix)
    return (
        _work_queue(
            names, PENDING, "pending", "pods that wait to be ranked", settings.pending_bytes, max_age=_PENDING_AGE
        ),
        _work_queue(
            names,
            RANKED,
            "ranked",
            "ranked pods that wait to be bound",
            settings.ranked_bytes,
            max_msgs=max(RANKED_LEAST, settings.ranked_bytes // RANKED_BYTES),
        ),
        StreamSpec(
            name=names.stream(DECISIONS),
            subjects=(names.subject(all_of("decision")),),
            description="berth: what became of every attempt",
            max_age=settings.decisions_age,
            max_bytes=settings.decisions_bytes,
        ),
        StreamSpec(
            name=names.stream(DEAD),
            subjects=(names.subject(all_of("dead")),),
            description="berth: messages that could not be decoded or that failed, with the reason",
            max_age=settings.dead_age,
            max_bytes=settings.dead_bytes,
        ),
        _bucket(names.word(CLUSTER), settings.cluster_bytes),
        _bucket(names.word(BANDWIDTH), settings.live_bytes, discard="old"),
        _bucket(names.word(FACTS), settings.live_bytes, discard="old"),
        _bucket(names.word(TRIES), settings.control_bytes, max_age=_TRIES_AGE, discard="old"),
        _bucket(names.word(COMMITS), settings.control_bytes, max_age=_TRIES_AGE),
        _bucket(names.word(CONTROL), settings.control_bytes),
    )


def reserved_bytes(settings: TopologySettings) -> int:
    """Bytes that a server with one copy of each stream reserves: it refuses a stream without enough room."""
    return sum(stream.max_bytes for stream in declared_streams(settings))


def stream_subjects(settings: TopologySettings, name: str) -> tuple[str, ...]:
    """Subjects of a declared stream; for any other a name that no stream has."""
    return next((one.subjects for one in declared_streams(settings) if one.name == name), (name,))


@lru_cache(maxsize=8)
def declared_consumers(settings: TopologySettings) -> tuple[ConsumerSpec, ...]:
    stream = Names(settings.prefix).stream(PENDING)
    return (ConsumerSpec(stream=stream, name=SCORER, ack_wait=settings.scorer_ack_wait),)


def declared_consumer(settings: TopologySettings, stream: str, name: str) -> ConsumerSpec | None:
    if stream == Names(settings.prefix).stream(RANKED) and name.startswith(BINDER_PREFIX):
        return ConsumerSpec(stream=stream, name=name, ack_wait=settings.binder_ack_wait)
    return next((one for one in declared_consumers(settings) if (one.stream, one.name) == (stream, name)), None)


def _work_queue(  # noqa: PLR0913 - the parts of a declaration
    names: Names,
    name: str,
    stage: str,
    what: str,
    max_bytes: int,
    *,
    max_age: timedelta = timedelta(0),
    max_msgs: int = UNLIMITED,
) -> StreamSpec:
    # One message per subject: a pod's newer attempt replaces the older one, even a delivered one. A full queue refuses
    # further pods, which wait in their publisher.
    return StreamSpec(
        name=names.stream(name),
        subjects=(names.subject(all_of(stage)),),
        description=f"berth: {what}",
        retention="workqueue",
        discard="new",
        max_msgs=max_msgs,
        max_msgs_per_subject=1,
        max_age=max_age,
        max_bytes=max_bytes,
    )


def _bucket(
    name: str, max_bytes: int, *, max_age: timedelta = timedelta(0), discard: Literal["old", "new"] = "new"
) -> StreamSpec:
    # Configured as by the NATS CLI, so that `nats kv` works. A bucket that scorers, collectors or people write drops
    # its oldest keys when it is full: filled with a stolen credential, it takes what honest ones write next
    # (docs/adr/0055).
    return StreamSpec(
        name=bucket_stream(name),
        subjects=(f"{bucket_prefix(name)}>",),
        description=f"berth: bucket {name}",
        discard=discard,
        max_msgs_per_subject=1,
        max_age=max_age,
        max_bytes=max_bytes,
        key_value=True,
    )
