"""CycleState: what plugins store during one cycle, under typed keys."""

from __future__ import annotations

from typing import Any, Generic, Protocol, Self, TypeVar, runtime_checkable

from berth.cluster.equivalence import EquivalenceClass

T = TypeVar("T")


class StateMissingError(LookupError):
    """The key was not written in this cycle: PreFilter or PreScore did not run, or returned Skip."""


class StateKey(Generic[T]):
    """The key of a value of one type. Two keys of the same name are different: keep the key in a constant."""

    def __init__(self, name: str) -> None:
        self.name = name


@runtime_checkable
class Cloneable(Protocol):
    """A value that AddPod and RemovePod change: it is copied before they run."""

    def clone(self) -> Self:
        """A copy that may be changed."""
        ...


class CycleState:
    """The state of one cycle. ``pod_class`` is the pod's equivalence class.

    ``shared`` is the state that row-local plugins have written once for the whole class.
    """

    __slots__ = ("_shared", "_values", "pod_class")

    def __init__(self, pod_class: EquivalenceClass, shared: CycleState | None = None) -> None:
        self.pod_class = pod_class
        self._shared = shared
        self._values: dict[StateKey[Any], Any] = {}

    def write(self, key: StateKey[T], value: T) -> None:
        """Store a value for the rest of the cycle."""
        self._values[key] = value

    def read(self, key: StateKey[T]) -> T:
        """The stored value.

        Raises:
            StateMissingError: there is none.
        """
        if key in self._values:
            value: T = self._values[key]
            return value
        if self._shared is not None:
            return self._shared.read(key)
        raise StateMissingError(f"reading {key.name!r}: not written in this cycle")

    def find(self, key: StateKey[T]) -> T | None:
        """The stored value or None: for a plugin that a profile may enable at one of its points only."""
        try:
            return self.read(key)
        except StateMissingError:
            return None

    def clone(self) -> CycleState:
        """A copy; values that can be cloned are cloned."""
        copy = CycleState(self.pod_class, self._shared)
        copy._values = {k: v.clone() if isinstance(v, Cloneable) else v for k, v in self._values.items()}
        return copy
