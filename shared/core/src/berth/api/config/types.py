"""The file's own types, field by field as kubescheduler.config.k8s.io/v1 names them.

Absent fields are ``None`` here; ``berth.api.config.load`` gives them their defaults.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Final

import msgspec

API_GROUP: Final = "kubescheduler.config.k8s.io"

API_VERSION: Final = f"{API_GROUP}/v1"

KIND: Final = "KubeSchedulerConfiguration"


class Args(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Arguments of a plugin as written in the configuration file; every field has a default."""


class Point(StrEnum):
    """The extension points, in the order in which they run for a pod, under their names in the file."""

    PRE_ENQUEUE = "preEnqueue"
    QUEUE_SORT = "queueSort"
    PRE_FILTER = "preFilter"
    FILTER = "filter"
    POST_FILTER = "postFilter"
    PRE_SCORE = "preScore"
    SCORE = "score"
    RESERVE = "reserve"
    PERMIT = "permit"
    PRE_BIND = "preBind"
    BIND = "bind"
    POST_BIND = "postBind"


class FileType(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A type of the file: unknown fields are errors."""


class PluginRef(FileType, frozen=True, kw_only=True):
    """A plugin by name; ``weight`` absent or 0 is 1 and counts for scores only."""

    name: str
    """The name in ``berth plugin list``; under ``disabled`` also ``*`` for all."""
    weight: int | None = None
    """0..2147483647, for scores; absent or 0 is 1."""


class PluginSet(FileType, frozen=True, kw_only=True):
    """What to add to and take from the default plugins of an extension point; ``disabled: [{name: "*"}]`` takes all."""

    enabled: list[PluginRef] | None = None
    """Added to the default plugins, or taken up again with another weight or place."""
    disabled: list[PluginRef] | None = None
    """Taken from the default plugins; without their weights."""


class Plugins(FileType, frozen=True, kw_only=True):
    """One set for each extension point, and ``multiPoint`` for all that a plugin implements.

    ``placementGenerate`` and ``placementScore`` are fields of v1 for pod groups, which are not placed as such here.
    """

    pre_enqueue: PluginSet = PluginSet()
    queue_sort: PluginSet = PluginSet()
    pre_filter: PluginSet = PluginSet()
    filter: PluginSet = PluginSet()
    post_filter: PluginSet = PluginSet()
    pre_score: PluginSet = PluginSet()
    score: PluginSet = PluginSet()
    reserve: PluginSet = PluginSet()
    permit: PluginSet = PluginSet()
    pre_bind: PluginSet = PluginSet()
    bind: PluginSet = PluginSet()
    post_bind: PluginSet = PluginSet()
    multi_point: PluginSet = PluginSet()
    placement_generate: PluginSet = PluginSet()
    placement_score: PluginSet = PluginSet()

    def at(self, point: Point) -> PluginSet:
        """The set of one extension point."""
        sets: dict[Point, PluginSet] = {
            Point.PRE_ENQUEUE: self.pre_enqueue,
            Point.QUEUE_SORT: self.queue_sort,
            Point.PRE_FILTER: self.pre_filter,
            Point.FILTER: self.filter,
            Point.POST_FILTER: self.post_filter,
            Point.PRE_SCORE: self.pre_score,
            Point.SCORE: self.score,
            Point.RESERVE: self.reserve,
            Point.PERMIT: self.permit,
            Point.PRE_BIND: self.pre_bind,
            Point.BIND: self.bind,
            Point.POST_BIND: self.post_bind,
        }
        return sets[point]


class PluginConfig(FileType, frozen=True, kw_only=True):
    """The arguments of one plugin; their type is the plugin's own."""

    name: str
    """The plugin."""
    args: dict[str, object] | None = None
    """Its arguments, by the table below. They may contain ``apiVersion`` and ``kind``."""


class FileProfile(FileType, frozen=True, kw_only=True):
    """One scheduler name and its plugins."""

    scheduler_name: str | None = None
    """Pods with this ``schedulerName`` get the profile. Required and unique when there are several profiles."""
    percentage_of_nodes_to_score: int | None = None
    """The same for this profile alone; default: the file's."""
    plugins: Plugins = Plugins()
    """Sets of plugins by extension point, and ``multiPoint``; default: kube-scheduler's list."""
    plugin_config: list[PluginConfig] | None = None
    """Arguments by plugin."""


class FileLeaderElection(FileType, frozen=True, kw_only=True):
    """Leader election as every Kubernetes component has it."""

    leader_elect: bool | None = None
    """False: one watcher and one binder without standby; the times do not count then."""
    lease_duration: timedelta | None = None
    """How long others wait after the last renewal; less than ``BERTH_NUMBERS_PROPOSAL``."""
    renew_deadline: timedelta | None = None
    """How long a leader that cannot renew goes on; more than 2 s shorter than the duration."""
    retry_period: timedelta | None = None
    """Between two tries; 1.2 times as long is still less than the deadline."""
    resource_lock: str | None = None
    """``leases``, the only lock there is."""
    resource_name: str | None = None
    """Leases are ``<resourceName>-watcher`` and ``-binder``; kube-scheduler's own would be contended for."""
    resource_namespace: str | None = None
    """Where the Leases are: a namespace of berth's own."""


class FileClientConnection(FileType, frozen=True, kw_only=True):
    """How to reach the API server."""

    kubeconfig: str | None = None
    """How to reach the API server; the flag ``--kubeconfig`` beats it."""
    accept_content_types: str | None = None
    """Read, and without effect: berth reads JSON."""
    content_type: str | None = None
    """Read, and without effect: berth writes JSON."""
    qps: float | None = None
    """Requests per second; 0 or less is no limit (kube-scheduler: 50)."""
    burst: int | None = None
    """Requests at once under ``qps``; 0 is twice as many."""


class FileManagedResource(FileType, frozen=True, kw_only=True):
    """An extended resource that an extender manages."""

    name: str
    """Only pods with one of these extended resources in a request or limit; without any, every pod."""
    ignored_by_scheduler: bool | None = None
    """True: NodeResourcesFit does not count the resource, in any profile."""


class FileExtenderTls(FileType, frozen=True, kw_only=True):
    """TLS to an extender; data (base64 of PEM) takes precedence over the file."""

    insecure: bool | None = None
    """True: the server's certificate is not verified."""
    server_name: str | None = None
    """The name that its certificate must have; default: the host of the URL."""
    cert_file: str | None = None
    """The client's certificate, with ``keyFile`` or ``keyData``."""
    key_file: str | None = None
    """Its key."""
    ca_file: str | None = None
    """PEM certificates that the server's is checked against."""
    cert_data: str | None = None
    """In place of ``certFile``: base64 of PEM."""
    key_data: str | None = None
    """In place of ``keyFile``: base64 of PEM."""
    ca_data: str | None = None
    """In place of ``caFile``: base64 of PEM."""


class FileExtender(FileType, frozen=True, kw_only=True):
    """An HTTP server that is asked about nodes. What it does not do has no verb."""

    url_prefix: str
    """Required; the verb is appended. A user and password in it are sent, and shown nowhere."""
    filter_verb: str | None = None
    """Asked which of the nodes that pass all filters it leaves; the next extender is asked about those."""
    preempt_verb: str | None = None
    """Asked which of the evictions that would make room it leaves. A node for which it names other victims is not."""
    prioritize_verb: str | None = None
    """Asked for 0 to 10 points for each node that is left, when there are several; they count ``weight`` x 10."""
    weight: int | None = None
    """1..2147483647, required beside ``prioritizeVerb``."""
    bind_verb: str | None = None
    """It binds its pods in place of the binder; one extender at most. Its failure is an error of the pod, unless it is
    `ignorable`: then the binder binds."""
    enable_https: bool | None = msgspec.field(default=None, name="enableHTTPS")
    """True without a CA: the certificate is not verified."""
    tls_config: FileExtenderTls | None = None
    """TLS to it."""
    http_timeout: timedelta | None = None
    """For one call, at most 1m; default 5s."""
    node_cache_capable: bool | None = None
    """True: only the names of nodes are sent, which costs far less."""
    managed_resources: list[FileManagedResource] | None = None
    """The pods that it is asked about."""
    ignorable: bool | None = None
    """True: a pod goes on without it when filter, preempt or bind fails; asked after all others."""


class File(FileType, frozen=True, kw_only=True):
    """The whole file."""

    api_version: str
    """``kubescheduler.config.k8s.io/v1``; older ones are converted."""
    kind: str
    """``KubeSchedulerConfiguration``."""
    parallelism: int | None = None
    """Read, and without effect: all nodes are scored at once."""
    leader_election: FileLeaderElection = FileLeaderElection()
    """How the leaders of watcher and binder are elected."""
    client_connection: FileClientConnection = FileClientConnection()
    """How watcher and binder reach the API server."""
    enable_profiling: bool | None = None
    """Read, and without effect."""
    enable_contention_profiling: bool | None = None
    """Read, and without effect."""
    percentage_of_nodes_to_score: int | None = None
    """0..100: so many feasible nodes, in percent of all, are enough to choose from; 0 is every node."""
    pod_initial_backoff_seconds: int | None = None
    """Back-off after the first failure, 1 or more; doubled each time."""
    pod_max_backoff_seconds: int | None = None
    """The longest back-off, not shorter than the first."""
    profiles: list[FileProfile] | None = None
    """A scheduler name each, with its plugins."""
    extenders: list[FileExtender] | None = None
    """HTTP servers that filter and prioritize nodes."""
    delay_cache_until_active: bool | None = None
    """Read, and without effect."""


EVERYTHING = "*"
