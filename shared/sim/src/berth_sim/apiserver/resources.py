"""Create, read, update and delete of any kind, with preconditions, as in kube-apiserver's generic registry."""

import dataclasses
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Literal

from berth.api.pod import DEFAULT_SCHEDULER
from berth_sim.apiserver import schema
from berth_sim.apiserver import store as events
from berth_sim.apiserver.admission import claims, podgroups, workloads
from berth_sim.apiserver.admission import objects as admission
from berth_sim.apiserver.kinds import (
    KINDS,
    NAMESPACES,
    NEW_EVENTS,
    NODES,
    PODS,
    REPLICATION_CONTROLLERS,
    RESOURCE_CLAIMS,
    SECRETS,
    WITHOUT_EFFECT,
    SimulatedKind,
)
from berth_sim.apiserver.status import (
    JsonObject,
    StatusError,
    already_exists,
    bad_request,
    conflict,
    forbidden,
    invalid,
    modified,
    not_found,
)
from berth_sim.apiserver.store import DryStore, Key, Store, StoredObject


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    grace_seconds: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    orphans: bool = False  # what the object owns stays, without its owner


def check_uid(kind: SimulatedKind, key: Key, before: StoredObject | None, uid: str | None) -> None:
    """Reject a PUT with the uid of another or deleted object of the same name.

    Raises:
        StatusError: 409.
    """
    known = before.value["metadata"]["uid"] if before is not None else ""
    if uid and uid != known:
        raise conflict(kind, key[1], f"Precondition failed: UID in precondition: {uid}, UID in object meta: {known}")


def version_required(kind: SimulatedKind, name: str) -> StatusError:
    """422: an update without metadata.resourceVersion."""
    problem = "Invalid value: 0: must be specified for an update"
    cause = {"reason": "FieldValueInvalid", "message": problem, "field": "metadata.resourceVersion"}
    details = {"name": name, "group": kind.group, "kind": kind.plural, "causes": [cause]}
    message = f'{kind.resource} "{name}" is invalid: metadata.resourceVersion: {problem}'
    return StatusError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message, details)


def check_delete(kind: SimulatedKind, before: StoredObject, options: DeleteOptions) -> None:
    """Reject a DELETE whose precondition names another uid or another resourceVersion.

    Raises:
        StatusError: 409.
    """
    metadata = before.value["metadata"]
    details = {"name": before.key[1], "kind": kind.name}
    cannot = f'Operation cannot be fulfilled on {kind.name} "{before.key[1]}": '
    if options.uid is not None and options.uid != metadata["uid"]:
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']}). "
            "The object might have been deleted and then recreated"
        )
        raise StatusError(HTTPStatus.CONFLICT, "Conflict", cannot + why, details)
    version = options.resource_version
    if version is not None and version != metadata["resourceVersion"]:
        why = (
            f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
            f"({metadata['resourceVersion']}). The object might have been modified"
        )
        raise StatusError(HTTPStatus.CONFLICT, "Conflict", cannot + why, details)


Part = Literal["", "status"]  # subresource of a write; empty: the object itself

Clock = Callable[[], datetime]


_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"

_SUFFIX_LENGTH = 5

_LONGEST_PREFIX = 58

_KEPT_METADATA = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
)

_FINISHED = frozenset({"Succeeded", "Failed"})

_IMMORTAL = frozenset({"default", "kube-public", "kube-system"})

_DEFAULT_GRACE_SECONDS = 30


def utc_now() -> datetime:
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """The time in the API's form, to the second."""
    return moment.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


class Resources:
    def __init__(self, store: Store, clock: Clock = utc_now, default_scheduler: str = DEFAULT_SCHEDULER) -> None:
        self.store = store
        self.clock = clock
        self._default_scheduler = default_scheduler

    def dry(self) -> "Resources":
        """No write is kept."""
        return Resources(DryStore(self.store), self.clock, self._default_scheduler)

    def find(self, kind: SimulatedKind, key: Key) -> StoredObject:
        """The stored object.

        Raises:
            StatusError: 404, there is no such object.
        """
        stored = self.store.table(kind).items.get(key)
        if stored is None:
            raise not_found(kind, key[1])
        return stored

    def create(self, kind: SimulatedKind, namespace: str, body: Any) -> StoredObject:
        """Store a new object under its name, or under one made from its generateName.

        Raises:
            StatusError: 400, 403, 404, 409 or 422.
        """
        value = incoming(kind, namespace, body)
        if value["metadata"].get("resourceVersion"):
            raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
        name = self._name(kind, namespace, value["metadata"])
        value["metadata"] = self._new_metadata(kind, namespace, name, value["metadata"])
        if kind.namespaced:
            admission.check_namespace(self.store, kind, namespace, name)
        admission.check_metadata(kind, value)
        podgroups.check(kind, value)
        value = admission.admit(self.store, kind, value, self._default_scheduler)
        claims.check_requests(self.store, kind, {}, value)
        if (namespace, name) in self.store.table(kind).items:
            raise already_exists(kind, name)
        return self.store.put(kind, (namespace, name), value)

    def _name(self, kind: SimulatedKind, namespace: str, metadata: JsonObject) -> str:
        name, prefix = metadata.get("name"), metadata.get("generateName")
        if name:
            return str(name)
        if not prefix:
            problem = "Required value: name or generateName is required"
            raise invalid(kind, "", "metadata.name", problem, "FieldValueRequired")
        taken = self.store.table(kind).items
        while True:
            suffix = "".join(random.choices(_SUFFIX_LETTERS, k=_SUFFIX_LENGTH))
            if (namespace, f"{prefix[:_LONGEST_PREFIX]}{suffix}") not in taken:
                return f"{prefix[:_LONGEST_PREFIX]}{suffix}"

    def _new_metadata(self, kind: SimulatedKind, namespace: str, name: str, given: JsonObject) -> JsonObject:
        kept = {member: value for member, value in given.items() if member not in _SET_BY_SERVER}
        return {
            "name": name,
            **({"namespace": namespace} if kind.namespaced else {}),
            "uid": str(uuid.uuid4()),
            "resourceVersion": "",
            **({"generation": 1} if kind.has_generation else {}),
            "creationTimestamp": timestamp(self.clock()),
            **kept,
        }

    def replace(self, kind: SimulatedKind, key: Key, body: Any, part: Part = "") -> tuple[StoredObject, bool]:
        """Write a whole object; return it and whether it is new (leases and events may be made by a PUT).

        Raises:
            StatusError: 400, 404, 409 or 422.
        """
        value = incoming(kind, key[0], body)
        named = value["metadata"].get("name")
        if named != key[1]:
            raise bad_request(f"the name of the object ({named}) does not match the name on the URL ({key[1]})")
        before = self.store.table(kind).items.get(key)
        if before is None and (part or not kind.creates_on_update):
            raise not_found(kind, key[1])
        check_uid(kind, key, before, value["metadata"].get("uid"))
        if before is None:
            return self._create_by_update(kind, key, value), True
        if kind.updates_need_version and not value["metadata"].get("resourceVersion"):
            raise version_required(kind, key[1])
        return self.update(kind, before, value, part), False

    def _create_by_update(self, kind: SimulatedKind, key: Key, value: JsonObject) -> StoredObject:
        metadata = {member: entry for member, entry in value["metadata"].items() if member != "resourceVersion"}
        return self.create(kind, key[0], as_shown(kind, {**value, "metadata": metadata}))

    def change(
        self, kind: SimulatedKind, key: Key, patch: Callable[[JsonObject], Any], part: Part = ""
    ) -> StoredObject:
        """Apply a patch to an object and write the result.

        Raises:
            StatusError: 400, 404, 409 or 422.
        """
        before = self.find(kind, key)
        value = incoming(kind, key[0], patch(as_shown(kind, before.value)))
        uid = before.value["metadata"]["uid"]
        if value["metadata"].get("uid") != uid:
            problem = f'Invalid value: "{value["metadata"].get("uid")}": field is immutable'
            raise invalid(kind, key[1], "metadata.uid", problem)
        return self.update(kind, before, value, part)

    def update(self, kind: SimulatedKind, before: StoredObject, value: JsonObject, part: Part = "") -> StoredObject:
        """Update an object; without a change its resourceVersion stays the same.

        Raises:
            StatusError: 409, the value has another resourceVersion; 422, it changes an immutable field.
        """
        version = value["metadata"].get("resourceVersion")
        if version and version != before.value["metadata"]["resourceVersion"]:
            raise modified(kind, before.key[1])
        after = admission.with_condition_times(kind, _only_part(kind, before.value, value, part))
        if kind is SECRETS:
            after = admission.with_encoded_text(after)
        if kind in workloads.WORKLOADS and not part:
            after = workloads.with_defaults(kind, after, self._default_scheduler)
        after = claims.without_old_reports(kind, before.value, after)
        if after == before.value:
            return before
        admission.check_metadata(kind, after)
        podgroups.check(kind, after)
        admission.check_update(kind, before.value, after)
        claims.check_requests(self.store, kind, before.value, after)
        if kind.has_generation and after.get("spec") != before.value.get("spec"):
            after["metadata"]["generation"] = after["metadata"].get("generation", 0) + 1
        if _is_over(kind, after):
            self.store.remove(kind, before.key)
            return StoredObject(before.kind, before.key, before.revision, after)
        return self.store.put(kind, before.key, after)

    def delete(self, kind: SimulatedKind, key: Key, options: DeleteOptions) -> tuple[StoredObject, bool]:
        """Delete an object, or mark it as terminating; return its last state and whether it was removed.

        Raises:
            StatusError: 404; 409, a precondition does not hold.
        """
        before = self.find(kind, key)
        check_delete(kind, before, options)
        if kind is NAMESPACES and key[1] in _IMMORTAL:
            raise forbidden(kind, key[1], "this namespace may not be deleted")
        if options.orphans:
            self._orphan(before.value["metadata"]["uid"])
        if kind is PODS:
            return self._delete_pod(before, options)
        if before.value["metadata"].get("finalizers") or kind is NAMESPACES:
            return self._mark(kind, before), False
        self.store.remove(kind, key)
        return before, True

    def _orphan(self, owner: str) -> None:
        for kind in KINDS:
            for stored in tuple(self.store.table(kind).items.values()):
                references = stored.value["metadata"].get("ownerReferences") or ()
                others = [reference for reference in references if reference.get("uid") != owner]
                if len(others) < len(references):
                    metadata = {**stored.value["metadata"], "ownerReferences": others}
                    self.store.put(kind, stored.key, {**stored.value, "metadata": metadata})

    def _mark(self, kind: SimulatedKind, before: StoredObject) -> StoredObject:
        if "deletionTimestamp" in before.value["metadata"]:
            return before
        metadata = {**before.value["metadata"], "deletionTimestamp": timestamp(self.clock())}
        status = {"status": {"phase": "Terminating"}} if kind is NAMESPACES else {}
        return self.store.put(kind, before.key, {**before.value, **status, "metadata": metadata})

    def _delete_pod(self, before: StoredObject, options: DeleteOptions) -> tuple[StoredObject, bool]:
        metadata = before.value["metadata"]
        grace = _grace_seconds(before.value, options)
        marked = metadata.get("deletionGracePeriodSeconds")
        if marked is None or grace < marked:
            ends_at = timestamp(self.clock() + timedelta(seconds=grace))
            ending = {"deletionTimestamp": ends_at, "deletionGracePeriodSeconds": grace}
            generation = metadata.get("generation", 0) + (marked is None)
            changed = {**metadata, **ending, "generation": generation}
            before = self.store.put(PODS, before.key, {**before.value, "metadata": changed})
        if grace > 0 or metadata.get("finalizers"):
            return before, False
        self.store.remove(PODS, before.key)
        return before, True


_SET_BY_SERVER = frozenset(
    {"name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "selfLink"}
)


def incoming(kind: SimulatedKind, namespace: str, body: Any) -> JsonObject:
    """The request's body as a new object in its stored form.

    Raises:
        StatusError: 400, another kind, another namespace, or not an object.
    """
    if not isinstance(body, dict) or not isinstance(body.get("metadata", {}), dict):
        raise bad_request(f'{kind.name} in version "{kind.version}" cannot be handled as a {kind.name}: not an object')
    if body.get("kind", kind.name) != kind.name or body.get("apiVersion", kind.api_version) != kind.api_version:
        raise bad_request(
            f'{body.get("kind")} in version "{body.get("apiVersion")}" cannot be handled as a {kind.name}: want '
            f"{kind.name} in {kind.api_version}"
        )
    metadata = body.get("metadata") or {}
    if kind.namespaced and metadata.get("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if kind in _CHECKED:  # other kinds take every value, since tests need wrong ones
        schema.refuse_wrong_types(schema.type_of(kind.group, kind.name), body, kind.name)
    value = {"metadata": metadata, **{member: body[member] for member in body if member not in _HEAD}}
    return events.as_core_event(value) if kind is NEW_EVENTS else value


_CHECKED = workloads.WORKLOADS | {*WITHOUT_EFFECT}

_HEAD = frozenset({"kind", "apiVersion", "metadata"})


def as_shown(kind: SimulatedKind, value: JsonObject) -> JsonObject:
    """A stored object in the kind's own form (the two kinds of events share their objects)."""
    return events.as_new_event(value) if kind is NEW_EVENTS else value


def _only_part(kind: SimulatedKind, before: JsonObject, value: JsonObject, part: Part) -> JsonObject:
    """`value`, with the fields that this write may not change taken from `before`."""
    kept = {member: before["metadata"][member] for member in _KEPT_METADATA if member in before["metadata"]}
    metadata = {
        **{member: entry for member, entry in value["metadata"].items() if member not in _KEPT_METADATA and entry},
        **kept,
        "resourceVersion": before["metadata"]["resourceVersion"],
    }
    if part == "status":
        if kind is RESOURCE_CLAIMS:  # of other kinds, labels, annotations and owners may change with the status
            metadata = before["metadata"]
        return {**before, "metadata": metadata, "status": value.get("status") or {}}
    if kind.has_status:
        return {**value, "metadata": metadata, "status": before.get("status") or {}}
    return {**value, "metadata": metadata}


def _is_over(kind: SimulatedKind, value: JsonObject) -> bool:
    metadata = value["metadata"]
    if "deletionTimestamp" not in metadata or metadata.get("finalizers") or kind is NAMESPACES:
        return False
    return not kind.is_graceful or metadata.get("deletionGracePeriodSeconds", 0) == 0


def _grace_seconds(pod: JsonObject, options: DeleteOptions) -> int:
    """Seconds until the pod is removed; 0 without a node or after the pod's end."""
    if not pod["spec"].get("nodeName") or pod["status"].get("phase") in _FINISHED:
        return 0
    given = options.grace_seconds
    grace = pod["spec"].get("terminationGracePeriodSeconds", _DEFAULT_GRACE_SECONDS) if given is None else given
    return int(grace) if grace >= 0 else 1


def scale_of(kind: SimulatedKind, value: JsonObject) -> JsonObject:
    metadata = {name: value["metadata"][name] for name in _SCALE_METADATA if name in value["metadata"]}
    selector = value["spec"].get("selector") or {}
    if kind is not REPLICATION_CONTROLLERS:
        selector = selector.get("matchLabels") or {}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": value["spec"].get("replicas", 1)},
        "status": {
            "replicas": (value.get("status") or {}).get("replicas", 0),
            "selector": ",".join(f"{key}={label}" for key, label in sorted(selector.items())),
        },
    }


_SCALE_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def rescale(resources: Resources, kind: SimulatedKind, key: Key, scale: Any) -> JsonObject:
    """Write the replicas of a Scale into its workload, and return the workload.

    Raises:
        StatusError: 400, 404, 409 or 422.
    """
    before = resources.find(kind, key)
    schema.refuse_wrong_types(schema.SCALE, scale, "Scale")
    replicas = (scale.get("spec") or {}).get("replicas") or 0
    if replicas < 0:
        problem = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise StatusError(422, "Invalid", f'Scale.autoscaling "{key[1]}" is invalid: spec.replicas: {problem}')
    version = (scale.get("metadata") or {}).get("resourceVersion") or ""
    metadata = {**before.value["metadata"], "resourceVersion": version}
    value = {**before.value, "metadata": metadata, "spec": {**before.value["spec"], "replicas": replicas}}
    return resources.update(kind, before, value).value


# Copied from the node onto the pod since Kubernetes 1.35.
TOPOLOGY_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")

_SUBRESOURCE = "pods/binding"


def bind(resources: Resources, namespace: str, name: str, binding: Any) -> None:
    """Bind a pod to the node of the Binding; the node need not exist.

    Raises:
        StatusError: 400, 404, or 409 if the pod is bound, terminating, gated, or has another uid or resourceVersion.
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
        raise StatusError(500, "", "target.name: Required value")
    return metadata, target["name"]


def _check_preconditions(pod: StoredObject, wanted: JsonObject) -> None:
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


def _check_bindable(pod: StoredObject) -> None:
    name, spec = pod.key[1], pod.value["spec"]
    if "deletionTimestamp" in pod.value["metadata"]:
        raise _refused(name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise _refused(name, f'pod {name} is already assigned to node "{spec["nodeName"]}"')
    if spec.get("schedulingGates"):
        raise _refused(name, f"pod {name} has non-empty .spec.schedulingGates")


def _refused(name: str, why: str) -> StatusError:
    message = f'Operation cannot be fulfilled on {_SUBRESOURCE} "{name}": {why}'
    return StatusError(409, "Conflict", message, {"name": name, "kind": _SUBRESOURCE})


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
