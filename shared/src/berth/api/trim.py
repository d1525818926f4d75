"""What decoding keeps but nobody reads: dropped once where an object comes in, so that it costs nothing further on."""

from __future__ import annotations

from typing import Protocol, TypeVar

import msgspec

from berth.api.meta import ObjectMeta

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""A copy of the whole object that kubectl keeps in an annotation; on pods it is often most of what is left of them."""


class HasMetadata(Protocol):
    """A Kubernetes object; a Struct, of which a changed copy can be made."""

    @property
    def metadata(self) -> ObjectMeta:
        """Names, labels, annotations and owners."""
        ...


T = TypeVar("T", bound=HasMetadata)


def trim(thing: T) -> T:
    """The object without kubectl's annotation and without owners but its controller; itself when it has neither."""
    metadata = trim_metadata(thing.metadata)
    if metadata is thing.metadata:
        return thing
    return msgspec.structs.replace(thing, metadata=metadata)  # type: ignore[type-var]  # a Struct, as its Protocol says


def trim_metadata(metadata: ObjectMeta) -> ObjectMeta:
    """The same for metadata alone."""
    annotations, owners = metadata.annotations, metadata.owner_references
    too_much_said = annotations is not None and LAST_APPLIED in annotations
    too_many_owners = owners is not None and not all(owner.controller for owner in owners)
    if not too_much_said and not too_many_owners:
        return metadata
    return msgspec.structs.replace(
        metadata,
        annotations={key: value for key, value in (annotations or {}).items() if key != LAST_APPLIED} or None,
        owner_references=[owner for owner in owners or () if owner.controller] or None,
    )
