"""The most that an expression can cost on any device, which the API server bounds when a selector is created.

The numbers are the API server's, estimate for estimate: a value has a least and a largest size, and so has a cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from berth.cel.check import TYPE_NAMES, Checked, qualified_name
from berth.cel.library import costs
from berth.cel.syntax import (
    Comprehension,
    CreateList,
    CreateMap,
    CreateStruct,
    FunctionCall,
    Ident,
    Literal,
    Node,
    Select,
)
from berth.cel.types import (
    BOOL,
    BYTES,
    CIDR,
    DEVICE,
    DOUBLE,
    INT,
    IP,
    QUANTITY,
    SEMVER,
    STRING,
    UINT,
    URL,
    CELType,
)

_MOST: Final = 2**64 - 1

# Largest sizes of what a device has (resource.k8s.io/v1).
_DRIVER: Final = 63
_DOMAIN: Final = 63
_ID: Final = 32
_VALUE: Final = 64
_ENTRIES: Final = 32


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the largest size or cost; 2**64-1 stands for anything from there on."""

    least: int
    most: int

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(min(self.least + other.least, _MOST), min(self.most + other.most, _MOST))

    def __mul__(self, other: Bounds) -> Bounds:
        return Bounds(min(self.least * other.least, _MOST), min(self.most * other.most, _MOST))

    def __or__(self, other: Bounds) -> Bounds:
        return Bounds(min(self.least, other.least), max(self.most, other.most))

    def times(self, factor: float) -> Bounds:
        """Each times the factor, rounded up."""
        return Bounds(_times(self.least, factor), _times(self.most, factor))


def _times(number: int, factor: float) -> int:
    if number and factor > 0 and float(number) > float(_MOST) / factor:
        return _MOST
    return min(math.ceil(float(number) * factor), _MOST)


def _exactly(number: int) -> Bounds:
    return Bounds(number, number)


_UNKNOWN: Final = Bounds(0, _MOST)
_NOTHING: Final = _exactly(0)
_ONE: Final = _exactly(1)

_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Entries:
    """Sizes of a list's or map's keys and values."""

    is_list: bool
    key: Bounds
    value: Bounds

    def or_of(self, other: _Entries | None) -> _Entries | None:
        return _Entries(self.is_list, self.key | other.key, self.value | other.value) if other else None


@dataclass(frozen=True, slots=True)
class _Variable:
    path: _Path
    size: Bounds | None
    entries: _Entries | None = None


def estimated_cost(checked: Checked) -> int:
    """The largest cost of the expression; the API server refuses more than 1,000,000."""
    return _Estimator(checked).cost(checked.parsed.root).most


@dataclass(slots=True)
class _Estimator:
    checked: Checked
    paths: dict[int, _Path] = field(default_factory=dict)
    sizes: dict[int, Bounds] = field(default_factory=dict)
    entries: dict[int, _Entries] = field(default_factory=dict)
    variables: dict[str, list[_Variable]] = field(default_factory=dict)

    def cost(self, node: Node) -> Bounds:
        match node:
            case Literal():
                cost = _NOTHING
            case Ident():
                variable = self._variable(node.name)
                self.paths[node.id] = variable.path if variable else (node.name,)
                cost = _ONE
            case Select():
                cost = self._select(node)
            case FunctionCall():
                cost = self._call(node)
            case CreateList():
                cost = self._list(node)
            case CreateMap():
                cost = self._map(node)
            case Comprehension():
                cost = self._bind(node) if node.is_bind else self._loop(node)
            case CreateStruct():
                cost = _UNKNOWN
        return cost

    def _type(self, node: Node) -> CELType:
        return self.checked.types[node.id]

    def _variable(self, name: str) -> _Variable | None:
        stack = self.variables.get(name)
        return stack[-1] if stack else None

    def _path(self, node: Node) -> _Path:
        variable = self._variable(node.name) if isinstance(node, Ident) else None
        return variable.path if variable else self.paths.get(node.id, ())

    def _size_or_none(self, node: Node) -> Bounds | None:
        if node.id in self.sizes:
            return self.sizes[node.id]
        size = _own_size(node) or _size_on_device(self._path(node))
        if size is not None:
            return size
        if self._type(node) in _SCALARS or _scalar_optional(self._type(node)):
            return _ONE
        variable = self._variable(node.name) if isinstance(node, Ident) else None
        return variable.size if variable else None

    def size(self, node: Node) -> Bounds:
        return self._size_or_none(node) or _UNKNOWN

    def _entries_of(self, node: Node) -> _Entries | None:
        if node.id in self.entries:
            return self.entries[node.id]
        variable = self._variable(node.name) if isinstance(node, Ident) else None
        return variable.entries if variable else None

    def item_size(self, node: Node) -> Bounds:
        """The size of a list's elements, by their path on the device alone."""
        path = self._path(node)
        return (_size_on_device((*path, "@items")) if path else None) or _UNKNOWN

    def _select(self, node: Select) -> Bounds:
        if qualified_name(node) in TYPE_NAMES:
            return _ONE
        cost = self.cost(node.operand)
        if node.test:
            return cost
        of = self._type(node.operand)
        if of.name == "map" or of == DEVICE or of in _STRUCTS:
            cost += _ONE
        self.paths[node.id] = (*self._path(node.operand), node.field)
        return cost

    def _list(self, node: CreateList) -> Bounds:
        cost = _exactly(costs.LIST)
        items = Bounds(_MOST if node.elements else 0, 0)
        for element in node.elements:
            cost += self.cost(element)
            items |= self.size(element)
        self.entries[node.id] = _Entries(is_list=True, key=_ONE, value=items)
        return cost

    def _map(self, node: CreateMap) -> Bounds:
        cost = _exactly(costs.MAP)
        keys = values = Bounds(_MOST if node.entries else 0, 0)
        for entry in node.entries:
            cost += self.cost(entry.key) + self.cost(entry.value)
            keys |= self.size(entry.key)
            values |= self.size(entry.value)
        self.entries[node.id] = _Entries(is_list=False, key=keys, value=values)
        return cost

    def _bind(self, node: Comprehension) -> Bounds:
        cost = self.cost(node.range) + self.cost(node.init)
        bound = _Variable(self._path(node.init), self._size_or_none(node.init), self._entries_of(node.init))
        self.variables.setdefault(node.accu, []).append(bound)
        cost += self.cost(node.result)
        self.variables[node.accu].pop()
        self._copy(node, node.result)
        return cost

    def _copy(self, to: Node, source: Node) -> None:
        size, entries = self._size_or_none(source), self._entries_of(source)
        if size:
            self.sizes[to.id] = size
        if entries:
            self.entries[to.id] = entries

    def _loop(self, node: Comprehension) -> Bounds:
        cost = self.cost(node.range) + self.cost(node.init)
        accu = _Variable(self._path(node.init), self._size_or_none(node.init), self._entries_of(node.init))
        self.variables.setdefault(node.accu, []).append(accu)
        entries, path = self._entries_of(node.range), self._path(node.range)
        is_list = entries.is_list if entries else self._type(node.range).name == "list"
        key = _Variable((*path, "@indices" if is_list else "@keys"), entries.key if entries else None)
        value = _Variable((*path, "@items" if is_list else "@values"), entries.value if entries else None)
        names = (
            {node.variable: key, node.variable2: value}
            if node.variable2
            else {node.variable: value if is_list else key}
        )
        for name, variable in names.items():
            self.variables.setdefault(name, []).append(variable)
        condition, step = self.cost(node.condition), self.cost(node.step)
        for name in names:
            self.variables[name].pop()
        cost += self.cost(node.result)
        self.variables[node.accu].pop()
        times = self.size(node.range)
        if isinstance(node.init, Literal):
            self.sizes[node.id] = self.size(node.init)
        elif isinstance(node.init, (CreateList, CreateMap)):
            self.sizes[node.id] = times
            made = self._entries_of(node.step)
            if made:
                self.entries[node.id] = made
        return cost + times * (step + condition)

    def _call(self, node: FunctionCall) -> Bounds:
        if node.function == "dyn" and node.target is None:
            cost = self.cost(node.args[0]) + _ONE
            self._copy(node, node.args[0])
            return cost
        args = [self.cost(arg) for arg in node.args]
        if node.function == "_?._":
            return self._made(node, _ONE + sum(args, _NOTHING), None)
        overloads = self.checked.overloads[node.id]
        is_method = overloads[0].is_method and node.target is not None
        cost = self.cost(node.target) if is_method and node.target is not None else _NOTHING
        each: Bounds | None = None
        size: Bounds | None = None
        for overload in overloads:
            own, made = self._overload(node, overload.name, overload.id, args, is_method=is_method)
            each = own if each is None else each | own
            size = made if size is None else size | made if made else size
            if overload.id in {"index_list", "index_map"}:
                entries = self._entries_of(node.args[0])
                size = entries.value if entries else None
                kind = "@items" if overload.id == "index_list" else "@values"
                self.paths[node.id] = (*self._path(node.args[0]), kind)
            if size is None:
                size = self._size_or_none(node)
        return self._made(node, cost + (each or _NOTHING), size)

    def _made(self, node: Node, cost: Bounds, size: Bounds | None) -> Bounds:
        if size is not None:
            self.sizes[node.id] = size
        return cost

    def _overload(
        self, node: FunctionCall, name: str, overload_id: str, args: Sequence[Bounds], *, is_method: bool
    ) -> tuple[Bounds, Bounds | None]:
        """What a call of this signature costs with its arguments, and the size of its result."""
        spent = sum(args, _NOTHING)
        match overload_id:
            case "logical_and" | "logical_or":
                return Bounds(args[0].least, (args[0] + args[1]).most), None
            case "conditional":
                return self._conditional(node, args)
            case "add_string" | "add_bytes" | "add_list":
                return self._sum(node, overload_id, spent)
        parts = (node.target, *node.args) if is_method and node.target is not None else node.args
        estimate = _BY_SIGNATURE.get(overload_id) or _BY_FUNCTION.get(name)
        answer = estimate(self, parts) if estimate else None
        cost, size = answer or (_ONE, None)
        return cost + spent, size

    def _conditional(self, node: FunctionCall, args: Sequence[Bounds]) -> tuple[Bounds, Bounds]:
        yes, no = node.args[1:]
        entries = self._entries_of(yes)
        joined = entries.or_of(self._entries_of(no)) if entries else None
        if joined:
            self.entries[node.id] = joined
        return args[0] + (args[1] | args[2]), self.size(yes) | self.size(no)

    def _sum(self, node: FunctionCall, overload_id: str, spent: Bounds) -> tuple[Bounds, Bounds]:
        one, other = node.args
        size = self.size(one) + self.size(other)
        entries = self._entries_of(one)
        joined = entries.or_of(self._entries_of(other)) if entries else None
        if joined:
            self.entries[node.id] = joined
        return (_ONE if overload_id == "add_list" else size.times(0.1)) + spent, size

    def kind(self, node: Node) -> CELType:
        return self._type(node)


_SCALARS: Final = frozenset({BOOL, DOUBLE, INT, UINT})
_STRUCTS: Final = frozenset({QUANTITY, SEMVER, URL})


def _scalar_optional(of: CELType) -> bool:
    return of.name == "optional_type" and (of.params[0] in _SCALARS or _scalar_optional(of.params[0]))


def _own_size(node: Node) -> Bounds | None:
    match node:
        case Literal(value=str(text)) | Literal(value=bytes(text)):
            return _exactly(len(text))
        case Literal():
            return _ONE
        case CreateList():
            return _exactly(len(node.elements))
        case CreateMap():
            return _exactly(len(node.entries))
        case _:
            return None


def _size_on_device(path: _Path) -> Bounds | None:  # noqa: PLR0911 - one for each part of a device
    match path:
        case ("device",):
            return _NOTHING
        case ("device", "driver"):
            return Bounds(0, _DRIVER)
        case ("device", "allowMultipleAllocations"):
            return Bounds(0, 1)
        case ("device", "attributes" | "capacity"):
            return Bounds(0, _ENTRIES)
        case ("device", "attributes" | "capacity", "@keys"):
            return Bounds(0, _DOMAIN)
        case ("device", "attributes" | "capacity", "@items" | "@values"):
            return Bounds(0, _ENTRIES)
        case ("device", "attributes" | "capacity", "@items" | "@values", "@keys"):
            return Bounds(0, _ID)
        case ("device", "attributes", "@items" | "@values", _):
            return Bounds(0, _VALUE)
        case ("device", "capacity", "@items" | "@values", "@items" | "@values"):
            return _NOTHING
        case _:
            return None


# -- calls: what one costs beside its arguments, and the size of its result

_Answer = tuple[Bounds, Bounds | None] | None
_Estimate = Callable[[_Estimator, Sequence[Node]], _Answer]


def _fixed(cost: int) -> _Estimate:
    return lambda _of, _parts: (_exactly(cost), None)


def _traversed(factor: float = 0.1, argument: int = 0, *, keeps: bool = False) -> _Estimate:
    def estimate(of: _Estimator, parts: Sequence[Node]) -> _Answer:
        size = of.size(parts[argument])
        return size.times(factor), size if keeps else None

    return estimate


def _over_list(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    kind = of.kind(parts[0])
    if not kind.params:
        return of.size(parts[0]).times(0.1), None
    each = _ONE
    if kind.params[0] in {STRING, BYTES}:
        each += of.item_size(parts[0]).times(0.1)
    return of.size(parts[0]) * each, None


def _replace(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    text, old, new = (of.size(part) for part in parts[:3])
    kept_most = text.most if old.least == 0 or new.most <= old.least else 0
    if old.least == 0:
        most = min(text.most + 1, _MOST)
    else:
        most = 0 if new.most <= old.least else math.ceil(float(text.most) / float(old.least))
    kept_least = text.least if old.most == 0 or old.most <= new.least else 0
    if old.most == 0:
        least = min(text.least + 1, _MOST)
    else:
        least = 0 if old.most <= new.least else math.ceil(float(text.least) / float(old.most))
    return text.times(0.2), Bounds(least, most) * new + Bounds(kept_least, kept_most)


def _split(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    text = of.size(parts[0])
    most = text.most
    match parts:
        case (_, _, Literal(value=int(limit))):
            most = limit % 2**64
    return text.times(0.2), Bounds(0, most)


def _join(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    many = of.size(parts[0])
    size = many * of.item_size(parts[0]) if of.kind(parts[0]).params else _NOTHING
    if len(parts) > 1:
        size += of.size(parts[1]) * Bounds(max(many.least - 1, 0), max(many.most - 1, 0))
    return size.times(0.1), size


def _find(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    text = of.size(parts[0])
    return (text + _ONE).times(0.1) * of.size(parts[1]).times(0.25), Bounds(0, text.most)


def _matches(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    found = _find(of, parts)
    return (found[0], None) if found else None


def _contains(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    return of.size(parts[0]).times(0.1) * of.size(parts[1]).times(0.1), None


_ADDRESS: Final = Bounds(4, 16)


def _in_network(*, of_text: bool, is_network: bool) -> _Estimate:
    def estimate(of: _Estimator, parts: Sequence[Node]) -> _Answer:
        cost = (_ADDRESS + _ADDRESS).times(0.1)
        if is_network:
            cost += _ADDRESS.times(0.1) + _ONE
        return cost + (of.size(parts[1]).times(0.1) if of_text else _NOTHING), None

    return estimate


def _equality(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    kinds = {of.kind(part) for part in parts}
    if len(kinds) == 1 and kinds <= {QUANTITY, SEMVER, IP, CIDR}:
        return _ONE, None
    if kinds == {URL}:
        return Bounds(1, of.size(parts[1]).most).times(0.1), None
    return _compared(of, parts)


def _compared(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    most = min(of.size(part).most for part in parts)
    return Bounds(int(most > 0), most).times(0.1), None


def _allocated(factor: float, size: Bounds) -> _Answer:
    return size.times(factor) + _exactly(1 + costs.LIST), size


def _literal(node: Node, default: int) -> int:
    match node:
        case Literal(value=int(number)) if type(node.value) is int:
            return max(number, 0)
        case _:
            return default


def _sliced(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    start, end = _literal(parts[1], 0), _literal(parts[2], of.size(parts[0]).most)
    return _allocated(1, _exactly((end - start) % 2**64))


def _ranged(_of: _Estimator, parts: Sequence[Node]) -> _Answer:
    return _allocated(1, _exactly(_literal(parts[0], _MOST)))


def _flattened(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    return _allocated(float(_literal(parts[1], _MOST)) if len(parts) > 1 else 1.0, of.size(parts[0]))


def _among_themselves(argument: int, factor: float) -> _Estimate:
    def estimate(of: _Estimator, parts: Sequence[Node]) -> _Answer:
        size = of.size(parts[argument])
        return _allocated(factor, size * size)

    return estimate


def _sets(factor: float) -> _Estimate:
    return lambda of, parts: ((of.size(parts[0]) * of.size(parts[1])).times(factor) + _ONE, None)


def _to_bytes(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    size = of.size(parts[0])
    return size.times(0.1), Bounds(size.least, size.most * 4 % 2**64)


def _from_bytes(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    size = of.size(parts[0])
    return size.times(0.1), Bounds(size.least // 4, size.most)


def _quoted(of: _Estimator, parts: Sequence[Node]) -> _Answer:
    size = of.size(parts[0])
    return size.times(0.1), Bounds((size.least + 2) % 2**64, (size.most * 2 + 2) % 2**64)


_BY_FUNCTION: Final[dict[str, _Estimate]] = {
    **dict.fromkeys(("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), _over_list),
    **dict.fromkeys(("url", "lowerAscii", "upperAscii", "substring", "trim"), _traversed(keeps=True)),
    **dict.fromkeys(("cidr", "isIP", "isCIDR", "ip", "quantity", "isQuantity", "semver", "isSemver"), _traversed()),
    "ip.isCanonical": _traversed(0.2),
    "replace": _replace,
    "split": _split,
    "join": _join,
    **dict.fromkeys(("find", "findAll"), _find),
    "_==_": _equality,
}
_BY_SIGNATURE: Final[dict[str, _Estimate]] = {
    "string_to_bytes": _to_bytes,
    "bytes_to_string": _from_bytes,
    "strings_quote": _quoted,
    **dict.fromkeys(("starts_with_string", "ends_with_string"), _traversed(argument=1)),
    "in_list": _traversed(1.0, 1),
    "matches_string": _matches,
    "contains_string": _contains,
    **{
        f"{word}_{of}": _compared
        for word in ("less", "greater", "less_equals", "greater_equals")
        for of in ("string", "bytes")
    },
    "not_equals": _compared,
    "cidr_ip": _fixed(1),
    "cidr_contains_ip_string": _in_network(of_text=True, is_network=False),
    "cidr_contains_ip_ip": _in_network(of_text=False, is_network=False),
    "cidr_contains_cidr_string": _in_network(of_text=True, is_network=True),
    "cidr_contains_cidr": _in_network(of_text=False, is_network=True),
    "list_slice": _sliced,
    "lists_range": _ranged,
    "list_reverse": lambda of, parts: _allocated(1, of.size(parts[0])),
    **dict.fromkeys(("list_flatten", "list_flatten_int"), _flattened),
    "list_distinct": _among_themselves(0, 2.0),
    **{
        f"list_{of}_{word}": _among_themselves(argument, 2.1 if of in {"string", "bytes"} else 2.0)
        for of in ("int", "uint", "double", "bool", "string", "bytes")
        for word, argument in (("sort", 0), ("sortByAssociatedKeys", 1))
    },
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
}
