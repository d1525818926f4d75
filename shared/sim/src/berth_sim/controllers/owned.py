"""Objects that a workload owns, and the steps by which a controller changes them."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from berth_sim.apiserver.kinds import PODS, SimulatedKind
from berth_sim.apiserver.resources import DeleteOptions, Resources
from berth_sim.apiserver.status import JsonObject, StatusError
from berth_sim.apiserver.store import Key, StoredObject

FINISHED: Final = frozenset({"Succeeded", "Failed"})
MOST_PODS: Final = 5_000
"""Pods of one workload: more would fill the memory of the process."""
_SLICE: Final = 100
"""Pods that one turn of the loop creates or deletes: other clients have their turn between."""


class Owned:
    """The objects that a workload owns, at one turn of the loop."""

    def __init__(self, resources: Resources, keys: Sequence[tuple[SimulatedKind, Key]]) -> None:
        self._resources = resources
        self._keys = keys
        self.has_more_to_do = False
        self.failure = ""

    def of(self, kind: SimulatedKind) -> list[StoredObject]:
        """Owned objects that are not being deleted."""
        items = self._resources.store.table(kind).items
        found = (items.get(key) for known, key in self._keys if known is kind)
        return [one for one in found if one is not None and "deletionTimestamp" not in one.value["metadata"]]

    def terminating(self) -> int:
        items = self._resources.store.table(PODS).items
        found = (items.get(key) for known, key in self._keys if known is PODS)
        return sum(one is not None and "deletionTimestamp" in one.value["metadata"] for one in found)

    def active_pods(self) -> list[StoredObject]:
        return [pod for pod in self.of(PODS) if pod.value["status"].get("phase") not in FINISHED]

    def create_pods(self, count: int, build: Callable[[int], tuple[str, JsonObject]]) -> None:
        """Create pods, as many as a turn may; `build` returns the namespace and the body by number."""
        for number in range(min(count, _SLICE)):
            namespace, body = build(number)
            try:
                self._resources.create(PODS, namespace, body)
            except StatusError as exc:
                self.failure = exc.message
                return
        self.has_more_to_do = count > _SLICE

    def delete_pods(self, pods: Sequence[StoredObject]) -> None:
        """Delete pods, as many as a turn may."""
        for pod in pods[:_SLICE]:
            self._resources.delete(PODS, pod.key, DeleteOptions())
        self.has_more_to_do = len(pods) > _SLICE


def pod_of(kind: SimulatedKind, owner: StoredObject, template: JsonObject, **metadata: Any) -> tuple[str, JsonObject]:
    """The namespace and the body of the template's pod, with `metadata` added."""
    described = template.get("metadata") or {}
    given = {name: described[name] for name in ("labels", "annotations", "finalizers") if described.get(name)}
    for name in ("labels", "annotations"):
        if extra := metadata.pop(name, None):
            given[name] = {**given.get(name, {}), **extra}
    named = {**given, **metadata, "ownerReferences": [reference_to(kind, owner)]}
    return owner.key[0], {"metadata": named, "spec": template["spec"]}


def reference_to(kind: SimulatedKind, owner: StoredObject) -> JsonObject:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "name": owner.key[1],
        "uid": owner.value["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_ready(pod: StoredObject) -> bool:
    conditions = pod.value["status"].get("conditions") or ()
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


def write_status(resources: Resources, kind: SimulatedKind, stored: StoredObject, status: JsonObject) -> None:
    """Write the status of a workload where it differs; counts of zero are left out, as the API does."""
    present = resources.store.table(kind).items.get(stored.key)
    if present is None:
        return
    shown = {
        name: value
        for name, value in status.items()
        if value not in (0, [], None) or name in _ALWAYS.get(kind.name, ())
    }
    shown["observedGeneration"] = stored.value["metadata"].get("generation", 1)
    resources.update(kind, present, {**present.value, "status": shown}, "status")


_ALWAYS: Final = {
    "ReplicaSet": ("replicas",),
    "ReplicationController": ("replicas",),
    "StatefulSet": ("replicas", "availableReplicas"),
}


def condition(known: Sequence[JsonObject], type_: str, status: str, said: tuple[str, str], now: str) -> JsonObject:
    """A condition; `said`: reason and message. The times change only with the contents."""
    reason, message = said
    content = {"type": type_, "status": status, "reason": reason, "message": message}
    before = next((one for one in known if one.get("type") == type_), {})
    if content.items() <= before.items():
        return before
    changed = before.get("lastTransitionTime", now) if before.get("status") == content["status"] else now
    return {**content, "lastUpdateTime": now, "lastTransitionTime": changed}
