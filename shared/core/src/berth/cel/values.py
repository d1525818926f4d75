"""Values of expressions: Python's own for CEL's, and classes for Kubernetes' types.

| CEL | Python | | CEL | Python |
|---|---|---|---|---|
| bool, int, double, string, bytes, null | bool, int, float, str, bytes, None | | list | list |
| uint | UInt | | map | dict, keys by `key_of` |
| type | berth.cel.types.Type | | a value that could not be computed | Failed |

Values are never changed once another expression can see them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from berth.api.resources import QuantityError, exact
from berth.cel import types

MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
MAX_UINT: Final = 2**64 - 1
_NANO: Final = 10**9
NO_SUCH_OVERLOAD: Final = "no such overload"


@dataclass(frozen=True, slots=True)
class Failed:
    """Why there is no value. A value and no exception, since ``&&`` and ``||`` may do without it."""

    reason: str


OVERFLOW: Final = Failed("integer overflow")
UNKNOWN_OVERLOAD: Final = Failed(NO_SUCH_OVERLOAD)


class UInt(int):
    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Optional:
    value: Any
    present: bool = True


ABSENT: Final = Optional(None, present=False)


class Domains(dict[str, dict[str, Any]]):
    """A device's attributes or capacities by domain: a domain that it lacks has an empty map, but is not in it."""

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        """The domain's map, whatever the default."""
        return super().get(key, {})


@dataclass(frozen=True, slots=True)
class Quantity:
    amount: Fraction

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> Quantity | Failed:
        """The quantity, to the next nano away from zero and at most 2^63-1, as Kubernetes reads it."""
        try:
            amount = exact(text)
        except QuantityError:
            return Failed(_NO_QUANTITY if text else "quantities must not be empty")
        nanos = abs(amount) * _NANO
        rounded = min(Fraction(-(-nanos.numerator // nanos.denominator), _NANO), Fraction(MAX_INT))
        return Quantity(-rounded if amount < 0 else rounded)

    def whole(self) -> int | None:
        """As an int64, or None."""
        number = self.amount
        return int(number) if number.denominator == 1 and MIN_INT <= number <= MAX_INT else None


_NO_QUANTITY: Final = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


@dataclass(frozen=True, slots=True)
class Semver:
    """A semantic version. ``prerelease`` has numbers and words; the build part does not count."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> Semver | Failed:
        """The version, or the first thing that is wrong with it in the words of Kubernetes' parser."""
        if not text:
            return Failed("Version string empty")
        parts = text.split(".", 2)
        if len(parts) < 3:  # noqa: PLR2004 - major, minor, patch
            return Failed("No Major.Minor.Patch elements found")
        patch, plus, build = parts[2].partition("+")
        patch, dash, prerelease = patch.partition("-")
        numbers = []
        for name, digits in zip(("Major", "Minor", "Patch"), (parts[0], parts[1], patch), strict=True):
            problem = _number_problem(name, digits)
            if problem:
                return Failed(problem)
            numbers.append(int(digits))
        words = prerelease.split(".") if dash else []
        for problem in (*map(_prerelease_problem, words), *map(_build_problem, build.split(".") if plus else ())):
            if problem:
                return Failed(problem)
        identifiers = tuple(int(word) if word.isdigit() else word for word in words)
        return Semver(*numbers, prerelease=identifiers)

    @staticmethod
    def parse_tolerant(text: str) -> Semver | Failed:
        """The version, also with a ``v`` before it, leading zeros, or without minor and patch."""
        parts = text.removeprefix("v").split(".", 2)
        parts = [_without_zeros(part) for part in parts]
        if len(parts) < 3 and re.search(r"[+-]", parts[-1]):  # noqa: PLR2004 - major, minor, patch
            return Failed("short version cannot contain PreRelease/Build meta data")
        return Semver.parse(".".join([*parts, "0", "0"][:3]))

    def order(self) -> tuple[Any, ...]:
        """A key that orders versions: a release after its prereleases, numbers before words, fewer before more."""
        words = tuple((isinstance(word, str), word) for word in self.prerelease)
        return (self.major, self.minor, self.patch, not words, words)


def _without_zeros(part: str) -> str:
    if len(part) <= 1:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped[:1].isdigit() and stripped[:1].isascii() else "0" + stripped


def _number_problem(name: str, digits: str) -> str:
    if not re.fullmatch(r"[0-9]*", digits):
        return f"Invalid character(s) found in {name.lower()} number {_quoted(digits)}"
    if len(digits) > 1 and digits[0] == "0":
        return f"{name} number must not contain leading zeroes {_quoted(digits)}"
    return _uint_problem(digits)


def _uint_problem(digits: str) -> str:
    if not digits:
        return 'strconv.ParseUint: parsing "": invalid syntax'
    return "" if int(digits) <= MAX_UINT else f"strconv.ParseUint: parsing {_quoted(digits)}: value out of range"


def _prerelease_problem(word: str) -> str:
    if not word:
        return "Prerelease is empty"
    if re.fullmatch(r"[0-9]+", word):
        if len(word) > 1 and word[0] == "0":
            return f"Numeric PreRelease version must not contain leading zeroes {_quoted(word)}"
        return _uint_problem(word)
    return "" if re.fullmatch(r"[0-9A-Za-z-]+", word) else f"Invalid character(s) found in prerelease {_quoted(word)}"


def _build_problem(word: str) -> str:
    if not word:
        return "Build meta data is empty"
    allowed = re.fullmatch(r"[0-9A-Za-z-]+", word)
    return "" if allowed else f"Invalid character(s) found in build meta data {_quoted(word)}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@dataclass(frozen=True, slots=True)
class Address:
    """An IP address."""

    address: IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Cidr:
    """A network; unlike Python's, bits after the prefix may be set."""

    address: IPv4Address | IPv6Address
    bits: int

    def masked(self) -> Cidr:
        shift = self.address.max_prefixlen - self.bits
        return Cidr(type(self.address)(int(self.address) >> shift << shift), self.bits)

    def contains(self, address: IPv4Address | IPv6Address) -> bool:
        shift = self.address.max_prefixlen - self.bits
        return type(address) is type(self.address) and int(address) >> shift == int(self.address) >> shift


@dataclass(frozen=True, slots=True)
class Url:
    scheme: str
    host: str
    path: str
    query: str
    text: str


@dataclass(frozen=True, slots=True)
class Format:
    """A named format of Kubernetes. ``size`` is the length of its regular expression for costs."""

    name: str
    size: int


_TYPES: Final[Mapping[type, types.Type]] = {
    bool: types.BOOL,
    int: types.INT,
    UInt: types.UINT,
    float: types.DOUBLE,
    str: types.STRING,
    bytes: types.BYTES,
    type(None): types.NULL,
    list: types.Type("list"),
    dict: types.Type("map"),
    Domains: types.Type("map"),
    types.Type: types.TYPE,
    Optional: types.Type("optional_type"),
    Quantity: types.QUANTITY,
    Semver: types.SEMVER,
    Address: types.IP,
    Cidr: types.CIDR,
    Url: types.URL,
    Format: types.FORMAT,
}
_KUBERNETES: Final = frozenset({Quantity, Semver, Address, Cidr, Url, Format})
_NUMBERS: Final = frozenset({int, UInt, float})
_PLAIN: Final = frozenset({bool, int, UInt, float, str, bytes})


def type_of(value: object) -> types.Type:
    """The value's type, of lists and maps without that of their elements."""
    return _TYPES[type(value)]


def equal(one: Any, other: Any) -> bool | Failed:  # noqa: PLR0911 - one answer for each kind of value
    """CEL's ``==``: numbers across types, values of two types differ; Kubernetes' types compare with their own only."""
    kind, other_kind = type(one), type(other)
    if kind is other_kind:
        if kind in _PLAIN:
            return bool(one == other)
        return _COMPARED.get(kind, _same)(one, other)
    if kind in _NUMBERS and other_kind in _NUMBERS:
        return float(one) == float(other) if float in {kind, other_kind} else int(one) == int(other)
    if one is None or other is None:
        return False
    if kind in _KUBERNETES:
        return UNKNOWN_OVERLOAD
    return equal(dict(one), dict(other)) if isinstance(one, dict) and isinstance(other, dict) else False


def _same(one: Any, other: Any) -> bool:
    return bool(one == other)


def _equal_lists(one: list[Any], other: list[Any]) -> bool | Failed:
    return len(one) == len(other) and _all_equal(zip(one, other, strict=True))


def _equal_maps(one: dict[Any, Any], other: dict[Any, Any]) -> bool | Failed:
    if len(one) != len(other) or any(key not in other for key in one):
        return False
    return _all_equal((value, other[key]) for key, value in one.items())


def _all_equal(pairs: Iterable[tuple[Any, Any]]) -> bool | Failed:
    return next((answer for answer in (equal(one, other) for one, other in pairs) if answer is not True), True)


def _equal_optionals(one: Optional, other: Optional) -> bool | Failed:
    if not (one.present and other.present):
        return one.present == other.present
    return equal(one.value, other.value)


def _equal_versions(one: Semver, other: Semver) -> bool:
    return one.order() == other.order()


def _equal_types(one: types.Type, other: types.Type) -> bool:
    return one.name == other.name


_COMPARED: Final = {
    list: _equal_lists,
    dict: _equal_maps,
    Domains: _equal_maps,
    Optional: _equal_optionals,
    Semver: _equal_versions,
    types.Type: _equal_types,
}


def compare(one: Any, other: Any) -> int | Failed:
    """Negative, 0 or positive for values that have an order."""
    kind, other_kind = type(one), type(other)
    if kind in _NUMBERS and other_kind in _NUMBERS:
        if float in {kind, other_kind}:
            one, other = float(one), float(other)
            if one != one or other != other:  # noqa: PLR0124 - NaN has no order
                return Failed("NaN values cannot be ordered")
        return int(one > other) - int(one < other)
    if kind is not other_kind or kind not in _ORDERED:
        return UNKNOWN_OVERLOAD
    return int(one > other) - int(one < other)


_ORDERED: Final = frozenset({bool, str, bytes})


def key_of(value: Any) -> Any:
    """The key in a map's dict: Python has True and 1 for one key, CEL has two."""
    return (value,) if type(value) is bool else value


def keys(of: dict[Any, Any]) -> list[Any]:
    """A map's keys as values."""
    return [key[0] if type(key) is tuple else key for key in of]


def size(value: Any) -> int:
    """What costs count: characters, elements, entries, bytes of an address; 1 for all else."""
    if isinstance(value, (str, bytes, list, dict)):
        return len(value)
    if isinstance(value, Optional) and value.present:
        return size(value.value)
    if isinstance(value, Address):
        return value.address.max_prefixlen // 8
    return -(-value.bits // 8) if isinstance(value, Cidr) else 1


def as_int64(number: int) -> int:
    """An unsigned number as Go reads its bits as an int64."""
    return number - 2**64 if number > MAX_INT else number
