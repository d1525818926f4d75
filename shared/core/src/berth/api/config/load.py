"""Loads the text of a file into a configuration, or reports every problem in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

import msgspec

from berth.api.config.configuration import (
    EVERY_NODE,
    ClientConnection,
    KubeSchedulerConfiguration,
    LeaderElection,
    ProfileConfiguration,
)
from berth.api.config.decode import Problems, parse_yaml, read_struct
from berth.api.config.extenders import complete_extenders, without_ignored_resources
from berth.api.config.groupplugins import what_is_left_out
from berth.api.config.profiles import KnownPlugin, PluginSetting, complete_profiles
from berth.api.config.types import (
    API_GROUP,
    API_VERSION,
    KIND,
    Args,
    File,
    FileClientConnection,
    FileLeaderElection,
    FileProfile,
    Plugins,
    Point,
)
from berth.api.config.versions import NOT_HERE, to_v1
from berth.errors import BerthError

# Characters of a problem: it quotes values and paths of the file.
_MOST_OF_PROBLEM = 1000
# Seconds: 68 years, far below the longest timedelta.
_LONGEST_BACKOFF = 2**31 - 1
_IGNORED = ("parallelism", "enableProfiling", "enableContentionProfiling", "delayCacheUntilActive")
_IGNORED_CONNECTION = ("acceptContentTypes", "contentType")


class ConfigurationError(BerthError):
    """The configuration cannot be used. ``problems`` holds every reason, each with its path."""

    def __init__(self, problems: list[str], *, source: str = "") -> None:
        self.problems = tuple(
            problem if len(problem) <= _MOST_OF_PROBLEM else f"{problem[: _MOST_OF_PROBLEM - 3]}..."
            for problem in problems
        )
        super().__init__("\n".join(f"{source}: {problem}" if source else problem for problem in self.problems))


def default_configuration(
    known: Mapping[str, KnownPlugin], preset: Plugins, *, partial: bool = False
) -> KubeSchedulerConfiguration:
    """The configuration without a file: one profile, schedulerName ``berth``, the preset's plugins."""
    return load(f"apiVersion: {API_VERSION}\nkind: {KIND}\n", known=known, preset=preset, partial=partial)


def load(
    text: str, *, known: Mapping[str, KnownPlugin], preset: Plugins, source: str = "", partial: bool = False
) -> KubeSchedulerConfiguration:
    """Read a file's text.

    ``partial``: the reader knows few plugins, and skips all others in the file and the preset unchecked.

    Raises:
        ConfigurationError: with every problem at once.
    """
    problems = Problems()
    document = parse_yaml(text, problems)
    plugged = PluginSetting(known=known, preset=preset, is_partial=partial)
    configuration = _read(document, plugged, problems) if document is not None else None
    if problems or configuration is None:
        raise ConfigurationError(problems, source=source)
    return configuration


def _read(document: dict[str, object], plugged: PluginSetting, problems: Problems) -> KubeSchedulerConfiguration | None:
    conversion = to_v1(document)
    problems.extend(conversion.problems)
    _check_identity(conversion.document, problems)
    file = read_struct(conversion.document, File, "", problems)
    if file is None:
        return None
    configuration = _complete(file, plugged, problems)
    if problems:
        return None
    remarks = (remark for index, profile in enumerate(configuration.profiles) for remark in _remarks(profile, index))
    left_out = () if plugged.is_partial else what_is_left_out(file.profiles, plugged.known)
    converted = (*conversion.done, *left_out, *dict.fromkeys(remarks))
    return replace(configuration, digest=_digest(document, plugged.preset), converted=converted)


def _remarks(profile: ProfileConfiguration, index: int) -> Iterator[str]:
    for name, args in profile.args.items():
        points = [point for point, refs in profile.plugins.items() if any(ref.name == name for ref in refs)]
        remarks: Iterable[str] = args.remarks(points) if isinstance(args, Args) else ()
        if not points:
            remarks = ("args: without effect; no extension point enables the plugin",)
        yield from (f"profiles[{index}].pluginConfig ({name}): {remark}" for remark in remarks)


def _check_identity(document: dict[str, object], problems: Problems) -> None:
    version, kind = document.get("apiVersion"), document.get("kind")
    if isinstance(version, str) and version != API_VERSION:
        hint = "; write v1, or a version back to v1alpha1" if version.startswith(API_GROUP) else ""
        problems.append(f"apiVersion: want {API_VERSION!r}, got {version!r}{hint}")
    if isinstance(kind, str) and kind != KIND:
        hint = "; write the text that its data has into a file" if kind == "ConfigMap" else ""
        problems.append(f"kind: want {KIND!r}, got {kind!r}{hint}")


def _backoff(seconds: int) -> timedelta:
    # A value out of range is a problem already; no timedelta holds each of them.
    return timedelta(seconds=min(max(seconds, 1), _LONGEST_BACKOFF))


def _complete(file: File, plugged: PluginSetting, problems: Problems) -> KubeSchedulerConfiguration:
    if file.parallelism is not None and file.parallelism <= 0:
        problems.add("parallelism", "more than 0", file.parallelism)
    problems.check_range("percentageOfNodesToScore", file.percentage_of_nodes_to_score, 0, 100)
    percentage = file.percentage_of_nodes_to_score or EVERY_NODE
    plugged = replace(plugged, percentage_of_nodes_to_score=percentage)
    initial = file.pod_initial_backoff_seconds if file.pod_initial_backoff_seconds is not None else 1
    longest = file.pod_max_backoff_seconds if file.pod_max_backoff_seconds is not None else 10
    if initial < 1:
        problems.add("podInitialBackoffSeconds", "at least 1", initial)
    if longest < initial:
        problems.add("podMaxBackoffSeconds", f"at least podInitialBackoffSeconds ({initial})", longest)
    if longest > _LONGEST_BACKOFF:
        problems.add("podMaxBackoffSeconds", f"at most {_LONGEST_BACKOFF}", longest)
    extenders = file.extenders or []
    return KubeSchedulerConfiguration(
        extenders=complete_extenders(extenders, problems),
        profiles=without_ignored_resources(complete_profiles(file.profiles, plugged, problems), extenders),
        leader_election=_leader_election(file.leader_election, problems),
        client_connection=_client_connection(file.client_connection, problems),
        percentage_of_nodes_to_score=percentage,
        pod_initial_backoff=_backoff(initial),
        pod_max_backoff=_backoff(longest),
        ignored=_ignored(file, plugged.known),
        is_partial=plugged.is_partial,
    )


def _digest(document: dict[str, object], preset: Plugins) -> str:
    """Files of equal content have equal digests in any layout."""
    return hashlib.sha256(msgspec.json.encode((document, preset), order="deterministic")).hexdigest()[:12]


def _ignored(file: File, known: Mapping[str, KnownPlugin]) -> tuple[str, ...]:
    given = msgspec.to_builtins(file)
    connection = given["clientConnection"]
    return (
        *(name for name in _IGNORED if given.get(name) is not None),
        *(f"clientConnection.{name}" for name in _IGNORED_CONNECTION if connection.get(name) is not None),
        *(path for index, profile in enumerate(file.profiles or ()) for path in _of_profile(profile, index, known)),
    )


def _of_profile(profile: FileProfile, index: int, known: Mapping[str, KnownPlugin]) -> Iterator[str]:
    """Disabled plugins of kube-scheduler that berth lacks."""
    sets = {**{str(point): profile.plugins.at(point) for point in Point}, "multiPoint": profile.plugins.multi_point}
    for place, chosen in sets.items():
        for number, ref in enumerate(chosen.disabled or ()):
            if ref.name in NOT_HERE and ref.name not in known:
                yield f"profiles[{index}].plugins.{place}.disabled[{number}] ({ref.name})"


def _leader_election(given: FileLeaderElection, problems: Problems) -> LeaderElection:
    default = LeaderElection()
    made = LeaderElection(
        leader_elect=default.leader_elect if given.leader_elect is None else given.leader_elect,
        lease_duration=given.lease_duration or default.lease_duration,
        renew_deadline=given.renew_deadline or default.renew_deadline,
        retry_period=given.retry_period or default.retry_period,
        resource_name=given.resource_name or default.resource_name,
        resource_namespace=given.resource_namespace or default.resource_namespace,
    )
    if made.leader_elect and given.resource_lock not in (None, "", "leases"):
        problems.add("leaderElection.resourceLock", "'leases'", given.resource_lock)
    return made  # its times are checked together with flags and variables, which may change one of them


def _client_connection(given: FileClientConnection, problems: Problems) -> ClientConnection:
    if given.burst is not None and given.burst < 0:
        problems.add("clientConnection.burst", "0 or more", given.burst)
    limit = given.qps if given.qps is not None and given.qps > 0 else None
    return ClientConnection(kubeconfig=given.kubeconfig or "", qps=limit, burst=given.burst or None)
