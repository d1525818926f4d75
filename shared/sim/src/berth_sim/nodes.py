"""Simulated nodes: kubelets that start and end their pods, the taint of a cordon, manifests of nodes and pods."""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from berth.api.node import UNSCHEDULABLE_TAINT
from berth_sim.apiserver.kinds import NODES, PODS
from berth_sim.apiserver.resources import DeleteOptions, Resources, timestamp
from berth_sim.apiserver.status import JsonObject, StatusError
from berth_sim.apiserver.store import Key, StoredObject, StoreEvent

_RUNNING_CONDITIONS = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")
_CORDON = {"key": UNSCHEDULABLE_TAINT.key, "effect": UNSCHEDULABLE_TAINT.effect}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    start_delay: timedelta = timedelta(seconds=0.5)  # from Binding to Running
    longest_grace: timedelta = timedelta(seconds=1)  # upper limit of a terminating pod's grace period
    job_duration: timedelta = timedelta(seconds=5)  # from Running to Succeeded, for the pods of Jobs


class Kubelet:
    """Watches the pods of the store, and starts and ends them; ignores pods on missing nodes."""

    def __init__(self, resources: Resources, settings: KubeletSettings) -> None:
        self._resources = resources
        self._settings = settings
        self._timers: set[asyncio.TimerHandle] = set()

    def start(self) -> None:
        table = self._resources.store.table(PODS)
        for stored in table.in_order():
            self._look_at(None, stored)
        table.listeners[self._take] = None

    def stop(self) -> None:
        del self._resources.store.table(PODS).listeners[self._take]
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _take(self, change: StoreEvent) -> None:
        if change.after is not None:
            self._look_at(change.before, change.after)

    def _look_at(self, before: StoredObject | None, pod: StoredObject) -> None:
        if not pod.value["spec"].get("nodeName") or not self._has_node(pod):
            return
        metadata = pod.value["metadata"]
        if "deletionTimestamp" in metadata:
            if before is None or "deletionTimestamp" not in before.value["metadata"]:
                grace = timedelta(seconds=metadata.get("deletionGracePeriodSeconds", 0))
                self._later(min(grace, self._settings.longest_grace), partial(self._end, pod.key, metadata["uid"]))
        elif before is None or not before.value["spec"].get("nodeName"):
            self._later(self._settings.start_delay, partial(self._run, pod.key, metadata["uid"]))

    def _has_node(self, pod: StoredObject) -> bool:
        return ("", pod.value["spec"]["nodeName"]) in self._resources.store.table(NODES).items

    def _later(self, delay: timedelta, act: Callable[[], None]) -> None:
        timers = self._timers

        def fire() -> None:
            timers.discard(timer)
            act()

        timer = asyncio.get_running_loop().call_later(delay.total_seconds(), fire)
        timers.add(timer)

    def _current(self, key: Key, uid: str) -> StoredObject | None:
        pod = self._resources.store.table(PODS).items.get(key)
        return pod if pod is not None and pod.value["metadata"]["uid"] == uid else None

    def _run(self, key: Key, uid: str) -> None:
        pod = self._current(key, uid)
        if pod is None or "deletionTimestamp" in pod.value["metadata"] or pod.value["status"]["phase"] != "Pending":
            return
        status = running_status(pod.value, timestamp(self._resources.clock()))
        self._resources.store.put(PODS, key, {**pod.value, "status": status})
        if any(owner.get("kind") == "Job" for owner in pod.value["metadata"].get("ownerReferences") or ()):
            self._later(self._settings.job_duration, partial(self._succeed, key, uid))

    def _succeed(self, key: Key, uid: str) -> None:
        pod = self._current(key, uid)
        if pod is not None and "deletionTimestamp" not in pod.value["metadata"]:
            status = succeeded_status(pod.value, timestamp(self._resources.clock()))
            self._resources.store.put(PODS, key, {**pod.value, "status": status})

    def _end(self, key: Key, uid: str) -> None:
        try:
            self._resources.delete(PODS, key, DeleteOptions(grace_seconds=0, uid=uid))
        except StatusError:
            return  # another client removed it first


class CordonTaints:
    """Taints cordoned nodes, and removes the taint from others, as Kubernetes' node lifecycle controller."""

    def __init__(self, resources: Resources) -> None:
        self._store = resources.store

    def start(self) -> None:
        """Watch for changes; existing nodes keep their taints."""
        self._store.table(NODES).listeners[self._take] = None

    def stop(self) -> None:
        del self._store.table(NODES).listeners[self._take]

    def _take(self, change: StoreEvent) -> None:
        if change.after is not None and _tainted(change.after.value) is not change.after.value:
            asyncio.get_running_loop().call_soon(self._taint, change.key)  # not within the write that is being reported

    def _taint(self, key: Key) -> None:
        node = self._store.table(NODES).items.get(key)
        if node is not None and (value := _tainted(node.value)) is not node.value:
            self._store.put(NODES, key, value)


def _tainted(node: JsonObject) -> JsonObject:
    spec = node.get("spec") or {}
    taints, is_cordoned = spec.get("taints") or [], bool(spec.get("unschedulable"))
    others = [taint for taint in taints if not _is_of_a_cordon(taint)]
    if (len(others) < len(taints)) is is_cordoned:
        return node
    wanted = [*others, _CORDON] if is_cordoned else others
    kept = {member: value for member, value in spec.items() if member != "taints"}
    return {**node, "spec": {**kept, **({"taints": wanted} if wanted else {})}}


def _is_of_a_cordon(taint: object) -> bool:
    return isinstance(taint, dict) and _CORDON.items() <= taint.items()


def running_status(pod: JsonObject, now: str) -> JsonObject:
    """The status that a kubelet writes when all containers of a pod run."""
    conditions = {condition["type"]: condition for condition in pod["status"].get("conditions") or []}
    for name in _RUNNING_CONDITIONS:
        conditions[name] = {"type": name, "status": "True", "lastProbeTime": None, "lastTransitionTime": now}
    containers = [_container_status(container, now) for container in pod["spec"]["containers"]]
    return {
        **pod["status"],
        "phase": "Running",
        "startTime": now,
        "conditions": list(conditions.values()),
        "containerStatuses": containers,
    }


def succeeded_status(pod: JsonObject, now: str) -> JsonObject:
    """The status of a running pod after its containers have ended well."""
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}}
    containers = [
        {**status, "ready": False, "started": False, "state": ended} for status in pod["status"]["containerStatuses"]
    ]
    conditions = [
        {**known, "status": "False", "reason": "PodCompleted"} if known["type"] in _READY else known
        for known in pod["status"]["conditions"]
    ]
    return {**pod["status"], "phase": "Succeeded", "conditions": conditions, "containerStatuses": containers}


_READY = frozenset({"Ready", "ContainersReady"})


def _container_status(container: JsonObject, now: str) -> JsonObject:
    return {
        "name": container["name"],
        "image": container.get("image", ""),
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}},
    }


ZONE_LABEL = "topology.kubernetes.io/zone"

REGION_LABEL = "topology.kubernetes.io/region"

HOSTNAME_LABEL = "kubernetes.io/hostname"

ZONES = ("zone-a", "zone-b", "zone-c")


def node_manifest(  # noqa: PLR0913 - keyword-only, each with its default
    name: str,
    *,
    cpu: str = "4",
    memory: str = "16Gi",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    zone: str = "",
    unschedulable: bool = False,
    extended: Mapping[str, str] | None = None,
) -> JsonObject:
    """A node that is ready and offers all of its capacity.

    Args:
        name: Name and hostname label.
        cpu: Capacity as a quantity.
        memory: Capacity as a quantity.
        pods: The number of pods it allows.
        labels: Labels besides hostname and zone.
        taints: Taints as in the API.
        zone: Value of the zone label; empty: no label.
        unschedulable: Whether it is cordoned, with the taint.
        extended: Extended resources by name, as quantities.
    """
    amounts = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "100Gi", **(extended or {})}
    spec: JsonObject = {"taints": [dict(taint) for taint in taints]} if taints else {}
    if unschedulable:
        spec = {"taints": [*spec.get("taints", ()), dict(_CORDON)], "unschedulable": True}
    zone_labels = {ZONE_LABEL: zone} if zone else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME_LABEL: name, **zone_labels, **(labels or {})}},
        "spec": spec,
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }


def pod_manifest(  # noqa: PLR0913 - keyword-only, each with its default
    name: str,
    *,
    namespace: str = "default",
    cpu: str = "100m",
    memory: str = "128Mi",
    labels: Mapping[str, str] | None = None,
    scheduler: str = "berth",
    node: str = "",
    priority_class: str = "",
    spec: Mapping[str, Any] | None = None,
) -> JsonObject:
    """A pod of one container.

    Args:
        name: Name.
        namespace: Namespace.
        cpu: Request as a quantity; empty: no request.
        memory: Request as a quantity; empty: no request.
        labels: Labels.
        scheduler: Its schedulerName.
        node: The node that it is bound to; empty for a pending pod.
        priority_class: Its priorityClassName; may be empty.
        spec: Further members of its spec: nodeSelector, tolerations, affinity, schedulingGates, ...
    """
    wanted = {resource: amount for resource, amount in (("cpu", cpu), ("memory", memory)) if amount}
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": wanted}}
    optional = {"nodeName": node, "priorityClassName": priority_class}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {
            "schedulerName": scheduler,
            "containers": [container],
            **{member: value for member, value in optional.items() if value},
            **(spec or {}),
        },
    }


def node_manifests(count: int, *, cpu: str = "4", memory: str = "16Gi", pods: int = 110) -> list[JsonObject]:
    width = len(str(max(count - 1, 0)))
    return [
        node_manifest(f"node-{number:0{width}}", cpu=cpu, memory=memory, pods=pods, zone=ZONES[number % len(ZONES)])
        for number in range(count)
    ]
