"""What keeps queueing hints cheap when thousands of pods wait and nodes change all the time.

A hint may name a *key*: what it reads of the rejected pod. Pods with equal keys get equal answers, so the hint is
called once for all of them. It may have an *index*: that finds the keys which an event can concern, so that the hint is
not called for the others. What a hint computes from a pod or a node is kept between its calls (``IdentityCache``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from hashlib import blake2b
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

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


RoomOf = Callable[[str], Mapping[str, int] | None]
"""What is free on a node now, by resource, pods included; None for a node that is not known."""


class RoomIndex:
    """An index that also reads what is free on the node of an event. Whoever makes indexes sets ``room_of``."""

    def __init__(self) -> None:
        self.room_of: RoomOf = lambda _: None


class ValueIndex:
    """Finds pods by values that they must have in common with the event: a namespace, a claim, a label.

    Values are kept as hashes, and a value of one key costs no dict: thousands of pods may have hundreds of values each.
    Two values of one hash only have a hint asked in vain.
    """

    def __init__(self, of_pod: Callable[[Pod], Values], of_event: Callable[[object, object], Values]) -> None:
        self._of_pod = of_pod
        self._of_event = of_event
        self._values: dict[Hashable, tuple[int, ...] | None] = {}
        self._keys: dict[int, _Keys] = {}
        self._any: dict[Hashable, None] = {}

    def add(self, key: Hashable, pod: Pod) -> None:
        values = self._of_pod(pod)
        hashes = self._values[key] = None if values is None else tuple({hash(value) for value in values})
        if hashes is None:
            self._any[key] = None
            return
        for value in hashes:
            known = self._keys.get(value)
            if isinstance(known, dict):
                known[key] = None
            else:
                self._keys[value] = _One(key) if known is None else {known.key: None, key: None}

    def remove(self, key: Hashable) -> None:
        hashes = self._values.pop(key)
        if hashes is None:
            del self._any[key]
            return
        for value in hashes:
            known = self._keys[value]
            if isinstance(known, dict) and len(known) > 1:
                del known[key]
            else:
                del self._keys[value]

    def find(self, old: object, new: object) -> Iterable[Hashable]:
        """In a fixed order, so that equal events wake pods in an equal order."""
        values = self._of_event(old, new)
        if values is None:
            return list(self._values)
        found = dict(self._any)
        for value in values:
            known = self._keys.get(hash(value))
            if isinstance(known, dict):
                found.update(known)
            elif known is not None:
                found[known.key] = None
        return list(found)


class _One(NamedTuple):
    """The only key of a value."""

    key: Hashable


_Keys = _One | dict[Hashable, None]


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
