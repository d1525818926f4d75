"""Converts files of older versions to v1 where the meaning is clear, and rejects the rest with a replacement to write.

Known versions: kubescheduler.config.k8s.io/v1beta3, v1beta2, v1beta1, v1alpha2 and v1alpha1, and
componentconfig/v1alpha1. Fields of no version are left for the strict decoding of v1 to report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

from berth.api.config.groupplugins import GROUP_PLUGINS
from berth.api.config.types import API_GROUP, API_VERSION

BETA3: Final = f"{API_GROUP}/v1beta3"
ALPHA1: Final = f"{API_GROUP}/v1alpha1"
COMPONENT: Final = "componentconfig/v1alpha1"
OLD: Final = (BETA3, *(f"{API_GROUP}/{name}" for name in ("v1beta2", "v1beta1", "v1alpha2")), ALPHA1, COMPONENT)

# Top-level fields that are dropped, because they do not affect placement.
DROPPED: Final[Mapping[str, str]] = {
    "healthzBindAddress": "left out: the flag --health-port sets the port of /livez and /readyz",
    "metricsBindAddress": "left out: the flag --health-port sets the port of /metrics",
    "port": "left out: the flag --health-port sets the port of /metrics",
    "address": "left out: the flag --health-port sets the port of /metrics",
}

# Top-level fields that affect placement, with their place in v1.
REFUSED: Final[Mapping[str, str]] = {
    "algorithmProvider": "not part of v1; start with --algorithm-provider=NAME instead",
    "policyConfigFile": "not part of v1; write what the policy names as plugins of a profile",
    "disablePreemption": "not part of v1; write profiles[].plugins.postFilter.disabled: [{name: DefaultPreemption}]",
    "bindTimeoutSeconds": "not part of v1; write it into the args of VolumeBinding in profiles[].pluginConfig",
    "hardPodAffinitySymmetricWeight": (
        "not part of v1; write hardPodAffinityWeight into the args of InterPodAffinity in profiles[].pluginConfig"
    ),
    "failureDomains": "not part of v1; write topologyKey at each affinity term of the pods",
}

_FIT: Final = "write NodeResourcesFit with the args scoringStrategy: {{type: {}}}"
# Plugins that v1 files cannot name any more, with their replacement.
GONE_PLUGINS: Final[Mapping[str, str]] = {
    "NodeResourcesLeastAllocated": _FIT.format("LeastAllocated"),
    "NodeResourcesMostAllocated": _FIT.format("MostAllocated"),
    "RequestedToCapacityRatio": _FIT.format("RequestedToCapacityRatio"),
    "NodeResourceLimits": "it was removed without a successor",
    "NodePreferAvoidPods": "write a taint of effect PreferNoSchedule on the node",
    "NodeLabel": "write NodeAffinity with the args addedAffinity, or NodeFilterLabel",
    "ServiceAffinity": "write InterPodAffinity terms into the pods",
    "SelectorSpread": "write PodTopologySpread with the args defaultingType: System",
    "DefaultPodTopologySpread": "write PodTopologySpread with the args defaultingType: System",
    "EBSLimits": "write NodeVolumeLimits",
    "GCEPDLimits": "write NodeVolumeLimits",
    "AzureDiskLimits": "write NodeVolumeLimits",
    "CinderLimits": "write NodeVolumeLimits",
}

# Plugins of scheduler-plugins that berth lacks beside some that it has, with their replacement.
REFUSED_PLUGINS: Final[Mapping[str, str]] = {
    "LowRiskOverCommitment": "write LoadVariationRiskBalancing, or NodeLoad with the args statistic: p95",
    "Peaks": "write NodeLoad; no plugin here knows the power that a node draws",
}

# Plugins of current and older kube-schedulers that berth lacks. A file may disable them, without effect.
NOT_HERE: Final = (
    *GONE_PLUGINS,
    *REFUSED_PLUGINS,
    *GROUP_PLUGINS,
)

_MOVED_ELECTION: Final = {"lockObjectName": "resourceName", "lockObjectNamespace": "resourceNamespace"}
_MOVED_CONNECTION: Final = {"contentType": "contentType", "kubeAPIQPS": "qps", "kubeAPIBurst": "burst"}
_OLD_LOCKS: Final = ("endpoints", "configmaps", "endpointsleases", "configmapsleases")


@dataclass(slots=True)
class Conversion:
    """The document, the conversions done, and problems for the user to solve."""

    document: dict[str, Any]
    done: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def to_v1(document: dict[str, Any]) -> Conversion:
    """The file as v1; unchanged if it is v1 or of an unknown version."""
    version = document.get("apiVersion")
    if version not in OLD:
        return Conversion(document)
    conversion = Conversion({**deepcopy(document), "apiVersion": API_VERSION})
    conversion.done.append(f"apiVersion: read {version} as {API_VERSION}")
    if version != BETA3:
        conversion.done.append("plugins: weights that are not written are those of v1, not those of that version")
    steps: tuple[Callable[[Conversion], None], ...] = (_move_profile, _move_connection, _election, _top, _profiles)
    for step in steps:
        step(conversion)
    return conversion


def _move_profile(conversion: Conversion) -> None:
    """v1alpha1 had one profile, at the top of the file."""
    document = conversion.document
    top = {name: document.pop(name) for name in ("schedulerName", "plugins", "pluginConfig") if name in document}
    if top and "profiles" not in document:
        document["profiles"] = [top]
        conversion.done.append(f"{', '.join(top)}: moved into profiles[0]")
    elif top:
        conversion.problems.extend(f"{name}: want it in profiles[], which the file has too" for name in top)
    source = document.pop("algorithmSource", None)
    provider = source.get("provider") if isinstance(source, dict) else None
    if provider:
        conversion.problems.append(
            f"algorithmSource.provider: not part of v1; start with --algorithm-provider={provider} instead"
        )
    elif source:
        conversion.problems.append(f"algorithmSource: {REFUSED['policyConfigFile']}")


def _move_connection(conversion: Conversion) -> None:
    given = {new: conversion.document.pop(old) for old, new in _MOVED_CONNECTION.items() if old in conversion.document}
    connection = conversion.document.setdefault("clientConnection", {})
    if given and isinstance(connection, dict):
        connection.update({name: value for name, value in given.items() if name not in connection})
        conversion.done.append(f"{', '.join(given)}: moved into clientConnection")


def _election(conversion: Conversion) -> None:
    election = conversion.document.get("leaderElection")
    if not isinstance(election, dict):
        return
    for old, new in _MOVED_ELECTION.items():
        if old in election:
            election.setdefault(new, election.pop(old))
            conversion.done.append(f"leaderElection.{old}: read as {new}")
    lock = election.get("resourceLock")
    if lock in _OLD_LOCKS:
        election["resourceLock"] = "leases"
        conversion.done.append(f"leaderElection.resourceLock: {lock} is gone, Leases are used")


def _top(conversion: Conversion) -> None:
    document = conversion.document
    for name in [name for name in document if name in DROPPED]:
        del document[name]
        conversion.done.append(f"{name}: {DROPPED[name]}")
    for name in [name for name in document if name in REFUSED]:
        if document.pop(name) not in (None, False, ""):  # written but switched off: removing it changes no placement
            conversion.problems.append(f"{name}: {REFUSED[name]}")


def _profiles(conversion: Conversion) -> None:
    profiles = conversion.document.get("profiles")
    for index, profile in enumerate(profiles if isinstance(profiles, list) else ()):
        if isinstance(profile, dict):
            _plugins(profile.get("plugins"), f"profiles[{index}].plugins", conversion)
            _args(profile.get("pluginConfig"))


def _plugins(plugins: object, path: str, conversion: Conversion) -> None:
    if not isinstance(plugins, dict):
        return
    if plugins.pop("unreserve", None):
        conversion.problems.append(f"{path}.unreserve: not part of v1; write its plugins under reserve")
    for point, chosen in plugins.items():
        disabled = chosen.get("disabled") if isinstance(chosen, dict) else None
        if not isinstance(disabled, list):
            continue
        gone = [ref for ref in disabled if isinstance(ref, dict) and ref.get("name") in GONE_PLUGINS]
        chosen["disabled"] = [ref for ref in disabled if ref not in gone]
        conversion.done.extend(f"{path}.{point}.disabled: {ref['name']} is gone anyway" for ref in gone)


def _args(plugin_config: object) -> None:
    """Update the version in the arguments, which name the version of their file."""
    for config in plugin_config if isinstance(plugin_config, list) else ():
        args = config.get("args") if isinstance(config, dict) else None
        if isinstance(args, dict) and args.get("apiVersion") in OLD:
            args["apiVersion"] = API_VERSION
