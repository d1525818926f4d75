"""The metadata of every Kubernetes object, and label selectors, trimmed to the fields that scheduling reads.

Decoding drops the rest of an object; ``berth.api.trimming.trim`` drops fields that only some readers need.
"""

from __future__ import annotations

from typing import Annotated, Final, Protocol

import msgspec

# Of the width that the API defines; a wider integer is a decoding error.
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

# Of the names of an object and a namespace, and of a uid: Kubernetes' limit. They become tokens of subjects, and NATS
# closes the connection of a client that sends a subject longer than 4 KiB.
NAME_CHARACTERS: Final = 253

Name = Annotated[str, msgspec.Meta(max_length=NAME_CHARACTERS)]


class Trimmed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel", gc=False):
    """A Kubernetes type with only the named fields; defaults are not written.

    Its values cannot be part of a cycle, so the garbage collector skips them (``gc=False``): decoding and keeping a pod
    takes 4.2 us instead of 5.0.
    """


# Stands for a whole object without readers; it is not written.
NOT_KEPT: Final = msgspec.Raw(b"")


class OwnerReference(Trimmed, frozen=True, kw_only=True):
    """An owner of the object; schedulers read only the controller."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class ObjectMeta(Trimmed, frozen=True, kw_only=True):
    """Names, versions and labels.

    Times are RFC 3339 text as the API wrote them: UTC of equal length, so text order is time order.
    """

    name: Name = ""
    namespace: Name = ""
    uid: Name = ""
    resource_version: Name = ""
    # Counts the changes of the spec; 0 if the API server does not count them.
    generation: int = 0
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


class KubernetesObject(Protocol):
    """Any Kubernetes object; all of berth's are Structs."""

    @property
    def metadata(self) -> ObjectMeta:
        """Names, labels, annotations and owners."""
        ...
