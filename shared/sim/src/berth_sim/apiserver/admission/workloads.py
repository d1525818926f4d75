"""Admission of workloads: the defaults of their specs and pod templates, and the labels that their selectors need."""

from collections.abc import Mapping
from typing import Final

from berth_sim.apiserver.kinds import (
    DEPLOYMENTS,
    JOBS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    SimulatedKind,
)
from berth_sim.apiserver.status import JsonObject, invalid

POD_DEFAULTS: Final[JsonObject] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
}
_CONTAINER_DEFAULTS: Final[JsonObject] = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "IfNotPresent",
}

_ROLLING: Final = {"maxSurge": "25%", "maxUnavailable": "25%"}
_SPECS: Final[Mapping[SimulatedKind, JsonObject]] = {
    DEPLOYMENTS: {
        "replicas": 1,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": _ROLLING},
        "revisionHistoryLimit": 10,
        "progressDeadlineSeconds": 600,
    },
    REPLICA_SETS: {"replicas": 1},
    REPLICATION_CONTROLLERS: {"replicas": 1},
    STATEFUL_SETS: {
        "replicas": 1,
        "podManagementPolicy": "OrderedReady",
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "revisionHistoryLimit": 10,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    },
    JOBS: {
        "parallelism": 1,
        "completionMode": "NonIndexed",
        "backoffLimit": 6,
        "manualSelector": False,
        "podReplacementPolicy": "TerminatingOrFailed",
        "suspend": False,
    },
}
_STATUS: Final[Mapping[SimulatedKind, JsonObject]] = {
    REPLICA_SETS: {"replicas": 0},
    REPLICATION_CONTROLLERS: {"replicas": 0},
    STATEFUL_SETS: {"availableReplicas": 0, "replicas": 0},
}
WORKLOADS: Final = frozenset(_SPECS)


def admit(kind: SimulatedKind, value: JsonObject, default_scheduler: str) -> JsonObject:
    """A new workload with its defaults.

    Raises:
        StatusError: 422, its selector does not select the pods of its template.
    """
    given = value.get("spec") or {}
    spec = {**_SPECS[kind], **given}
    if kind is JOBS:
        value, spec = _job(value, spec)
    _check_selector(kind, value["metadata"]["name"], spec)
    return with_defaults(kind, {**value, "spec": spec, "status": _STATUS.get(kind, {})}, default_scheduler)


def with_defaults(kind: SimulatedKind, value: JsonObject, default_scheduler: str) -> JsonObject:
    """Add the defaults of spec and template, which a write may have left out."""
    given = value.get("spec") or {}
    spec = {**_SPECS[kind], **given}
    if kind is DEPLOYMENTS:
        spec["strategy"] = _strategy(given.get("strategy") or {})
    if spec.get("template"):
        spec["template"] = _template(spec["template"], default_scheduler)
    return {**value, "spec": spec}


def _strategy(given: JsonObject) -> JsonObject:
    if given.get("type", "RollingUpdate") != "RollingUpdate":
        return given
    return {"type": "RollingUpdate", "rollingUpdate": {**_ROLLING, **(given.get("rollingUpdate") or {})}}


def _job(value: JsonObject, spec: JsonObject) -> tuple[JsonObject, JsonObject]:
    """A Job knows its pods by its own uid, in a label."""
    metadata = value["metadata"]
    names = {"controller-uid": metadata["uid"], "job-name": metadata["name"]}
    labels = {**names, **{f"batch.kubernetes.io/{name}": label for name, label in names.items()}}
    template = spec.get("template") or {}
    described = template.get("metadata") or {}
    spec["template"] = {**template, "metadata": {**described, "labels": {**(described.get("labels") or {}), **labels}}}
    if "completions" not in spec and spec["parallelism"] == 1:
        spec["completions"] = 1
    if not spec["manualSelector"]:
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": metadata["uid"]}}
    own = metadata.get("labels") or {} if metadata.get("labels") else labels
    return {**value, "metadata": {**metadata, "labels": own}}, spec


def _template(template: JsonObject, default_scheduler: str) -> JsonObject:
    spec = {**POD_DEFAULTS, "schedulerName": default_scheduler, **(template.get("spec") or {})}
    for group in ("containers", "initContainers"):
        if spec.get(group):
            spec[group] = [container_with_defaults(container) for container in spec[group]]
    return {**template, "metadata": template.get("metadata") or {}, "spec": spec}


def container_with_defaults(container: JsonObject) -> JsonObject:
    ports = [{"protocol": "TCP", **port} if isinstance(port, dict) else port for port in container.get("ports") or ()]
    return {**_CONTAINER_DEFAULTS, **container, **({"ports": ports} if ports else {})}


def _check_selector(kind: SimulatedKind, name: str, spec: JsonObject) -> None:
    if (spec.get("replicas") or 0) < 0:
        problem = f"Invalid value: {spec['replicas']}: must be greater than or equal to 0"
        raise invalid(kind, name, "spec.replicas", problem)
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if kind is REPLICATION_CONTROLLERS:
        wanted = spec.get("selector") or {}
    else:
        wanted = (spec.get("selector") or {}).get("matchLabels") or {}
        if kind in (DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS) and not spec.get("selector"):
            raise invalid(kind, name, "spec.selector", "Required value", "FieldValueRequired")
    if spec.get("template") and any(labels.get(key) != label for key, label in wanted.items()):
        shown = ",".join(f'"{key}":"{label}"' for key, label in sorted(labels.items()))
        problem = f"Invalid value: {{{shown}}}: `selector` does not match template `labels`"
        raise invalid(kind, name, "spec.template.metadata.labels", problem)
