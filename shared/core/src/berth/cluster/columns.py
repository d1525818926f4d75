"""Node columns: one array per column, one element per row, changed in place; and the host ports taken per row.

Amounts are float64. LARGE ones are kept beside the columns as exact whole numbers, and plugins that read amounts are
asked about such a row by itself. Label values and lists of taints are interned, so that a selector or toleration is
evaluated once per value, not once per node.
"""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from berth.api.node import Node, Taint, is_ready
from berth.api.pod import PodSpec
from berth.api.resources import (
    CPU,
    EPHEMERAL_STORAGE,
    LARGE,
    MEMORY,
    PODS,
    Amounts,
    ReportProblem,
    Requests,
    counted,
    read_amounts,
)
from berth.api.selectors import whole_number

Scalar = TypeVar("Scalar", bound=np.generic)
Value = TypeVar("Value")

Amount = npt.NDArray[np.float64]

TaintSet = tuple[Taint, ...]

FeatureSet = frozenset[str]

RowRequests = Callable[[], Iterable[Requests]]

# The tables of amounts, in the keys of ``NodeColumns.large``.
ALLOCATABLE: Final = "allocatable"
REQUESTED: Final = "requested"
NONZERO: Final = "nonzero"

# Allocatable pods of a node count up to here: more than etcd stores for a whole cluster, and whole numbers that every
# column and every sum of them holds exactly.
MOST_PODS: Final = 1 << 24

# The code of a row whose node lacks the label.
ABSENT: Final = -1

# The name hash of a row without a node.
NO_NODE: Final = np.uint64(0)

_FIRST_CAPACITY: Final = 64

# Columns of label keys, and of resources in each table; more than the selectors and requests of a cluster use. The
# least recently used column is dropped above it.
_MAX_COLUMNS: Final = 256
# Resources that always have a column.
_ALWAYS: Final = (CPU, MEMORY, EPHEMERAL_STORAGE)

# Unused values that a column may keep before it is rebuilt.
_SLACK: Final = 1024


class Rows:
    """Assigns each name a row until it is released; released rows are reused.

    ``size`` is one more than the highest row ever used; rows beyond it are empty.
    """

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self.names: list[str] = []  # empty text where the row is free

    @property
    def size(self) -> int:
        return len(self.names)

    def copied(self) -> Rows:
        copy = Rows()
        copy._rows, copy._free, copy.names = self._rows.copy(), self._free.copy(), self.names.copy()
        return copy

    def of(self, name: str) -> int | None:
        return self._rows.get(name)

    def of_all(self, names: Iterable[str]) -> list[int | None]:
        rows = self._rows
        return [rows.get(name) for name in names]

    def claim(self, name: str) -> int:
        """The row of the name; a new one if it has no row yet."""
        row = self._rows.get(name)
        if row is not None:
            return row
        row = self._free.pop() if self._free else self.size
        if row == self.size:
            self.names.append(name)
        else:
            self.names[row] = name
        self._rows[name] = row
        return row

    def release(self, name: str) -> None:
        row = self._rows.pop(name)
        self.names[row] = ""
        self._free.append(row)


class NodeColumns:
    def __init__(self) -> None:
        self.capacity = _FIRST_CAPACITY
        # by resource; cpu in millicores, other resources in base units
        self.allocatable = AmountColumns(self.capacity)
        self.requested = AmountColumns(self.capacity)  # the same for the requests of placed pods
        self._named: dict[int, tuple[str, ...]] = {}  # by row, the other allocatable resources of its node
        self.nothing = self._zeros()  # float64[capacity], zeros
        # float64[capacity], millicores that scores count (a default for pods without a request)
        self.nonzero_cpu = self._zeros()
        self.nonzero_memory = self._zeros()  # the same in bytes
        self.pods = self._zeros()  # float64[capacity], number of placed pods
        self.allowed_pods = self._zeros()  # float64[capacity], allocatable number of pods
        # bool[capacity], whether the row has a node; other columns of a row without one are undefined
        self.exists: npt.NDArray[np.bool_] = np.zeros(self.capacity, dtype=np.bool_)
        self.unschedulable: npt.NDArray[np.bool_] = np.zeros(self.capacity, dtype=np.bool_)  # bool[capacity], cordoned
        # bool[capacity], the condition Ready is True or absent
        self.ready: npt.NDArray[np.bool_] = np.zeros(self.capacity, dtype=np.bool_)
        # int32[capacity], index into ``taint_sets.values``
        self.taints: npt.NDArray[np.int32] = np.zeros(self.capacity, dtype=np.int32)
        # int32[capacity], index into ``feature_sets.values``
        self.declared_features: npt.NDArray[np.int32] = np.zeros(self.capacity, dtype=np.int32)
        # uint64[capacity], equal in every process; NO_NODE for a row without a node
        self.name_hash: npt.NDArray[np.uint64] = np.zeros(self.capacity, dtype=np.uint64)
        # as ``name_hash``; orders equally good nodes. A replay sets it where names are masked.
        self.tie_hash: npt.NDArray[np.uint64] = np.zeros(self.capacity, dtype=np.uint64)
        self.names_written = 0  # number of writes to ``name_hash``
        # by row, the exact LARGE amounts by (table, resource); no row without one
        self.large: dict[int, dict[tuple[str, str], int]] = {}
        self.taint_sets: ValuesInUse[TaintSet] = ValuesInUse(())
        self.feature_sets: ValuesInUse[FeatureSet] = ValuesInUse(frozenset())
        self.labels = LabelColumns()

    def copied(self) -> NodeColumns:
        copy = NodeColumns()
        copy.capacity, copy.names_written = self.capacity, self.names_written
        copy.allocatable, copy.requested = self.allocatable.copied(), self.requested.copied()
        copy.nothing = self.nothing.copy()
        copy.nonzero_cpu, copy.nonzero_memory = self.nonzero_cpu.copy(), self.nonzero_memory.copy()
        copy.pods, copy.allowed_pods = self.pods.copy(), self.allowed_pods.copy()
        copy.exists, copy.unschedulable, copy.ready = self.exists.copy(), self.unschedulable.copy(), self.ready.copy()
        copy.taints, copy.declared_features = self.taints.copy(), self.declared_features.copy()
        copy.name_hash, copy.tie_hash = self.name_hash.copy(), self.tie_hash.copy()
        copy.large = {row: amounts.copy() for row, amounts in self.large.items()}
        copy._named = self._named.copy()
        copy.taint_sets, copy.feature_sets = self.taint_sets.copied(), self.feature_sets.copied()
        copy.labels = self.labels.copied()
        return copy

    def reserve(self, rows: int) -> None:
        """Make room for at least this many rows, by doubling."""
        if rows <= self.capacity:
            return
        while self.capacity < rows:
            self.capacity *= 2
        self._grow()

    def write_node(self, row: int, node: Node, rows: int, report: ReportProblem) -> None:
        """Write a node's row; ``rows`` is the number of rows in use."""
        amounts = read_amounts(node.status.allocatable, "status.allocatable", report)
        self._write_allocatable(row, counted(amounts))
        self.allowed_pods[row] = min(amounts.get(PODS, 0), MOST_PODS)
        self.exists[row] = True
        self.unschedulable[row] = node.spec.unschedulable
        self.ready[row] = is_ready(node)
        self._write_sets(row, node.spec.taints, node.status.declared_features)
        self.name_hash[row] = self.tie_hash[row] = hash_of(node.metadata.name)
        self.names_written += 1
        self.labels.write(row, node.metadata.labels or {}, rows)

    def clear_node(self, row: int, rows: int) -> None:
        """Clear the row. Pods placed on it stay counted."""
        self._write_allocatable(row, {})
        self.allowed_pods[row] = 0
        self.exists[row] = False
        self.name_hash[row] = NO_NODE
        self.names_written += 1
        self.unschedulable[row] = False
        self.ready[row] = False
        self._write_sets(row, None, None)
        self.labels.write(row, {}, rows)

    def count(self, row: int, requests: Requests, by: int, all_requests: RowRequests) -> None:
        """Add a pod's requests to a row (``by`` 1) or subtract them (-1).

        ``all_requests`` yields the requests of all pods on the row afterwards. It is called only if a sum is or was
        LARGE.
        """
        cpu = self.nonzero_cpu.item(row) + by * requests.nonzero_cpu  # Python's ints: NumPy's take twice as long.
        memory = self.nonzero_memory.item(row) + by * requests.nonzero_memory
        self.pods[row] = self.pods.item(row) + by
        self.nonzero_cpu[row], self.nonzero_memory[row] = cpu, memory
        for resource, amount in counted(requests.amounts).items():
            if amount:
                self._request(resource, row, by * amount, all_requests)
        if cpu >= LARGE or memory >= LARGE or row in self.large:
            exact_cpu = sum(each.nonzero_cpu for each in all_requests())
            exact_memory = sum(each.nonzero_memory for each in all_requests())
            self.nonzero_cpu[row], self.nonzero_memory[row] = exact_cpu, exact_memory
            self._keep_large(row, (NONZERO, CPU), exact_cpu)
            self._keep_large(row, (NONZERO, MEMORY), exact_memory)

    def _request(self, resource: str, row: int, amount: int, all_requests: RowRequests) -> None:
        before = self.requested.item(resource, row)
        after = before + amount
        if before >= LARGE or after >= LARGE:  # may be rounded: add up again, so that the order of events has no effect
            after = exact = sum(each.amounts.get(resource, 0) for each in all_requests())
            self._keep_large(row, (REQUESTED, resource), exact)
        self.requested.set(resource, row, after)

    def _write_sets(self, row: int, taints: list[Taint] | None, features: list[str] | None) -> None:
        key = tuple((t.key, t.value, t.effect) for t in taints or ())
        self.taints[row] = self.taint_sets.replace(self.taints.item(row), key, tuple(taints or ()))
        declared = frozenset(features or ())
        self.declared_features[row] = self.feature_sets.replace(self.declared_features.item(row), declared, declared)

    def _write_allocatable(self, row: int, amounts: Amounts) -> None:
        for resource in {*_ALWAYS, *self._named.pop(row, ()), *amounts}:
            amount = amounts.get(resource, 0)
            self.allocatable.set(resource, row, amount)
            if amount >= LARGE or row in self.large:
                self._keep_large(row, (ALLOCATABLE, resource), amount)
        named = tuple(resource for resource, amount in amounts.items() if amount and resource not in _ALWAYS)
        if named:
            self._named[row] = named

    def _keep_large(self, row: int, column: tuple[str, str], amount: int) -> None:
        if amount >= LARGE:
            self.large.setdefault(row, {})[column] = amount
        elif row in self.large:
            self.large[row].pop(column, None)
            if not self.large[row]:
                del self.large[row]

    def _zeros(self) -> Amount:
        return np.zeros(self.capacity, dtype=np.float64)

    def _grow(self) -> None:
        self.allocatable.grow(self.capacity)
        self.requested.grow(self.capacity)
        self.nothing = self._zeros()
        self.nonzero_cpu = grown(self.nonzero_cpu, self.capacity)
        self.nonzero_memory = grown(self.nonzero_memory, self.capacity)
        self.pods = grown(self.pods, self.capacity)
        self.allowed_pods = grown(self.allowed_pods, self.capacity)
        self.exists = grown(self.exists, self.capacity)
        self.unschedulable = grown(self.unschedulable, self.capacity)
        self.ready = grown(self.ready, self.capacity)
        self.taints = grown(self.taints, self.capacity)
        self.declared_features = grown(self.declared_features, self.capacity)
        self.name_hash = grown(self.name_hash, self.capacity)
        self.tie_hash = grown(self.tie_hash, self.capacity)
        self.labels.grow(self.capacity)


class AmountColumns:
    """Amounts of all resources: float64[capacity] each.

    cpu, memory and ephemeral storage always have a column, in ``always``. Of other resources, of which pods may name
    thousands, only the rows with an amount are kept; a column is built on first use.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.always: dict[str, Amount] = {name: np.zeros(capacity, dtype=np.float64) for name in _ALWAYS}
        self._amounts: dict[str, dict[int, float]] = {}  # by resource and row
        self._built: OrderedDict[str, Amount] = OrderedDict()
        self._nothing: Amount = np.zeros(capacity, dtype=np.float64)

    def copied(self) -> AmountColumns:
        copy = AmountColumns(self._capacity)
        copy.always = {name: column.copy() for name, column in self.always.items()}
        copy._amounts = {resource: amounts.copy() for resource, amounts in self._amounts.items()}
        return copy

    def __iter__(self) -> Iterator[str]:
        """The resources that have an amount in some row, and those that always have a column."""
        return iter((*self.always, *self._amounts))

    def of(self, resource: str) -> Amount:
        """The resource's amounts by row; read only, valid until the next change."""
        column = self.always.get(resource)
        if column is not None:
            return column
        amounts = self._amounts.get(resource)
        if amounts is None:
            return self._nothing
        column = self._built.get(resource)
        if column is None:
            column = self._built[resource] = np.zeros(self._capacity, dtype=np.float64)
            column[list(amounts)] = list(amounts.values())
            if len(self._built) > _MAX_COLUMNS:
                self._built.popitem(last=False)
        else:
            self._built.move_to_end(resource)
        return column

    def item(self, resource: str, row: int) -> float:
        """The resource's amount on the row; 0 without one."""
        column = self.always.get(resource)
        if column is not None:
            return column.item(row)
        amounts = self._amounts.get(resource)
        return 0.0 if amounts is None else amounts.get(row, 0.0)

    def set(self, resource: str, row: int, amount: float) -> None:
        column = self.always.get(resource)
        if column is None:
            self._keep(resource, row, float(amount))
            column = self._built.get(resource)
        if column is not None:
            column[row] = amount

    def grow(self, capacity: int) -> None:
        self._capacity = capacity
        self.always = {name: grown(column, capacity) for name, column in self.always.items()}
        self._built.clear()
        self._nothing = np.zeros(capacity, dtype=np.float64)

    def _keep(self, resource: str, row: int, amount: float) -> None:
        if amount:
            self._amounts.setdefault(resource, {})[row] = amount
            return
        amounts = self._amounts.get(resource, {})
        amounts.pop(row, None)
        if not amounts:
            self._amounts.pop(resource, None)
            self._built.pop(resource, None)


class LabelColumns:
    """The columns of all keys in use. Codes are valid until the next change: do not keep them.

    A key that no node has costs one look-up, because a pod may name thousands.
    """

    def __init__(self) -> None:
        self._columns: OrderedDict[str, LabelColumn] = OrderedDict()
        self._keys: Counter[str] = Counter()  # key to number of rows that have it
        self._keys_of_row: dict[int, tuple[str, ...]] = {}
        self._absent = LabelColumn(_FIRST_CAPACITY)

    def copied(self) -> LabelColumns:
        copy = LabelColumns()
        copy._columns = OrderedDict((key, column.copied()) for key, column in self._columns.items())
        copy._keys, copy._keys_of_row = self._keys.copy(), self._keys_of_row.copy()
        copy._absent = self._absent.copied()
        return copy

    def of(self, key: str, labels: Iterable[tuple[int, Mapping[str, str]]], capacity: int) -> LabelColumn:
        """The column of a key, built from every row's labels on first use."""
        column = self._columns.get(key)
        if column is None:
            if key not in self._keys:
                return self._absent
            column = self._columns[key] = LabelColumn(capacity)
            for row, present in labels:
                column.set(row, present.get(key))
            if len(self._columns) > _MAX_COLUMNS:
                self._columns.popitem(last=False)
        else:
            self._columns.move_to_end(key)
        return column

    def write(self, row: int, labels: Mapping[str, str], rows: int) -> None:
        """Write a row's labels to every column; drop a column with too many unused values."""
        self._count_keys(row, tuple(labels))
        for key, column in list(self._columns.items()):
            column.set(row, labels.get(key))
            if len(column.values) > 2 * rows + _SLACK:
                del self._columns[key]

    def grow(self, capacity: int) -> None:
        self._absent.grow(capacity)
        for column in self._columns.values():
            column.grow(capacity)

    def _count_keys(self, row: int, keys: tuple[str, ...]) -> None:
        before = self._keys_of_row.get(row, ())
        if keys == before:
            return
        self._keys.update(keys)
        for key in before:
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key]
        if keys:
            self._keys_of_row[row] = keys
        else:
            del self._keys_of_row[row]


class LabelColumn:
    """The values of one label key. ``codes``: int32[rows], index into ``values``, or ABSENT."""

    def __init__(self, capacity: int) -> None:
        self.codes: npt.NDArray[np.int32] = np.full(capacity, ABSENT, dtype=np.int32)
        self.values: list[str] = []
        self._ids: dict[str, int] = {}
        self._whole_numbers: npt.NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._is_whole: npt.NDArray[np.bool_] = np.zeros(0, dtype=np.bool_)

    def copied(self) -> LabelColumn:
        copy = LabelColumn(0)
        copy.codes, copy.values, copy._ids = self.codes.copy(), self.values.copy(), self._ids.copy()
        copy._whole_numbers, copy._is_whole = self._whole_numbers, self._is_whole  # replaced and never written
        return copy

    @property
    def whole_numbers(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """By code: each value as Gt and Lt read it, and whether it is a whole number.

        Parsed once per value, because a pod may compare thousands of times.
        """
        new = [whole_number(value) for value in self.values[len(self._is_whole) :]]
        if new:
            numbers = np.array([number or 0 for number in new], dtype=np.int64)
            self._whole_numbers = np.concatenate((self._whole_numbers, numbers))
            self._is_whole = np.concatenate((self._is_whole, [number is not None for number in new]))
        return self._whole_numbers, self._is_whole

    def code_of(self, value: str) -> int | None:
        """The code of a value that some row has had, or ABSENT."""
        return self._ids.get(value)

    def set(self, row: int, value: str | None) -> None:
        self.codes[row] = ABSENT if value is None else self._intern(value)

    def grow(self, capacity: int) -> None:
        self.codes = grown(self.codes, capacity, ABSENT)

    def _intern(self, value: str) -> int:
        code = self._ids.get(value)
        if code is None:
            code = self._ids[value] = len(self.values)
            self.values.append(value)
        return code


class ValuesInUse(Generic[Value]):
    """The distinct values of a column, by number. A number ends with its last row and then gets another value.

    ``values``: by number; 0 is the empty value, which numbers out of use have too.
    """

    def __init__(self, empty: Value) -> None:
        self.values: list[Value] = [empty]
        self._keys: list[Hashable] = [None]
        self._numbers: dict[Hashable, int] = {}
        self._rows: list[int] = [0]  # by number, how many rows have it
        self._free: list[int] = []

    def copied(self) -> ValuesInUse[Value]:
        copy = ValuesInUse(self.values[0])
        copy.values, copy._keys, copy._numbers = self.values.copy(), self._keys.copy(), self._numbers.copy()
        copy._rows, copy._free = self._rows.copy(), self._free.copy()
        return copy

    def replace(self, before: int, key: Hashable, value: Value) -> int:
        """The number of the value that a row has now, in place of the number ``before``; the empty ``key`` has 0."""
        number = self._number_of(key, value) if key else 0
        self._rows[number] += 1
        if before:
            self._rows[before] -= 1
            if not self._rows[before]:
                self._end(before)
        return number

    def _number_of(self, key: Hashable, value: Value) -> int:
        number = self._numbers.get(key)
        if number is None:
            number = self._free.pop() if self._free else len(self.values)
            if number == len(self.values):
                self.values.append(value)
                self._keys.append(key)
                self._rows.append(0)
            self.values[number], self._keys[number], self._numbers[key] = value, key, number
        return number

    def _end(self, number: int) -> None:
        del self._numbers[self._keys[number]]
        self.values[number], self._keys[number] = self.values[0], None
        self._free.append(number)


def grown(column: npt.NDArray[Scalar], capacity: int, empty: Any = 0) -> npt.NDArray[Scalar]:
    """A copy with this capacity, whose new rows hold ``empty``."""
    wider = np.full(capacity, empty, dtype=column.dtype)
    wider[: len(column)] = column
    return wider


def hash_of(name: str) -> int:
    """64 bits, equal for equal text in every process and on every machine."""
    return int.from_bytes(hashlib.blake2b(name.encode(errors="replace"), digest_size=8).digest(), "little")


Mask = npt.NDArray[np.bool_]
EVERY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - how Kubernetes writes all addresses of a node; nothing is bound here
# Up to this many rows are checked one by one; above it, all rows that have the port are visited.
_FEW: Final = 64


class HostPort(NamedTuple):
    """A port of a node, on one of its addresses or on all."""

    protocol: str
    port: int
    address: str

    def conflicts(self, other: HostPort) -> bool:
        """Whether both cannot be in use on one node."""
        if (self.protocol, self.port) != (other.protocol, other.port):
            return False
        return self.address == other.address or EVERY_ADDRESS in (self.address, other.address)


def host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """The host ports of a running pod's containers and sidecars."""
    sidecars = [container for container in spec.init_containers or () if container.restart_policy == "Always"]
    return tuple(
        HostPort(port.protocol or "TCP", port.host_port, port.host_ip or EVERY_ADDRESS)
        for container in (*sidecars, *(spec.containers or ()))
        for port in container.ports or ()
        if port.host_port > 0
    )


class HostPorts:
    """The ports taken on each row, and the rows that have each port."""

    def __init__(self) -> None:
        self._taken: dict[tuple[str, int], dict[int, Counter[str]]] = {}

    def copied(self) -> HostPorts:
        copy = HostPorts()
        copy._taken = {
            port: {row: addresses.copy() for row, addresses in rows.items()} for port, rows in self._taken.items()
        }
        return copy

    def count(self, ports: Iterable[HostPort], row: int, by: int) -> None:
        """Add the ports of a pod to a row (``by`` 1) or remove them (-1)."""
        for protocol, port, address in ports:
            rows = self._taken.setdefault((protocol, port), {})
            addresses = rows.setdefault(row, Counter())
            addresses[address] += by
            if not addresses[address]:
                del addresses[address]
            if not addresses:
                del rows[row]
            if not rows:
                del self._taken[protocol, port]

    def are_free(self, wanted: Iterable[HostPort], row: int) -> bool:
        return not any(_conflicts(port, self._rows_of(port).get(row)) for port in wanted)

    def taken_mask(self, wanted: Iterable[HostPort], rows: npt.NDArray[np.intp], size: int) -> Mask:
        """bool[rows]: whether a pod on the row has one of these ports; ``size``: rows of the Snapshot."""
        if len(rows) <= _FEW:
            wanted = tuple(wanted)
            return np.array([not self.are_free(wanted, row) for row in rows.tolist()], dtype=np.bool_)
        taken: Mask = np.zeros(size, dtype=np.bool_)
        for port in wanted:
            having = self._rows_of(port)
            taken[[row for row, addresses in having.items() if _conflicts(port, addresses)]] = True
        return taken[rows]

    def _rows_of(self, port: HostPort) -> dict[int, Counter[str]]:
        return self._taken.get((port.protocol, port.port), {})


def _conflicts(port: HostPort, addresses: Counter[str] | None) -> bool:
    if not addresses:
        return False
    return port.address == EVERY_ADDRESS or port.address in addresses or EVERY_ADDRESS in addresses
