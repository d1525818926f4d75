"""What keeps queueing hints cheap when thousands of pods wait and nodes change all the time.

A hint may name a *key*: what it reads of the rejected pod. Pods with equal keys get equal answers, so the hint is
called once for all of them. It may have an *index*: that finds the keys which an event can concern, so that the hint is
not called for the others. What a hint computes from a pod or a node is kept between its calls (``IdentityCache``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from hashlib import blake2b
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from berth.api.pod import Pod

T = TypeVar("T")
V = TypeVar("V")

PodKey = Callable[[Pod], Hashable]
"""What a hint reads of the rejected pod, for events about another object than that pod."""

Values = Collection[Hashable] | None
"""Values that a pod and an event must have in common; None where any may match."""

_LONGEST_KEY: Final = 64
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def nothing(_: Pod) -> Hashable:
    """The key of a hint that reads nothing of the pod."""
    return None


def encoded(*parts: object) -> bytes:
    """Parts of a pod as a key: a digest where they are long, since thousands of terms are half a megabyte."""
    key = _encode(parts)
    return key if len(key) <= _LONGEST_KEY else blake2b(key).digest()


class HintIndex(Protocol):
    """Finds the keys that an event can concern. One instance serves one hint of one profile's plugin."""

    def add(self, key: Hashable, pod: Pod) -> None:
        """Pods with a new key wait; ``pod`` is one of them."""
        ...

    def remove(self, key: Hashable) -> None:
        """No pod with this key waits any more."""
        ...

    def find(self, old: object, new: object) -> Iterable[Hashable]:
        """All keys for which the hint may say yes; the hint is then called for each of them."""
        ...


class ValueIndex:
    """Finds pods by values that they must have in common with the event: a namespace, a claim, a label."""

    def __init__(self, of_pod: Callable[[Pod], Values], of_event: Callable[[object, object], Values]) -> None:
        self._of_pod = of_pod
        self._of_event = of_event
        self._values: dict[Hashable, Values] = {}
        self._keys: dict[Hashable, dict[Hashable, None]] = {}
        self._any: dict[Hashable, None] = {}

    def add(self, key: Hashable, pod: Pod) -> None:
        values = self._values[key] = self._of_pod(pod)
        for keys in self._keys_of(values):
            keys[key] = None

    def remove(self, key: Hashable) -> None:
        values = self._values.pop(key)
        for keys in self._keys_of(values):
            keys.pop(key, None)
        for value in values or ():
            if not self._keys.get(value, True):
                del self._keys[value]

    def find(self, old: object, new: object) -> Iterable[Hashable]:
        """In a fixed order, so that equal events wake pods in an equal order."""
        values = self._of_event(old, new)
        if values is None:
            return list(self._values)
        found = dict(self._any)
        for value in values:
            found.update(self._keys.get(value, {}))
        return list(found)

    def _keys_of(self, values: Values) -> Iterable[dict[Hashable, None]]:
        return (self._any,) if values is None else [self._keys.setdefault(value, {}) for value in values]


class IdentityCache(Generic[T, V]):
    """Results for objects that are never changed in place, by identity; the least recently used are dropped.

    ``weigh`` says how much a result counts: the cache holds ``capacity`` in all, and always the newest result.
    """

    def __init__(self, compute: Callable[[T], V], *, capacity: int, weigh: Callable[[V], int] = lambda _: 1) -> None:
        self._compute = compute
        self._capacity = capacity
        self._weigh = weigh
        self._weight = 0
        self._results: OrderedDict[int, tuple[T, V]] = OrderedDict()

    def __call__(self, thing: T) -> V:
        """The result for the object. It is kept together with the object, so that no other has its identity."""
        known = self._results.get(id(thing))
        if known is not None:
            self._results.move_to_end(id(thing))
            return known[1]
        result = self._compute(thing)
        self._results[id(thing)] = (thing, result)
        self._weight += self._weigh(result)
        while self._weight > self._capacity and len(self._results) > 1:
            _, (_, dropped) = self._results.popitem(last=False)
            self._weight -= self._weigh(dropped)
        return result
