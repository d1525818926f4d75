"""The events that a reflector makes of LIST and WATCH."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from berth.api.meta import KubernetesObject

T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[T]):
    """A consistent and complete LIST. ``resource_version`` is the list's, not an object's."""

    kind: str
    objects: Sequence[T]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserted(Generic[T]):
    """An object was added or modified; its version is in its metadata."""

    kind: str
    object: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted(Generic[T]):
    """An object was deleted, or left the selector: its last state, with the resourceVersion of the deletion."""

    kind: str
    object: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The kind is complete up to this version: a bookmark, or the start of a watch. Changes no object."""

    kind: str
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecodable:
    """An object that cannot be decoded. It is reported, and the reflector continues.

    Those of a LIST follow their ``Listed``, which does not contain them although they exist. Unreadable fields are
    empty.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    reason: str
    raw: bytes
    deleted: bool = False
    """Whether it was deleted, or left the selector."""


ReflectorEvent = Listed[T] | Upserted[T] | Deleted[T] | Current | Undecodable


class Sink(Protocol[T]):
    """Receives a reflector's events, in order. It must not block: enqueue them."""

    def __call__(self, event: ReflectorEvent[T], /) -> None: ...
