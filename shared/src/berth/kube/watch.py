"""The events of a reflector. They come from LIST and WATCH; the reflector decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from berth.api.meta import KubernetesObject

T = TypeVar("T", bound=KubernetesObject)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[T]):
    """A consistent LIST: what is not in it is not there. ``resource_version`` is the list's, not an object's."""

    kind: str
    objects: Sequence[T]
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Upserted(Generic[T]):
    """An object was added or modified; its version stands in its metadata."""

    kind: str
    object: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted(Generic[T]):
    """An object was deleted (or left the selector); the object is its last state, its version that of the deletion."""

    kind: str
    object: T


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The kind is complete up to now: a bookmark, or the start of a watch. Moves watermarks, no object."""

    kind: str
    resource_version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecodable:
    """An object whose bytes do not have the kind's shape. Whoever owns it must hear of it; the reflector goes on.

    Those of a LIST follow their ``Listed``, in which they are missing though they exist. What was unreadable is empty.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    reason: str
    raw: bytes
    deleted: bool = False
    """It is not there any more (or left the selector)."""


ReflectorEvent = Listed[T] | Upserted[T] | Deleted[T] | Current | Undecodable


class Sink(Protocol[T]):
    """Takes a reflector's events, in order. Must not wait: enqueue."""

    def __call__(self, event: ReflectorEvent[T], /) -> None:
        """Take one event."""
        ...
