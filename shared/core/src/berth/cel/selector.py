"""Selectors: a compiled expression, the devices that it is asked about, and its answers.

    selector = compile_selector('device.driver == "gpu.example.com"')
    selector.matches(device)

An expression reads a part of a device (`DeviceReads`). Devices that are alike in this part have one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from berth.cel.calls import CostLimitReached
from berth.cel.check import Checked, check, children
from berth.cel.errors import CompileError, CostLimitError, EvaluationError, UnsupportedError
from berth.cel.estimate import estimated_cost
from berth.cel.library.costs import COST_LIMIT, MAX_LENGTH_BYTES
from berth.cel.program import CompiledExpression, program
from berth.cel.syntax import Comprehension, FunctionCall, Ident, Literal, Node, Select, parse
from berth.cel.types import CIDR, IP, QUANTITY, SEMVER
from berth.cel.values import Domains, Failed, Quantity, Semver, UnknownValueError, type_of

Attribute = bool | int | str | Semver

# Answers that a selector keeps.
_MAX_ANSWERS: Final = 16_384
_EMPTY: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as an expression sees it: attributes and capacities by domain and id.

    ``problem`` says what is wrong with an attribute; every expression fails with it on this device.
    """

    driver: str
    attributes: dict[str, dict[str, Attribute]] = field(default_factory=dict)
    capacity: dict[str, dict[str, Quantity]] = field(default_factory=dict)
    allow_multiple_allocations: bool = False
    problem: str | None = None

    @staticmethod
    def of(
        driver: str,
        attributes: Mapping[str, Attribute | Failed | None],
        capacity: Mapping[str, Quantity],
        *,
        allow_multiple_allocations: bool = False,
    ) -> Device:
        """Put names without a domain into the driver's.

        ``attributes`` has None for a value of a kind that Kubernetes does not support, and Failed for a version that is
        none.
        """
        problem = next((text for name, value in attributes.items() if (text := _problem_of(name, value))), None)
        return Device(
            driver=driver,
            attributes={} if problem else _by_domain(driver, attributes),
            capacity=_by_domain(driver, capacity),
            allow_multiple_allocations=allow_multiple_allocations,
            problem=problem,
        )


def _problem_of(name: str, value: Attribute | Failed | None) -> str | None:
    if value is None:
        return f"attribute {name}: unsupported attribute value"
    return f"attribute {name}: parse semantic version: {value.reason}" if isinstance(value, Failed) else None


def _by_domain(driver: str, named: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    domains: dict[str, dict[str, Any]] = {}
    for name, value in named.items():
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = driver, name
        domains.setdefault(domain, {})[identifier] = value
    return domains


@dataclass(frozen=True, slots=True)
class DeviceReads:
    """What an expression can read of a device.

    ``paths`` has tuples: ("driver",), ("attributes", domain, id), or ("attributes", domain) for a whole domain.
    """

    paths: frozenset[tuple[str, ...]]

    def key(self) -> Callable[[Device], Hashable]:
        """A function whose result is equal for devices of which the expression reads the same."""
        readers = [_reader(path) for path in sorted(self.paths)]
        if len(readers) == 1:
            return readers[0]
        if len(readers) == 2:
            one, other = readers
            return lambda device: (one(device), other(device))
        if len(readers) == 3:
            first, second, third = readers
            return lambda device: (first(device), second(device), third(device))
        return lambda device: tuple([reader(device) for reader in readers])  # a list is faster than a generator


def _reader(path: tuple[str, ...]) -> Callable[[Device], Hashable]:  # noqa: PLR0911 - one for each part
    match path:
        case ("driver",):
            return lambda device: device.driver
        case ("allowMultipleAllocations",):
            return lambda device: device.allow_multiple_allocations
        case ("attributes", domain, name):
            return _attribute_reader(domain, name)
        case ("capacity", domain, name):
            return lambda device: device.capacity.get(domain, _EMPTY).get(name)
        case ("attributes", domain):
            return lambda device: _typed_entries(device.attributes.get(domain, _EMPTY))
        case ("capacity", domain):
            return lambda device: frozenset(device.capacity.get(domain, _EMPTY).items())
        case ("attributes",):
            return lambda device: frozenset((name, _typed_entries(of)) for name, of in device.attributes.items())
        case _:
            return lambda device: frozenset((name, frozenset(of.items())) for name, of in device.capacity.items())


def _attribute_reader(domain: str, name: str) -> Callable[[Device], Hashable]:
    def read(device: Device) -> Hashable:
        value = device.attributes.get(domain, _EMPTY).get(name)
        return value if value.__class__ is not bool else _typed(value)  # no call for most values

    return read


def _typed(value: Attribute | None) -> Hashable:
    # True and 1 are equal in Python.
    return (value,) if value is True or value is False else value


def _typed_entries(of: Mapping[str, Attribute]) -> Hashable:
    return frozenset((name, _typed(value)) for name, value in of.items())


@dataclass(frozen=True, slots=True)
class Evaluation:
    """An expression's answer about a device, or why there is none, and what it cost in Kubernetes' units."""

    matches: bool = False
    error: EvaluationError | UnsupportedError | None = None
    cost: int = 0


@dataclass(frozen=True)
class DeviceSelector:
    expression: str
    reads: DeviceReads
    program: CompiledExpression
    checked: Checked = field(repr=False)
    _answers: dict[Hashable, Evaluation] = field(default_factory=dict, repr=False)

    @cached_property
    def key(self) -> Callable[[Device], Hashable]:
        """Equal results for devices that are alike for the expression; see `DeviceReads.key`."""
        return self.reads.key()

    @cached_property
    def estimated_cost(self) -> int:
        """The most that it can cost on any device."""
        return estimated_cost(self.checked)

    def matches(self, device: Device) -> bool:
        """Whether the device is selected.

        Raises:
            EvaluationError: the expression fails on this device.
            UnsupportedError: the device has a value that berth does not read as Kubernetes does.
        """
        # The usual way first, without a call: a claim asks about every device of a cluster.
        evaluation = self._answers.get(self.key(device)) if device.problem is None else None
        if evaluation is None:
            evaluation = self.ask(device)
        if evaluation.error is not None:
            raise evaluation.error
        return evaluation.matches

    def ask(self, device: Device) -> Evaluation:
        """The answer, from the ones that are kept if an alike device was asked about before."""
        if device.problem is not None:
            return Evaluation(error=EvaluationError(self.expression, device.problem))
        key = self.key(device)
        evaluation = self._answers.get(key)
        if evaluation is None:
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            evaluation = self._answers[key] = self.evaluate(device)
        return evaluation

    def evaluate(self, device: Device, *, limit: int = COST_LIMIT) -> Evaluation:
        """Compute the answer."""
        activation = {
            "driver": device.driver,
            "allowMultipleAllocations": device.allow_multiple_allocations,
            "attributes": Domains(device.attributes),
            "capacity": Domains(device.capacity),
        }
        try:
            value, cost = self.program.evaluate(activation, limit)
        except CostLimitReached:
            reason = "operation cancelled: actual cost limit exceeded"
            return Evaluation(error=CostLimitError(self.expression, reason), cost=limit)
        except UnknownValueError as error:
            return Evaluation(error=UnsupportedError(self.expression, f"berth does not evaluate {error}"))
        if isinstance(value, Failed):
            return Evaluation(error=EvaluationError(self.expression, value.reason), cost=cost)
        if not isinstance(value, bool):
            return Evaluation(error=EvaluationError(self.expression, _not_bool(value)), cost=cost)
        return Evaluation(matches=value, cost=cost)


def _not_bool(value: Any) -> str:
    name = type_of(value).declared()
    why = _CONVERSION_ERRORS.get(name, f"unsupported native conversion from {name} to 'bool'")
    return f"CEL result of type {name} could not be converted to bool: {why}"


_CONVERSION_ERRORS: Final = {
    "int": "unsupported type conversion from 'int' to bool",
    "uint": "unsupported type conversion from 'uint' to bool",
    "double": "type conversion error from Double to 'bool'",
    "bytes": "type conversion error from Bytes to 'bool'",
    "null_type": "type conversion error from 'null_type' to 'bool'",
    **{name: f"type conversion error from {name} to 'bool'" for name in ("list", "map")},
    **{
        of.name: f"type conversion error from '{of.name.split('.')[1]}' to 'bool'"
        for of in (SEMVER, QUANTITY, IP, CIDR)
    },
}


def admit(expression: str) -> DeviceSelector:
    """Compile a new expression as the API server does, which also bounds what it can cost.

    Raises:
        CompileError: the API server refuses it.
        UnsupportedError: valid, but berth does not evaluate it.
    """
    selector = compile_selector(expression)
    if selector.estimated_cost > COST_LIMIT:
        raise CompileError(expression, "too complex, exceeds cost limit")
    return selector


def compile_selector(expression: str) -> DeviceSelector:
    """The expression, checked and ready. Its cost is not estimated: schedulers take what the API server admitted.

    Raises:
        CompileError: the API server would refuse it too.
        UnsupportedError: valid, but berth does not evaluate it.
    """
    if len(expression.encode(errors="replace")) > MAX_LENGTH_BYTES:
        raise CompileError(expression, f"Too long: may not be more than {MAX_LENGTH_BYTES} bytes")
    parsed = parse(expression)
    try:
        checked = check(parsed)
        ready = program(checked)
    except UnknownValueError as error:
        raise UnsupportedError(expression, f"berth does not evaluate {error}") from None
    return DeviceSelector(expression, DeviceReads(frozenset(_reads(parsed.root, {}))), ready, checked)


# -- which parts of a device an expression reads

_Names = Mapping[str, tuple[str, ...] | None]  # a name bound to a part of the device, or to something else

_DEPTH: Final = {"attributes": 3, "capacity": 3, "driver": 1, "allowMultipleAllocations": 1}


def _reads(node: Node, names: _Names) -> set[tuple[str, ...]]:
    path = _path(node, names)
    if path is not None:
        return _whole(path)
    if isinstance(node, Comprehension):
        return _reads_of_loop(node, names)
    return {read for child in children(node) for read in _reads(child, names)}


def _whole(path: tuple[str, ...]) -> set[tuple[str, ...]]:
    """The part, cut where no part is smaller; the device is all its parts."""
    return {path[: _DEPTH[path[0]]]} if path else {(name,) for name in _DEPTH}


def _path(node: Node, names: _Names) -> tuple[str, ...] | None:
    match node:
        case Ident(name=name):
            return names.get(name, () if name == "device" else None)
        case Select(operand=operand, field=name):
            path = _path(operand, names)
        case FunctionCall(function="_[_]" | "_[?_]" | "_?._", args=(operand, Literal(value=str(name)))):
            path = _path(operand, names)
        case _:
            return None
    return None if path is None else (*path, name)


def _reads_of_loop(node: Comprehension, names: _Names) -> set[tuple[str, ...]]:
    bound = _path(node.init, names) if node.is_bind else None
    reads = _reads(node.range, names) | (set() if bound is not None else _reads(node.init, names))
    outer = {**names, node.accu: bound}
    if node.is_bind:
        return reads | _reads(node.result, outer)
    inner = {**outer, node.variable: None, node.variable2: None}
    for part in (node.condition, node.step):
        reads |= _reads(part, inner)
    return reads | _reads(node.result, outer)
