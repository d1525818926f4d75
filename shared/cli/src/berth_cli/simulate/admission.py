"""Admission of new objects, as far as it depends on other objects of the cluster.

A pod gets its priority (PriorityClass), requests and limits (LimitRange), overhead and nodes (RuntimeClass) and the
claims of its ephemeral volumes; a claim gets the default StorageClass. Objects that were created already do not change.
The API server's validation is not repeated: ``kubectl create --dry-run=server`` does it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from berth.api.meta import ObjectMeta, OwnerReference, Trimmed
from berth.api.pod import Container, Pod, PodSpec, ResourceRequirements
from berth.api.volumes import (
    BETA_STORAGE_CLASS,
    WAIT_FOR_FIRST_CONSUMER,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    StorageClass,
)
from berth.api.workloads import SYSTEM_PRIORITIES, PriorityClass
from berth.errors import DecodeError
from berth_cli.simulate.defaults import with_defaults, with_label_keys, with_tolerations
from berth_cli.simulate.documents import decode
from berth_cli.simulate.objects import FoundObject, Limit, LimitRange, ReadObject, RuntimeClass, as_pod

_PREEMPTS: Final = "PreemptLowerPriority"
_CONTAINER: Final = "Container"
_DEFAULT_CLASS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)


class EphemeralClaimTemplate(Trimmed, frozen=True, kw_only=True):
    """The template of an ephemeral volume's claim."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()


class EphemeralVolume(Trimmed, frozen=True, kw_only=True):
    """A volume that lives as long as the pod."""

    volume_claim_template: EphemeralClaimTemplate | None = None


class ManifestVolume(Trimmed, frozen=True, kw_only=True):
    """A volume of the pod."""

    name: str = ""
    ephemeral: EphemeralVolume | None = None


class ManifestSpec(Trimmed, frozen=True, kw_only=True):
    """The fields of a pod's spec that only its creation reads, so that :class:`PodSpec` does not have them."""

    runtime_class_name: str | None = None
    volumes: list[ManifestVolume] | None = None


class Manifest(Trimmed, frozen=True, kw_only=True):
    """A pod that was not created yet."""

    spec: ManifestSpec = ManifestSpec()


_manifest_decoder: Final = msgspec.json.Decoder(Manifest)


@dataclass(slots=True, kw_only=True)
class StoredObjects:
    """The ``pods`` and ``others`` of the cluster, and the pods ``to_place``. ``problems`` name missing objects."""

    pods: tuple[Pod, ...] = ()
    others: list[ReadObject] = field(default_factory=list)
    to_place: tuple[Pod, ...] = ()
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def stored(cluster: Sequence[FoundObject[ReadObject]], to_place: Iterable[FoundObject[Pod]]) -> StoredObjects:
    """All objects as stored, with the claims for ephemeral volumes of the pods."""
    return _Admission(cluster).stored(cluster, to_place)


class _Admission:
    """Admits objects one by one."""

    def __init__(self, cluster: Sequence[FoundObject[ReadObject]]) -> None:
        self._priorities = {
            name: PriorityClass(metadata=ObjectMeta(name=name), value=value)
            for name, value in SYSTEM_PRIORITIES.items()
        }
        self._runtimes: dict[str, RuntimeClass] = {}
        self._limits: Mapping[str, list[LimitRange]] = defaultdict(list)
        classes: list[StorageClass] = []
        for found in cluster:
            match found.value:
                case PriorityClass() as known:
                    self._priorities[known.metadata.name] = known
                case RuntimeClass() as known:
                    self._runtimes[known.metadata.name] = known
                case LimitRange() as known:
                    self._limits[known.metadata.namespace].append(known)
                case StorageClass() as known:
                    classes.append(known)
        self._default_priority = _default_priority_class(self._priorities.values())
        self._default_class = _default_storage_class(classes)
        self._stored = StoredObjects()
        self._new_claims: list[PersistentVolumeClaim] = []
        self._pods_claims: list[PersistentVolumeClaim] = []
        self._places_of_notes: dict[str, list[str]] = {}

    def stored(self, cluster: Sequence[FoundObject[ReadObject]], to_place: Iterable[FoundObject[Pod]]) -> StoredObjects:
        stored = self._stored
        stored.others = [self._other(one) for one in cluster if not isinstance(one.value, Pod)]
        stored.pods = tuple(self._pod(pod) for one in cluster if (pod := as_pod(one)) is not None)
        stored.to_place = tuple(self._pod(one) for one in to_place)
        existing = {_key(one) for one in stored.others if isinstance(one, PersistentVolumeClaim)}
        made = [claim for claim in self._pods_claims if _key(claim) not in existing]
        stored.others += made
        stored.notes.extend(f"{_first_of(places)}: {note}" for note, places in self._places_of_notes.items())
        stored.notes.extend(_immediate_binding([*self._new_claims, *made], stored.others))
        return stored

    def _other(self, found: FoundObject[ReadObject]) -> ReadObject:
        if not found.manifest or not isinstance(found.value, PersistentVolumeClaim):
            return found.value
        claim = _with_class(found.value, self._default_class)
        self._new_claims.append(claim)
        return claim

    def _pod(self, found: FoundObject[Pod]) -> Pod:
        if not found.manifest:
            return found.value
        pod = found.value
        try:
            manifest = decode(_manifest_decoder, found.manifest).spec
        except DecodeError as exc:
            self._stored.problems.append(f"{found.where}: {exc}")
            return pod
        claims = _claims_of_volumes(pod, manifest.volumes or ())
        self._pods_claims += [_with_class(claim, self._default_class) for claim in claims]
        spec = with_defaults(pod.spec)
        for limits in self._limits.get(pod.metadata.namespace, ()):
            spec = _with_limits(spec, limits)
        spec = with_tolerations(self._with_priority(spec, found.where))
        spec = self._with_runtime(spec, manifest.runtime_class_name, found.where)
        return msgspec.structs.replace(pod, spec=with_label_keys(spec, pod.metadata.labels or {}))

    def _with_priority(self, spec: PodSpec, where: str) -> PodSpec:
        name = spec.priority_class_name
        found = self._priorities.get(name) if name else self._default_priority
        if name and found is None:
            self._missing(where, "priorityClassName", "PriorityClass", name)
        value, policy = (found.value, found.preemption_policy or _PREEMPTS) if found else (0, _PREEMPTS)
        for member, own, of_class in (
            ("priority", spec.priority, value),
            ("preemptionPolicy", spec.preemption_policy, policy),
        ):
            if own not in (None, of_class):
                note = f"spec.{member}: {own!r} is used here; the API server sets it from a PriorityClass only"
                self._places_of_notes.setdefault(note, []).append(where)
        return msgspec.structs.replace(
            spec,
            priority=value if spec.priority is None else spec.priority,
            preemption_policy=spec.preemption_policy or policy,
            priority_class_name=found.metadata.name if found else "",
        )

    def _with_runtime(self, spec: PodSpec, name: str | None, where: str) -> PodSpec:
        if not name:
            return spec
        runtime = self._runtimes.get(name)
        if runtime is None:
            self._missing(where, "runtimeClassName", "RuntimeClass", name)
            return spec
        if runtime.overhead is not None:
            spec = msgspec.structs.replace(spec, overhead=runtime.overhead.pod_fixed)
        scheduling = runtime.scheduling
        if scheduling is None:
            return spec
        own = spec.tolerations or []
        added = [toleration for toleration in scheduling.tolerations or () if toleration not in own]
        selector = {**(spec.node_selector or {}), **(scheduling.node_selector or {})}
        return msgspec.structs.replace(spec, node_selector=selector or None, tolerations=[*own, *added])

    def _missing(self, where: str, member: str, kind: str, name: str) -> None:
        self._stored.problems.append(f"{where}: spec.{member}: no {kind} {name!r} in the files: add it to --cluster")


def _default_priority_class(classes: Iterable[PriorityClass]) -> PriorityClass | None:
    """The default class; of several the one with the lowest value, as in the API server."""
    return min((one for one in classes if one.global_default), key=lambda one: one.value, default=None)


def _default_storage_class(classes: Iterable[StorageClass]) -> str:
    """The name of the newest default class; empty when there is none."""
    marked = [
        one for one in classes if any((one.metadata.annotations or {}).get(key) == "true" for key in _DEFAULT_CLASS)
    ]
    by_name = sorted(marked, key=lambda one: one.metadata.name)
    newest = max(by_name, key=lambda one: one.metadata.creation_timestamp or "", default=None)
    return newest.metadata.name if newest else ""


def _with_class(claim: PersistentVolumeClaim, default: str) -> PersistentVolumeClaim:
    if (
        not default
        or claim.spec.storage_class_name is not None
        or BETA_STORAGE_CLASS in (claim.metadata.annotations or {})
    ):
        return claim
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, storage_class_name=default))


def _claims_of_volumes(pod: Pod, volumes: Iterable[ManifestVolume]) -> Iterator[PersistentVolumeClaim]:
    """The claims for the pod's ephemeral volumes, with the pod as owner."""
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.uid, controller=True)
    for volume in volumes:
        template = volume.ephemeral and volume.ephemeral.volume_claim_template
        if template:
            name = f"{pod.metadata.name}-{volume.name}"
            metadata = ObjectMeta(
                name=name,
                namespace=pod.metadata.namespace,
                uid=f"PersistentVolumeClaim/{pod.metadata.namespace}/{name}",
                labels=template.metadata.labels,
                annotations=template.metadata.annotations,
                owner_references=[owner],
            )
            yield PersistentVolumeClaim(metadata=metadata, spec=template.spec)


def _with_limits(spec: PodSpec, limits: LimitRange) -> PodSpec:
    """The spec, with the namespace's requests and limits in containers that have none."""
    of_containers = [_defaults_of(limit) for limit in limits.spec.limits or () if limit.type == _CONTAINER]
    if not any(one.requests or one.limits for one in of_containers):
        return spec
    defaults = ResourceRequirements(
        requests={name: quantity for one in of_containers for name, quantity in (one.requests or {}).items()},
        limits={name: quantity for one in of_containers for name, quantity in (one.limits or {}).items()},
    )
    return msgspec.structs.replace(
        spec,
        containers=spec.containers and [_with_resources(one, defaults) for one in spec.containers],
        init_containers=spec.init_containers and [_with_resources(one, defaults) for one in spec.init_containers],
    )


def _defaults_of(limit: Limit) -> ResourceRequirements:
    """A LimitRange's own defaults: limits from ``max``; requests from the limits, then from ``min``."""
    limits = {**(limit.max or {}), **(limit.default or {})}
    return ResourceRequirements(
        requests={**(limit.min or {}), **limits, **(limit.default_request or {})}, limits=limits
    )


def _with_resources(container: Container, defaults: ResourceRequirements) -> Container:
    own = container.resources or ResourceRequirements()
    resources = ResourceRequirements(
        requests={**(defaults.requests or {}), **(own.requests or {})},
        limits={**(defaults.limits or {}), **(own.limits or {})},
    )
    return msgspec.structs.replace(container, resources=resources)


def _key(claim: PersistentVolumeClaim) -> tuple[str, str]:
    return claim.metadata.namespace, claim.metadata.name


def _immediate_binding(new: Iterable[PersistentVolumeClaim], others: Iterable[ReadObject]) -> Iterator[str]:
    """A note about claims that a controller would bind before the pod is scheduled; this is not simulated."""
    waiting = {
        one.metadata.name
        for one in others
        if isinstance(one, StorageClass) and one.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER
    }
    immediate = [claim for claim in new if not claim.spec.volume_name and claim.class_name not in waiting]
    if immediate:
        claims = _first_of([f"{one.metadata.namespace}/{one.metadata.name}" for one in immediate])
        yield (
            f"results may differ for the pods of claim {claims}, because a cluster binds it before the pod is "
            f"scheduled: name a class with {WAIT_FOR_FIRST_CONSUMER}, or add the bound claim to --cluster"
        )


def _first_of(places: Sequence[str]) -> str:
    """The first, and the number of the others, since there may be thousands."""
    return f"{places[0]} and {len(places) - 1} more" if len(places) > 1 else places[0]
