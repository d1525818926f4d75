"""The settings of a service, by concern. :mod:`berth.settings.sources` reads their values.

Every field documents its unit, its range and the reason of its default. A field's variable is its path in capitals
(``BERTH_LEADER_ELECTION_RENEW_DEADLINE``).
"""

from __future__ import annotations

import os
import re
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Final, Literal

from berth.api.config.presets import DEFAULT_NAME
from berth.bus.settings import DEFAULT_INBOX_PREFIX
from berth.settings import readers
from berth.settings.presets import preset_names
from berth.settings.readers import Secret

# Pid of the process that starts services, so that they end with it (`parent_pid`).
PARENT_PID_VARIABLE: Final = "BERTH_PARENT_PID"


# Limit per call; a built-in plugin takes less than 1 ms for 5,000 nodes.
PLUGIN_DEADLINE: Final = timedelta(seconds=1)


V_RESULT: Final = 2  # klog verbosity: a line per bound or unschedulable pod (docs/metrics.md)
V_STEP: Final = 4  # a line at every step of a pod
V_MESSAGE: Final = 6  # a line per message on NATS and per request to the API server
V_SCORE: Final = 10  # a line per plugin and node, as in kube-scheduler


# Factor by which a pause between tries may exceed the retry period, as in other Kubernetes clients.
JITTER_RATIO = 1.2


Naming = Callable[[str], str]  # from a setting's path in code to the name under which a person can change it
BrokenRule = tuple[str, str]  # the path in code of the setting to change, and what is wanted


def written_path(path: str) -> str:
    """A path in the form of configuration files: ``leaderElection.renewDeadline``."""
    head, *rest = path.split("_")
    return head + "".join(word.capitalize() for word in rest)


_LEASE_DURATION: Final = "leader_election.lease_duration"
_RENEW_DEADLINE: Final = "leader_election.renew_deadline"
_RETRY_PERIOD: Final = "leader_election.retry_period"
PROPOSAL: Final = "numbers.proposal"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """The times of a Lease. Required: retry period < renew deadline < duration."""

    # Time without a change after which others take the Lease. Whole seconds, as in the API. Longer values delay the
    # replacement of a dead leader.
    duration: timedelta = timedelta(seconds=15)
    # Time that a leader leads after its last renewal. The rest of the duration is for requests under way.
    renew_deadline: timedelta = timedelta(seconds=10)
    # Time between renewals, and between a standby's reads. A standby also watches the Lease and tries again when it has
    # run out; without the right to watch, it notices a release this much later.
    retry_period: timedelta = timedelta(seconds=2)
    # Largest drift of two machines' clocks within one duration, pauses of a process included.
    clock_slack: timedelta = timedelta(seconds=2)

    def problems(self, name: Naming = written_path) -> Iterator[BrokenRule]:
        written = readers.written
        if self.duration < timedelta(seconds=1) or self.duration % timedelta(seconds=1):
            yield _LEASE_DURATION, f"want whole seconds, 1 or more, got {written(self.duration)}"
        if self.renew_deadline + self.clock_slack >= self.duration:
            want = f"want less than {name(_LEASE_DURATION)} ({written(self.duration)}) - {written(self.clock_slack)}"
            yield _RENEW_DEADLINE, f"{want}, got {written(self.renew_deadline)}"
        if self.retry_period <= timedelta() or self.retry_period * JITTER_RATIO >= self.renew_deadline:
            want = f"want more than 0s and {JITTER_RATIO} times it less than {name(_RENEW_DEADLINE)}"
            yield _RETRY_PERIOD, f"{want} ({written(self.renew_deadline)}), got {written(self.retry_period)}"


def own_identity() -> str:
    """Host name and a uuid, different in each process."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


_UUID: Final = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_IDENTITY: Final = re.compile(f"(?P<host>.+)_{_UUID}(?:_(?P<name>.+))?")


def short_identity(identity: str) -> str:
    """A process's name without its unique part: ``scorer-2``, or its host."""
    found = _IDENTITY.fullmatch(identity)
    return (found["name"] or found["host"]) if found else identity


def process_label(service: str, name: str) -> str:
    """A process by service and name; by name alone if that begins with the service's, as under ``berth up``."""
    return name if name.startswith(service) else f"{service} {name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings:
    """Address and credentials of NATS: one of user and password, a credentials file, and a token.

    Storage, sizes and ages are the same in all services.
    """

    url: Annotated[str, readers.nats_url] = "nats://127.0.0.1:4222"
    """Addresses of one NATS cluster, separated by commas. Default: nats-server's own port on this machine."""
    user: Annotated[str | None, readers.text] = None
    """User name; one user per service, with permissions for its subjects. None: a server without users."""
    password: Annotated[Secret | None, readers.secret] = None
    """The user's password; `BERTH_NATS_PASSWORD_FILE` names a file with it."""
    inbox_prefix: Annotated[str, readers.subject_prefix] = DEFAULT_INBOX_PREFIX
    """Prefix of reply subjects. Default: NATS's own. Use one per user if each may read only its own replies."""
    prefix: Annotated[str, readers.berth_prefix] = ""
    """Prefix of this berth's streams, buckets, subjects and services if several berths share NATS servers: `east` makes
    it `east-PENDING` and `east.berth.pending`. The same in all services and commands."""
    domain: Annotated[str, readers.domain] = ""
    """JetStream domain of the streams. Empty: the server's own. `berth` for scorers, the collector and people, who
    reach the streams from accounts of their own. Any other domain is NATS's, such as the hub's of a leaf node."""
    token: Annotated[Secret | None, readers.secret] = None
    """A token instead of user and password; `BERTH_NATS_TOKEN_FILE` names a file with it."""
    credentials_file: Annotated[Path | None, readers.existing_file] = None
    """A .creds file (JWT and seed) instead of user and password, read at each connect."""
    nkey_seed_file: Annotated[Path | None, readers.existing_file] = None
    """A file with an nkey's seed instead of user and password, read at each connect."""
    ca_file: Annotated[Path | None, readers.existing_file] = None
    """PEM certificates to verify the server's certificate with. None: the system's, if the URL is tls."""
    cert_file: Annotated[Path | None, readers.existing_file] = None
    """The client's own certificate, for servers that require one; needs ``key_file``."""
    key_file: Annotated[Path | None, readers.existing_file] = None
    """The key of ``cert_file``."""
    replicas: Annotated[int, readers.one_of_numbers(1, 3, 5)] = 1
    """Copies of every stream, 1, 3 or 5. A single server can hold 1; 3 survive the loss of one server of three."""
    storage: Annotated[Literal["file", "memory"], readers.choice(("file", "memory"))] = "file"
    """Storage of streams: file survives a restart of NATS; memory is for trials."""
    ranked_mebibytes: Annotated[int, readers.integer(1, 1_048_576)] = 128
    """Largest size of RANKED, 1 MiB to 1 TiB: a few KiB per pod before its Binding."""
    cluster_mebibytes: Annotated[int, readers.integer(1, 1_048_576)] = 512
    """Largest size of the mirror, 1 MiB to 1 TiB; 200 MiB for 5,000 nodes and 50,000 pods."""
    decisions_mebibytes: Annotated[int, readers.integer(1, 1_048_576)] = 512
    """Largest size of DECISIONS, 1 MiB to 1 TiB; the oldest are dropped first."""
    decisions_age: Annotated[timedelta, readers.duration(60, 2_592_000)] = timedelta(hours=1)
    """Age up to which Decisions are kept for people (`berth why`), 1 min to 30 days, 2 KiB of disk each. Below 5 min a
    new leading watcher loses the reasons of some pending pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSettings:
    """Address of the API server, and limits of requests to it."""

    kubeconfig: Annotated[Path | None, readers.path, "BERTH_KUBECONFIG"] = None
    """A kubeconfig. None: KUBECONFIG; in a pod the pod's service account; else ~/.kube/config."""
    qps: Annotated[float | None, readers.positive] = None
    """Requests per second, above 0. None: no limit, because API Priority and Fairness limits clients
    better (kube-scheduler: 50)."""
    burst: Annotated[int | None, readers.integer(1, 1_000_000)] = None
    """Requests at once before ``qps`` limits them, 1 or more. None: twice ``qps``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    verbosity: Annotated[int, readers.integer(0, 10)] = 0
    """klog's V, 0-10: 0 for operators, 2 a line per bound or unschedulable pod, 4 every step of a pod, 6 every message
    on NATS and every request to the API server, 10 every plugin's result on every node."""
    format: Annotated[str, readers.choice(("auto", "json", "text"))] = "auto"
    """json, text, or auto: text at a terminal, else JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSettings:
    """Address of /livez, /readyz and /metrics."""

    host: Annotated[str, readers.text] = "127.0.0.1"
    """Address to listen on. Default: this machine only. In a pod: 0.0.0.0, because the kubelet and Prometheus connect
    to the pod's address; the container image sets it."""
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
    """Namespace of the Leases. Berth's own, so that the right to create Leases covers no others. Created if missing,
    where the account may do so."""
    lease_duration: Annotated[timedelta, readers.duration(3, 3600)] = timedelta(seconds=15)
    """Time after the last renewal until another process may take over, 3 s to 1 h. kube-scheduler's default."""
    renew_deadline: Annotated[timedelta, readers.duration(0.5, 3600)] = timedelta(seconds=10)
    """Time that a leader leads after its last renewal, 0.5 s to 1 h; more than 2 s below the duration, for differences
    of clocks and requests under way."""
    retry_period: Annotated[timedelta, readers.duration(0.1, 600)] = timedelta(seconds=2)
    """Time between two renewals, and between two reads of another process's Lease, 0.1 s to 10 min."""

    @property
    def election(self) -> LeaseSettings:
        return LeaseSettings(
            duration=self.lease_duration, renew_deadline=self.renew_deadline, retry_period=self.retry_period
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """Numbers that must be the same in all services (docs/protocol.md, 7)."""

    scorer_ack_wait: Annotated[timedelta, readers.duration(2, 600)] = timedelta(seconds=3)
    """Silence of a scorer after which its message is redelivered, 2 s to 10 min: longer than two of the ``in_progress``
    sent every second, and than three times the p99 of a ranking with a full hold."""
    binder_ack_wait: Annotated[timedelta, readers.duration(20, 3600)] = timedelta(seconds=30)
    """The same for the binder, 20 s to 1 h: it sends ``in_progress`` every 10 s."""
    silent_attempt: Annotated[timedelta, readers.duration(1, 600)] = timedelta(seconds=10)
    """Silence of an attempt after which the watcher looks it up, 1 s to 10 min; well above the duration of a burst."""
    best: Annotated[int, readers.integer(1, 64)] = 32
    """Candidate nodes in a RANKED message, 1-64; twice as many below 512 nodes and while other scorers propose, four
    times then with live data. Among them the binder finds a good one with any number of scorers."""
    explained: Annotated[int, readers.integer(1, 64)] = 8
    """Candidate nodes with every plugin's points, the first 1-64. They are most of the message: a person reads a few,
    and ``berth why --now`` shows all."""
    scorer_hold: Annotated[int, readers.integer(1, 4096)] = 64
    """Messages held by one scorer, 1-4096: some ms of work, so that the pull is never empty."""
    window_floor: Annotated[int, readers.integer(1, 65_536)] = 64
    """Pods in flight that are always allowed, 1-65536; above it, pods for a quarter second of work."""
    proposal: Annotated[timedelta, readers.duration(5, 3600)] = timedelta(seconds=30)
    """Life of a proposal after its last message, 5 s to 1 h; longer than a Lease, so that a new leader does not free
    the resources of pods about to be bound. Default: two Leases, at least 30 s."""
    position_wait: Annotated[timedelta, readers.duration(0, 60)] = timedelta(seconds=1)
    """Extra wait of a scorer, 0-60 s, for positions towards which it reads no more."""
    duplicate_window: Annotated[timedelta, readers.duration(10, 3600)] = timedelta(seconds=120)
    """Time that NATS remembers message ids, 10 s to 1 h; far longer than the seconds after which an unanswered publish
    is repeated. A later repeat costs a message, because services drop what they know by its attempt."""
    plugin_deadline: Annotated[timedelta, readers.duration(0.01, 60)] = PLUGIN_DEADLINE
    """Longest call of one extension point of another distribution's plugin, over all nodes, 10 ms to 1 min; beyond it
    the attempt fails. Less than an ack_wait, because the call blocks the service."""
    max_in_flight_bindings: Annotated[int, readers.integer(1, 1024)] = 32
    """Requests for pods in flight (Bindings, reads, evictions, writes), 1-1024: 32 keep an API server busy, 1 is
    strictly serial."""


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
    """The preset that every profile starts from; ``default`` is the current kube-scheduler's."""
    feature_gates: Annotated[str, readers.any_text] = ""
    """Feature gates of that preset, ``A=true,B=false``; others keep the default of their release."""
    allow_other_scheduler: Annotated[bool, readers.boolean] = False
    """True: the watcher leads beside a live scheduler of the same pods, with a warning; a node may then get two pods of
    which one fits. False: the watcher waits until that scheduler has ended."""
    group_earmark_seconds: Annotated[int, readers.integer(0, 86_400)] = 0
    """Seconds without room after which nodes are earmarked for a group, 0-86400: for 5 minutes pods of equal or lower
    priority are kept off them. 0: never, because room there stands idle on purpose until there is enough."""
    partial_groups: Annotated[Literal["keep", "evict"], readers.choice(("keep", "evict"))] = "keep"
    """What the binder does with a PodGroup of which a part is bound for longer than its timeout, and a minute. keep: it
    says so. evict: it also evicts what is bound of groups that it has begun itself and never seen whole, one a
    minute."""
    shadow: Annotated[str | None, readers.shadow_name] = None
    """Makes a scorer a shadow of this name, up to 63 lower-case letters, digits and `-`. None: a live scorer."""
    ready_file: Annotated[Path | None, readers.path] = None
    """File written when the service is first ready. None: no file."""
    parent_pid: Annotated[int | None, readers.integer(1, 2**31), PARENT_PID_VARIABLE] = None
    """End when this parent process ends, also by kill -9. None: do not."""
    stop_deadline: Annotated[timedelta, readers.duration(1, 3600)] = timedelta(seconds=10)
    """From SIGTERM to the end of the process, even if it hangs, 1 s to 1 h; a third of a pod's usual grace period."""


def with_proposal_of_the_lease(settings: Settings) -> Settings:
    """The default of ``numbers.proposal``, which depends on the Lease of these settings."""
    proposal = max(Numbers().proposal, 2 * _awaited_lease(settings))
    return replace(settings, numbers=replace(settings.numbers, proposal=proposal))


def _awaited_lease(settings: Settings) -> timedelta:
    """The longest time for which no leader may act; without election, none."""
    election = settings.leader_election
    return election.lease_duration if election.leader_elect else timedelta()


def broken_rules(settings: Settings, name: Naming = written_path, *, knows_file: bool = True) -> Iterator[BrokenRule]:
    """Broken rules between settings (docs/protocol.md, 7, *they must keep*).

    ``knows_file``: false leaves out the rules of settings that the configuration file may contain too.
    """
    if knows_file:
        if settings.leader_election.leader_elect:
            yield from settings.leader_election.election.problems(name)
        yield from _too_short(settings, ((PROPOSAL, _LEASE_DURATION, _awaited_lease(settings)),), name)
    deadline = settings.numbers.plugin_deadline
    waits = ("numbers.scorer_ack_wait", "numbers.binder_ack_wait")
    yield from _too_short(settings, [(path, "numbers.plugin_deadline", deadline) for path in waits], name)
    yield from _broken_nats(settings.nats, name)


def _too_short(settings: Settings, rules: Iterable[tuple[str, str, timedelta]], name: Naming) -> Iterator[BrokenRule]:
    """Rules: the duration of the first path is more than the given one of the second."""
    for path, other, least in rules:
        value = attrgetter(path)(settings)
        if not value > least:
            yield path, f"want more than {name(other)} ({readers.written(least)}), got {readers.written(value)}"


def _broken_nats(nats: NatsSettings, name: Naming) -> Iterator[BrokenRule]:
    ways = {
        "nats.user": nats.user,
        "nats.token": nats.token,
        "nats.credentials_file": nats.credentials_file,
        "nats.nkey_seed_file": nats.nkey_seed_file,
    }
    given = [path for path, value in ways.items() if value is not None]
    if len(given) > 1:
        yield given[0], f"want one way to log in, got {' and '.join(map(name, given))}"
    pairs = (
        ("nats.user", nats.user, "nats.password", nats.password),
        ("nats.cert_file", nats.cert_file, "nats.key_file", nats.key_file),
    )
    for one, first, other, second in pairs:
        if (first is None) != (second is None):
            missing, there = (one, other) if first is None else (other, one)
            yield missing, f"want {name(one)} and {name(other)} together, got {name(there)} alone"


def is_terminal() -> bool:
    return os.isatty(2)
