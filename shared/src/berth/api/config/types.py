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
    weight: int | None = None


class PluginSet(FileType, frozen=True, kw_only=True):
    """What to add to and take from the default plugins of an extension point; ``disabled: [{name: "*"}]`` takes all."""

    enabled: list[PluginRef] | None = None
    disabled: list[PluginRef] | None = None


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
    args: dict[str, object] | None = None


class FileProfile(FileType, frozen=True, kw_only=True):
    """One scheduler name and its plugins."""

    scheduler_name: str | None = None
    percentage_of_nodes_to_score: int | None = None
    plugins: Plugins = Plugins()
    plugin_config: list[PluginConfig] | None = None


class FileLeaderElection(FileType, frozen=True, kw_only=True):
    """Leader election as every Kubernetes component has it."""

    leader_elect: bool | None = None
    lease_duration: timedelta | None = None
    renew_deadline: timedelta | None = None
    retry_period: timedelta | None = None
    resource_lock: str | None = None
    resource_name: str | None = None
    resource_namespace: str | None = None


class FileClientConnection(FileType, frozen=True, kw_only=True):
    """How to reach the API server."""

    kubeconfig: str | None = None
    accept_content_types: str | None = None
    content_type: str | None = None
    qps: float | None = None
    burst: int | None = None


class FileManagedResource(FileType, frozen=True, kw_only=True):
    """An extended resource that an extender manages."""

    name: str
    ignored_by_scheduler: bool | None = None


class FileExtenderTls(FileType, frozen=True, kw_only=True):
    """TLS to an extender; data (base64 of PEM) takes precedence over the file."""

    insecure: bool | None = None
    server_name: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None
    cert_data: str | None = None
    key_data: str | None = None
    ca_data: str | None = None


class FileExtender(FileType, frozen=True, kw_only=True):
    """An HTTP server that is asked about nodes. What it does not do has no verb."""

    url_prefix: str
    filter_verb: str | None = None
    preempt_verb: str | None = None
    prioritize_verb: str | None = None
    weight: int | None = None
    bind_verb: str | None = None
    enable_https: bool | None = msgspec.field(default=None, name="enableHTTPS")
    tls_config: FileExtenderTls | None = None
    http_timeout: timedelta | None = None
    node_cache_capable: bool | None = None
    managed_resources: list[FileManagedResource] | None = None
    ignorable: bool | None = None


class File(FileType, frozen=True, kw_only=True):
    """The whole file."""

    api_version: str
    kind: str
    parallelism: int | None = None
    leader_election: FileLeaderElection = FileLeaderElection()
    client_connection: FileClientConnection = FileClientConnection()
    enable_profiling: bool | None = None
    enable_contention_profiling: bool | None = None
    percentage_of_nodes_to_score: int | None = None
    pod_initial_backoff_seconds: int | None = None
    pod_max_backoff_seconds: int | None = None
    profiles: list[FileProfile] | None = None
    extenders: list[FileExtender] | None = None
    delay_cache_until_active: bool | None = None


EVERYTHING = "*"
