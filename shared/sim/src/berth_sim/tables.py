"""Objects as the tables that `kubectl get` prints: columns and cells of each kind."""

import dataclasses
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from berth_sim.apiserver import store
from berth_sim.apiserver.kinds import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NEW_EVENTS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    PRIORITY_CLASSES,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    STORAGE_CLASSES,
    SimulatedKind,
)
from berth_sim.apiserver.listing import Token
from berth_sim.apiserver.status import JsonObject
from berth_sim.apiserver.store import StoredObject

_WIDE: Final = 1  # the priority of columns that only `-o wide` shows

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`-o wide` shows columns of priority 1 too."""

    name: str
    cell: Callable[[JsonObject, datetime], Any]
    priority: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """How a request wants a kind's objects shown, and when: ages are of that time.

    ``part``: each row has of its object `Object` (all, for `kubectl get --sort-by`), `None`, or the metadata.
    """

    kind: SimulatedKind
    now: datetime
    part: str

    def encoded(self, items: Sequence[StoredObject], revision: int, rest: Token | None = None) -> bytes:
        metadata = {"resourceVersion": str(revision), **({"continue": rest.encoded()} if rest else {})}
        return msgspec.json.encode(self._table([stored.value for stored in items], metadata))

    def watched(self, lines: bytes) -> bytes:
        """Each event's object as a table of one row, which `kubectl get --watch` prints."""
        return b"".join(self._watched(msgspec.json.decode(line)) for line in lines.splitlines())

    def _watched(self, event: JsonObject) -> bytes:
        if event["type"] in ("ADDED", "MODIFIED", "DELETED"):
            value = store.as_core_event(event["object"]) if self.kind is NEW_EVENTS else event["object"]
            event["object"] = self._table([value], {"resourceVersion": value["metadata"]["resourceVersion"]})
        return msgspec.json.encode(event) + b"\n"

    def _table(self, values: Sequence[JsonObject], metadata: JsonObject) -> JsonObject:
        columns = _COLUMNS.get(self.kind, _ANY)
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
        rows = [self._row(value, columns) for value in values]
        table = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
        return {**table, "columnDefinitions": definitions, "rows": rows}

    def _row(self, value: JsonObject, columns: Sequence[Column]) -> JsonObject:
        cells = [_cell(column, value, self.now) for column in columns]
        if self.part == "Object":
            whole = store.as_new_event(value) if self.kind is NEW_EVENTS else value
            return {"cells": cells, "object": {**whole, "kind": self.kind.name, "apiVersion": self.kind.api_version}}
        if self.part == "None":
            return {"cells": cells}
        shown = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": value["metadata"]}
        return {"cells": cells, "object": shown}


def _cell(column: Column, value: JsonObject, now: datetime) -> Any:
    try:
        return column.cell(value, now)
    except (TypeError, AttributeError, KeyError, ValueError):  # some kinds take every value
        return "<invalid>"


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


def _address(type_: str) -> Callable[[JsonObject, datetime], str]:
    def cell(node: JsonObject, _now: datetime) -> str:
        addresses = node["status"].get("addresses") or []
        return next((entry["address"] for entry in addresses if entry["type"] == type_), "<none>")

    return cell


def _node_info(name: str) -> Callable[[JsonObject, datetime], str]:
    return _at("status", "nodeInfo", name, default="<unknown>")


def _ports(service: JsonObject, _now: datetime) -> str:
    ports = (service.get("spec") or {}).get("ports") or ()
    return ",".join(f"{port.get('port')}/{port.get('protocol', 'TCP')}" for port in ports) or "<none>"


def _selector(service: JsonObject, _now: datetime) -> str:
    selected = (service.get("spec") or {}).get("selector") or {}
    return ",".join(f"{name}={label}" for name, label in sorted(selected.items())) or "<none>"


def _size(value: JsonObject, _now: datetime) -> str:
    return str(len(value.get("data") or ()))


def _capacity(part: str) -> Callable[[JsonObject, datetime], str]:
    return _at(part, "capacity", "storage", default="")


_MODES: Final = {"ReadWriteOnce": "RWO", "ReadOnlyMany": "ROX", "ReadWriteMany": "RWX", "ReadWriteOncePod": "RWOP"}


def _modes(value: JsonObject, _now: datetime) -> str:
    return ",".join(_MODES.get(mode, str(mode)) for mode in value["spec"].get("accessModes") or ())


def _claim(volume: JsonObject, _now: datetime) -> str:
    claim = volume["spec"].get("claimRef") or {}
    return f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else ""


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


def _claim_state(value: JsonObject, _now: datetime) -> str:
    status = value.get("status") or {}
    states = {
        "deleted": "deletionTimestamp" in value["metadata"],
        "allocated": bool(status.get("allocation")),
        "reserved": bool(status.get("reservedFor")),
    }
    return ",".join(state for state, holds in states.items() if holds) or "pending"


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
        Column(name="Readiness Gates", cell=lambda _value, _now: "<none>", priority=_WIDE),
    ),
    RESOURCE_CLAIMS: (_NAME_COLUMN, Column(name="State", cell=_claim_state), _AGE_COLUMN),
    RESOURCE_SLICES: (
        _NAME_COLUMN,
        Column(name="Node", cell=_at("spec", "nodeName")),
        Column(name="Driver", cell=_at("spec", "driver")),
        Column(name="Pool", cell=_at("spec", "pool", "name")),
        _AGE_COLUMN,
    ),
    NODES: (
        _NAME_COLUMN,
        Column(name="Status", cell=_node_status),
        Column(name="Roles", cell=_node_roles),
        _AGE_COLUMN,
        Column(name="Version", cell=_at("status", "nodeInfo", "kubeletVersion", default="")),
        Column(name="Internal-IP", cell=_address("InternalIP"), priority=_WIDE),
        Column(name="External-IP", cell=_address("ExternalIP"), priority=_WIDE),
        Column(name="OS-Image", cell=_node_info("osImage"), priority=_WIDE),
        Column(name="Kernel-Version", cell=_node_info("kernelVersion"), priority=_WIDE),
        Column(name="Container-Runtime", cell=_node_info("containerRuntimeVersion"), priority=_WIDE),
    ),
    SERVICES: (
        _NAME_COLUMN,
        Column(name="Type", cell=_at("spec", "type", default="ClusterIP")),
        Column(name="Cluster-IP", cell=_at("spec", "clusterIP")),
        Column(name="External-IP", cell=lambda _value, _now: "<none>"),
        Column(name="Port(s)", cell=_ports),
        _AGE_COLUMN,
        Column(name="Selector", cell=_selector, priority=_WIDE),
    ),
    CONFIG_MAPS: (_NAME_COLUMN, Column(name="Data", cell=_size), _AGE_COLUMN),
    SECRETS: (
        _NAME_COLUMN,
        Column(name="Type", cell=_at("type", default="Opaque")),
        Column(name="Data", cell=_size),
        _AGE_COLUMN,
    ),
    PERSISTENT_VOLUME_CLAIMS: (
        _NAME_COLUMN,
        Column(name="Status", cell=_at("status", "phase", default="")),
        Column(name="Volume", cell=_at("spec", "volumeName", default="")),
        Column(name="Capacity", cell=_capacity("status")),
        Column(name="Access Modes", cell=_modes),
        Column(name="StorageClass", cell=_at("spec", "storageClassName", default="")),
        _AGE_COLUMN,
    ),
    PERSISTENT_VOLUMES: (
        _NAME_COLUMN,
        Column(name="Capacity", cell=_capacity("spec")),
        Column(name="Access Modes", cell=_modes),
        Column(name="Reclaim Policy", cell=_at("spec", "persistentVolumeReclaimPolicy", default="")),
        Column(name="Status", cell=_at("status", "phase", default="")),
        Column(name="Claim", cell=_claim),
        Column(name="StorageClass", cell=_at("spec", "storageClassName", default="")),
        _AGE_COLUMN,
    ),
    STORAGE_CLASSES: (
        _NAME_COLUMN,
        Column(name="Provisioner", cell=_at("provisioner", default="")),
        Column(name="ReclaimPolicy", cell=_at("reclaimPolicy", default="")),
        Column(name="VolumeBindingMode", cell=_at("volumeBindingMode", default="")),
        _AGE_COLUMN,
    ),
    PRIORITY_CLASSES: (
        _NAME_COLUMN,
        Column(name="Value", cell=_at("value", default="0")),
        Column(name="Global-Default", cell=_at("globalDefault", default="False")),
        _AGE_COLUMN,
    ),
    POD_DISRUPTION_BUDGETS: (
        _NAME_COLUMN,
        Column(name="Min Available", cell=_at("spec", "minAvailable", default="N/A")),
        Column(name="Max Unavailable", cell=_at("spec", "maxUnavailable", default="N/A")),
        Column(name="Allowed Disruptions", cell=_of("status", "disruptionsAllowed")),
        _AGE_COLUMN,
    ),
}
