"""Objects of further kinds, as they are: what plugins look up by name or go through by namespace."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Generic, Protocol, TypeVar

import msgspec

from berth.api.meta import ObjectMeta


class Thing(Protocol):
    """Anything that Kubernetes gives a name."""

    @property
    def metadata(self) -> ObjectMeta:
        """Its name and namespace."""
        ...


T = TypeVar("T", bound=Thing)


class Objects(Generic[T]):
    """The objects of one kind. Each is known by a key, its uid or name: a namesake may come before the other has gone.

    ``version`` rises with every change.
    """

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.version = 0
        self._by_key: dict[str, T] = {}
        self._by_namespace: dict[str, dict[str, T]] = {}
        self._real: dict[str, T] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[T]:
        return iter(self._by_key.values())

    @property
    def keys(self) -> frozenset[str]:
        """What the objects are known by."""
        return frozenset(self._by_key)

    def set(self, key: str, thing: T) -> None:
        """It is there, or is now like this. A new version of the same is no change: their status moves all the time."""
        metadata = msgspec.structs.replace(thing.metadata, resource_version="")
        thing = msgspec.structs.replace(thing, metadata=metadata)  # type: ignore[type-var]  # all kinds are Structs
        if self._real.get(key, self._by_key.get(key)) != thing:
            self.remove(key)
            self._put(key, thing)

    def remove(self, key: str) -> None:
        """It is gone. Nothing when it is unknown."""
        self._real.pop(key, None)
        thing = self._by_key.pop(key, None)
        if thing is None:
            return
        self.version += 1
        names = self._by_namespace[thing.metadata.namespace]
        if names.get(thing.metadata.name) is thing:
            del names[thing.metadata.name]

    def suppose(self, key: str, thing: T) -> None:
        """Show it like this until it changes or is shown as it is: what is about to be written of it."""
        real = self.real(key)
        if real is not None:
            self.remove(key)
            self._put(key, thing)
            self._real[key] = real

    def show_real(self, key: str) -> None:
        """Nothing is supposed of it any more."""
        real = self._real.get(key)
        if real is not None:
            self.remove(key)
            self._put(key, real)

    def show_all_real(self) -> None:
        """Nothing is supposed of any."""
        for key in list(self._real):
            self.show_real(key)

    def real(self, key: str) -> T | None:
        """The object as it was heard of last, whatever is supposed of it."""
        return self._real.get(key, self._by_key.get(key))

    def named(self, name: str, namespace: str = "") -> T | None:
        """The object of this name."""
        return self._by_namespace.get(namespace, {}).get(name)

    def in_namespace(self, namespace: str) -> Collection[T]:
        """The objects of a namespace."""
        return self._by_namespace.get(namespace, {}).values()

    def _put(self, key: str, thing: T) -> None:
        self._by_key[key] = thing
        self._by_namespace.setdefault(thing.metadata.namespace, {})[thing.metadata.name] = thing
        self.version += 1
