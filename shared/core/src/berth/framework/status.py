"""Data shared and returned by extension points in one cycle: CycleState, Status per node, Verdicts, Diagnosis.

Plugins store values in the CycleState under typed keys. A rejection is a value; exceptions are for bugs and I/O. A
FilterColumn keeps one filter's verdicts over many cycles. The Diagnosis covers a whole cycle; its messages are
kube-scheduler's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from berth.cluster.pods import EquivalenceClass
from berth.messages.attempts import Rejection

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

    def clone(self) -> Self: ...


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
        self._values[key] = value

    def read(self, key: StateKey[T]) -> T:
        """The stored value.

        Raises:
            StateMissingError: no value is stored.
        """
        value = self.find(key)
        if value is None:
            raise StateMissingError(f"reading {key.name!r}: not written in this cycle")
        return value

    def find(self, key: StateKey[T]) -> T | None:
        """The stored value or None: for a plugin that a profile may enable at one of its points only."""
        if key in self._values:
            value: T = self._values[key]
            return value
        return None if self._shared is None else self._shared.find(key)

    def clone(self) -> CycleState:
        """A copy; values that can be cloned are cloned."""
        copy = CycleState(self.pod_class, self._shared)
        copy._values = {k: v.clone() if isinstance(v, Cloneable) else v for k, v in self._values.items()}
        return copy


Codes = npt.NDArray[np.int32]

Mask = npt.NDArray[np.bool_]

NO_NODES = "no nodes available to schedule pods"

EXAMPLES = 3  # nodes that a rejection names

RowIndex = npt.NDArray[np.intp]

# Up to this width a table of all values is quicker than sorting.
_MAX_TABLE_WIDTH: Final = 12


class Code(IntEnum):
    """The codes of the Kubernetes scheduling framework."""

    SUCCESS = 0
    ERROR = 1
    UNSCHEDULABLE = 2  # does not fit now; evicting pods may help
    UNSCHEDULABLE_AND_UNRESOLVABLE = 3  # does not fit, and evicting pods does not help
    WAIT = 4
    SKIP = 5  # Filter or Score does not apply to the pod and is left out
    PENDING = 6

    label: str  # the value of kube-scheduler's metric label ``status``, such as ``Unschedulable``


for _code in Code:  # an attribute and no property: metrics read it twenty times a pod
    _code.label = "".join(word.capitalize() for word in _code.name.split("_"))


@dataclass(frozen=True, slots=True)
class Status:
    """A code and, unless it is success, the reasons in kube-scheduler's words."""

    code: Code
    reasons: tuple[str, ...] = ()
    plugin: str = ""
    is_success: bool = field(init=False, repr=False, compare=False)  # an attribute: every step of a cycle asks for it

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_success", self.code is Code.SUCCESS)

    @classmethod
    def unschedulable(cls, *reasons: str) -> Status:
        """The pod does not fit now; evicting pods may help."""
        return cls(Code.UNSCHEDULABLE, reasons)

    @classmethod
    def unresolvable(cls, *reasons: str) -> Status:
        """The pod does not fit, and evicting pods does not help."""
        return cls(Code.UNSCHEDULABLE_AND_UNRESOLVABLE, reasons)

    @classmethod
    def error(cls, *reasons: str) -> Status:
        """The plugin could not decide."""
        return cls(Code.ERROR, reasons)

    @property
    def is_skip(self) -> bool:
        return self.code is Code.SKIP

    @property
    def is_rejection(self) -> bool:
        """Whether the pod does not fit; evictions may help or not."""
        return self.code in (Code.UNSCHEDULABLE, Code.UNSCHEDULABLE_AND_UNRESOLVABLE, Code.PENDING)


SUCCESS = Status(Code.SUCCESS)

SKIP = Status(Code.SKIP)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """``codes``: int32[nodes], index into ``statuses``; code 0 is success. A node's reasons are its status's."""

    codes: Codes
    statuses: tuple[Status, ...] = (SUCCESS,)

    @classmethod
    def all_fit(cls, count: int) -> Verdicts:
        return cls(np.zeros(count, dtype=np.int32))

    @classmethod
    def refusing(cls, rejected: Mask, status: Status) -> Verdicts:
        """One status for all rejected nodes."""
        return cls(rejected.astype(np.int32), (SUCCESS, status))

    @classmethod
    def of_bits(cls, bits: npt.NDArray[np.int64], width: int, status_of: Callable[[int], Status]) -> Verdicts:
        """One status per occurring set of bits; ``bits``: int64[nodes], below ``2**width``, 0 is success."""
        if not bits.any():
            return cls.all_fit(len(bits))
        present, codes = _numbered(np.append(0, bits), width)
        return cls(codes[1:].astype(np.int32), (SUCCESS, *(status_of(combination) for combination in present[1:])))

    @classmethod
    def of(cls, statuses: Iterable[Status]) -> Verdicts:
        known: dict[Status, int] = {SUCCESS: 0}
        codes = [known.setdefault(SUCCESS if s.is_success else s, len(known)) for s in statuses]
        return cls(np.array(codes, dtype=np.int32), tuple(known))

    def with_others(self, positions: RowIndex, others: Verdicts) -> Verdicts:
        codes = self.codes.copy()
        codes[positions] = np.where(others.codes, others.codes + len(self.statuses) - 1, 0)
        return Verdicts(codes, (*self.statuses, *others.statuses[1:]))


class FilterColumn:
    """One filter's verdict on every row, kept over many cycles: ``codes`` int32[capacity], index into ``statuses``."""

    def __init__(self, plugin: str, codes: Codes) -> None:
        self._plugin = plugin
        self.codes = codes
        self.statuses: list[Status] = [SUCCESS]
        self.errors = False
        self._ids: dict[Status, int] = {SUCCESS: 0}

    def write(self, rows: RowIndex | slice, verdicts: Verdicts) -> None:
        ids = [self._intern(status) for status in verdicts.statuses]
        self.codes[rows] = np.array(ids, dtype=np.int32)[verdicts.codes] if any(ids) else 0

    def write_one(self, row: int, status: Status) -> None:
        self.codes[row] = self._intern(status)

    def _intern(self, status: Status) -> int:
        if status.is_success:
            return 0
        status = Status(status.code, status.reasons, self._plugin)
        number = self._ids.get(status)
        if number is None:
            number = self._ids[status] = len(self.statuses)
            self.statuses.append(status)
            self.errors = self.errors or status.code is Code.ERROR
        return number


@dataclass(frozen=True, slots=True)
class CachedVerdicts:
    """The answers of row-local filters for an equivalence class. ``columns``: by plugin, without skipped filters.

    ``fits``: bool[capacity], the row has a node, and all of these filters accept it.
    """

    columns: Mapping[str, FilterColumn]
    fits: Mask


@dataclass(slots=True)
class Diagnosis:
    """The rejected rows with their statuses. ``node_count``: number of nodes."""

    node_count: int
    entries: list[DiagnosisEntry] = field(default_factory=list)

    def add(self, status: Status, rows: RowIndex) -> None:
        if len(rows):
            self.entries.append(DiagnosisEntry(status, rows))

    def add_codes(self, statuses: Sequence[Status], codes: Codes, rejected: Mask) -> None:
        """Add rows that a filter rejects: ``codes`` index into ``statuses``."""
        rows = rejected.nonzero()[0]
        present = codes[rows]
        for code in np.bincount(present).nonzero()[0].tolist():
            self.add(statuses[code], rows[present == code])

    def status_of(self, row: int) -> Status | None:
        return next((r.status for r in self.entries if row in r.rows), None)

    def resolvable_rows(self) -> RowIndex:
        """Rows on which evicting pods may help."""
        rows = [r.rows for r in self.entries if r.status.code is Code.UNSCHEDULABLE]
        return np.sort(np.concatenate(rows)) if rows else np.empty(0, dtype=np.intp)

    def unschedulable_plugins(self) -> tuple[str, ...]:
        """The plugins that rejected nodes, by name."""
        return tuple(sorted({name for r in self.entries for name in r.status.plugin.split(",") if name}))

    def rejections(self, names: Sequence[str]) -> tuple[Rejection, ...]:
        """One rejection per plugin and reason, most frequent first; ``names`` are the rows' nodes."""
        groups: dict[tuple[str, str], list[DiagnosisEntry]] = {}
        for entry in self.entries:
            for reason in entry.status.reasons:
                groups.setdefault((entry.status.plugin, reason), []).append(entry)
        made = [_rejection(plugin, reason, entries, names) for (plugin, reason), entries in groups.items()]
        return tuple(sorted(made, key=lambda r: (-r.nodes, r.plugin, r.reason)))

    def message(self) -> str:
        """Why no node is feasible: ``0/5 nodes are available: 3 Insufficient cpu, 2 node(s) were unschedulable.``."""
        if self.node_count == 0:
            return NO_NODES
        counts: Counter[str] = Counter()
        for entry in self.entries:
            for reason in entry.status.reasons:
                counts[reason] += len(entry.rows)
        return unavailable(self.node_count, sorted(f"{count} {reason}" for reason, count in counts.items()))


@dataclass(frozen=True, slots=True)
class DiagnosisEntry:
    """Rows rejected with one status, which names the plugin."""

    status: Status
    rows: RowIndex


def unavailable(node_count: int, reasons: Iterable[str]) -> str:
    # Begins every FailedScheduling message.
    listed = ", ".join(reasons)
    return f"0/{node_count} nodes are available:{f' {listed}.' if listed else ''}"


def _numbered(values: npt.NDArray[np.int64], width: int) -> tuple[list[int], npt.NDArray[np.intp]]:
    if width > _MAX_TABLE_WIDTH:
        present, places = np.unique(values, return_inverse=True)
        return present.tolist(), places
    present = np.flatnonzero(np.bincount(values))
    table = np.zeros(int(present[-1]) + 1, dtype=np.intp)
    table[present] = np.arange(len(present))
    return present.tolist(), table[values]


def _rejection(plugin: str, reason: str, entries: Sequence[DiagnosisEntry], names: Sequence[str]) -> Rejection:
    first = sorted(row for entry in entries for row in entry.rows[:EXAMPLES].tolist())[:EXAMPLES]
    return Rejection(
        plugin=plugin,
        reason=reason,
        nodes=sum(len(entry.rows) for entry in entries),
        examples=[names[row] for row in first],
        resolvable=any(entry.status.code is Code.UNSCHEDULABLE for entry in entries),
    )
