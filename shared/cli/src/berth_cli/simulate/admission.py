"""Defaults of new objects, as far as a ranking reads them.

A pod gets requests from limits, host ports, tolerations, selectors (:mod:`berth_cli.simulate.defaults`), the priority
of its PriorityClass, and claims of its ResourceClaimTemplates; a PodGroup of ``scheduling.k8s.io`` gets the priority
of its PriorityClass, a PersistentVolumeClaim the default StorageClass.
Existing objects do not change. For everything else, use the API server itself: ``kubectl create --dry-run=server -o
json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from berth.api.devices import ClaimMeta, ResourceClaim, ResourceClaimTemplate
from berth.api.meta import ObjectMeta, OwnerReference
from berth.api.pod import Pod, PodResourceClaimStatus, PodSpec
from berth.api.podgroups import UpstreamPodGroup
from berth.api.trimming import with_effective_requests, without_unreadable
from berth.api.volumes import BETA_STORAGE_CLASS, PersistentVolumeClaim, StorageClass
from berth.api.workloads import SYSTEM_PRIORITIES, PriorityClass
from berth_cli.simulate.defaults import with_defaults
from berth_cli.simulate.objects import FoundObject, ReadObject, as_pod

_PREEMPTS: Final = "PreemptLowerPriority"
_DEFAULT_CLASS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)


@dataclass(slots=True, kw_only=True)
class StoredObjects:
    """``problems`` name missing objects."""

    pods: tuple[Pod, ...] = ()
    others: list[ReadObject] = field(default_factory=list)
    to_place: tuple[Pod, ...] = ()
    problems: list[str] = field(default_factory=list)


def stored(cluster: Sequence[FoundObject[ReadObject]], to_place: Iterable[FoundObject[Pod]]) -> StoredObjects:
    return _Admission(cluster).stored(cluster, to_place)


class _Admission:
    def __init__(self, cluster: Sequence[FoundObject[ReadObject]]) -> None:
        self._priorities = {
            name: PriorityClass(metadata=ObjectMeta(name=name), value=value)
            for name, value in SYSTEM_PRIORITIES.items()
        }
        values = [found.value for found in cluster]
        self._priorities |= {one.metadata.name: one for one in values if isinstance(one, PriorityClass)}
        self._default_priority = _default_priority_class(self._priorities.values())
        self._default_class = _default_storage_class([one for one in values if isinstance(one, StorageClass)])
        self._templates = {
            f"{one.metadata.namespace}/{one.metadata.name}": one
            for one in values
            if isinstance(one, ResourceClaimTemplate)
        }
        self._made: list[ReadObject] = []
        self._problems: list[str] = []

    def stored(self, cluster: Sequence[FoundObject[ReadObject]], to_place: Iterable[FoundObject[Pod]]) -> StoredObjects:
        placing = tuple(self._with_claims(with_effective_requests(self._pod(one))) for one in to_place)
        return StoredObjects(
            others=[*(self._other(one) for one in cluster if not isinstance(one.value, Pod)), *self._made],
            pods=tuple(with_effective_requests(self._pod(pod)) for one in cluster if (pod := as_pod(one)) is not None),
            to_place=placing,
            problems=self._problems,
        )

    def _with_claims(self, pod: Pod) -> Pod:
        """The pod with the claims of its templates, as the claim controller makes them."""
        known = {each.name for each in pod.status.resource_claim_statuses or ()}
        made = [*(pod.status.resource_claim_statuses or ())]
        for entry in pod.spec.resource_claims or ():
            template = self._templates.get(f"{pod.metadata.namespace}/{entry.resource_claim_template_name}")
            if template is not None and entry.name not in known:
                name = f"{pod.metadata.name}-{entry.name}"
                self._made.append(_claim_of(pod, name, template))
                made.append(PodResourceClaimStatus(name=entry.name, resource_claim_name=name))
        status = msgspec.structs.replace(pod.status, resource_claim_statuses=made or None)
        return msgspec.structs.replace(pod, status=status)

    def _other(self, found: FoundObject[ReadObject]) -> ReadObject:
        if not found.is_new:
            return found.value
        if isinstance(found.value, UpstreamPodGroup):
            return self._group(found.value, found.where)
        if isinstance(found.value, PersistentVolumeClaim):
            return _with_class(found.value, self._default_class)
        return found.value

    def _group(self, group: UpstreamPodGroup, where: str) -> UpstreamPodGroup:
        if group.spec.priority is not None:
            return group
        found = self._class(group.spec.priority_class_name, where)
        spec = msgspec.structs.replace(group.spec, priority=found.value if found else 0)
        return msgspec.structs.replace(group, spec=spec)

    def _pod(self, found: FoundObject[Pod]) -> Pod:
        if not found.is_new:
            return found.value
        pod = found.value
        spec = with_defaults(pod.spec, pod.metadata.labels or {})
        return msgspec.structs.replace(pod, spec=self._with_priority(spec, found.where))

    def _with_priority(self, spec: PodSpec, where: str) -> PodSpec:
        found = self._class(spec.priority_class_name, where)
        value, policy = (found.value, found.preemption_policy or _PREEMPTS) if found else (0, _PREEMPTS)
        return msgspec.structs.replace(
            spec,
            priority=value if spec.priority is None else spec.priority,
            preemption_policy=spec.preemption_policy or policy,
            priority_class_name=found.metadata.name if found else "",
        )

    def _class(self, name: str | None, where: str) -> PriorityClass | None:
        """The class of this name, or the default one."""
        found = self._priorities.get(name) if name else self._default_priority
        if name and found is None:
            self._problems.append(
                f"{where}: spec.priorityClassName: the cluster has no PriorityClass {name!r}: add it to --pods, "
                "or correct the name"
            )
        return found


def _claim_of(pod: Pod, name: str, template: ResourceClaimTemplate) -> ResourceClaim:
    owner = OwnerReference(kind="Pod", name=pod.metadata.name, uid=pod.uid, api_version="v1", controller=True)
    namespace = pod.metadata.namespace
    uid = f"ResourceClaim/{namespace}/{name}"
    metadata = ClaimMeta(name=name, namespace=namespace, uid=uid, owner_references=[owner])
    return without_unreadable(ResourceClaim(metadata=metadata, spec=template.spec.spec))


def _default_priority_class(classes: Iterable[PriorityClass]) -> PriorityClass | None:
    """The default class; of several, the one with the lowest value, as in the API server."""
    return min((one for one in classes if one.global_default), key=lambda one: one.value, default=None)


def _default_storage_class(classes: Iterable[StorageClass]) -> str:
    """The newest default class; empty without one."""
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
