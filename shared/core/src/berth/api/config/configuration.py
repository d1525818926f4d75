"""The configuration in the services: defaults filled in, plugin lists expanded, arguments typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from berth.api.config.types import PluginRef, Point

PluginLists = Mapping[Point, tuple[PluginRef, ...]]  # by extension point, in running order


# percentageOfNodesToScore for all nodes. In kube-scheduler 0 means a percentage that falls from 50 to 5 as the cluster
# grows; here scoring a node costs too little to leave nodes out.
EVERY_NODE: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElection:
    # False: this process leads at once and must be the only one; its Lease is written for the annotations only.
    leader_elect: bool = True
    # A standby waits this long after the last renewal it saw.
    lease_duration: timedelta = timedelta(seconds=15)
    # Shorter than the duration, so that a leader stops before another starts.
    renew_deadline: timedelta = timedelta(seconds=10)
    retry_period: timedelta = timedelta(seconds=2)  # time between two tries to acquire or renew the Lease
    # Leases are `<resourceName>-watcher` and `-binder`. v1's default `kube-scheduler` is that scheduler's own Lease.
    resource_name: str = "berth"
    resource_namespace: str = "berth"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    kubeconfig: str = ""  # empty: the in-cluster account; ``--kubeconfig`` overrides it
    qps: float | None = None  # requests per second; None, 0 or less: no limit (v1's default of 50 means 56 pods/s)
    burst: int | None = None  # requests at once under ``qps``; None: twice ``qps``


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfiguration:
    scheduler_name: str
    plugins: PluginLists
    args: Mapping[str, object] = field(default_factory=dict)  # by plugin, in the plugin's own type
    # Percentage of nodes found feasible at which the search ends; default: the file's.
    percentage_of_nodes_to_score: int = EVERY_NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderTls:
    """TLS to an extender. PEM takes precedence over the file."""

    insecure: bool = False  # the certificate is not verified
    server_name: str = ""  # in its certificate; empty: the host of its URL
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_pem: bytes = b""
    key_pem: bytes = field(default=b"", repr=False)
    ca_pem: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderConfiguration:
    """An HTTP extender: a server that filters, scores, evicts or binds. Empty verbs are not called."""

    url_prefix: str = field(repr=False)  # may contain a password; ``name`` does not
    name: str  # the shown URL, in messages and as the name of its points
    filter_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0  # factor for the points of ``prioritize_verb``
    timeout: timedelta = timedelta(seconds=5)  # per call, as in kube-scheduler
    bind_verb: str = ""  # it binds its pods in place of the binder
    preempt_verb: str = ""  # it filters proposed evictions
    node_cache_capable: bool = False  # it knows the nodes, so only names are sent
    managed_resources: frozenset[str] = frozenset()  # only pods that request one of these are sent; empty: all pods
    ignorable: bool = False  # pods continue without its filter and its vote on evictions if these fail
    tls: ExtenderTls = ExtenderTls()

    @property
    def is_asked(self) -> bool:
        """Whether scorers ask it about nodes, and so receive whole pods."""
        return bool(self.filter_verb or self.prioritize_verb)

    @property
    def filters(self) -> bool:
        """Whether it filters nodes or evictions, so that the binder asks it before it evicts."""
        return bool(self.filter_verb or self.preempt_verb)

    @property
    def reads_nodes(self) -> bool:
        """Whether whole nodes are sent to it."""
        return self.is_asked and not self.node_cache_capable


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSchedulerConfiguration:
    profiles: tuple[ProfileConfiguration, ...]
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    percentage_of_nodes_to_score: int = EVERY_NODE  # for profiles without their own
    pod_initial_backoff: timedelta = timedelta(seconds=1)  # first back-off of a pod, doubled each time
    pod_max_backoff: timedelta = timedelta(seconds=10)
    extenders: tuple[ExtenderConfiguration, ...] = ()  # in the order of questions: ignorable ones come last
    release: str = "1.36"  # Kubernetes release of the plugins: an older preset's, or the current
    digest: str = ""  # 12 hexadecimal digits of a hash of the loaded file; sent in messages
    converted: tuple[str, ...] = ()  # what is done otherwise than written, a sentence each, for people
    ignored: tuple[str, ...] = ()  # paths of fields without effect here, for ``berth config check``
    is_partial: bool = False  # the reader knows few plugins, and profiles lack the others
    built_in: frozenset[str] = frozenset()  # berth's own plugins; /configz hides others' arguments, which may be secret

    @property
    def scheduler_names(self) -> frozenset[str]:
        return frozenset(profile.scheduler_name for profile in self.profiles)
