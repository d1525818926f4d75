"""Admission in the simulated API server: basic validation, defaults, priority.

Quantities are not validated, so that tests can use invalid ones. Volumes and claims get no protection finalizers,
because no controller here would remove them.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any

from berth.api.pod import DEFAULT_SCHEDULER
from berth_sim.apiserver import store as events
from berth_sim.apiserver.admission import claims, workloads
from berth_sim.apiserver.admission.workloads import POD_DEFAULTS, container_with_defaults
from berth_sim.apiserver.kinds import (
    EVENTS,
    NAMESPACES,
    NEW_EVENTS,
    NODE_INFO_FIELDS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODS,
    PRIORITY_CLASSES,
    RBAC,
    SECRETS,
    SERVICES,
    STORAGE_CLASSES,
    SimulatedKind,
)
from berth_sim.apiserver.status import JsonObject, StatusError, bad_request, forbidden, invalid
from berth_sim.apiserver.store import Store

_PENDING: JsonObject = {"phase": "Pending"}

_SPECS: Mapping[SimulatedKind, JsonObject] = {
    PERSISTENT_VOLUMES: {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"},
    PERSISTENT_VOLUME_CLAIMS: {"volumeMode": "Filesystem"},
}

_CLASS: JsonObject = {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}


def with_defaults(kind: SimulatedKind, value: JsonObject) -> JsonObject:
    if kind is STORAGE_CLASSES:
        return {**_CLASS, **value}
    if kind is SECRETS:
        return {"type": "Opaque", **with_encoded_text(value)}
    if kind is SERVICES and isinstance(value.get("spec"), dict):
        return {**value, "spec": {"type": "ClusterIP", "sessionAffinity": "None", **value["spec"]}}
    if kind not in _SPECS:
        return claims.with_defaults(kind, value)
    return {**value, "spec": {**_SPECS[kind], **(value.get("spec") or {})}, "status": _PENDING}


def with_encoded_text(secret: JsonObject) -> JsonObject:
    """The Secret with its ``stringData`` in ``data``, which alone is stored."""
    given = secret.get("stringData")
    if not given:
        return secret
    text = {name: base64.b64encode((each or "").encode()).decode() for name, each in given.items()}  # null is empty
    kept = {name: each for name, each in secret.items() if name != "stringData"}
    return {**kept, "data": {**(secret.get("data") or {}), **text}}


_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

_RBAC_NAME = re.compile(r"[^/%]+")

_NAME_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)

_NAME_LENGTH = 253

_POD_UPDATE_RULE = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)

_MUTABLE_POD_FIELDS = frozenset(
    {"activeDeadlineSeconds", "schedulingGates", "terminationGracePeriodSeconds", "tolerations"}
)

_GATED_POD_FIELDS = frozenset({"affinity", "nodeSelector"})

_DEFAULT_TOLERATIONS = tuple(
    {"key": f"node.kubernetes.io/{problem}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    for problem in ("not-ready", "unreachable")
)

_CONDITION_TIMES = {PODS: ("lastProbeTime", "lastTransitionTime"), NODES: ("lastHeartbeatTime", "lastTransitionTime")}

_COMPUTE = ("cpu", "memory")

_SELECTOR = "labelSelector"


def check_metadata(kind: SimulatedKind, value: JsonObject) -> None:
    """Check the name and the shape of the metadata.

    Raises:
        StatusError: 400 or 422, with the real server's message.
    """
    metadata = value["metadata"]
    name = metadata.get("name") or ""
    pattern = _RBAC_NAME if kind.group == RBAC else _NAME
    if not isinstance(name, str) or not pattern.fullmatch(name) or len(name) > _NAME_LENGTH:
        raise invalid(kind, str(name), "metadata.name", f'Invalid value: "{name}": {_NAME_RULE}')
    for member in ("labels", "annotations"):
        entries = metadata.get(member)
        if entries is not None and not _is_string_map(entries):
            raise bad_request(
                f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: '
                f"metadata.{member}: want strings by string, got {entries!r}"
            )


def _is_string_map(entries: Any) -> bool:
    return isinstance(entries, dict) and all(isinstance(value, str) for value in entries.values())


def admit(
    store: Store, kind: SimulatedKind, value: JsonObject, default_scheduler: str = DEFAULT_SCHEDULER
) -> JsonObject:
    """A new object with its defaults; ``default_scheduler`` applies to pods that name none.

    Raises:
        StatusError: 403 or 422, the object is rejected.
    """
    if kind is PODS:
        return with_condition_times(kind, _admit_pod(store, value, default_scheduler))
    if kind in workloads.WORKLOADS:
        return workloads.admit(kind, value, default_scheduler)
    return with_condition_times(kind, _admit(kind, value))


def _admit(kind: SimulatedKind, value: JsonObject) -> JsonObject:
    if kind is NAMESPACES:
        return _admit_namespace(value)
    if kind is EVENTS:
        _check_subject(value)
    if kind in (EVENTS, NEW_EVENTS):
        return events.with_defaults(value)
    if kind is NODES:
        return {**value, "spec": value.get("spec") or {}, "status": _node_status(value.get("status") or {})}
    value = with_defaults(kind, value)
    return {**value, "status": value.get("status") or {}} if kind.has_status else value


def _node_status(given: JsonObject) -> JsonObject:
    return {
        **given,
        "daemonEndpoints": given.get("daemonEndpoints") or {"kubeletEndpoint": {"Port": 0}},
        "nodeInfo": {**dict.fromkeys(NODE_INFO_FIELDS, ""), **(given.get("nodeInfo") or {})},
    }


def with_condition_times(kind: SimulatedKind, value: JsonObject) -> JsonObject:
    """Set missing times of conditions to null, as the real server does."""
    times = _CONDITION_TIMES.get(kind)
    conditions = (value.get("status") or {}).get("conditions")
    if times is None or not conditions or all(name in condition for condition in conditions for name in times):
        return value
    completed = [{**dict.fromkeys(times), **condition} for condition in conditions]
    return {**value, "status": {**value["status"], "conditions": completed}}


def _admit_namespace(value: JsonObject) -> JsonObject:
    metadata = value["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata["name"]}
    return {
        "metadata": {**metadata, "labels": labels},
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def _check_subject(value: JsonObject) -> None:
    """Reject an Event of core/v1 in another namespace than its object; events.k8s.io has no such rule."""
    subject = value.get("involvedObject") or {}
    metadata = value["metadata"]
    if (subject.get("namespace") or "default") != metadata["namespace"]:
        problem = f'Invalid value: "{subject.get("namespace", "")}": does not match event.namespace'
        raise invalid(EVENTS, metadata["name"], "involvedObject.namespace", problem)


def _admit_pod(store: Store, value: JsonObject, default_scheduler: str) -> JsonObject:
    name = value["metadata"]["name"]
    spec = {
        **POD_DEFAULTS,
        "enableServiceLinks": True,
        "schedulerName": default_scheduler,
        **_object(value.get("spec"), name, "spec"),
    }
    if not spec.get("containers"):
        raise invalid(PODS, name, "spec.containers", "Required value", "FieldValueRequired")
    for group in ("containers", "initContainers"):
        if spec.get(group):
            spec[group] = [_container(item, name, f"spec.{group}[{at}]") for at, item in enumerate(spec[group])]
    spec["tolerations"] = _tolerations(spec.get("tolerations") or [])
    for field in ("affinity", "topologySpreadConstraints"):
        if spec.get(field):
            spec[field] = _with_label_keys(spec[field], value["metadata"].get("labels") or {})
    return {"metadata": value["metadata"], "spec": {**spec, **_priority(store, name, spec)}, "status": _status(spec)}


def _object(value: Any, name: str, field: str) -> JsonObject:
    if not isinstance(value, dict):
        raise invalid(PODS, name, field, "Required value", "FieldValueRequired")
    return value


def _container(value: Any, pod: str, field: str) -> JsonObject:
    container = _object(value, pod, field)
    if not isinstance(container.get("name"), str) or not container["name"]:
        raise invalid(PODS, pod, f"{field}.name", "Required value", "FieldValueRequired")
    resources = container.get("resources") or {}
    if limits := resources.get("limits"):
        resources = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}
    return {**container_with_defaults(container), "resources": resources}


def _tolerations(given: list[JsonObject]) -> list[JsonObject]:
    tolerated = {toleration.get("key") for toleration in given if toleration.get("effect") in (None, "", "NoExecute")}
    if any(not toleration.get("key") and toleration.get("operator") == "Exists" for toleration in given):
        return given
    return [*given, *(default for default in _DEFAULT_TOLERATIONS if default["key"] not in tolerated)]


def _with_label_keys(value: Any, labels: JsonObject) -> Any:
    """Complete each selector by the pod's labels that matchLabelKeys and mismatchLabelKeys beside it name."""
    if isinstance(value, list):
        return [_with_label_keys(each, labels) for each in value]
    if not isinstance(value, dict):
        return value
    completed, selector = {name: _with_label_keys(inner, labels) for name, inner in value.items()}, value.get(_SELECTOR)
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for field, operator in (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))
        for key in value.get(field) or ()
        if key in labels
    ]
    if added and selector is not None:  # an absent selector selects nothing, whatever is added
        completed[_SELECTOR] = {**selector, "matchExpressions": [*(selector.get("matchExpressions") or ()), *added]}
    return completed


def _priority(store: Store, pod: str, spec: JsonObject) -> JsonObject:
    name = spec.get("priorityClassName")
    classes = store.table(PRIORITY_CLASSES).items
    if name:
        found = classes.get(("", name))
        if found is None:
            raise forbidden(PODS, pod, f"no PriorityClass with name {name} was found")
    else:
        found = next((known for known in classes.values() if known.value.get("globalDefault")), None)
    if found is None:
        return {"priority": 0, "preemptionPolicy": "PreemptLowerPriority"}
    policy = found.value.get("preemptionPolicy") or "PreemptLowerPriority"
    shown = {"priorityClassName": found.key[1]}
    return {**shown, "priority": found.value.get("value", 0), "preemptionPolicy": spec.get("preemptionPolicy", policy)}


def _status(spec: JsonObject) -> JsonObject:
    status: JsonObject = {"phase": "Pending", "qosClass": _qos_class(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
    return status


def _qos_class(spec: JsonObject) -> str:
    wanted = [item["resources"] for group in ("containers", "initContainers") for item in spec.get(group) or []]
    if all(not _compute(resources, "requests") for resources in wanted):
        return "BestEffort"
    limits = [_compute(resources, "limits") for resources in wanted]
    guaranteed = all(
        len(limit) == len(_COMPUTE) and limit == _compute(resources, "requests")
        for limit, resources in zip(limits, wanted, strict=True)
    )
    return "Guaranteed" if guaranteed else "Burstable"


def _compute(resources: JsonObject, part: str) -> JsonObject:
    amounts = resources.get(part) or {}
    return {name: amounts[name] for name in _COMPUTE if name in amounts}


def check_update(kind: SimulatedKind, before: JsonObject, after: JsonObject) -> None:
    """Reject a change of immutable fields, such as nearly all of a pod's spec, its node included.

    Raises:
        StatusError: 422.
    """
    claims.check_update(kind, before, after)
    if kind is not PODS or before["spec"] is after["spec"]:
        return
    ignored = _MUTABLE_POD_FIELDS | (_GATED_POD_FIELDS if before["spec"].get("schedulingGates") else frozenset())
    if _fixed(before["spec"], ignored) != _fixed(after["spec"], ignored):
        raise invalid(PODS, after["metadata"]["name"], "spec", _POD_UPDATE_RULE, "FieldValueForbidden")
    _check_gates(before["spec"], after)


def _fixed(spec: JsonObject, ignored: frozenset[str]) -> JsonObject:
    fixed = {member: value for member, value in spec.items() if member not in ignored}
    for group in ("containers", "initContainers"):
        if group in fixed:
            fixed[group] = [{**container, "image": ""} for container in fixed[group] or []]
    return fixed


def _check_gates(spec: JsonObject, after: JsonObject) -> None:
    gates = spec.get("schedulingGates") or []
    added = [gate for gate in after["spec"].get("schedulingGates") or [] if gate not in gates]
    if added:
        problem = f"Forbidden: only deletion is allowed, but found new scheduling gate '{added[0].get('name')}'"
        raise invalid(PODS, after["metadata"]["name"], "spec.schedulingGates", problem, "FieldValueForbidden")


def check_namespace(store: Store, kind: SimulatedKind, namespace: str, name: str) -> None:
    """Reject a new object in a missing or terminating namespace.

    Raises:
        StatusError: 404 or 403.
    """
    found = store.table(NAMESPACES).items.get(("", namespace))
    if found is None:
        details = {"name": namespace, "kind": "namespaces"}
        raise StatusError(404, "NotFound", f'namespaces "{namespace}" not found', details)
    if "deletionTimestamp" in found.value["metadata"]:
        cause = {
            "reason": "NamespaceTerminating",
            "message": f"namespace {namespace} is being terminated",
            "field": "metadata.namespace",
        }
        why = f"unable to create new content in namespace {namespace} because it is being terminated"
        raise forbidden(kind, name, why, [cause])
