"""The configuration as the services use it: every default filled in, plugin lists expanded, arguments typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from berth.api.config.types import PluginRef, Point

PluginLists = Mapping[Point, tuple[PluginRef, ...]]
"""The plugins of each extension point, in the order in which they run."""


EVERY_NODE: Final = 0
"""The value of percentageOfNodesToScore that means all nodes. In kube-scheduler it means a percentage that falls from
50 to 5 as the cluster grows. Here scoring a node costs too little to leave nodes out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElection:
    """How the leaders of watcher and binder are elected."""

    leader_elect: bool = True
    """Off: this process leads at once and must be the only one; its Lease is written for the annotations only."""
    lease_duration: timedelta = timedelta(seconds=15)
    """How long a standby waits after the last renewal that it saw. Shorter than a proposal (30 s)."""
    renew_deadline: timedelta = timedelta(seconds=10)
    """How long a leader that cannot renew goes on; shorter than the duration: it stops before another starts."""
    retry_period: timedelta = timedelta(seconds=2)
    """The time between two attempts to acquire or renew the Lease."""
    resource_name: str = "berth"
    """Leases are ``<resourceName>-watcher`` and ``-binder``. v1's ``kube-scheduler`` is that scheduler's own Lease."""
    resource_namespace: str = "berth"
    """Where the Leases are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConnection:
    """How to reach the API server."""

    kubeconfig: str = ""
    """Path of a kubeconfig; empty is the in-cluster account. The flag ``--kubeconfig`` overrides it."""
    qps: float | None = None
    """Requests per second; unset, 0 or less is no limit (v1's default of 50 would mean 56 pods/s)."""
    burst: int | None = None
    """How many requests may come at once under ``qps``; unset is twice ``qps``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileConfiguration:
    """One scheduler name, its plugins at each extension point, and their arguments."""

    scheduler_name: str
    plugins: PluginLists
    args: Mapping[str, object] = field(default_factory=dict)
    """Arguments by plugin name, of the type that the plugin declares; for every plugin that has any."""
    percentage_of_nodes_to_score: int = EVERY_NODE
    """How many of the nodes, in percent, must be found feasible before the search ends; the file's own number unless
    the profile has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderTls:
    """How an extender is reached by TLS. PEM takes precedence over the file."""

    insecure: bool = False
    """Its certificate is not verified."""
    server_name: str = ""
    """The name in its certificate; empty is the host of its URL."""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    cert_pem: bytes = b""
    key_pem: bytes = field(default=b"", repr=False)
    ca_pem: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtenderConfiguration:
    """An HTTP extender: a server that is asked about the nodes that pass all filters. An empty verb is not called."""

    url_prefix: str = field(repr=False)
    """May have a password; ``name`` has none."""
    name: str
    """The URL as it is shown: in messages, and as the name of the extender's points."""
    filter_verb: str = ""
    prioritize_verb: str = ""
    weight: int = 0
    """By which the points of ``prioritize_verb`` are multiplied."""
    timeout: timedelta = timedelta(seconds=5)
    """For one call, as kube-scheduler's: a pod waits no longer for it."""
    bind_verb: str = ""
    """It binds its pods in place of the binder."""
    preempt_verb: str = ""
    """It says which of the evictions that would make room may be carried out."""
    node_cache_capable: bool = False
    """It knows the nodes: only their names are sent."""
    managed_resources: frozenset[str] = frozenset()
    """Only pods that have one of these in a request or limit are sent; empty: every pod."""
    ignorable: bool = False
    """A pod goes on without its filter, and its word on evictions, when that fails."""
    tls: ExtenderTls = ExtenderTls()

    @property
    def is_asked(self) -> bool:
        """Whether scorers ask it, and it gets whole pods."""
        return bool(self.filter_verb or self.prioritize_verb or self.preempt_verb)

    @property
    def reads_nodes(self) -> bool:
        """Whether whole nodes are sent to it."""
        return bool(self.filter_verb or self.prioritize_verb) and not self.node_cache_capable


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeSchedulerConfiguration:
    """The whole configuration of all services."""

    profiles: tuple[ProfileConfiguration, ...]
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    percentage_of_nodes_to_score: int = EVERY_NODE
    """Used by profiles that do not set the percentage."""
    pod_initial_backoff: timedelta = timedelta(seconds=1)
    """The first back-off of a pod that could not be placed; doubled each time."""
    pod_max_backoff: timedelta = timedelta(seconds=10)
    """No back-off is longer."""
    extenders: tuple[ExtenderConfiguration, ...] = ()
    """In the order in which they are asked: those that may be ignored come last."""
    release: str = "1.36"
    """The release of Kubernetes whose plugins are used: the preset's, if it is an older one."""
    digest: str = ""
    """Names the configuration in messages: 12 hexadecimal digits of a hash of what was loaded."""
    converted: tuple[str, ...] = ()
    """What was converted from an older version of the file, a sentence each; ``berth config check`` prints them."""
    ignored: tuple[str, ...] = ()
    """Paths of known fields that have no effect here; ``berth config check`` lists them."""
    is_partial: bool = False
    """Whether the profiles have a few plugins only, since the reader knows no others."""
    built_in: frozenset[str] = frozenset()
    """The plugins of berth itself. /configz shows their arguments only, since those of others may be secret."""

    @property
    def scheduler_names(self) -> frozenset[str]:
        """The scheduler names whose pods are berth's."""
        return frozenset(profile.scheduler_name for profile in self.profiles)
