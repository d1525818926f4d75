"""Deployments: one ReplicaSet for each template, and pods move from the old ones to the newest."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from berth_sim.apiserver.kinds import DEPLOYMENTS, REPLICA_SETS
from berth_sim.apiserver.resources import DeleteOptions, Resources, timestamp
from berth_sim.apiserver.status import JsonObject
from berth_sim.apiserver.store import StoredObject
from berth_sim.controllers.owned import Owned, condition, reference_to, write_status

HASH_LABEL: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"


def keep_deployment(resources: Resources, deployment: StoredObject, owned: Owned) -> None:
    """Make the ReplicaSet of the template, move replicas to it, and forget old ones without replicas."""
    spec = deployment.value["spec"]
    sets = sorted(owned.of(REPLICA_SETS), key=_revision)
    newest = next((one for one in sets if _is_of(one, spec["template"])), None)
    if newest is None and not spec.get("paused"):
        newest = _create(resources, deployment, sets)
        sets.append(newest)
    elif newest is not None and newest is not sets[-1] and not spec.get("paused"):
        newest = _mark(resources, newest, _revision(sets[-1]) + 1)
    if newest is None:
        return
    older = [one for one in sets if one.key != newest.key]
    for key, replicas in _targets(spec, newest, older).items():
        _scale(resources, key, replicas)
    idle = [one for one in older if not one.value["spec"].get("replicas") and not _count(one, "replicas")]
    for one in idle[: max(0, len(idle) - spec.get("revisionHistoryLimit", 10))]:
        resources.delete(REPLICA_SETS, one.key, DeleteOptions())
    _write_status(resources, deployment, newest, older)


def template_hash(template: Any) -> str:
    digest = hashlib.sha256(msgspec.json.encode(template, order="sorted")).digest()
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:10])


def _revision(one: StoredObject) -> int:
    text = (one.value["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdecimal() else 0


def _is_of(one: StoredObject, template: JsonObject) -> bool:
    own = one.value["spec"]["template"]
    labels = {name: value for name, value in own["metadata"].get("labels", {}).items() if name != HASH_LABEL}
    described = {**own["metadata"], "labels": labels}
    return bool({**own, "metadata": described} == {**template, "metadata": {"labels": {}, **template["metadata"]}})


def _create(resources: Resources, deployment: StoredObject, sets: Sequence[StoredObject]) -> StoredObject:
    spec, name = deployment.value["spec"], template_hash(deployment.value["spec"]["template"])
    described = spec["template"]["metadata"]
    labels = {**(described.get("labels") or {}), HASH_LABEL: name}
    template = {**spec["template"], "metadata": {**described, "labels": labels}}
    selected = spec.get("selector") or {}
    selector = {**selected, "matchLabels": {**(selected.get("matchLabels") or {}), HASH_LABEL: name}}
    body = {
        "metadata": {
            "name": f"{deployment.key[1]}-{name}",
            "labels": labels,
            "annotations": {**_copied(deployment), REVISION: str(_revision(sets[-1]) + 1 if sets else 1)},
            "ownerReferences": [reference_to(DEPLOYMENTS, deployment)],
        },
        "spec": {"replicas": 0, "selector": selector, "template": template},
    }
    return resources.create(REPLICA_SETS, deployment.key[0], body)


def _copied(deployment: StoredObject) -> Mapping[str, str]:
    """The annotations that its ReplicaSets get: `kubectl rollout history` shows a change's cause by them."""
    annotations = deployment.value["metadata"].get("annotations") or {}
    return {name: text for name, text in annotations.items() if name not in (_LAST_APPLIED, REVISION)}


def _mark(resources: Resources, one: StoredObject, revision: int) -> StoredObject:
    metadata = one.value["metadata"]
    annotations = {**(metadata.get("annotations") or {}), REVISION: str(revision)}
    return resources.update(REPLICA_SETS, one, {**one.value, "metadata": {**metadata, "annotations": annotations}})


def _targets(spec: JsonObject, newest: StoredObject, older: Sequence[StoredObject]) -> Mapping[tuple[str, str], int]:
    wanted, present = spec.get("replicas", 1), newest.value["spec"].get("replicas", 0)
    old = sum(one.value["spec"].get("replicas", 0) for one in older)
    if (spec.get("strategy") or {}).get("type") == "Recreate":
        left = any(one.value["spec"].get("replicas", 0) or _count(one, "replicas") for one in older)
        return {**{one.key: 0 for one in older}, newest.key: present if left else wanted}
    surge, unavailable = _bounds(spec, wanted)
    targets = {newest.key: wanted if present > wanted else min(wanted, max(present, wanted + surge - old))}
    available = _count(newest, "availableReplicas")
    everything = old + present
    spare = everything - (wanted - unavailable) - (present - available)
    for one in older:
        replicas = one.value["spec"].get("replicas", 0)
        less = max(0, min(replicas, spare))
        targets[one.key] = replicas - less
        spare -= less
    return targets


def _bounds(spec: JsonObject, wanted: int) -> tuple[int, int]:
    """maxSurge rounded up, maxUnavailable rounded down; one pod at a time where both are zero."""
    rolling = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    surge = _share(rolling.get("maxSurge", "25%"), wanted, math.ceil)
    unavailable = _share(rolling.get("maxUnavailable", "25%"), wanted, math.floor)
    return surge, unavailable if surge or unavailable else 1


def _share(value: Any, wanted: int, rounded: Any) -> int:
    if isinstance(value, str) and value.endswith("%") and value[:-1].isdecimal():
        return int(rounded(wanted * int(value[:-1]) / 100))
    return value if isinstance(value, int) else 0


def _scale(resources: Resources, key: tuple[str, str], replicas: int) -> None:
    stored = resources.store.table(REPLICA_SETS).items.get(key)
    if stored is not None and stored.value["spec"].get("replicas") != replicas:
        spec = {**stored.value["spec"], "replicas": replicas}
        resources.update(REPLICA_SETS, stored, {**stored.value, "spec": spec})


def _count(one: StoredObject, name: str) -> int:
    return int((one.value.get("status") or {}).get(name, 0))


def _write_status(
    resources: Resources, deployment: StoredObject, newest: StoredObject, older: Sequence[StoredObject]
) -> None:
    wanted = deployment.value["spec"].get("replicas", 1)
    sets = (newest, *older)
    replicas, ready, available = (sum(_count(one, name) for one in sets) for name in _COUNTS)
    known = (deployment.value.get("status") or {}).get("conditions") or ()
    _, unavailable = _bounds(deployment.value["spec"], wanted)
    now = timestamp(resources.clock())
    conditions = [
        condition(known, "Available", *_availability(available >= wanted - unavailable), now),
        condition(known, "Progressing", "True", _progress(newest, replicas, wanted), now),
    ]
    conditions += [one for each in sets for one in (each.value.get("status") or {}).get("conditions") or ()]
    status = {
        "replicas": replicas,
        "updatedReplicas": _count(newest, "replicas"),
        "readyReplicas": ready,
        "availableReplicas": available,
        "unavailableReplicas": max(0, wanted - available),
        "conditions": conditions,
    }
    write_status(resources, DEPLOYMENTS, deployment, status)
    _annotate(resources, deployment, str(_revision(newest)))


_COUNTS: Final = ("replicas", "readyReplicas", "availableReplicas")


def _progress(newest: StoredObject, replicas: int, wanted: int) -> tuple[str, str]:
    name = newest.key[1]
    if _count(newest, "availableReplicas") >= wanted and replicas == wanted:
        return "NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.'
    return "ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.'


def _availability(is_available: bool) -> tuple[str, tuple[str, str]]:  # noqa: FBT001 - the only argument
    if is_available:
        return "True", ("MinimumReplicasAvailable", "Deployment has minimum availability.")
    return "False", ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")


def _annotate(resources: Resources, deployment: StoredObject, revision: str) -> None:
    present = resources.store.table(DEPLOYMENTS).items.get(deployment.key)
    metadata = present.value["metadata"] if present is not None else {}
    if present is not None and (metadata.get("annotations") or {}).get(REVISION) != revision:
        annotations = {**(metadata.get("annotations") or {}), REVISION: revision}
        resources.update(DEPLOYMENTS, present, {**present.value, "metadata": {**metadata, "annotations": annotations}})
