"""What a service can be told, by concern. Where values come from is said in :mod:`berth.process.sources`.

Every field says its unit, range and why that default. A field's path (``leaderElection.renewDeadline``) is what error
messages name; its variable is the path in capitals (``BERTH_LEADER_ELECTION_RENEW_DEADLINE``).
"""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from berth.bus.settings import DEFAULT_INBOX_PREFIX
from berth.plugins.presets import DEFAULT_NAME, PRESETS
from berth.process import readers
from berth.process.readers import Secret

PARENT_PID_VARIABLE: Final = "BERTH_PARENT_PID"
"""Whoever starts services as its children names itself here, so that they end with it (``parent_pid``)."""


PLUGIN_DEADLINE: Final = timedelta(seconds=1)
"""A built-in plugin takes less than 1 ms for 5,000 nodes."""


JITTER_RATIO = 1.2
"""How much longer than a retry period the pause between two tries may come out, as in other Kubernetes clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """How long a Lease lasts and how hard it is kept. They must keep: retry < renew deadline < duration."""

    duration: timedelta = timedelta(seconds=15)
    """How long others wait after the last change before they take the Lease; whole seconds, since the API has no parts.
    Longer: a dead leader is missed longer. Shorter than the 30 s of a proposal (docs/protocol.md, 7)."""
    renew_deadline: timedelta = timedelta(seconds=10)
    """How long after its last renewal a leader goes on leading. The rest of the duration is for what is on the wire."""
    retry_period: timedelta = timedelta(seconds=2)
    """Between two renewals, and between two looks of who waits: how late a Lease that was given back is taken."""
    clock_slack: timedelta = timedelta(seconds=2)
    """How far apart two machines' clocks may come within one duration, pauses of a scheduler of processes included."""

    def problems(self, path: str = "leaderElection") -> list[str]:
        """Everything that is wrong with them, each with its path and value; empty when nothing is."""
        found = []
        if self.duration < timedelta(seconds=1) or self.duration % timedelta(seconds=1):
            found.append(f"{path}.leaseDuration: want whole seconds, 1 or more, got {_seconds(self.duration)}")
        if self.renew_deadline + self.clock_slack >= self.duration:
            want = f"want less than leaseDuration ({_seconds(self.duration)}) - {_seconds(self.clock_slack)}"
            found.append(f"{path}.renewDeadline: {want}, got {_seconds(self.renew_deadline)}")
        if self.retry_period <= timedelta() or self.retry_period * JITTER_RATIO >= self.renew_deadline:
            want = f"want more than 0 s and {JITTER_RATIO} times it less than renewDeadline"
            found.append(
                f"{path}.retryPeriod: {want} ({_seconds(self.renew_deadline)}), got {_seconds(self.retry_period)}"
            )
        return found


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} s"


def own_identity() -> str:
    """Host name and a uuid: another one in each process."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """Where the bus is and how to be let in: by user and password, by a credentials file or by a token; one of them."""

    url: Annotated[str, readers.nats_url] = "nats://127.0.0.1:4222"
    """Addresses of one NATS cluster, comma between them. By default the port that nats-server takes on this machine."""
    user: Annotated[str | None, readers.text] = None
    """User name; one user per service, with the subjects that the service needs. None: a server without users."""
    password: Annotated[Secret | None, readers.secret] = None
    """The user's password; BERTH_NATS_PASSWORD_FILE names a file that holds it."""
    inbox_prefix: Annotated[str, readers.subject_prefix] = DEFAULT_INBOX_PREFIX
    """What subjects begin with that answers come to. NATS's own; one for each user where each may hear its own only."""
    token: Annotated[Secret | None, readers.secret] = None
    """A token instead of user and password; BERTH_NATS_TOKEN_FILE names a file that holds it."""
    credentials_file: Annotated[Path | None, readers.existing_file] = None
    """A .creds file (JWT and seed) instead of user and password. Read at each connect, so that it can be renewed."""
    ca_file: Annotated[Path | None, readers.existing_file] = None
    """PEM certificates that the server's is checked against. None: the system's, where the URL asks for TLS."""
    cert_file: Annotated[Path | None, readers.existing_file] = None
    """The client's own certificate, for servers that ask for one; needs ``key_file``."""
    key_file: Annotated[Path | None, readers.existing_file] = None
    """The key of ``cert_file``."""
    replicas: Annotated[int, readers.one_of_numbers(1, 3, 5)] = 1
    """Copies of every stream, 1, 3 or 5. A single server can hold 1; 3 survive the loss of one server of three."""
    storage: Annotated[Literal["file", "memory"], readers.choice(("file", "memory"))] = "file"
    """Where streams are kept. file outlives a restart of NATS; memory is for trials. The same in all services."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSettings:
    """Where the API server is, and how hard it may be asked."""

    kubeconfig: Annotated[Path | None, readers.path, "BERTH_KUBECONFIG"] = None
    """A kubeconfig. None: KUBECONFIG, in a pod the pod's account, else ~/.kube/config."""
    qps: Annotated[float | None, readers.positive] = None
    """Requests per second, above 0. None is no limit: the API server's own priority and fairness is the better judge
    (kube-scheduler's default of 50 is 56 pods/s)."""
    burst: Annotated[int | None, readers.integer(1, 1_000_000)] = None
    """Requests at once before ``qps`` holds them back, 1 or more. None: twice ``qps``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is said and how."""

    verbosity: Annotated[int, readers.integer(0, 10)] = 0
    """klog's V, 0-10: 0 what an operator must know, 2 steps of the life cycle, 4 every pod, 6 every message."""
    format: Annotated[str, readers.choice(("auto", "json", "text"))] = "auto"
    """json, text, or auto: text for a person at a terminal, JSON for everything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Where /livez, /readyz and /metrics are."""

    host: Annotated[str, readers.text] = "0.0.0.0"  # noqa: S104 - the kubelet and Prometheus ask from other machines
    """Address to listen on. All, since the kubelet asks at the pod's address."""
    port: Annotated[int, readers.integer(0, 65_535)] = 0
    """TCP port, 0-65535. 0 takes any free one: several services on one machine must not get into each other's way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionSettings:
    """Leader election, with the words and numbers of kube-scheduler's ``leaderElection``."""

    leader_elect: Annotated[bool, readers.boolean] = True
    """False for one alone, without standby; terms are taken all the same."""
    resource_name: Annotated[str, readers.object_name] = "berth"
    """The Leases are ``<resource_name>-watcher`` and ``-binder``. Not kube-scheduler, whose Lease is its own."""
    resource_namespace: Annotated[str, readers.object_name] = "kube-system"
    """Where the Leases are; kube-scheduler's place."""
    lease_duration: Annotated[timedelta, readers.duration(3, 3600)] = timedelta(seconds=15)
    """How long others wait after the last renewal before one may take over, 3 s to 1 h. kube-scheduler's."""
    renew_deadline: Annotated[timedelta, readers.duration(0.5, 3600)] = timedelta(seconds=10)
    """How long after its last renewal a leader goes on, 0.5 s to 1 h; shorter than the duration by the slack of clocks
    and of what is under way."""
    retry_period: Annotated[timedelta, readers.duration(0.1, 600)] = timedelta(seconds=2)
    """Between two renewals and between two looks at somebody else's Lease, 0.1 s to 10 min."""

    @property
    def election(self) -> LeaseSettings:
        """The times, as the election takes them."""
        return LeaseSettings(
            duration=self.lease_duration, renew_deadline=self.renew_deadline, retry_period=self.retry_period
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The numbers that the services have agreed on (docs/protocol.md, 7). Change them in all services or in none."""

    scorer_ack_wait: Annotated[timedelta, readers.duration(2, 600)] = timedelta(seconds=3)
    """After which a scorer's silence gives its message to another, 2 s to 10 min: longer than two of the
    ``in_progress`` that it sends every second, and than three times the p99 of a rank at full hold."""
    binder_ack_wait: Annotated[timedelta, readers.duration(20, 3600)] = timedelta(seconds=30)
    """The same for the binder, 20 s to 1 h: it says ``in_progress`` every 10 s."""
    silent_attempt: Annotated[timedelta, readers.duration(1, 600)] = timedelta(seconds=10)
    """After which the watcher looks where an attempt has got to, 1 s to 10 min; well above what a burst takes."""
    best: Annotated[int, readers.integer(1, 64)] = 8
    """Nodes that RANKED names, 1-64. Eight are enough for the binder to find room under any number of scorers."""
    scorer_hold: Annotated[int, readers.integer(1, 4096)] = 64
    """Messages that one scorer holds, 1-4096: some ms of work, so that the pull never runs dry."""
    window_floor: Annotated[int, readers.integer(1, 65_536)] = 64
    """Pods in flight that are always allowed, 1-65536; above it a quarter second of work."""
    proposal: Annotated[timedelta, readers.duration(5, 3600)] = timedelta(seconds=30)
    """How long a proposal counts after the last word of it, 5 s to 1 h; longer than a Lease, so that a change of
    leaders does not free what is about to be bound."""
    position_wait: Annotated[timedelta, readers.duration(0, 60)] = timedelta(seconds=1)
    """How long a scorer waits for the positions that a message asks for, 0-60 s, before it ranks on an older view."""
    duplicate_window: Annotated[timedelta, readers.duration(10, 3600)] = timedelta(seconds=120)
    """For how long NATS knows message ids, 10 s to 1 h; longer than anything is published again."""
    plugin_deadline: Annotated[timedelta, readers.duration(0.01, 60)] = PLUGIN_DEADLINE
    """How long one extension point of a plugin from elsewhere may take, over all nodes, 10 ms to 1 min. Past it the
    pod's attempt is an error that names the plugin. Meanwhile the service does nothing else: less than an ack_wait."""
    max_in_flight_bindings: Annotated[int, readers.integer(1, 1024)] = 32
    """Bindings on the wire at once, 1-1024: 32 keep an API server busy, 1 is strictly serial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that a service can be told."""

    nats: NatsSettings = field(default_factory=NatsSettings)
    kube: KubeSettings = field(default_factory=KubeSettings)
    log: LogSettings = field(default_factory=LogSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    leader_election: LeaderElectionSettings = field(default_factory=LeaderElectionSettings)
    numbers: Numbers = field(default_factory=Numbers)
    identity: Annotated[str, readers.text] = field(default_factory=own_identity)
    """Who this process is, in Leases, messages and logs: host name and a uuid, so that two never have the same."""
    config: Annotated[Path | None, readers.existing_file] = None
    """The KubeSchedulerConfiguration. None: one profile, schedulerName ``berth``."""
    algorithm_provider: Annotated[str, readers.choice(tuple(PRESETS))] = DEFAULT_NAME
    """The preset whose plugins every profile starts from; ``default`` is the current kube-scheduler's."""
    feature_gates: Annotated[str, readers.any_text] = ""
    """Gates of that preset, ``A=true,B=false``; those that are not named are as their release had them."""
    ready_file: Annotated[Path | None, readers.path] = None
    """Written when the service first works, for whoever starts it and waits. None: nothing is written."""
    parent_pid: Annotated[int | None, readers.integer(1, 2**31), PARENT_PID_VARIABLE] = None
    """End when this parent ends, also by kill -9. None: live on."""
    stop_deadline: Annotated[timedelta, readers.duration(1, 3600)] = timedelta(seconds=10)
    """From SIGTERM to the end of the process whatever hangs, 1 s to 1 h; a third of a pod's usual grace period."""


def broken_rules(settings: Settings) -> list[str]:
    """What values must keep among each other (docs/protocol.md, 7, *they must keep*) and do not, each with its path."""
    elects = settings.leader_election.leader_elect
    election = settings.leader_election.election.problems("leaderElection") if elects else []
    return [*election, *_broken_numbers(settings), *_broken_nats(settings.nats)]


def _broken_numbers(settings: Settings) -> list[str]:
    lease, numbers = settings.leader_election.lease_duration, settings.numbers
    longest = lease if settings.leader_election.leader_elect else timedelta()  # alone, nobody waits for a Lease to end
    rules = (
        ("proposal", numbers.proposal, "leaderElection.leaseDuration", longest),
        ("duplicateWindow", numbers.duplicate_window, "numbers.proposal", numbers.proposal),
        ("scorerAckWait", numbers.scorer_ack_wait, "numbers.pluginDeadline", numbers.plugin_deadline),
    )
    return [
        f"numbers.{name}: want > {other} ({readers.written(least)}), got {readers.written(value)}"
        for name, value, other, least in rules
        if not value > least
    ]


def _broken_nats(nats: NatsSettings) -> list[str]:
    problems = []
    ways = {"user": nats.user, "token": nats.token, "credentialsFile": nats.credentials_file}
    given = [f"nats.{name}" for name, value in ways.items() if value is not None]
    if len(given) > 1:
        problems.append(f"{given[0]}: want one way to log in, got {' and '.join(given)}")
    if (nats.user is None) != (nats.password is None):
        problems.append("nats.password: want user and password together, got one without the other")
    if (nats.cert_file is None) != (nats.key_file is None):
        problems.append("nats.certFile: want certFile and keyFile together, got one without the other")
    return problems


def is_terminal() -> bool:
    """Whether a person reads what the process says."""
    return os.isatty(2)
