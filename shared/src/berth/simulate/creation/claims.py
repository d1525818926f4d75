"""Claims to volumes that are yet to be made: those of ephemeral volumes, and the class of those that name none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from berth.api.meta import ObjectMeta, OwnerReference
from berth.api.pod import Pod
from berth.api.volumes import BETA_STORAGE_CLASS, PersistentVolumeClaim, StorageClass
from berth.simulate.creation.manifest import ManifestSpec

_IS_DEFAULT: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)


def default_class(classes: Iterable[StorageClass]) -> str:
    """The class of claims that name none: the newest of those that are marked so; empty when none is."""
    marked = [one for one in classes if any((one.metadata.annotations or {}).get(key) == "true" for key in _IS_DEFAULT)]
    by_name = sorted(marked, key=lambda one: one.metadata.name)
    newest = max(by_name, key=lambda one: one.metadata.creation_timestamp or "", default=None)
    return newest.metadata.name if newest else ""


def with_class(claim: PersistentVolumeClaim, default: str) -> PersistentVolumeClaim:
    """The claim, of the default class where it names none."""
    if (
        not default
        or claim.spec.storage_class_name is not None
        or BETA_STORAGE_CLASS in (claim.metadata.annotations or {})
    ):
        return claim
    return msgspec.structs.replace(claim, spec=msgspec.structs.replace(claim.spec, storage_class_name=default))


def claims_of_volumes(pod: Pod, manifest: ManifestSpec) -> Iterator[PersistentVolumeClaim]:
    """The claims that will be made for the pod's ephemeral volumes, and belong to it."""
    owner = OwnerReference(api_version="v1", kind="Pod", name=pod.metadata.name, uid=pod.uid, controller=True)
    for volume in manifest.volumes or ():
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
