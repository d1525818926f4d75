"""The metadata of every Kubernetes object, trimmed to what scheduling reads, and resourceVersions as numbers.

Decoding a full object into these types is the trimming; ``trim`` drops what they keep only for some readers.
"""

from __future__ import annotations

from typing import Annotated, Final, Protocol, TypeVar

import msgspec

from berth.api.errors import DecodeError

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""An integer of the width that the API defines; a wider one is a decoding error."""


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""The same with 64 bits."""


class Trimmed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A Kubernetes type of which only the named fields are kept; defaults are not written."""


class OwnerReference(Trimmed, frozen=True, kw_only=True):
    """An owner of the object; schedulers read the controller only."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class ObjectMeta(Trimmed, frozen=True, kw_only=True):
    """Names, versions and labels.

    Times are RFC 3339 text as the API wrote them: UTC of equal length, so text order is time order.
    """

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference] | None = None


class SelectorRequirement(Trimmed, frozen=True, kw_only=True):
    """One expression of a selector: ``key operator values``."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Trimmed, frozen=True, kw_only=True):
    """matchLabels and matchExpressions, all of which must hold. Empty selects everything; absent selects nothing."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None


LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""A copy of the whole object that kubectl keeps in an annotation; it is often the largest part of a trimmed pod."""


class KubernetesObject(Protocol):
    """Any Kubernetes object; all of berth's are Structs."""

    @property
    def metadata(self) -> ObjectMeta:
        """Names, labels, annotations and owners."""
        ...


T = TypeVar("T", bound=KubernetesObject)


def trim(thing: T) -> T:
    """The object without kubectl's annotation and without owners but its controller; itself when it has neither."""
    metadata = trim_metadata(thing.metadata)
    if metadata is thing.metadata:
        return thing
    return msgspec.structs.replace(thing, metadata=metadata)  # type: ignore[type-var]  # every KubernetesObject is a Struct


def trim_metadata(metadata: ObjectMeta) -> ObjectMeta:
    """The same for metadata alone."""
    annotations, owners = metadata.annotations, metadata.owner_references
    has_last_applied = annotations is not None and LAST_APPLIED in annotations
    has_other_owners = owners is not None and not all(owner.controller for owner in owners)
    if not has_last_applied and not has_other_owners:
        return metadata
    return msgspec.structs.replace(
        metadata,
        annotations={key: value for key, value in (annotations or {}).items() if key != LAST_APPLIED} or None,
        owner_references=[owner for owner in owners or () if owner.controller] or None,
    )


MAX_DIGITS: Final = 19
"""Digits of the largest number that Kubernetes and NATS write (63 bits). Longer ones are none: reading a number takes
time that grows with the square of its digits, and Python refuses to read more than 4,300."""


def version_number(resource_version: str) -> int:
    """A resourceVersion as a number, which may be compared within a kind; 0 for one that is absent or no number."""
    return bounded_number(resource_version) or 0


def bounded_number(text: str) -> int | None:
    """A number written in decimal digits, at most ``MAX_DIGITS`` of them; ``None`` for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None


def parse_resource_version(resource_version: str) -> int:
    """The same where one must be there.

    Raises:
        DecodeError: it is no decimal number; such an API server is older than 1.35, or not Kubernetes.
    """
    number = version_number(resource_version)
    if not number and resource_version != "0":
        raise DecodeError(f"decoding resourceVersion {resource_version!r:.80}: want a decimal number")
    return number
