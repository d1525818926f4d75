"""Checks an expression before it runs: every name declared, every call of a known signature, a bool in the end.

The result says which signatures each call may have. Texts are cel-go's, as the API server shows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from berth.cel.errors import CompileError, UnsupportedError
from berth.cel.library import FUNCTIONS
from berth.cel.library.overloads import Overload
from berth.cel.library.strings import compiled
from berth.cel.syntax import (
    Comprehension,
    CreateList,
    CreateMap,
    CreateStruct,
    FunctionCall,
    Ident,
    Literal,
    Node,
    Parsed,
    Select,
)
from berth.cel.types import (
    ANY,
    BOOL,
    BYTES,
    CIDR,
    DEVICE,
    DOUBLE,
    DYN,
    ERROR,
    INT,
    IP,
    NULL,
    QUANTITY,
    SEMVER,
    STRING,
    TYPE,
    UINT,
    URL,
    Bindings,
    CELType,
    is_dynamic,
    less_specific,
    list_of,
    map_of,
    optional_of,
    type_of,
    variable,
)
from berth.cel.values import type_of as type_of_value

# Functions of Kubernetes' environment that berth does not evaluate: no device has a time, and formats of names and
# texts are for validation.
UNSUPPORTED: Final = frozenset(
    {
        "timestamp",
        "duration",
        "format",
        "validate",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getFullYear",
    }
    | {"getHours", "getMilliseconds", "getMinutes", "getMonth", "getSeconds"}
)

DEVICE_FIELDS: Final[Mapping[str, CELType]] = {
    "driver": STRING,
    "allowMultipleAllocations": BOOL,
    "attributes": map_of(STRING, map_of(STRING, ANY)),
    "capacity": map_of(STRING, map_of(STRING, QUANTITY)),
}
# Names of types are values: `type(1) == int`.
TYPE_NAMES: Final[Mapping[str, CELType]] = {
    of.name: of for of in (BOOL, BYTES, DOUBLE, DYN, INT, NULL, STRING, UINT, TYPE, IP, CIDR)
} | {"list": list_of(DYN), "map": map_of(DYN, DYN), "optional_type": optional_of(variable("V"))}
_VARIABLES: Final[Mapping[str, CELType]] = {"device": DEVICE} | {name: type_of(of) for name, of in TYPE_NAMES.items()}


@dataclass(frozen=True, slots=True)
class Checked:
    """An expression that may be evaluated."""

    parsed: Parsed
    result: CELType
    types: Mapping[int, CELType]
    """The type of each node."""
    overloads: Mapping[int, tuple[Overload, ...]]
    """The signatures that each call may have, in their order."""


def check(parsed: Parsed) -> Checked:
    """The expression with its types.

    Raises:
        CompileError: a name that is not declared, types that do not fit, or a result that is no bool.
        UnsupportedError: it calls what berth does not evaluate.
    """
    checker = _Checker(parsed)
    checker.check(parsed.root)
    checker.raise_errors()
    types = {node: checker.bindings.resolve(of, free=DYN) for node, of in checker.types.items()}
    checked = Checked(parsed, types[parsed.root.id], types, checker.overloads)
    _validate(checked)
    if checked.result not in {BOOL, ANY}:
        reason = f"must evaluate to bool or the unknown type, not {checked.result.declared()}"
        raise CompileError(parsed.text, reason)
    return checked


@dataclass(slots=True)
class _Checker:
    parsed: Parsed
    types: dict[int, CELType] = field(default_factory=dict)
    overloads: dict[int, tuple[Overload, ...]] = field(default_factory=dict)
    bindings: Bindings = field(default_factory=Bindings)
    errors: list[tuple[int, str]] = field(default_factory=list)
    scopes: list[dict[str, CELType]] = field(default_factory=list)
    numbers: count[int] = field(default_factory=count)

    def raise_errors(self) -> None:
        if self.errors:
            unique = dict.fromkeys(sorted(self.errors, key=lambda error: self.parsed.positions.get(error[0], 0)))
            raise failed(self.parsed, unique)

    def check(self, node: Node) -> CELType:
        match node:
            case Literal():
                of = type_of_value(node.value)
            case Ident():
                of = self._ident(node)
            case Select():
                of = self._select(node)
            case FunctionCall():
                of = self._call(node)
            case CreateList():
                of = self._list(node)
            case CreateMap():
                of = self._map(node)
            case CreateStruct():
                of = self._undeclared(node, node.name)
            case Comprehension():
                of = self._comprehension(node)
        self.types[node.id] = of
        return of

    def _error(self, node: Node, message: str) -> CELType:
        self.errors.append((node.id, message))
        return ERROR

    def _undeclared(self, node: Node, name: str) -> CELType:
        if name in UNSUPPORTED or name.startswith(("format.", "google.protobuf.")):
            raise UnsupportedError(self.parsed.text, f"berth does not evaluate {name}")
        return self._error(node, f"undeclared reference to '{name}' (in container '')")

    def _fresh(self) -> CELType:
        return variable(f"_var{next(self.numbers)}")

    def _fits(self, want: CELType, got: CELType) -> bool:
        return self.bindings.assign((want,), (got,))

    def _declared(self, name: str) -> CELType | None:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return _VARIABLES.get(name.removeprefix("."))

    def _ident(self, node: Ident) -> CELType:
        return self._declared(node.name) or self._undeclared(node, node.name)

    def _select(self, node: Select) -> CELType:
        qualified = None if node.test else qualified_name(node)
        declared = self._declared(qualified) if qualified else None
        if declared:
            return declared
        of = self._field(node, node.operand, node.field, is_optional=False)
        return BOOL if node.test else of

    def _field(self, node: Node, operand: Node, name: str, *, is_optional: bool) -> CELType:
        of = self.bindings.resolve(self.check(operand))
        inside = of.params[0] if of.name == "optional_type" else of
        if inside.name == "map":
            result = inside.params[1]
        elif inside == DEVICE:
            result = DEVICE_FIELDS.get(name) or self._error(node, f"undefined field '{name}'")
        elif inside in _OBJECTS:
            result = self._error(node, f"undefined field '{name}'")
        else:
            if inside.is_variable:
                self._fits(DYN, inside)
            elif not is_dynamic(inside) and inside != ERROR:
                self._error(node, f"type '{inside}' does not support field selection")
            result = DYN
        result = self.bindings.resolve(result)
        return optional_of(result) if is_optional or inside is not of else result

    def _call(self, node: FunctionCall) -> CELType:
        if node.function == "_?._":
            name = node.args[1]
            if not isinstance(name, Literal) or not isinstance(name.value, str):
                return self._error(name, "unsupported optional field selection")
            self.types[name.id] = STRING
            return self._field(node, node.args[0], name.value, is_optional=True)
        args = [self.check(arg) for arg in node.args]
        if node.target is None:
            return self._resolve(node, node.function.removeprefix("."), args, is_method=False)
        prefix = qualified_name(node.target)
        qualified = f"{prefix}.{node.function}".removeprefix(".") if prefix else ""
        if qualified in FUNCTIONS or qualified.startswith("format."):
            return self._resolve(node, qualified, args, is_method=False)
        return self._resolve(node, node.function, [self.check(node.target), *args], is_method=True)

    def _resolve(self, node: FunctionCall, name: str, args: list[CELType], *, is_method: bool) -> CELType:
        if name not in FUNCTIONS or name in UNSUPPORTED:
            return self._undeclared(node, name)
        if name in {"_&&_", "_||_"}:
            return self._logical(node, name, args)
        result: CELType | None = None
        matching = []
        for overload in FUNCTIONS[name]:
            if overload.is_method is not is_method:
                continue
            params, of = self._instance(overload)
            if not self.bindings.assign(params, tuple(args)):
                continue
            matching.append(overload)
            of = self.bindings.resolve(of)
            if result is None:
                result = of
            elif not is_dynamic(result) and of != result:
                result = DYN
        if result is None:
            shown = [str(self.bindings.resolve(arg, free=DYN)) for arg in args]
            signature = f"{shown[0]}.({', '.join(shown[1:])})" if is_method else f"({', '.join(shown)})"
            return self._error(node, f"found no matching overload for '{name}' applied to '{signature}'")
        self.overloads[node.id] = tuple(matching)
        return result

    def _logical(self, node: FunctionCall, name: str, args: list[CELType]) -> CELType:
        self.overloads[node.id] = FUNCTIONS[name]
        wrong = [
            self._error(arg, f"expected type 'bool' but found '{self.bindings.resolve(of)}'")
            for arg, of in zip(node.args, args, strict=True)
            if not self._fits(of, BOOL)
        ]
        return ERROR if wrong else BOOL

    def _instance(self, overload: Overload) -> tuple[tuple[CELType, ...], CELType]:
        """The signature with type variables of its own."""
        fresh = Bindings({name: self._fresh() for name in _free(overload.params)})
        return tuple(fresh.resolve(param) for param in overload.params), fresh.resolve(overload.result)

    def _join(self, node: Node, known: CELType | None, of: CELType) -> CELType:
        if known is None:
            return of
        if self._fits(known, of):
            return known if less_specific(known, of) else of
        known, of = self.bindings.resolve(known), self.bindings.resolve(of)
        return self._error(node, f"expected type '{known}' but found '{of}'")

    def _element(self, node: Node, *, is_optional: bool) -> CELType:
        of = self.check(node)
        if not is_optional:
            return of
        if of.name == "optional_type":
            return of.params[0]
        if not is_dynamic(of):
            self._error(node, f"expected type '{optional_of(of)}' but found '{of}'")
        return of

    def _list(self, node: CreateList) -> CELType:
        of: CELType | None = None
        for index, element in enumerate(node.elements):
            of = self._join(element, of, self._element(element, is_optional=index in node.optional))
        return list_of(of or self._fresh())

    def _map(self, node: CreateMap) -> CELType:
        key: CELType | None = None
        value: CELType | None = None
        for entry in node.entries:
            key = self._join(entry.key, key, self.check(entry.key))
            value = self._join(entry.value, value, self._element(entry.value, is_optional=entry.optional))
        return map_of(key or self._fresh(), value or self._fresh())

    def _comprehension(self, node: Comprehension) -> CELType:
        of = self.bindings.resolve(self.check(node.range))
        accu = self.check(node.init)
        self.scopes.append({node.accu: accu})
        self.scopes.append(self._loop_variables(node, of))
        self._must_be(node.condition, BOOL)
        self._must_be(node.step, accu)
        self.scopes.pop()
        result = self.check(node.result)
        self.scopes.pop()
        return self.bindings.resolve(result)

    def _loop_variables(self, node: Comprehension, of: CELType) -> dict[str, CELType]:
        if of.name == "list":
            one, two = (INT, of.params[0]) if node.variable2 else (of.params[0], DYN)
        elif of.name == "map":
            one, two = of.params
        elif of in {DYN, ERROR} or of.is_variable:
            self._fits(DYN, of)
            one = two = DYN
        else:
            message = f"expression of type '{of}' cannot be range of a comprehension (must be list, map, or dynamic)"
            one = two = self._error(node.range, message)
        return {node.variable: one} | ({node.variable2: two} if node.variable2 else {})

    def _must_be(self, node: Node, want: CELType) -> None:
        got = self.check(node)
        if not self._fits(want, got):
            want, got = self.bindings.resolve(want), self.bindings.resolve(got)
            self._error(node, f"expected type '{want}' but found '{got}'")


_OBJECTS: Final = frozenset({QUANTITY, SEMVER, URL})


def failed(parsed: Parsed, errors: Iterable[tuple[int, str]]) -> CompileError:
    located = "\n".join(parsed.located(node, message) for node, message in errors)
    return CompileError(parsed.text, f"compilation failed: {located}")


def _free(params: Iterable[CELType]) -> list[CELType]:
    names: list[CELType] = []
    for param in params:
        names += [param] if param.is_variable else _free(param.params)
    return list(dict.fromkeys(names))


def qualified_name(node: Node) -> str | None:
    """``a.b.c`` of selections from an identifier."""
    match node:
        case Ident():
            return node.name
        case Select(test=False):
            prefix = qualified_name(node.operand)
            return f"{prefix}.{node.field}" if prefix else None
        case _:
            return None


def _validate(checked: Checked) -> None:
    """What Kubernetes refuses beside types: regular expressions with errors, literals of several types in one list."""
    parsed = checked.parsed
    errors: list[tuple[int, str]] = []
    for node in walk(parsed.root):
        match node:
            case FunctionCall(function="matches", args=(*_, Literal(value=str(pattern)) as literal)):
                if isinstance(compiled(pattern), str):
                    errors.append((literal.id, "invalid matches argument"))
            case CreateList():
                elements = [
                    (element, checked.types[element.id], index in node.optional)
                    for index, element in enumerate(node.elements)
                ]
                errors += _of_one_type(elements)
            case CreateMap():
                errors += _of_one_type([(entry.key, checked.types[entry.key.id], False) for entry in node.entries])
                errors += _of_one_type(
                    [(entry.value, checked.types[entry.value.id], entry.optional) for entry in node.entries]
                )
            case _:
                pass
    if errors:
        raise failed(parsed, sorted(errors, key=lambda error: parsed.positions.get(error[0], 0)))


def _of_one_type(parts: Sequence[tuple[Node, CELType, bool]]) -> list[tuple[int, str]]:
    """The first element whose type is not the first one's; of an optional element its value's type counts."""
    types = [of.params[0] if optional and of.params else of for _, of, optional in parts]
    for (node, _, _), of in zip(parts, types, strict=True):
        if of != types[0]:
            return [(node.id, f"expected type '{types[0]}' but found '{of}'")]
    return []


def walk(node: Node) -> Iterable[Node]:
    """The node and all below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Select():
            return (node.operand,)
        case FunctionCall():
            return node.args if node.target is None else (node.target, *node.args)
        case CreateList():
            return node.elements
        case CreateMap():
            return tuple(part for entry in node.entries for part in (entry.key, entry.value))
        case Comprehension():
            return (node.range, node.init, node.condition, node.step, node.result)
        case _:
            return ()
