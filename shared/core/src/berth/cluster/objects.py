"""Objects of a kind that only plugins read (claims, volumes, Services, ...), which look them up by name or namespace.

As in kube-scheduler's AssumeCache, an object can be assumed to have changed before the watch shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Generic, Protocol, TypeVar

import msgspec

from berth.api.meta import ObjectMeta


class NamedObject(Protocol):
    """Any Kubernetes object."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=NamedObject)


class Objects(Generic[T]):
    """The objects of one kind, by key: the uid or name. ``version`` increases with every change.

    An object may be added before the previous one of its name is removed, and the previous one even after it: the bus
    keeps the order of one key's changes only. Until all but one are removed, the last one that was added is ``named``.
    """

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind
        self.version = 0
        self.unread = ""  # why the kind cannot be read, so that its objects may be old or missing
        self.prepare: Callable[[T], None] | None = None  # called with each new object before it is kept
        self._followers: list[Callable[[T | None, T | None], None]] = []
        self._by_key: dict[str, T] = {}
        self._by_namespace: dict[str, dict[str, T]] = {}
        self._namesakes: dict[tuple[str, str], list[T]] = {}  # by namespace and name: others than the named one
        self._actual: dict[str, T] = {}

    def copied(self) -> Objects[T]:
        copy = Objects(self.kind)
        copy.version, copy.prepare = self.version, self.prepare
        copy._by_key, copy._actual = self._by_key.copy(), self._actual.copy()
        copy._by_namespace = {namespace: names.copy() for namespace, names in self._by_namespace.items()}
        return copy

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[T]:
        return iter(self._by_key.values())

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self._by_key)

    def set(self, key: str, obj: T) -> None:
        """Add or update an object. A new resourceVersion alone is no change."""
        metadata = msgspec.structs.replace(obj.metadata, resource_version="")
        obj = msgspec.structs.replace(obj, metadata=metadata)  # type: ignore[type-var]  # all kinds are Structs
        before = self._actual.get(key, self._by_key.get(key))
        if before != obj:
            if self.prepare is not None:
                self.prepare(obj)
            self._take_out(key)
            self._put(key, obj)
            for follower in self._followers:
                follower(before, obj)

    def remove(self, key: str) -> None:
        """Remove an object; an unknown key is ignored."""
        before = self._actual.get(key, self._by_key.get(key))
        self._take_out(key)
        if before is not None:
            for follower in self._followers:
                follower(before, None)

    def follow(self, follower: Callable[[T | None, T | None], None]) -> None:
        """Call it with the object before and after each change, without assumptions."""
        self._followers.append(follower)

    def _take_out(self, key: str) -> None:
        self._actual.pop(key, None)
        obj = self._by_key.pop(key, None)
        if obj is None:
            return
        self.version += 1
        namespace, name = obj.metadata.namespace, obj.metadata.name
        names = self._by_namespace[namespace]
        others = self._namesakes.pop((namespace, name), None)
        if others:
            remaining = [each for each in (*others, names[name]) if each is not obj]
            names[name] = remaining.pop()
            if remaining:
                self._namesakes[namespace, name] = remaining
        else:
            del names[name]
            if not names:
                del self._by_namespace[namespace]

    def assume(self, key: str, obj: T) -> None:
        """Show an object as it is about to be written, until it changes or is restored."""
        actual = self.api_object(key)
        if actual is not None:
            self._take_out(key)
            self._put(key, obj)
            self._actual[key] = actual

    def restore(self, key: str) -> None:
        """Show the object of the API server again."""
        actual = self._actual.get(key)
        if actual is not None:
            self._take_out(key)
            self._put(key, actual)

    def restore_all(self) -> None:
        """Show all objects as the API server has them."""
        for key in list(self._actual):
            self.restore(key)

    def api_object(self, key: str) -> T | None:
        """The object as the watch showed it last, ignoring assumptions."""
        return self._actual.get(key, self._by_key.get(key))

    def named(self, name: str, namespace: str = "") -> T | None:
        return self._by_namespace.get(namespace, {}).get(name)

    def in_namespace(self, namespace: str) -> Collection[T]:
        return self._by_namespace.get(namespace, {}).values()

    def _put(self, key: str, obj: T) -> None:
        namespace, name = obj.metadata.namespace, obj.metadata.name
        self._by_key[key] = obj
        names = self._by_namespace.setdefault(namespace, {})
        if (other := names.get(name)) is not None:
            self._namesakes.setdefault((namespace, name), []).append(other)
        names[name] = obj
        self.version += 1
