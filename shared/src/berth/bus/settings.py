"""How berth uses NATS: where it is, who we are there, and the numbers of PROTOCOL 7 that live on the bus."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final, Literal

Storage = Literal["file", "memory"]

DEFAULT_SERVER: Final = "nats://127.0.0.1:4222"
DEFAULT_INBOX_PREFIX: Final = "_INBOX"
REPLICAS: Final = (1, 3, 5)
MEBIBYTE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologySettings:
    """What streams, buckets and consumers are declared with. Every service of one bus must run the same ones."""

    replicas: int = 1
    """Copies of every stream: 1, 3 or 5. 3 survives the loss of one server; a single server can only hold 1."""

    storage: Storage = "file"
    """``file`` survives a restart of the server. ``memory`` loses the queues with it: for tests and trials."""

    scorer_ack_wait: timedelta = timedelta(seconds=3)
    """How long a scorer may be silent about a pod before another scorer gets it. From 0.1 s; more than three times the
    99th percentile of a rank at full hold, so that only a dead scorer loses its pods."""

    binder_ack_wait: timedelta = timedelta(seconds=30)
    """How long the binder may be silent about a ranked pod. From 0.1 s; at least thrice its ``in_progress`` of 10 s."""

    duplicate_window: timedelta = timedelta(minutes=2)
    """How long a message id is remembered. From 0.1 s; longer than a proposal (30 s), so that a late repeat is one."""

    marker_ttl: timedelta = timedelta(hours=1)
    """How long the marker of a removed key stays. Whole seconds, from 1 s; a reader cut off for more than half of it
    builds its view anew."""

    decisions_age: timedelta = timedelta(hours=1)
    """How long Decisions are kept, for people and for a watcher that takes over. From 1 min: longer than a back-off."""

    decisions_bytes: int = 512 * MEBIBYTE
    """Bytes of Decisions kept, oldest dropped first. From 1 MiB; the server sets this much of its disk aside."""

    dead_age: timedelta = timedelta(days=7)
    """How long dead letters wait for a person. From 1 h."""

    dead_bytes: int = 64 * MEBIBYTE
    """Bytes of dead letters kept, oldest dropped first. From 1 MiB; the server sets this much of its disk aside."""

    message_bytes: int = 8 * MEBIBYTE
    """Largest message or value, from 64 KiB. Far above the 1.5 MiB that etcd allows an object: every pod that the API
    server takes can be on its way. A server whose max_payload is less (1 MiB unless set there) refuses first."""

    def problems(self) -> list[str]:
        """Everything that is wrong with these, each with path, expectation and value; empty when all is well."""
        return [*self._durations_that_are_off(), *self._numbers_that_are_off()]

    def _durations_that_are_off(self) -> list[str]:
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

    def _numbers_that_are_off(self) -> list[str]:
        least = {"decisions_bytes": MEBIBYTE, "dead_bytes": MEBIBYTE, "message_bytes": MEBIBYTE // 16}
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
    """TLS to the server. With all of it unset the system's authorities are trusted and no certificate is shown."""

    authority_file: Path | None = None
    """PEM of the authorities that may have signed the server's certificate."""

    certificate_file: Path | None = None
    """PEM of our own certificate, for a server that asks for one."""

    key_file: Path | None = None
    """PEM of the key of our certificate."""

    host_name: str | None = None
    """Name that the server's certificate must carry when it is not the host of the address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsCredentials:
    """Who we are. At most one way of it is used; none at all when the server lets everybody in."""

    user: str | None = None
    """User name; goes with ``password``."""

    password: str | None = field(default=None, repr=False)
    """Password of ``user``."""

    token: str | None = field(default=None, repr=False)
    """A token in place of user and password."""

    credentials_file: Path | None = None
    """A ``.creds`` file: a JWT and the seed that signs with it."""

    nkey_seed_file: Path | None = None
    """A file with the seed of an nkey."""

    def problems(self) -> list[str]:
        """What is contradictory, in the form of :meth:`TopologySettings.problems`."""
        ways = [self.user, self.token, self.credentials_file, self.nkey_seed_file]
        found = []
        if sum(way is not None for way in ways) > 1:
            found.append("credentials: want one of user, token, credentials_file and nkey_seed_file, got several")
        if (self.user is None) != (self.password is None):
            found.append("credentials: want user and password together, got one of them")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BusSettings:
    """A client's connection."""

    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    """Addresses of the servers of one cluster, ``nats://host:port`` or ``tls://host:port``; tried in random order."""

    credentials: NatsCredentials = NatsCredentials()
    """Who we are."""

    inbox_prefix: str = DEFAULT_INBOX_PREFIX
    """What the subjects that answers come to begin with. One of its own for each user lets the server keep what one is
    answered from the others."""

    tls: TlsSettings | None = None
    """Set: only TLS will do. Unset: as the address and the server ask for."""

    topology: TopologySettings = TopologySettings()
    """What we expect to find there."""

    connect_timeout: timedelta = timedelta(seconds=4)
    """Until a server that does not answer counts as not reachable. From 0.1 s; well below the 15 s after which a leader
    gives up its Lease."""

    answer_timeout: timedelta = timedelta(seconds=5)
    """Until a request or a publish counts as unanswered. From 0.1 s; longer than a cluster takes to elect a stream's
    leader, shorter than a Lease."""

    ping_interval: timedelta = timedelta(seconds=4)
    """Between two pings. From 0.1 s; with ``ping_timeout`` it bounds how long a dead connection goes unnoticed."""

    ping_timeout: timedelta = timedelta(seconds=4)
    """Until a ping without an answer ends the session. From 0.1 s; longer than a pause of garbage collection or of one
    cycle over 5,000 nodes."""

    pull_expires: timedelta = timedelta(seconds=30)
    """How long the server keeps a pull request. From 1 s; one that it forgot is asked for again by then at latest."""

    pull_heartbeat: timedelta = timedelta(seconds=1)
    """Between the signs of life that the server gives for an idle pull. From 0.1 s, at most half of ``pull_expires``;
    three that are missing make the client ask anew."""

    follow_window: int = 2048
    """Messages that a follower asks for ahead. From 16; with messages of a few KiB well below the 64 MiB at which the
    server drops a slow client."""

    def problems(self) -> list[str]:
        """Everything that is wrong, in the form of :meth:`TopologySettings.problems`."""
        found = [*self.topology.problems(), *self.credentials.problems()]
        found += [f"{name}: want at least 0.1 s, got {value}" for name, value in self._waits() if value < _SHORTEST]
        if not self.servers:
            found.append("servers: want at least one address, got none")
        if self.pull_heartbeat * 2 > self.pull_expires:
            found.append(f"pull_heartbeat: want at most half of pull_expires, got {self.pull_heartbeat}")
        if self.follow_window < 16:  # noqa: PLR2004 - the range that the field states
            found.append(f"follow_window: want at least 16, got {self.follow_window}")
        return found

    def _waits(self) -> list[tuple[str, timedelta]]:
        names = ("connect_timeout", "answer_timeout", "ping_interval", "ping_timeout", "pull_expires", "pull_heartbeat")
        return [(name, getattr(self, name)) for name in names]


_SHORTEST: Final = timedelta(seconds=0.1)
