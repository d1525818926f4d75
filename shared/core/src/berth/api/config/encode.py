"""Writes a configuration as a file, with all defaults, for ``berth config show``.

Loaded again, the file gives the same plugins, arguments and settings with any preset: each extension point disables
``"*"`` and enables its plugins.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from berth.api.config.configuration import ExtenderConfiguration, KubeSchedulerConfiguration, ProfileConfiguration
from berth.api.config.types import API_VERSION, EVERYTHING, KIND, PluginRef, Point


def as_document(configuration: KubeSchedulerConfiguration) -> dict[str, Any]:
    """The configuration as plain dicts and lists, in the usual order."""
    election, connection = configuration.leader_election, configuration.client_connection
    extenders = [_extender(extender) for extender in configuration.extenders]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "leaderElection": {
            "leaderElect": election.leader_elect,
            "leaseDuration": go_duration(election.lease_duration),
            "renewDeadline": go_duration(election.renew_deadline),
            "retryPeriod": go_duration(election.retry_period),
            "resourceLock": "leases",
            "resourceName": election.resource_name,
            "resourceNamespace": election.resource_namespace,
        },
        "clientConnection": {
            "kubeconfig": connection.kubeconfig,
            "qps": connection.qps or 0,
            "burst": connection.burst or 0,
        },
        "percentageOfNodesToScore": configuration.percentage_of_nodes_to_score,
        "podInitialBackoffSeconds": int(configuration.pod_initial_backoff.total_seconds()),
        "podMaxBackoffSeconds": int(configuration.pod_max_backoff.total_seconds()),
        **({"extenders": extenders} if extenders else {}),
        "profiles": [_profile(profile) for profile in configuration.profiles],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationDigests:
    """Digests of a configuration and its parts, to find the part that differs between two services."""

    config: str = ""  # of the file as written; in every message
    # Of plugins and arguments with all defaults. Empty for a partial reader.
    profiles: Mapping[str, str] = field(default_factory=dict)
    # Of the settings outside the profiles, without `clientConnection`, which may differ between machines.
    settings: str = ""


def digests(configuration: KubeSchedulerConfiguration) -> ConfigurationDigests:
    """Digests that are equal for equal configurations, however their files are written."""
    document = as_document(configuration)
    names = ("leaderElection", "podInitialBackoffSeconds", "podMaxBackoffSeconds", "extenders")
    settings = {name: document[name] for name in names if name in document}
    return ConfigurationDigests(
        config=configuration.digest,
        profiles={
            profile["schedulerName"]: _digest((configuration.release, profile))
            for profile in document["profiles"]
            if not configuration.is_partial
        },
        settings=_digest(settings),
    )


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="deterministic")).hexdigest()[:12]


def go_duration(duration: timedelta) -> str:
    """The duration in Go's form: ``15s``, ``10m0s``, ``500ms``."""
    milliseconds = round(duration.total_seconds() * 1000)
    if milliseconds % 1000:
        return f"{milliseconds}ms"
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    of_minutes = f"{minutes}m" if hours or minutes else ""
    return f"{f'{hours}h' if hours else ''}{of_minutes}{seconds}s"


def _profile(profile: ProfileConfiguration) -> dict[str, Any]:
    return {
        "schedulerName": profile.scheduler_name,
        "percentageOfNodesToScore": profile.percentage_of_nodes_to_score,
        "plugins": {
            str(point): {
                "enabled": [_ref(ref, point) for ref in profile.plugins.get(point, ())],
                "disabled": [{"name": EVERYTHING}],
            }
            for point in Point
        },
        "pluginConfig": [
            {"name": name, "args": {"apiVersion": API_VERSION, "kind": f"{name}Args", **in_full(args)}}
            for name, args in sorted(profile.args.items())
            if isinstance(args, msgspec.Struct)
        ],
    }


def _extender(extender: ExtenderConfiguration) -> dict[str, Any]:
    """Leaves out ``ignoredByScheduler``, which the arguments of NodeResourcesFit contain."""
    tls = extender.tls
    written = {
        "insecure": tls.insecure or None,
        "serverName": tls.server_name or None,
        "certFile": tls.cert_file or None,
        "keyFile": tls.key_file or None,
        "caFile": tls.ca_file or None,
        "certData": b64encode(tls.cert_pem).decode() or None,
        "keyData": b64encode(tls.key_pem).decode() or None,
        "caData": b64encode(tls.ca_pem).decode() or None,
    }
    return {
        "urlPrefix": extender.url_prefix,
        "filterVerb": extender.filter_verb,
        "prioritizeVerb": extender.prioritize_verb,
        "weight": extender.weight,
        "bindVerb": extender.bind_verb,
        "preemptVerb": extender.preempt_verb,
        "tlsConfig": {name: value for name, value in written.items() if value is not None},
        "httpTimeout": go_duration(extender.timeout),
        "nodeCacheCapable": extender.node_cache_capable,
        "managedResources": [{"name": name} for name in sorted(extender.managed_resources)],
        "ignorable": extender.ignorable,
    }


def _ref(ref: PluginRef, point: Point) -> dict[str, Any]:
    """A missing or zero weight is 1. Weights count for scores only."""
    return {"name": ref.name, "weight": ref.weight or 1} if point is Point.SCORE else {"name": ref.name}


def in_full(value: object) -> Any:
    """A Struct with all fields that have a value, defaults included."""
    if isinstance(value, msgspec.Struct):
        fields = ((field.encode_name, getattr(value, field.name)) for field in msgspec.structs.fields(type(value)))
        return {name: in_full(given) for name, given in fields if given is not None}
    if isinstance(value, Mapping):
        return {str(key): in_full(given) for key, given in value.items()}
    if isinstance(value, list | tuple):
        return [in_full(given) for given in value]
    return go_duration(value) if isinstance(value, timedelta) else msgspec.to_builtins(value)
