"""Settings of the bus: addresses, credentials, TLS, time limits, and the declaration of streams and consumers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

Storage = Literal["file", "memory"]

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
# JetStream domain under which accounts without streams import them: `nats --js-domain berth`.
IMPORTED_DOMAIN: Final = "berth"
DEFAULT_INBOX_PREFIX: Final = "_INBOX"
REPLICAS: Final = (1, 3, 5)
RESERVED_PREFIXES: Final = ("berth", "stored")  # First tokens of a berth without prefix.
WANTED_PREFIX: Final = "want 1 to 32 letters, digits, _ and -, a letter or digit first, and not berth or stored"
_PREFIX: Final = re.compile("[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySettings:
    """Settings that are the same in all services of one bus."""

    prefix: str = ""
    """Prefix of streams, buckets, subjects and services; empty for a server with one berth."""

    replicas: int = 1
    """Copies of every stream: 1, 3 or 5. 3 survives the loss of one server; a single server can only hold 1."""

    storage: Storage = "file"
    """``file`` survives a restart of the server. ``memory`` loses the queues with it: for tests and trials."""

    scorer_ack_wait: timedelta = timedelta(seconds=3)
    """Time without progress after which a pod goes to another scorer. From 0.1 s; more than three times the 99th
    percentile of a ranking with a full backlog, so that only a dead scorer loses its pods."""

    binder_ack_wait: timedelta = timedelta(seconds=30)
    """Time without progress after which a ranked pod is redelivered. From 0.1 s; at least three times the 10 s between
    two ``in_progress``."""

    duplicate_window: timedelta = timedelta(minutes=2)
    """How long a message id is remembered. From 0.1 s; far longer than the seconds after which an unanswered publish is
    repeated. At most the age at which a stream drops its messages."""

    marker_ttl: timedelta = timedelta(minutes=10)
    """How long the marker of a removed key stays. Whole seconds, from 1 s. Longer than the 6 min after which nats-
    server closes a silent client's connection: a new connection reads the bucket from its beginning, so no reader
    misses a removal. Not much longer, because each deleted pod leaves one."""

    decisions_age: timedelta = timedelta(hours=1)
    """How long Decisions are kept, for people and for a new leading watcher. From 1 min: longer than a back-off, and as
    long as a starting scorer reads back."""

    decisions_bytes: int = 512 * MEBIBYTE
    """From 1 MiB, oldest dropped first; reserved on the server's disk."""

    dead_age: timedelta = timedelta(days=7)
    """How long dead letters wait for a person. From 1 h."""

    dead_bytes: int = 64 * MEBIBYTE
    """From 1 MiB, oldest dropped first; reserved on the server's disk."""

    pending_bytes: int = 64 * MEBIBYTE
    """Bytes of PENDING, which holds the pods in flight, a few KiB each. From 1 MiB. If it is full, new pods wait in the
    watcher. Reserved on the server's disk, as all limits here."""

    ranked_bytes: int = 128 * MEBIBYTE
    """The same for RANKED, which also holds the pods that wait for volumes."""

    cluster_bytes: int = 512 * MEBIBYTE
    """Bytes of the mirror. From 1 MiB. 5,000 nodes and 50,000 pods take about 200 MiB."""

    live_bytes: int = 32 * MEBIBYTE
    """Bytes of ``bandwidth`` and of ``facts``, each. From 1 MiB. It limits facts, which come from outside."""

    control_bytes: int = 16 * MEBIBYTE
    """``control``, ``tries`` and ``commits``, each. From 1 MiB; a few hundred bytes per pod that ends services."""

    message_bytes: int = 8 * MEBIBYTE
    """Largest message or value, from 64 KiB. Far above etcd's 1.5 MiB per object, so that every accepted pod fits. The
    server's own max_payload (1 MiB unless set there) must not be less."""

    def problems(self) -> list[str]:
        """All errors, each with path, expectation and value."""
        return [*self._duration_problems(), *self._number_problems(), *self._prefix_problems()]

    def _prefix_problems(self) -> list[str]:
        if not self.prefix or (_PREFIX.fullmatch(self.prefix) and self.prefix not in RESERVED_PREFIXES):
            return []
        return [f"topology.prefix: {WANTED_PREFIX}, got {self.prefix!r}"]

    def _duration_problems(self) -> list[str]:
        least = {
            "scorer_ack_wait": timedelta(seconds=0.1),
            "binder_ack_wait": timedelta(seconds=0.1),
            "duplicate_window": timedelta(seconds=0.1),
            "marker_ttl": timedelta(seconds=1),
            "decisions_age": timedelta(minutes=1),
            "dead_age": timedelta(hours=1),
        }
        found = [
            f"topology.{name}: want at least {low}, got {getattr(self, name)}"
            for name, low in least.items()
            if getattr(self, name) < low
        ]
        if self.marker_ttl.microseconds:
            found.append(f"topology.marker_ttl: want whole seconds, got {self.marker_ttl}")
        return found

    def _number_problems(self) -> list[str]:
        stores = ("pending", "ranked", "decisions", "dead", "cluster", "live", "control")
        least = {f"{name}_bytes": MEBIBYTE for name in stores} | {"message_bytes": MEBIBYTE // 16}
        found = [
            f"topology.{name}: want at least {low} bytes, got {getattr(self, name)}"
            for name, low in least.items()
            if getattr(self, name) < low
        ]
        if self.replicas not in REPLICAS:
            found.append(f"topology.replicas: want one of {REPLICAS}, got {self.replicas}")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS to the server. By default the system's authorities are trusted and no client certificate is sent."""

    authority_file: Path | None = None

    certificate_file: Path | None = None
    """PEM of the client certificate, for a server that requires one."""

    key_file: Path | None = None

    host_name: str | None = None
    """The name in the server's certificate, if it differs from the address's host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsCredentials:
    """Authentication of the client: at most one of these ways; without any for a server without users."""

    user: str | None = None

    password: str | None = field(default=None, repr=False)

    token: str | None = field(default=None, repr=False)

    credentials_file: Path | None = None
    """A JWT and the seed that signs with it."""

    nkey_seed_file: Path | None = None

    def problems(self) -> list[str]:
        """Contradictions, in the form of :meth:`TopologySettings.problems`."""
        ways = [self.user, self.token, self.credentials_file, self.nkey_seed_file]
        found = []
        if sum(way is not None for way in ways) > 1:
            found.append("credentials: want one of user, token, credentials_file and nkey_seed_file, got several")
        if (self.user is None) != (self.password is None):
            found.append("credentials: want user and password together, got one of them")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BusSettings:
    """Connection of a client."""

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    """Addresses of the servers of one cluster, ``nats://host:port`` or ``tls://host:port``; tried in random order."""

    credentials: NatsCredentials = NatsCredentials()

    inbox_prefix: str = DEFAULT_INBOX_PREFIX
    """Prefix of the subjects for replies. With a prefix for each user, the server can keep one user's replies from the
    others."""

    domain: str = ""
    """JetStream domain of the streams; empty: the server's own. ``berth``: they are imported from another account."""

    tls: TlsSettings | None = None
    """If set, a server without TLS is refused. Otherwise TLS is used if the address or the server requires it."""

    topology: TopologySettings = TopologySettings()

    connect_timeout: timedelta = timedelta(seconds=4)
    """Time limit of connecting. From 0.1 s; well below the 15 s after which a leader gives up its Lease."""

    answer_timeout: timedelta = timedelta(seconds=5)
    """Time limit of a reply to a request or publish. From 0.1 s; longer than a NATS cluster takes to elect a stream's
    leader, shorter than a Lease."""

    ping_interval: timedelta = timedelta(seconds=4)
    """Time between two pings. From 0.1 s; a ping without an answer by the next one ends the connection, so after twice
    this at the latest. Longer than a pause of garbage collection or of one scheduling cycle over 5,000 nodes."""

    pull_expires: timedelta = timedelta(seconds=10)
    """How long the server keeps a pull request. From 1 s, at most 10 s, since the server forgets who has asked after 15
    (``berth_cli.pipeline.natsconf``); a lost request is repeated after this at the latest."""

    pull_heartbeat: timedelta = timedelta(seconds=1)
    """Time between the server's heartbeats for an idle pull. From 0.1 s, at most half of ``pull_expires``; after three
    missing ones the client sends a new pull request."""

    reader_check: timedelta = timedelta(seconds=5)
    """How often an ordered reader compares its position with the stream's end. From 0.1 s; a lost copy without a later
    one is read after this time."""

    @property
    def addresses(self) -> str:
        return ", ".join(server.rpartition("@")[2] for server in self.servers)

    @property
    def api(self) -> str:
        """Prefix of requests to JetStream."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @property
    def before_keys(self) -> str:
        """Prefix of a written key's subject: NATS passes no ``$KV.>`` from domain to domain."""
        return "" if self.domain in {"", IMPORTED_DOMAIN} else f"{self.api}."

    def problems(self) -> list[str]:
        found = [*self.topology.problems(), *self.credentials.problems()]
        found += [f"{name}: want at least 0.1 s, got {value}" for name, value in self._waits() if value < _SHORTEST]
        if not self.servers:
            found.append("servers: want at least one address, got none")
        if any(server.startswith(("ws://", "wss://")) for server in self.servers):
            found.append(f"servers: want nats:// or tls://, got {self.addresses}: services use no WebSockets")
        if self.pull_heartbeat * 2 > self.pull_expires:
            found.append(f"pull_heartbeat: want at most half of pull_expires, got {self.pull_heartbeat}")
        return found

    def _waits(self) -> list[tuple[str, timedelta]]:
        names = (
            *("connect_timeout", "answer_timeout", "ping_interval"),
            *("pull_expires", "pull_heartbeat", "reader_check"),
        )
        return [(name, getattr(self, name)) for name in names]


_SHORTEST: Final = timedelta(seconds=0.1)
