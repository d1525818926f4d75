"""The settings of a service, by concern. :mod:`berth.settings.sources` reads their values.

Every field documents its unit, its range and the reason of its default. Errors name a field by its path
(``leaderElection.renewDeadline``); its variable is the path in capitals (``BERTH_LEADER_ELECTION_RENEW_DEADLINE``).
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Final, Literal

from berth.api.config.presets import DEFAULT_NAME
from berth.bus.settings import DEFAULT_INBOX_PREFIX
from berth.settings import readers
from berth.settings.presets import preset_names
from berth.settings.readers import Secret

PARENT_PID_VARIABLE: Final = "BERTH_PARENT_PID"
"""A process that starts services writes its pid here, so that they end when it ends (``parent_pid``)."""


PLUGIN_DEADLINE: Final = timedelta(seconds=1)
"""A built-in plugin takes less than 1 ms for 5,000 nodes."""


V_RESULT: Final = 2
"""klog's verbosity for a line when a pod is bound or cannot be placed. docs/operating.md lists the lines."""
V_STEP: Final = 4
"""For a line at every step of a pod."""
V_MESSAGE: Final = 6
"""For a line for every message on NATS and every request to the API server."""
V_SCORE: Final = 10
"""For a line for every plugin's result on every node, as in kube-scheduler."""


JITTER_RATIO = 1.2
"""Factor by which a pause between two tries may exceed the retry period, as in other Kubernetes clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """The times of a Lease. Required: retry period < renew deadline < duration."""

    duration: timedelta = timedelta(seconds=15)
    """How long others wait after the last change before they take the Lease. Whole seconds, as in the API. A longer
    time delays the replacement of a dead leader. Shorter than the 30 s of a proposal (docs/protocol.md, 7)."""
    renew_deadline: timedelta = timedelta(seconds=10)
    """How long a leader leads after its last renewal. The rest of the duration is for requests under way."""
    retry_period: timedelta = timedelta(seconds=2)
    """Time between two renewals, and between two reads by a standby. It also watches the Lease, and tries again when it
    has run out. Without the right to watch it, a release or a last renewal is noticed so much later."""
    clock_slack: timedelta = timedelta(seconds=2)
    """How far two machines' clocks may drift apart within one duration, pauses of a process included."""

    def problems(self, path: str = "leaderElection") -> list[str]:
        """All errors, each with path and value; empty when there are none."""
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
    """Host name and a uuid, different in each process."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_IDENTITY: Final = re.compile(f"(?P<host>.+)_{_UUID}(?:_(?P<name>.+))?")


def short_identity(identity: str) -> str:
    """The name of a process without the part that makes it unique: ``scorer-2``, or its host."""
    found = _IDENTITY.fullmatch(identity)
    return (found["name"] or found["host"]) if found else identity


def process_label(service: str, name: str) -> str:
    """A process by service and name; the name alone where it begins with the service's, as under ``berth up``."""
    return name if name.startswith(service) else f"{service} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """Address and credentials of NATS: user and password, a credentials file or a token; one of them."""

    url: Annotated[str, readers.nats_url] = "nats://127.0.0.1:4222"
    """Addresses of one NATS cluster, separated by commas. Default: nats-server's own port on this machine."""
    user: Annotated[str | None, readers.text] = None
    """User name; one user per service, with permissions for its subjects. None: a server without users."""
    password: Annotated[Secret | None, readers.secret] = None
    """The user's password; BERTH_NATS_PASSWORD_FILE names a file that holds it."""
    inbox_prefix: Annotated[str, readers.subject_prefix] = DEFAULT_INBOX_PREFIX
    """Prefix of the subjects of replies. Default: NATS's own. One per user if each may read only its own replies."""
    prefix: Annotated[str, readers.berth_prefix] = ""
    """What the names of this berth's streams, buckets, subjects and services begin with, where several berths share
    NATS servers: `east` makes it `east-PENDING` and `east.berth.pending`. The same in all services and commands."""
    domain: Annotated[str, readers.domain] = ""
    """JetStream domain of the streams. Empty: the server's own. With the accounts of `berth bus permissions`, scorers,
    the collector and people have `berth`, since they reach the streams from accounts of their own. Any other is one of
    NATS's own domains, such as that of the hub of a leaf node."""
    token: Annotated[Secret | None, readers.secret] = None
    """A token instead of user and password; BERTH_NATS_TOKEN_FILE names a file that holds it."""
    credentials_file: Annotated[Path | None, readers.existing_file] = None
    """A .creds file (JWT and seed) instead of user and password. Read at each connect, so that it can be replaced."""
    nkey_seed_file: Annotated[Path | None, readers.existing_file] = None
    """A file with an nkey's seed instead of user and password. Read at each connect, so that it can be replaced."""
    ca_file: Annotated[Path | None, readers.existing_file] = None
    """PEM certificates that the server's certificate is checked against. None: the system's, if the URL is tls."""
    cert_file: Annotated[Path | None, readers.existing_file] = None
    """The client's own certificate, for servers that require one; needs ``key_file``."""
    key_file: Annotated[Path | None, readers.existing_file] = None
    """The key of ``cert_file``."""
    replicas: Annotated[int, readers.one_of_numbers(1, 3, 5)] = 1
    """Copies of every stream, 1, 3 or 5. A single server can hold 1; 3 survive the loss of one server of three."""
    storage: Annotated[Literal["file", "memory"], readers.choice(("file", "memory"))] = "file"
    """Storage of streams: file survives a restart of NATS; memory is for trials. The same in all services."""
    ranked_mebibytes: Annotated[int, readers.integer(1, 1_048_576)] = 128
    """Size of RANKED at most, 1 MiB to 1 TiB: a few KiB for each pod that waits to be bound. The same in all."""
    cluster_mebibytes: Annotated[int, readers.integer(1, 1_048_576)] = 512
    """Size of the mirror at most, 1 MiB to 1 TiB; 5,000 nodes and 50,000 pods take 200 MiB. The same in all."""
    decisions_mebibytes: Annotated[int, readers.integer(1, 1_048_576)] = 512
    """Size of DECISIONS at most, 1 MiB to 1 TiB; the oldest are dropped first. The same in all."""
    decisions_age: Annotated[timedelta, readers.duration(60, 2_592_000)] = timedelta(hours=1)
    """How long Decisions are kept for people (`berth why`), 1 min to 30 days, 2 KiB of disk each. Below 5 min a watcher
    that takes over no longer knows why some pods wait. The same in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSettings:
    """Address of the API server, and limits of requests to it."""

    kubeconfig: Annotated[Path | None, readers.path, "BERTH_KUBECONFIG"] = None
    """A kubeconfig. None: KUBECONFIG; in a pod the pod's service account; else ~/.kube/config."""
    qps: Annotated[float | None, readers.positive] = None
    """Requests per second, above 0. None: no limit, since API Priority and Fairness limits clients better
    (kube-scheduler's default of 50 allows 56 pods/s)."""
    burst: Annotated[int | None, readers.integer(1, 1_000_000)] = None
    """Requests at once before ``qps`` limits them, 1 or more. None: twice ``qps``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """Verbosity and format of the log."""

    verbosity: Annotated[int, readers.integer(0, 10)] = 0
    """klog's V, 0-10: 0 for operators, 2 a line when a pod is bound or cannot be placed, 4 every step of a pod, 6 every
    message on NATS and every request to the API server, 10 every plugin's result on every node."""
    format: Annotated[str, readers.choice(("auto", "json", "text"))] = "auto"
    """json, text, or auto: text for a person at a terminal, JSON for everything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Address of /livez, /readyz and /metrics."""

    host: Annotated[str, readers.text] = "127.0.0.1"
    """Address to listen on. Default: this machine only. In a pod: 0.0.0.0, since the kubelet and Prometheus connect to
    the pod's address; the container image sets it."""
    port: Annotated[int, readers.integer(0, 65_535)] = 0
    """TCP port, 0-65535. 0: any free port, so that several services can run on one machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionSettings:
    """Leader election, with the fields and defaults of kube-scheduler's ``leaderElection``."""

    leader_elect: Annotated[bool, readers.boolean] = True
    """False: one process without standby; terms are still counted."""
    resource_name: Annotated[str, readers.object_name] = "berth"
    """The Leases are ``<resource_name>-watcher`` and ``-binder``. Different from kube-scheduler's Lease."""
    resource_namespace: Annotated[str, readers.object_name] = "berth"
    """Namespace of the Leases: berth's own, so that the right to create one there is no right over others' Leases. It
    is created when it is missing and the account may do that."""
    lease_duration: Annotated[timedelta, readers.duration(3, 3600)] = timedelta(seconds=15)
    """How long others wait after the last renewal before one may take over, 3 s to 1 h. kube-scheduler's default."""
    renew_deadline: Annotated[timedelta, readers.duration(0.5, 3600)] = timedelta(seconds=10)
    """How long a leader leads after its last renewal, 0.5 s to 1 h; more than 2 s shorter than the duration, for
    differences of clocks and requests under way."""
    retry_period: Annotated[timedelta, readers.duration(0.1, 600)] = timedelta(seconds=2)
    """Time between two renewals, and between two reads of another process's Lease, 0.1 s to 10 min."""

    @property
    def election(self) -> LeaseSettings:
        """The times of the Lease."""
        return LeaseSettings(
            duration=self.lease_duration, renew_deadline=self.renew_deadline, retry_period=self.retry_period
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Numbers that must be the same in all services (docs/protocol.md, 7)."""

    scorer_ack_wait: Annotated[timedelta, readers.duration(2, 600)] = timedelta(seconds=3)
    """How long a scorer may be silent before its message is redelivered, 2 s to 10 min: longer than two of the
    ``in_progress`` that it sends every second, and than three times the p99 of a ranking with a full hold."""
    binder_ack_wait: Annotated[timedelta, readers.duration(20, 3600)] = timedelta(seconds=30)
    """The same for the binder, 20 s to 1 h: it sends ``in_progress`` every 10 s."""
    silent_attempt: Annotated[timedelta, readers.duration(1, 600)] = timedelta(seconds=10)
    """How long an attempt may be silent before the watcher checks its state, 1 s to 10 min; well above the time of a
    burst."""
    best: Annotated[int, readers.integer(1, 64)] = 32
    """Candidate nodes in a RANKED message, 1-64; twice as many where there are fewer than 512 nodes. Of 32 the binder
    finds a good one with any number of scorers; of 8 it would need one or two further rankings a pod on nodes of
    several sizes."""
    explained: Annotated[int, readers.integer(1, 64)] = 8
    """Candidate nodes with every plugin's points, the first 1-64 of them. They make most of the message: a person reads
    a few, and ``berth why --now`` shows all."""
    scorer_hold: Annotated[int, readers.integer(1, 4096)] = 64
    """Messages that one scorer holds, 1-4096: some ms of work, so that the pull is never empty."""
    window_floor: Annotated[int, readers.integer(1, 65_536)] = 64
    """Pods in flight that are always allowed, 1-65536; above it, pods for a quarter second of work."""
    proposal: Annotated[timedelta, readers.duration(5, 3600)] = timedelta(seconds=30)
    """How long a proposal counts after its last message, 5 s to 1 h; longer than a Lease, so that a change of leaders
    does not free the resources of pods that are about to be bound."""
    position_wait: Annotated[timedelta, readers.duration(0, 60)] = timedelta(seconds=1)
    """How long a scorer waits for a position towards which it reads nothing more, 0-60 s, before it ranks."""
    duplicate_window: Annotated[timedelta, readers.duration(10, 3600)] = timedelta(seconds=120)
    """How long NATS remembers message ids, 10 s to 1 h; longer than any message is published again."""
    plugin_deadline: Annotated[timedelta, readers.duration(0.01, 60)] = PLUGIN_DEADLINE
    """How long one extension point of another distribution's plugin may take, over all nodes, 10 ms to 1 min. After it
    the pod's attempt fails with an error that names the plugin. Less than an ack_wait, since the call blocks the
    service."""
    max_in_flight_bindings: Annotated[int, readers.integer(1, 1024)] = 32
    """Requests for pods in flight at once (Bindings, reads, evictions, writes), 1-1024: 32 keep an API server busy,
    1 is strictly serial."""


def _preset(given: str) -> str:
    return readers.choice(preset_names())(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a service."""

    nats: NatsSettings = field(default_factory=NatsSettings)
    kube: KubeSettings = field(default_factory=KubeSettings)
    log: LogSettings = field(default_factory=LogSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    leader_election: LeaderElectionSettings = field(default_factory=LeaderElectionSettings)
    numbers: Numbers = field(default_factory=Numbers)
    identity: Annotated[str, readers.text] = field(default_factory=own_identity)
    """Name of this process in Leases, messages and logs. Default: host name and a uuid, which is unique."""
    config: Annotated[Path | None, readers.path] = None
    """The KubeSchedulerConfiguration. None: one profile, schedulerName ``berth``."""
    algorithm_provider: Annotated[str, _preset] = DEFAULT_NAME
    """The preset whose plugins every profile starts from; ``default`` is the current kube-scheduler's."""
    feature_gates: Annotated[str, readers.any_text] = ""
    """Feature gates of that preset, ``A=true,B=false``; others keep the default of their release."""
    allow_other_scheduler: Annotated[bool, readers.boolean] = False
    """True: the watcher leads beside a live scheduler of the same pods, with a warning. Then a node may get two pods of
    which one fits. False: it waits until that scheduler has ended."""
    shadow: Annotated[str | None, readers.shadow_name] = None
    """Of a scorer: it is a shadow of this name, up to 63 lower-case letters, digits and `-`. It ranks what live scorers
    have ranked, by its own configuration, compares, and publishes no ranking. None: it is a live scorer."""
    ready_file: Annotated[Path | None, readers.path] = None
    """File that is written when the service is first ready. None: no file."""
    parent_pid: Annotated[int | None, readers.integer(1, 2**31), PARENT_PID_VARIABLE] = None
    """End when this parent process ends, also by kill -9. None: do not."""
    stop_deadline: Annotated[timedelta, readers.duration(1, 3600)] = timedelta(seconds=10)
    """From SIGTERM to the end of the process, even if it hangs, 1 s to 1 h; a third of a pod's usual grace period."""


def broken_rules(settings: Settings) -> list[str]:
    """Broken rules between settings (docs/protocol.md, 7, *they must keep*), each with its path."""
    elects = settings.leader_election.leader_elect
    election = settings.leader_election.election.problems("leaderElection") if elects else []
    return [*election, *_broken_numbers(settings), *_broken_nats(settings.nats)]


def _broken_numbers(settings: Settings) -> list[str]:
    lease, numbers = settings.leader_election.lease_duration, settings.numbers
    longest = lease if settings.leader_election.leader_elect else timedelta()  # without election, no Lease is awaited
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
    ways = {
        "user": nats.user,
        "token": nats.token,
        "credentialsFile": nats.credentials_file,
        "nkeySeedFile": nats.nkey_seed_file,
    }
    given = [f"nats.{name}" for name, value in ways.items() if value is not None]
    if len(given) > 1:
        problems.append(f"{given[0]}: want one way to log in, got {' and '.join(given)}")
    if (nats.user is None) != (nats.password is None):
        problems.append("nats.password: want user and password together, got one without the other")
    if (nats.cert_file is None) != (nats.key_file is None):
        problems.append("nats.certFile: want certFile and keyFile together, got one without the other")
    return problems


def is_terminal() -> bool:
    """Whether the log goes to a terminal."""
    return os.isatty(2)
