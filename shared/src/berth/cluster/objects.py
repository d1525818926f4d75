"""Objects of other kinds (claims, volumes, Services, ...), which plugins look up by name or by namespace.

As with kube-scheduler's AssumeCache, an object can be assumed to be changed before the watch shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar

import msgspec

from berth.api.meta import ObjectMeta


class NamedObject(Protocol):
    """Any Kubernetes object."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=NamedObject)


class Objects(Generic[T]):
    """The objects of one kind, by key: the uid or name. ``version`` rises with every change.

    An object may be added before the previous one of its name is removed.
    """

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.version = 0
        self._by_key: dict[str, T] = {}
        self._by_namespace: dict[str, dict[str, T]] = {}
        self._actual: dict[str, T] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[T]:
        return iter(self._by_key.values())

    @property
    def keys(self) -> frozenset[str]:
        """The keys of all objects."""
        return frozenset(self._by_key)

    def set(self, key: str, obj: T) -> None:
        """Add or update an object. A new resourceVersion alone is no change."""
        metadata = msgspec.structs.replace(obj.metadata, resource_version="")
        obj = msgspec.structs.replace(obj, metadata=metadata)  # type: ignore[type-var]  # all kinds are Structs
        if self._actual.get(key, self._by_key.get(key)) != obj:
            self.remove(key)
            self._put(key, obj)

    def remove(self, key: str) -> None:
        """Remove an object; an unknown key is ignored."""
        self._actual.pop(key, None)
        obj = self._by_key.pop(key, None)
        if obj is None:
            return
        self.version += 1
        names = self._by_namespace[obj.metadata.namespace]
        if names.get(obj.metadata.name) is obj:
            del names[obj.metadata.name]

    def assume(self, key: str, obj: T) -> None:
        """Show an object as it is about to be written, until it changes or is restored."""
        actual = self.api_object(key)
        if actual is not None:
            self.remove(key)
            self._put(key, obj)
            self._actual[key] = actual

    def restore(self, key: str) -> None:
        """Show the object of the API server again."""
        actual = self._actual.get(key)
        if actual is not None:
            self.remove(key)
            self._put(key, actual)

    def restore_all(self) -> None:
        """Show all objects as the API server has them."""
        for key in list(self._actual):
            self.restore(key)

    def api_object(self, key: str) -> T | None:
        """The object as the watch showed it last, whatever is assumed."""
        return self._actual.get(key, self._by_key.get(key))

    def named(self, name: str, namespace: str = "") -> T | None:
        """The object of this name."""
        return self._by_namespace.get(namespace, {}).get(name)

    def in_namespace(self, namespace: str) -> Collection[T]:
        """The objects of a namespace."""
        return self._by_namespace.get(namespace, {}).values()

    def _put(self, key: str, obj: T) -> None:
        self._by_key[key] = obj
        self._by_namespace.setdefault(obj.metadata.namespace, {})[obj.metadata.name] = obj
        self.version += 1
