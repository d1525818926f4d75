"""The file's types, field by field as in kubescheduler.config.k8s.io/v1.

Absent fields are ``None``; ``berth.api.config.load`` fills in the defaults.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import timedelta
from enum import StrEnum
from typing import Final

import msgspec

API_GROUP: Final = "kubescheduler.config.k8s.io"

API_VERSION: Final = f"{API_GROUP}/v1"

KIND: Final = "KubeSchedulerConfiguration"


class Args(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Arguments of a plugin in the configuration file; every field has a default."""

    def remarks(self, points: Collection[Point]) -> Iterable[str]:
        """What berth does otherwise than these arguments say: ``field: sentence``, shown when the file is loaded.

        ``points``: the extension points at which the plugin is enabled.
        """
        del points
        return ()


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
    """Changes to the default plugins of an extension point; ``disabled: [{name: "*"}]`` removes all."""

    enabled: list[PluginRef] | None = None
    """Added to the default plugins, or enabled again with another weight or place."""
    disabled: list[PluginRef] | None = None
    """Removed from the default plugins; without weights."""


class Plugins(FileType, frozen=True, kw_only=True):
    """One set per extension point, and ``multiPoint`` for all points of a plugin.

    ``placementGenerate`` and ``placementScore`` are v1's fields for pod groups, which berth places without plugins.
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
    """The arguments of one plugin, in the plugin's own type."""

    name: str
    """The plugin."""
    args: dict[str, object] | None = None
    """Its arguments, by the table below. They may contain ``apiVersion`` and ``kind``."""


class FileProfile(FileType, frozen=True, kw_only=True):
    """One scheduler name and its plugins."""

    scheduler_name: str | None = None
    """Pods with this ``schedulerName`` get the profile. Required and unique if there are several profiles."""
    percentage_of_nodes_to_score: int | None = None
    """The same for this profile alone; default: the file's."""
    plugins: Plugins = Plugins()
    """Sets of plugins by extension point, and ``multiPoint``; default: kube-scheduler's list."""
    plugin_config: list[PluginConfig] | None = None
    """Arguments by plugin."""


class FileLeaderElection(FileType, frozen=True, kw_only=True):
    """Leader election, as in every Kubernetes component."""

    leader_elect: bool | None = None
    """False: one watcher and one binder without standby; the times do not count then."""
    lease_duration: timedelta | None = None
    """Time without a renewal after which others take the Lease; less than ``BERTH_NUMBERS_PROPOSAL`` if that is set."""
    renew_deadline: timedelta | None = None
    """Time that a leader leads after its last renewal; more than 2 s below the duration."""
    retry_period: timedelta | None = None
    """Time between two tries; 1.2 times as long is still less than the deadline."""
    resource_lock: str | None = None
    """``leases``, the only lock."""
    resource_name: str | None = None
    """Leases are ``<resourceName>-watcher`` and ``-binder``; do not share kube-scheduler's own."""
    resource_namespace: str | None = None
    """Namespace of the Leases: berth's own."""


class FileClientConnection(FileType, frozen=True, kw_only=True):
    """Address of the API server, and limits of requests to it."""

    kubeconfig: str | None = None
    """Path of a kubeconfig; the flag ``--kubeconfig`` overrides it."""
    accept_content_types: str | None = None
    """Ignored: berth reads JSON."""
    content_type: str | None = None
    """Ignored: berth writes JSON."""
    qps: float | None = None
    """Requests per second; 0 or less is no limit (kube-scheduler: 50)."""
    burst: int | None = None
    """Requests at once under ``qps``; 0 is twice as many."""


class FileManagedResource(FileType, frozen=True, kw_only=True):
    """An extended resource that an extender manages."""

    name: str
    """Only pods with one of these extended resources in a request or limit are sent; without any, all pods."""
    ignored_by_scheduler: bool | None = None
    """True: NodeResourcesFit does not count the resource, in any profile."""


class FileExtenderTls(FileType, frozen=True, kw_only=True):
    """TLS to an extender; data (base64 of PEM) takes precedence over the file."""

    insecure: bool | None = None
    """True: the server's certificate is not verified."""
    server_name: str | None = None
    """Required name in the server's certificate; default: the host of the URL."""
    cert_file: str | None = None
    """The client's certificate, with ``keyFile`` or ``keyData``."""
    key_file: str | None = None
    """The client's key."""
    ca_file: str | None = None
    """PEM certificates to verify the server's certificate with."""
    cert_data: str | None = None
    """In place of ``certFile``: base64 of PEM."""
    key_data: str | None = None
    """In place of ``keyFile``: base64 of PEM."""
    ca_data: str | None = None
    """In place of ``caFile``: base64 of PEM."""


class FileExtender(FileType, frozen=True, kw_only=True):
    """An HTTP server that filters or scores nodes, filters evictions, or binds. Leave out the verbs it lacks."""

    url_prefix: str
    """Required; the verb is appended. A user and password in it are sent, but never shown."""
    filter_verb: str | None = None
    """Filters the nodes that pass all filters and earlier extenders."""
    preempt_verb: str | None = None
    """Filters proposed evictions. Nodes for which it names other victims are dropped."""
    prioritize_verb: str | None = None
    """Gives 0 to 10 points to each of several feasible nodes; they count ``weight`` x 10."""
    weight: int | None = None
    """1..2147483647, required beside ``prioritizeVerb``."""
    bind_verb: str | None = None
    """Binds its pods in place of the binder; one extender at most. A failure is an error of the pod; if `ignorable`,
    the binder binds."""
    enable_https: bool | None = msgspec.field(default=None, name="enableHTTPS")
    """True without a CA: the certificate is not verified."""
    tls_config: FileExtenderTls | None = None
    """TLS to the extender."""
    http_timeout: timedelta | None = None
    """Time-out of one call, at most 1m; default 5s."""
    node_cache_capable: bool | None = None
    """True: only the names of nodes are sent, which costs far less."""
    managed_resources: list[FileManagedResource] | None = None
    """Resources of the pods that are sent to it."""
    ignorable: bool | None = None
    """True: pods continue without it if filter, preempt or bind fails; asked after all others."""


class File(FileType, frozen=True, kw_only=True):
    """The whole file."""

    api_version: str
    """``kubescheduler.config.k8s.io/v1``; older ones are converted."""
    kind: str
    """``KubeSchedulerConfiguration``."""
    parallelism: int | None = None
    """Ignored: all nodes are scored at once."""
    leader_election: FileLeaderElection = FileLeaderElection()
    """Leader election of watcher and binder."""
    client_connection: FileClientConnection = FileClientConnection()
    """Connection of watcher and binder to the API server."""
    enable_profiling: bool | None = None
    """Ignored."""
    enable_contention_profiling: bool | None = None
    """Ignored."""
    percentage_of_nodes_to_score: int | None = None
    """Percentage of nodes found feasible at which the search ends, 0..100; 0: all nodes."""
    pod_initial_backoff_seconds: int | None = None
    """Back-off after the first failure, 1 or more; doubled each time."""
    pod_max_backoff_seconds: int | None = None
    """The longest back-off, not shorter than the first."""
    profiles: list[FileProfile] | None = None
    """A scheduler name each, with its plugins."""
    extenders: list[FileExtender] | None = None
    """HTTP servers that filter and score nodes."""
    delay_cache_until_active: bool | None = None
    """Ignored."""


EVERYTHING = "*"
