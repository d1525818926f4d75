"""kubectl's other endpoints: discovery (/api, /apis, /version, OpenAPI), and tables."""

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from berth_sim.apiserver import schema
from berth_sim.apiserver.kinds import (
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NEW_EVENTS,
    NODES,
    PODS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    SERVED_KINDS,
    STATEFUL_SETS,
    SimulatedKind,
)
from berth_sim.apiserver.listing import Token
from berth_sim.apiserver.status import JsonObject
from berth_sim.apiserver.store import StoredObject

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]

_READ_VERBS = ["get", "list", "watch"]

_IN_ALL = frozenset(
    {"pods", "services", "replicationcontrollers", "replicasets", "statefulsets", "deployments", "jobs"}
)

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+berth_sim",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}


def documents() -> dict[str, bytes]:
    found = {"/api": _api_versions(), "/apis": _groups(), "/version": VERSION}
    for api_version in {kind.api_version for kind in SERVED_KINDS}:
        path = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        found[path] = _resources(api_version)
    for group in {kind.group for kind in SERVED_KINDS if kind.group}:
        found[f"/apis/{group}"] = {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
    found |= schema.openapi()
    encoded = {path: msgspec.json.encode(document) for path, document in found.items()}
    return {**encoded, "/openapi/v2": b""}  # by it kubectl would check the items of a List: without types, it does not


def _api_versions() -> dict[str, Any]:
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _groups() -> dict[str, Any]:
    names = dict.fromkeys(kind.group for kind in SERVED_KINDS if kind.group)
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in names]}


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _resources(api_version: str) -> dict[str, Any]:
    served = [kind for kind in SERVED_KINDS if kind.api_version == api_version]
    resources = [entry for kind in served for entry in _entries(kind)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}


def _entries(kind: SimulatedKind) -> list[dict[str, Any]]:
    entry = {"name": kind.plural, "singularName": kind.name.lower(), "namespaced": kind.namespaced, "kind": kind.name}
    categories = ["all"] if kind.plural in _IN_ALL else []
    entries: list[dict[str, Any]] = [
        {
            **entry,
            "verbs": _READ_VERBS if kind.why_none else _VERBS,
            "shortNames": kind.short_names,
            "categories": categories,
        }
    ]
    if kind.has_status:
        verbs = ["get", "patch", "update"]
        entries.append({**entry, "name": f"{kind.plural}/status", "singularName": "", "verbs": verbs})
    if kind.has_scale:
        scale = {"name": f"{kind.plural}/scale", "singularName": "", "namespaced": True, "kind": "Scale"}
        meaning = {"group": "autoscaling", "version": "v1"}
        entries.append({**scale, **meaning, "verbs": ["get", "patch", "update"]})
    if kind is PODS:
        binding = {"name": "pods/binding", "singularName": "", "namespaced": True, "kind": "Binding"}
        entries.append({**binding, "verbs": ["create"]})
    return entries


_WIDE = 1

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`-o wide` shows columns of priority 1 too."""

    name: str
    cell: Callable[[JsonObject, datetime], Any]
    priority: int = 0


def encoded(
    kind: SimulatedKind, items: Sequence[StoredObject], revision: int, now: datetime, rest: Token | None = None
) -> bytes:
    metadata = {"resourceVersion": str(revision), **({"continue": rest.encoded()} if rest else {})}
    return msgspec.json.encode(_table(kind, [stored.value for stored in items], metadata, now))


def watched(kind: SimulatedKind, lines: bytes, now: datetime) -> bytes:
    """Each object as a table of one row, which `kubectl get --watch` prints."""
    return b"".join(_watched(kind, msgspec.json.decode(line), now) for line in lines.splitlines())


def _watched(kind: SimulatedKind, event: JsonObject, now: datetime) -> bytes:
    if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
        value = event["object"]
        event["object"] = _table(kind, [value], {"resourceVersion": value["metadata"]["resourceVersion"]}, now)
    return msgspec.json.encode(event) + b"\n"


def _table(kind: SimulatedKind, values: Sequence[JsonObject], metadata: JsonObject, now: datetime) -> JsonObject:
    columns = _COLUMNS.get(kind, _ANY)
    definitions = [
        {
            "name": column.name,
            "type": "string",
            "format": "name" if column.name == "Name" else "",
            "description": column.name,
            "priority": column.priority,
        }
        for column in columns
    ]
    rows = [_row(value, columns, now) for value in values]
    table = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
    return {**table, "columnDefinitions": definitions, "rows": rows}


def _row(value: JsonObject, columns: Sequence[Column], now: datetime) -> JsonObject:
    shown = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": value["metadata"]}
    return {"cells": [column.cell(value, now) for column in columns], "object": shown}


def _name(value: JsonObject, _now: datetime) -> str:
    return str(value["metadata"]["name"])


def _age(value: JsonObject, now: datetime) -> str:
    return _since(value["metadata"]["creationTimestamp"], now)


def _since(time: object, now: datetime) -> str:
    try:
        return human_duration(int((now - datetime.fromisoformat(str(time))).total_seconds()))
    except (ValueError, TypeError):  # a client's time, perhaps without a zone
        return "<invalid>"


def human_duration(seconds: int) -> str:
    """The age as kubectl writes it: `45s`, `12m`, `3h`, `8d`."""
    for limit, unit, letter in ((2 * _MINUTE, 1, "s"), (3 * _HOUR, _MINUTE, "m"), (2 * _DAY, _HOUR, "h")):
        if seconds < limit:
            return f"{max(0, seconds) // unit}{letter}"
    return f"{seconds // _DAY}d"


def _pod_ready(pod: JsonObject, _now: datetime) -> str:
    ready = sum(bool(status.get("ready")) for status in pod["status"].get("containerStatuses") or [])
    return f"{ready}/{len(pod['spec']['containers'])}"


def _pod_status(pod: JsonObject, _now: datetime) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    if pod["status"].get("phase") == "Succeeded":
        return "Completed"
    conditions = pod["status"].get("conditions") or []
    gated = any(condition.get("reason") == "SchedulingGated" for condition in conditions)
    return "SchedulingGated" if gated else str(pod["status"].get("phase", "Unknown"))


def _pod_restarts(pod: JsonObject, _now: datetime) -> str:
    return str(sum(status.get("restartCount", 0) for status in pod["status"].get("containerStatuses") or []))


def _node_status(node: JsonObject, _now: datetime) -> str:
    conditions = {condition["type"]: condition["status"] for condition in node["status"].get("conditions") or []}
    ready = {"True": "Ready", "False": "NotReady"}.get(conditions.get("Ready", ""), "Unknown")
    return f"{ready},SchedulingDisabled" if node["spec"].get("unschedulable") else ready


def _node_roles(node: JsonObject, _now: datetime) -> str:
    prefix = "node-role.kubernetes.io/"
    labels = node["metadata"].get("labels") or {}
    return ",".join(sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix))) or "<none>"


def _at(*path: str, default: str = "<none>") -> Callable[[JsonObject, datetime], str]:
    def cell(value: JsonObject, _now: datetime) -> str:
        found: Any = value
        for member in path:
            found = (found or {}).get(member)
        return str(found) if found else default

    return cell


def _of(part: str, name: str, default: int = 0) -> Callable[[JsonObject, datetime], str]:
    return lambda value, _now: str((value.get(part) or {}).get(name, default))


def _ready_of_wanted(value: JsonObject, now: datetime) -> str:
    return f"{_of('status', 'readyReplicas')(value, now)}/{_of('spec', 'replicas', 1)(value, now)}"


def _images(value: JsonObject, _now: datetime) -> str:
    return ",".join(str(container.get("image", "")) for container in value["spec"]["template"]["spec"]["containers"])


def _job_status(job: JsonObject, _now: datetime) -> str:
    is_complete = "completionTime" in (job.get("status") or {})
    return "Complete" if is_complete else "Suspended" if job["spec"].get("suspend") else "Running"


def _completions(job: JsonObject, now: datetime) -> str:
    wanted = job["spec"].get("completions")
    shown = str(wanted) if wanted is not None else f"1 of {job['spec'].get('parallelism', 1)}"
    return f"{_of('status', 'succeeded')(job, now)}/{shown}"


def _duration(job: JsonObject, now: datetime) -> str:
    status = job.get("status") or {}
    if "startTime" not in status:
        return ""
    end = datetime.fromisoformat(status["completionTime"]) if "completionTime" in status else now
    return _since(status["startTime"], end)


def _internal_ip(node: JsonObject, _now: datetime) -> str:
    addresses = node["status"].get("addresses") or []
    return next((entry["address"] for entry in addresses if entry["type"] == "InternalIP"), "<none>")


def _last_seen(event: JsonObject, now: datetime) -> str:
    last = (event.get("series") or {}).get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return _since(last, now) if last else "<unknown>"


def _about(event: JsonObject, _now: datetime) -> str:
    about = event.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _message(event: JsonObject, _now: datetime) -> str:
    return str(event.get("message") or "").strip()


_NAME_COLUMN = Column(name="Name", cell=_name)

_AGE_COLUMN = Column(name="Age", cell=_age)

_ANY = (_NAME_COLUMN, _AGE_COLUMN)

_OF_EVENTS = (
    Column(name="Last Seen", cell=_last_seen),
    Column(name="Type", cell=_at("type", default="")),
    Column(name="Reason", cell=_at("reason", default="")),
    Column(name="Object", cell=_about),
    Column(name="Message", cell=_message),
    Column(name="Name", cell=_name, priority=_WIDE),
)

_READY = Column(name="Ready", cell=_ready_of_wanted)

_IMAGES = Column(name="Images", cell=_images, priority=_WIDE)

_OF_REPLICAS = (
    _NAME_COLUMN,
    Column(name="Desired", cell=_of("spec", "replicas", 1)),
    Column(name="Current", cell=_of("status", "replicas")),
    Column(name="Ready", cell=_of("status", "readyReplicas")),
    _AGE_COLUMN,
    _IMAGES,
)

_COLUMNS: dict[SimulatedKind, tuple[Column, ...]] = {
    DEPLOYMENTS: (
        _NAME_COLUMN,
        _READY,
        Column(name="Up-to-date", cell=_of("status", "updatedReplicas")),
        Column(name="Available", cell=_of("status", "availableReplicas")),
        _AGE_COLUMN,
        _IMAGES,
    ),
    REPLICA_SETS: _OF_REPLICAS,
    REPLICATION_CONTROLLERS: _OF_REPLICAS,
    STATEFUL_SETS: (_NAME_COLUMN, _READY, _AGE_COLUMN, _IMAGES),
    JOBS: (
        _NAME_COLUMN,
        Column(name="Status", cell=_job_status),
        Column(name="Completions", cell=_completions),
        Column(name="Duration", cell=_duration),
        _AGE_COLUMN,
        _IMAGES,
    ),
    EVENTS: _OF_EVENTS,
    NEW_EVENTS: _OF_EVENTS,
    LEASES: (_NAME_COLUMN, Column(name="Holder", cell=_at("spec", "holderIdentity", default="")), _AGE_COLUMN),
    NAMESPACES: (_NAME_COLUMN, Column(name="Status", cell=_at("status", "phase", default="")), _AGE_COLUMN),
    PODS: (
        _NAME_COLUMN,
        Column(name="Ready", cell=_pod_ready),
        Column(name="Status", cell=_pod_status),
        Column(name="Restarts", cell=_pod_restarts),
        _AGE_COLUMN,
        Column(name="IP", cell=_at("status", "podIP"), priority=_WIDE),
        Column(name="Node", cell=_at("spec", "nodeName"), priority=_WIDE),
        Column(name="Nominated Node", cell=_at("status", "nominatedNodeName"), priority=_WIDE),
    ),
    NODES: (
        _NAME_COLUMN,
        Column(name="Status", cell=_node_status),
        Column(name="Roles", cell=_node_roles),
        _AGE_COLUMN,
        Column(name="Version", cell=_at("status", "nodeInfo", "kubeletVersion", default="")),
        Column(name="Internal-IP", cell=_internal_ip, priority=_WIDE),
    ),
}
