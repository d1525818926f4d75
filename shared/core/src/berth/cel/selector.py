"""Selectors: a compiled expression, the devices that it is asked about, and its answers.

    selector = compile_selector('device.driver == "gpu.example.com"')
    selector.evaluate(device)

An expression reads a part of a device (``reads``). Devices that are alike in this part have one answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from berth.cel.calls import CostLimitReached
from berth.cel.check import check, children
from berth.cel.errors import CompileError, CostLimitError, EvaluationError, UnsupportedError
from berth.cel.library.costs import COST_LIMIT, MAX_LENGTH_BYTES
from berth.cel.program import CompiledExpression, program
from berth.cel.syntax import Comprehension, FunctionCall, Ident, Literal, Node, Select, parse
from berth.cel.types import CIDR, IP, QUANTITY, SEMVER
from berth.cel.values import Domains, Failed, Quantity, Semver, UnknownValueError, type_of

Attribute = bool | int | str | Semver

# ("driver",), ("attributes", domain, id), or ("attributes", domain) for a whole domain.
Path = tuple[str, ...]


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
class Evaluation:
    """An expression's answer about a device, or why there is none, and what it cost in Kubernetes' units."""

    matches: bool = False
    error: EvaluationError | UnsupportedError | None = None
    cost: int = 0


@dataclass(frozen=True, slots=True)
class DeviceSelector:
    """``reads``: the parts of a device that the expression may read."""

    expression: str
    reads: frozenset[Path]
    program: CompiledExpression

    def evaluate(self, device: Device, *, limit: int = COST_LIMIT) -> Evaluation:
        """Compute the answer."""
        if device.problem is not None:
            return Evaluation(error=EvaluationError(self.expression, device.problem))
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


def load() -> None:
    """Load the parser before the first expression."""
    parse("true")


def compile_selector(expression: str) -> DeviceSelector:
    """The expression, checked and ready. Its cost is not estimated: the API server has done so before.

    Raises:
        CompileError: the API server would refuse it too.
        UnsupportedError: valid, but berth does not evaluate it.
    """
    if len(expression.encode(errors="replace")) > MAX_LENGTH_BYTES:
        raise CompileError(expression, f"Too long: may not be more than {MAX_LENGTH_BYTES} bytes")
    parsed = parse(expression)
    try:
        ready = program(check(parsed))
    except UnknownValueError as error:
        raise UnsupportedError(expression, f"berth does not evaluate {error}") from None
    return DeviceSelector(expression, frozenset(_reads(parsed.root, {})), ready)


# -- which parts of a device an expression reads

_Names = Mapping[str, Path | None]  # a name bound to a part of the device, or to something else

_DEPTH: Final = {"attributes": 3, "capacity": 3, "driver": 1, "allowMultipleAllocations": 1}


def _reads(node: Node, names: _Names) -> set[Path]:
    path = _path(node, names)
    if path is not None:
        return _whole(path)
    if isinstance(node, Comprehension):
        return _reads_of_loop(node, names)
    return {read for child in children(node) for read in _reads(child, names)}


def _whole(path: Path) -> set[Path]:
    """The part, cut where no part is smaller; the device is all its parts."""
    return {path[: _DEPTH[path[0]]]} if path else {(name,) for name in _DEPTH}


def _path(node: Node, names: _Names) -> Path | None:
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


def _reads_of_loop(node: Comprehension, names: _Names) -> set[Path]:
    bound = _path(node.init, names) if node.is_bind else None
    reads = _reads(node.range, names) | (set() if bound is not None else _reads(node.init, names))
    outer = {**names, node.accu: bound}
    if node.is_bind:
        return reads | _reads(node.result, outer)
    inner = {**outer, node.variable: None, node.variable2: None}
    for part in (node.condition, node.step):
        reads |= _reads(part, inner)
    return reads | _reads(node.result, outer)
