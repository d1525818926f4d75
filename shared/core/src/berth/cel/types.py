"""CEL's types, and how type variables are bound while an expression is checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Type:
    """A type by its name, with parameters: ``list(int)``, ``map(string, dyn)``."""

    name: str
    params: tuple[Type, ...] = ()
    is_variable: bool = False

    def __str__(self) -> str:
        """As cel-go's checker writes it in an error."""
        name = _SHOWN.get(self.name, self.name)
        return f"{name}({', '.join(map(str, self.params))})" if self.params else name

    def declared(self) -> str:
        """With the names that Kubernetes writes about an expression's result."""
        return f"{self.name}({', '.join(param.declared() for param in self.params)})" if self.params else self.name


ANY: Final = Type("google.protobuf.Any")
BOOL: Final = Type("bool")
BYTES: Final = Type("bytes")
DOUBLE: Final = Type("double")
DYN: Final = Type("dyn")
ERROR: Final = Type("error")
INT: Final = Type("int")
NULL: Final = Type("null_type")
STRING: Final = Type("string")
UINT: Final = Type("uint")
DEVICE: Final = Type("kubernetes.DRADevice")
QUANTITY: Final = Type("kubernetes.Quantity")
SEMVER: Final = Type("kubernetes.Semver")
URL: Final = Type("kubernetes.URL")
FORMAT: Final = Type("kubernetes.NamedFormat")
IP: Final = Type("net.IP")
CIDR: Final = Type("net.CIDR")
TYPE: Final = Type("type")

_SHOWN: Final = {ANY.name: "any", ERROR.name: "!error!", NULL.name: "null"}
_NULLABLE: Final = frozenset({DEVICE, QUANTITY, SEMVER, URL, FORMAT, IP, CIDR})


def list_of(element: Type) -> Type:
    return Type("list", (element,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("optional_type", (value,))


def type_of(of: Type) -> Type:
    return Type("type", (of,))


def variable(name: str) -> Type:
    return Type(name, is_variable=True)


def is_dynamic(of: Type) -> bool:
    return of in {DYN, ANY}


@dataclass(slots=True)
class Bindings:
    """What type variables stand for."""

    bound: dict[Type, Type] = field(default_factory=dict)

    def resolve(self, of: Type, *, free: Type | None = None) -> Type:
        """The type with its variables replaced; variables without a binding by ``free``, if it is given."""
        while of.is_variable and of in self.bound:
            of = self.bound[of]
        if of.is_variable:
            return free or of
        if not of.params:
            return of
        return Type(of.name, tuple(self.resolve(param, free=free) for param in of.params))

    def assign(self, to: tuple[Type, ...], values: tuple[Type, ...]) -> bool:
        """Whether each value fits its parameter. If all do, what variables they bind is kept."""
        before = dict(self.bound)
        if len(to) == len(values) and all(self._fits(want, got) for want, got in zip(to, values, strict=True)):
            return True
        self.bound = before
        return False

    def _fits(self, want: Type, got: Type) -> bool:  # noqa: PLR0911 - one answer for each kind of type
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

    def _bind(self, name: Type, to: Type) -> bool | None:
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

    def _occurs(self, name: Type, inside: Type) -> bool:
        if name == inside:
            return True
        if inside.is_variable:
            return inside in self.bound and self._occurs(name, self.bound[inside])
        return any(self._occurs(name, param) for param in inside.params)


_WILDCARDS: Final = frozenset({DYN, ANY, ERROR})


def less_specific(one: Type, other: Type) -> bool:
    """Whether ``one`` is equal or says less, as ``list(dyn)`` says less than ``list(int)``."""
    if is_dynamic(one) or one.is_variable:
        return True
    if is_dynamic(other) or other.is_variable or one.name != other.name or len(one.params) != len(other.params):
        return False
    return one.name == "type" or all(less_specific(a, b) for a, b in zip(one.params, other.params, strict=True))
