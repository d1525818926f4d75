"""CEL's types, and how type variables are bound while an expression is checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class CELType:
    """A type by its name, with parameters: ``list(int)``, ``map(string, dyn)``."""

    name: str
    params: tuple[CELType, ...] = ()
    is_variable: bool = False

    def __str__(self) -> str:
        """As cel-go's checker writes it in an error."""
        name = _SHOWN.get(self.name, self.name)
        return f"{name}({', '.join(map(str, self.params))})" if self.params else name

    def declared(self) -> str:
        """With the names that Kubernetes writes about an expression's result."""
        return f"{self.name}({', '.join(param.declared() for param in self.params)})" if self.params else self.name


ANY: Final = CELType("google.protobuf.Any")
BOOL: Final = CELType("bool")
BYTES: Final = CELType("bytes")
DOUBLE: Final = CELType("double")
DYN: Final = CELType("dyn")
ERROR: Final = CELType("error")
INT: Final = CELType("int")
NULL: Final = CELType("null_type")
STRING: Final = CELType("string")
UINT: Final = CELType("uint")
DEVICE: Final = CELType("kubernetes.DRADevice")
QUANTITY: Final = CELType("kubernetes.Quantity")
SEMVER: Final = CELType("kubernetes.Semver")
URL: Final = CELType("kubernetes.URL")
IP: Final = CELType("net.IP")
CIDR: Final = CELType("net.CIDR")
TYPE: Final = CELType("type")

_SHOWN: Final = {ANY.name: "any", ERROR.name: "!error!", NULL.name: "null"}
_NULLABLE: Final = frozenset({DEVICE, QUANTITY, SEMVER, URL, IP, CIDR})


def list_of(element: CELType) -> CELType:
    return CELType("list", (element,))


def map_of(key: CELType, value: CELType) -> CELType:
    return CELType("map", (key, value))


def optional_of(value: CELType) -> CELType:
    return CELType("optional_type", (value,))


def type_of(of: CELType) -> CELType:
    return CELType("type", (of,))


def variable(name: str) -> CELType:
    return CELType(name, is_variable=True)


def is_dynamic(of: CELType) -> bool:
    return of in {DYN, ANY}


@dataclass(slots=True)
class Bindings:
    """What type variables stand for."""

    bound: dict[CELType, CELType] = field(default_factory=dict)

    def resolve(self, of: CELType, *, free: CELType | None = None) -> CELType:
        """The type with its variables replaced; variables without a binding by ``free``, if it is given."""
        while of.is_variable and of in self.bound:
            of = self.bound[of]
        if of.is_variable:
            return free or of
        if not of.params:
            return of
        return CELType(of.name, tuple(self.resolve(param, free=free) for param in of.params))

    def assign(self, to: tuple[CELType, ...], values: tuple[CELType, ...]) -> bool:
        """Whether each value fits its parameter. If all do, what variables they bind is kept."""
        before = dict(self.bound)
        if len(to) == len(values) and all(self._fits(want, got) for want, got in zip(to, values, strict=True)):
            return True
        self.bound = before
        return False

    def _fits(self, want: CELType, got: CELType) -> bool:  # noqa: PLR0911 - one answer for each kind of type
        if got.is_variable:
            bound = self._bind(got, want)
            if bound is not None:
                return bound
        if want.is_variable:
            return bool(self._bind(want, got))
        if want in _WILDCARDS or got in _WILDCARDS:
            return True
        if NULL in {want, got}:
            other = got if want == NULL else want
            return other == NULL or other in _NULLABLE or other.name == "optional_type"
        if want.name == got.name == "type":
            return True
        if want.name != got.name or len(want.params) != len(got.params):
            return False
        return all(self._fits(a, b) for a, b in zip(want.params, got.params, strict=True))

    def _bind(self, name: CELType, to: CELType) -> bool | None:
        """Bind the variable, or compare with what it is bound to. None if ``to`` has the variable inside."""
        if name == to:
            return True
        if name in self.bound:
            known = self.bound[name]
            if known == to:
                return True
            if not self._fits(to, known):
                return False
            wider = to if less_specific(to, known) else known
            if not self._occurs(name, wider):
                self.bound[name] = wider
            return True
        if self._occurs(name, to):
            return None
        self.bound[name] = to
        return True

    def _occurs(self, name: CELType, inside: CELType) -> bool:
        if name == inside:
            return True
        if inside.is_variable:
            return inside in self.bound and self._occurs(name, self.bound[inside])
        return any(self._occurs(name, param) for param in inside.params)


_WILDCARDS: Final = frozenset({DYN, ANY, ERROR})


def less_specific(one: CELType, other: CELType) -> bool:
    """Whether ``one`` is equal or says less, as ``list(dyn)`` says less than ``list(int)``."""
    if is_dynamic(one) or one.is_variable:
        return True
    if is_dynamic(other) or other.is_variable or one.name != other.name or len(one.params) != len(other.params):
        return False
    return one.name == "type" or all(less_specific(a, b) for a, b in zip(one.params, other.params, strict=True))
