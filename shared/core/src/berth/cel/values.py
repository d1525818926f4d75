"""Values of expressions: Python's own for CEL's, and classes for Kubernetes' types.

| CEL | Python | | CEL | Python |
|---|---|---|---|---|
| bool, int, double, string, bytes, null | bool, int, float, str, bytes, None | | list | list |
| uint | UInt | | map | dict, keys by `key_of` |
| type | berth.cel.types.CELType | | a value that could not be computed | Failed |

Values are never changed once another expression can see them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from berth.cel import types

MIN_INT: Final = -(2**63)
MAX_INT: Final = 2**63 - 1
MAX_UINT: Final = 2**64 - 1
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

    def get(self, key: Any, default: Any = None) -> Any:  # noqa: ARG002 - it is dict's
        """The domain's map, whatever the default."""
        return super().get(key, {})


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity, and how Kubernetes has it in memory, since some answers follow from that.

    With ``is_int64`` it is an int64 times ``10**exponent``, else a decimal number with that exponent. So ``1`` is an
    integer for expressions, but ``1000m`` and ``100Ti`` are none.
    """

    amount: Fraction
    exponent: int = 0
    is_int64: bool = True

    def __hash__(self) -> int:
        return hash((self.amount.numerator, self.exponent))  # a tenth of the time that Fraction's takes

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> Quantity | Failed:
        form = _QUANTITY.fullmatch(text)
        if form is None or not text:
            return Failed(_NO_QUANTITY)
        sign, whole, _, decimals, suffix = form.groups(default="")
        scale = _scale(suffix)
        if scale is None:
            return Failed("unable to parse quantity's suffix")
        if not whole and not decimals:
            return Failed("unable to parse numeric part of quantity")
        number = int(f"{sign}{whole}{decimals}")
        digits = len(whole.lstrip("0") or "0") + len(decimals)
        base, power = scale
        amount = Fraction(number, 10 ** len(decimals)) * Fraction(base) ** power
        exponent = power - len(decimals) if base == 10 else 0
        if base == 10:
            is_int64 = digits <= _INT64_DIGITS and exponent >= -_NANO_DIGITS
        else:
            is_int64 = not decimals and digits + int(power * 0.3) + 1 <= _BINARY_DIGITS
        if is_int64:
            return Quantity(amount, exponent)
        return Quantity(_to_nano(amount, is_binary=base == 2), -_NANO_DIGITS, is_int64=False)

    def whole(self) -> int | None:
        """As an int64, if Kubernetes has it as one with no fraction."""
        fits = self.is_int64 and self.exponent >= 0 and MIN_INT <= self.amount <= MAX_INT
        return int(self.amount) if fits else None

    def plus(self, other: Quantity) -> Quantity:
        amount = self.amount + other.amount
        if self.is_int64 and other.is_int64:
            shown = [part.exponent for part in (self, other) if part.amount]
            exponent = min(shown, default=self.exponent)
            parts = (part / Fraction(10) ** exponent for part in (self.amount, other.amount, amount))
            if all(MIN_INT <= part <= MAX_INT for part in parts):
                return Quantity(amount, exponent)
        return Quantity(amount, min(self.exponent, other.exponent), is_int64=False)

    def minus(self, other: Quantity) -> Quantity:
        return self.plus(Quantity(-other.amount, other.exponent, other.is_int64))

    def approximate(self) -> float:
        return float(self.amount / Fraction(10) ** self.exponent) * float(f"1e{self.exponent}")


def _scale(suffix: str) -> tuple[int, int] | None:
    """The base and power that a suffix stands for."""
    if suffix in _DECIMAL_SUFFIXES:
        return 10, _DECIMAL_SUFFIXES[suffix]
    if suffix in _BINARY_SUFFIXES:
        return 2, _BINARY_SUFFIXES[suffix]
    if not re.fullmatch("[eE][+-]?[0-9]+", suffix):
        return None
    power = int(suffix[1:])
    if abs(power) > _MAX_POWER:
        raise UnknownValueError(f"quantities with an exponent of {power}")
    return 10, power


def _to_nano(amount: Fraction, *, is_binary: bool) -> Fraction:
    """Round away from zero to a nano; of binary suffixes at most 2^63-1 is kept."""
    nanos = abs(amount) * 10**_NANO_DIGITS
    rounded = Fraction(-(-nanos.numerator // nanos.denominator), 10**_NANO_DIGITS)
    if is_binary:
        rounded = min(rounded, Fraction(MAX_INT))
    return -rounded if amount < 0 else rounded


class UnknownValueError(Exception):
    """A value that berth does not read as Kubernetes does; the message names it."""


_QUANTITY: Final = re.compile(r"([+-]?)([0-9]*)(\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)")
_DECIMAL_SUFFIXES: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MAX_POWER: Final = 1000
_NANO_DIGITS: Final = 9
# Up to how many digits Kubernetes keeps an int64; of binary suffixes the power counts with three tenths of a digit.
_INT64_DIGITS: Final = 18
_BINARY_DIGITS: Final = 15
_NO_QUANTITY: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"


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
        if len(parts) < 3:
            return Failed("No Major.Minor.Patch elements found")
        patch, plus, build = parts[2].partition("+")
        patch, dash, prerelease = patch.partition("-")
        numbers: list[int] = []
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
        return Semver(numbers[0], numbers[1], numbers[2], identifiers)

    @staticmethod
    def parse_tolerant(text: str) -> Semver | Failed:
        """The version, also with a ``v`` before it, leading zeros, or without minor and patch."""
        parts = text.removeprefix("v").split(".", 2)
        parts = [_without_zeros(part) for part in parts]
        if len(parts) < 3 and re.search(r"[+-]", parts[-1]):
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
        return f"Invalid character(s) found in {name.lower()} number {quoted(digits)}"
    if len(digits) > 1 and digits[0] == "0":
        return f"{name} number must not contain leading zeroes {quoted(digits)}"
    return _uint_problem(digits)


def _uint_problem(digits: str) -> str:
    if not digits:
        return 'strconv.ParseUint: parsing "": invalid syntax'
    return "" if int(digits) <= MAX_UINT else f"strconv.ParseUint: parsing {quoted(digits)}: value out of range"


def _prerelease_problem(word: str) -> str:
    if not word:
        return "Prerelease is empty"
    if re.fullmatch(r"[0-9]+", word):
        if len(word) > 1 and word[0] == "0":
            return f"Numeric PreRelease version must not contain leading zeroes {quoted(word)}"
        return _uint_problem(word)
    return "" if re.fullmatch(r"[0-9A-Za-z-]+", word) else f"Invalid character(s) found in prerelease {quoted(word)}"


def _build_problem(word: str) -> str:
    if not word:
        return "Build meta data is empty"
    allowed = re.fullmatch(r"[0-9A-Za-z-]+", word)
    return "" if allowed else f"Invalid character(s) found in build meta data {quoted(word)}"


def quoted(text: str) -> str:
    """As Go quotes it in an error."""
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char.isprintable():
        return f"\\{char}" if char in '\\"' else char
    if char in _ESCAPES:
        return _ESCAPES[char]
    code = ord(char)
    if code <= 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


_ESCAPES: Final = dict(zip("\a\b\f\n\r\t\v", (f"\\{letter}" for letter in "abfnrtv"), strict=True))


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


_TYPES: Final[Mapping[type, types.CELType]] = {
    bool: types.BOOL,
    int: types.INT,
    UInt: types.UINT,
    float: types.DOUBLE,
    str: types.STRING,
    bytes: types.BYTES,
    type(None): types.NULL,
    list: types.CELType("list"),
    dict: types.CELType("map"),
    Domains: types.CELType("map"),
    types.CELType: types.TYPE,
    Optional: types.CELType("optional_type"),
    Quantity: types.QUANTITY,
    Semver: types.SEMVER,
    Address: types.IP,
    Cidr: types.CIDR,
    Url: types.URL,
}
_KUBERNETES: Final = frozenset({Quantity, Semver, Address, Cidr, Url})
_NUMBERS: Final = frozenset({int, UInt, float})
_PLAIN: Final = frozenset({bool, int, UInt, float, str, bytes})


def type_of(value: object) -> types.CELType:
    """The value's type, of lists and maps without that of their elements."""
    return _TYPES[type(value)]


def equal(one: Any, other: Any) -> bool | Failed:
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


def _equal_lists(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and _all_equal(zip(one, other, strict=True))


def _equal_maps(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    if len(one) != len(other) or any(key not in other for key in one):
        return False
    return _all_equal((value, other[key]) for key, value in one.items())


def _all_equal(pairs: Iterable[tuple[Any, Any]]) -> bool:
    # Elements that cannot be compared do not make a difference, as in kube-scheduler.
    return all(equal(one, other) is not False for one, other in pairs)


def _equal_optionals(one: Optional, other: Optional) -> bool | Failed:
    if not (one.present and other.present):
        return one.present == other.present
    return equal(one.value, other.value)


def _equal_versions(one: Semver, other: Semver) -> bool:
    return one.order() == other.order()


def _equal_quantities(one: Quantity, other: Quantity) -> bool:
    return one.amount == other.amount


def _equal_types(one: types.CELType, other: types.CELType) -> bool:
    return one.name == other.name


_COMPARED: Final[Mapping[type, Callable[[Any, Any], bool | Failed]]] = {
    list: _equal_lists,
    dict: _equal_maps,
    Domains: _equal_maps,
    Optional: _equal_optionals,
    Semver: _equal_versions,
    Quantity: _equal_quantities,
    types.CELType: _equal_types,
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
HAVE_ORDER: Final = _ORDERED | _NUMBERS


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
