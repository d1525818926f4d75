"""CycleState: what the plugins of one cycle tell themselves and each other, under typed keys."""

from __future__ import annotations

from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from berth.cluster.equivalence import EquivalenceClass

T = TypeVar("T")


class StateMissingError(LookupError):
    """A plugin reads what nobody wrote in this cycle: its PreFilter or PreScore did not run, or said Skip."""


class StateKey(Generic[T]):
    """Under what a value of one type is kept. Keys of one name are still two keys: keep it in a constant."""

    def __init__(self, name: str) -> None:
        self.name = name


@runtime_checkable
class Cloneable(Protocol):
    """A value that AddPod and RemovePod change: every supposition gets its own."""

    def clone(self) -> Self:
        """A copy that may be changed."""
        ...


class CycleState:
    """The state of one cycle. ``pod_class`` is what follows from the pod's spec, computed once for all of its class.

    ``shared`` is the state that plugins which read only the spec have filled once for the whole class.
    """

    __slots__ = ("_shared", "_values", "pod_class")

    def __init__(self, pod_class: EquivalenceClass, shared: CycleState | None = None) -> None:
        self.pod_class = pod_class
        self._shared = shared
        self._values: dict[StateKey[Any], Any] = {}

    def write(self, key: StateKey[T], value: T) -> None:
        """Keep a value for the rest of the cycle."""
        self._values[key] = value

    def read(self, key: StateKey[T]) -> T:
        """What was kept.

        Raises:
            StateMissingError: nothing was.
        """
        if key in self._values:
            value: T = self._values[key]
            return value
        if self._shared is not None:
            return self._shared.read(key)
        raise StateMissingError(f"reading {key.name!r}: nobody wrote it in this cycle")

    def find(self, key: StateKey[T]) -> T | None:
        """The same; None when nothing was kept: for a plugin that a profile may ask at one of its points only."""
        try:
            return self.read(key)
        except StateMissingError:
            return None

    def clone(self) -> CycleState:
        """A state to suppose something in: values that can be cloned are."""
        copy = CycleState(self.pod_class, self._shared)
        copy._values = {k: v.clone() if isinstance(v, Cloneable) else v for k, v in self._values.items()}
        return copy
