"""The Binding subresource: puts a pod on a node, once."""

from typing import Any

from berth.sim.kinds import NODES, PODS
from berth.sim.resources import Clock, Resources, timestamp
from berth.sim.status import ApiError, JsonObject, bad_request, conflict
from berth.sim.store import Stored

# Copied from the node onto the pod since Kubernetes 1.35.
TOPOLOGY_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")
_SUBRESOURCE = "pods/binding"


def bind(resources: Resources, namespace: str, name: str, binding: Any) -> None:
    """Put a pod on the node that the Binding names; the node need not exist.

    Raises:
        ApiError: 400, 404, or 409 when the pod is bound, terminating, gated or not the one that the Binding means.
    """
    metadata, node = _decoded(binding, name)
    pod = resources.find(PODS, (namespace, name))
    _check_preconditions(pod, metadata)
    _check_bindable(pod)
    resources.store.put(PODS, pod.key, _bound(resources, pod.value, metadata, node))


def _decoded(binding: Any, name: str) -> tuple[JsonObject, str]:
    if not isinstance(binding, dict):
        raise bad_request('Binding in version "v1" cannot be handled as a Binding: not an object')
    metadata = binding.get("metadata") or {}
    if metadata.get("name", name) != name:
        raise bad_request("name in URL does not match name in Binding object")
    target = binding.get("target") or {}
    if not target.get("name"):
        raise ApiError(500, "", "target.name: Required value")
    return metadata, target["name"]


def _check_preconditions(pod: Stored, wanted: JsonObject) -> None:
    for member, label in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        actual = pod.value["metadata"][member]
        if wanted.get(member) and wanted[member] != actual:
            raise conflict(
                PODS,
                pod.key[1],
                f"StorageError: invalid object, Code: 4, Key: /registry/pods/{pod.key[0]}/{pod.key[1]}, "
                f"ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: {label} in precondition: "
                f"{wanted[member]}, {label} in object meta: {actual}",
            )


def _check_bindable(pod: Stored) -> None:
    name, spec = pod.key[1], pod.value["spec"]
    if "deletionTimestamp" in pod.value["metadata"]:
        raise _refused(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise _refused(name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise _refused(name, f"pod {name} has non-empty .spec.schedulingGates")


def _refused(name: str, why: str) -> ApiError:
    message = f'Operation cannot be fulfilled on {_SUBRESOURCE} "{name}": {why}'
    return ApiError(409, "Conflict", message, {"name": name, "kind": _SUBRESOURCE})


def _bound(resources: Resources, pod: JsonObject, binding: JsonObject, node: str) -> JsonObject:
    labels = {**(pod["metadata"].get("labels") or {}), **(binding.get("labels") or {}), **_topology(resources, node)}
    annotations = {**(pod["metadata"].get("annotations") or {}), **(binding.get("annotations") or {})}
    metadata = {**pod["metadata"]}
    if labels:
        metadata["labels"] = labels
    if annotations:
        metadata["annotations"] = annotations
    status = {member: value for member, value in pod["status"].items() if member != "nominatedNodeName"}
    status["conditions"] = _scheduled(status.get("conditions") or [], resources.clock)
    return {"metadata": metadata, "spec": {**pod["spec"], "nodeName": node}, "status": status}


def _topology(resources: Resources, node: str) -> dict[str, str]:
    found = resources.store.table(NODES).items.get(("", node))
    labels = (found.value["metadata"].get("labels") or {}) if found else {}
    return {label: labels[label] for label in TOPOLOGY_LABELS if label in labels}


def _scheduled(conditions: list[JsonObject], clock: Clock) -> list[JsonObject]:
    condition = {
        "type": "PodScheduled",
        "status": "True",
        "lastProbeTime": None,
        "lastTransitionTime": timestamp(clock()),
    }
    return [*(known for known in conditions if known.get("type") != "PodScheduled"), condition]
