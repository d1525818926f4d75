"""CEL's standard functions and optionals."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from berth.cel.library.overloads import LIST, MAP, OPTIONAL, K, Overload, T, V, function, method
from berth.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INT,
    STRING,
    UINT,
    CELType,
    list_of,
    optional_of,
    type_of,
)
from berth.cel.values import (
    ABSENT,
    HAVE_ORDER,
    MAX_INT,
    MAX_UINT,
    MIN_INT,
    OVERFLOW,
    Address,
    Cidr,
    Failed,
    Optional,
    UInt,
    UnknownValueError,
    compare,
    equal,
    key_of,
)
from berth.cel.values import type_of as type_of_value


def checked_int(number: int) -> int | Failed:
    return number if MIN_INT <= number <= MAX_INT else OVERFLOW


def _checked_uint(number: int) -> UInt | Failed:
    return UInt(number) if 0 <= number <= MAX_UINT else Failed("unsigned integer overflow")


def _checked(number: int, like: int) -> int | Failed:
    return _checked_uint(number) if type(like) is UInt else checked_int(number)


def add(one: Any, other: Any) -> Any:
    if type(one) in {int, UInt}:
        return _checked(int(one) + int(other), one)
    if type(one) is list and len(one) + len(other) > _MAX_ELEMENTS:
        raise UnknownValueError(f"lists of more than {_MAX_ELEMENTS:,} elements")
    if type(one) is str:
        check_length(len(one) + len(other))
    return one + other


def check_length(characters: int) -> None:
    """Refuse to make a text of more characters than an expression has twice over."""
    if characters > _MAX_CHARACTERS:
        raise UnknownValueError(f"texts of more than {_MAX_CHARACTERS:,} characters")


# A call costs by what it reads, not by what it makes, and to search a text costs 1: an admitted selector of 6 KB made a
# text of 4 GB, and another one would search for minutes.
_MAX_CHARACTERS: Final = 20_000

# A sum of lists costs 1 for Kubernetes, since Go does not copy them. Python does: seconds of that within the limit.
_MAX_ELEMENTS: Final = 10_000


def _subtract(one: Any, other: Any) -> Any:
    return one - other if type(one) is float else _checked(int(one) - int(other), one)


def _multiply(one: Any, other: Any) -> Any:
    return one * other if type(one) is float else _checked(int(one) * int(other), one)


def _divide(one: Any, other: Any) -> Any:
    if type(one) is float:
        return _divide_floats(one, other)
    if other == 0:
        return Failed("division by zero")
    quotient = abs(int(one)) // abs(int(other))
    return _checked(quotient if (one < 0) == (other < 0) else -quotient, one)


def _divide_floats(one: float, other: float) -> float:
    if other:
        return one / other
    if one == 0 or math.isnan(one):
        return math.nan
    return math.copysign(math.inf, one) * math.copysign(1.0, other)


def _modulo(one: int, other: int) -> Any:
    if other == 0:
        return Failed("modulus by zero")
    if one == MIN_INT and other == -1:
        return OVERFLOW
    rest = abs(int(one)) % abs(int(other))
    return _checked(-rest if one < 0 else rest, one)


def _negate(value: Any) -> Any:
    return -value if type(value) is float else checked_int(-value)


def _ordered(operator: str, holds: Callable[[int], bool]) -> Callable[[Any, Any], Any]:
    without_order = Failed(f"no such overload: {operator}")

    def run(one: Any, other: Any) -> Any:
        order = compare(one, other)
        if isinstance(order, Failed):
            return order if type(one) in HAVE_ORDER else without_order
        return holds(order)

    return run


def _differs(one: Any, other: Any) -> bool:
    return equal(one, other) is not True


def contains(item: Any, among: Any) -> Any:
    """CEL's ``in``."""
    if isinstance(among, dict):
        return type(item) in _KEYS and key_of(item) in among
    return any(equal(element, item) is True for element in among)


_KEYS: Final = frozenset({bool, int, UInt, float, str, type(None)})


def find(among: Any, key: Any) -> Any:
    """The element or entry, or why there is none."""
    if isinstance(among, list):
        return among[int(key)] if 0 <= key < len(among) else Failed(f"index out of bounds: {int(key)}")
    value = among.get(key_of(key), _MISSING)
    return Failed(f"no such key: {shown(key)}") if value is _MISSING else value


_MISSING: Final = Failed("")


def find_optional(among: Any, key: Any) -> Any:
    value = find(among, key)
    return ABSENT if isinstance(value, Failed) else Optional(value)


def shown(value: Any) -> str:
    """A value in an error's text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _size(value: Any) -> int:
    return len(value)


def _conversion(source: Any, to: CELType) -> Failed:
    return Failed(f"type conversion error from '{type_of_value(source).declared()}' to '{to.declared()}'")


def _to_int(value: Any) -> Any:
    if isinstance(value, float):
        inside = math.isfinite(value) and -(2.0**63) < value < 2.0**63
        return int(value) if inside else OVERFLOW
    if isinstance(value, str):
        number = _digits(value, signs="+-")
        inside = number is not None and MIN_INT <= number <= MAX_INT
        return number if inside else _conversion(value, INT)
    return checked_int(int(value))


def _to_uint(value: Any) -> Any:
    if isinstance(value, float):
        inside = math.isfinite(value) and 0 <= value < 2.0**64
        return UInt(int(value)) if inside else Failed("unsigned integer overflow")
    if isinstance(value, str):
        number = _digits(value, signs="")
        return _conversion(value, UINT) if number is None or number > MAX_UINT else UInt(number)
    return _checked_uint(int(value))


def _digits(text: str, *, signs: str) -> int | None:
    unsigned = text[1:] if text[:1] and text[0] in signs else text
    if not (unsigned.isascii() and unsigned.isdigit()) or len(unsigned) > _MAX_DIGITS:
        return None
    return -int(unsigned) if text[0] == "-" else int(unsigned)


_MAX_DIGITS: Final = 4000  # Python refuses to read longer numbers; none of them fits


def _to_double(value: Any) -> Any:
    if not isinstance(value, str):
        return float(value)
    try:
        number = _read_float(value)
    except ValueError:
        number = None
    if number is None or (math.isinf(number) and "inf" not in value.lower()):
        return _conversion(value, DOUBLE)
    return number


def _read_float(text: str) -> float | None:
    if not text.isascii() or text != text.strip():
        return None
    return float.fromhex(text) if "0x" in text.lower() else float(text)


def _to_bool(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if value in _TRUE:
        return True
    return False if value in _FALSE else _conversion(value, BOOL)


_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE: Final = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def _to_string(value: Any) -> Any:  # noqa: PLR0911 - one answer for each type
    match value:
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return Failed("invalid UTF-8 in bytes, cannot convert to string")
        case Address():
            return str(value.address)
        case Cidr():
            return f"{value.address}/{value.bits}"
        case float():
            return go_float(value)
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)


def go_float(value: float) -> str:
    """The shortest text that reads back as the same number, in Go's form, with an exponent from a million on."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)  # noqa: S101 - the number is finite
    power = len(digits) + exponent - 1 if value else 0
    if not -4 <= power < 6:
        text = "".join(map(str, digits))
        mantissa = f"{text[0]}.{text[1:]}" if len(text) > 1 else text
        return f"{'-' if sign else ''}{mantissa}e{power:+03d}"
    return f"{Decimal(repr(value)):f}".removesuffix(".0")


def _to_bytes(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _same(value: Any) -> Any:
    return value


def _insert(into: dict[Any, Any], key: Any, value: Any) -> Any:
    if key_of(key) in into:
        return Failed(f"insert failed: key {shown(key)} already exists")
    return into | {key_of(key): value}


def _insert_all(into: dict[Any, Any], entries: dict[Any, Any]) -> Any:
    doubled = next((key for key in entries if key in into), None)
    return into | entries if doubled is None else Failed(f"insert failed: key {shown(doubled)} already exists")


def _not_strictly_false(value: Any) -> bool:
    return value is not False


def _value_of(optional: Optional) -> Any:
    return optional.value if optional.present else Failed("optional.none() dereference")


def _of_non_zero(value: Any) -> Optional:
    is_zero = not value if isinstance(value, (bool, int, float, str, bytes, list, dict, type(None))) else False
    return ABSENT if is_zero else Optional(value)


def _unwrap(values: list[Optional]) -> list[Any]:
    return [optional.value for optional in values if optional.present]


def _first(values: list[Any]) -> Optional:
    return Optional(values[0]) if values else ABSENT


def _last(values: list[Any]) -> Optional:
    return Optional(values[-1]) if values else ABSENT


def _string_method(name: str, run: Callable[[str, str], bool]) -> Overload:
    return method(name, _STRING_METHODS[name], (STRING, STRING), BOOL, run)


_STRING_METHODS: Final = {
    "contains": "contains_string",
    "startsWith": "starts_with_string",
    "endsWith": "ends_with_string",
}
_NUMBERS: Final = (("int64", INT), ("uint64", UINT), ("double", DOUBLE))
_LESS: Final = (
    ("_<_", "less", lambda order: order < 0),
    ("_<=_", "less_equals", lambda order: order <= 0),
    ("_>_", "greater", lambda order: order > 0),
    ("_>=_", "greater_equals", lambda order: order >= 0),
)


def _comparisons() -> list[Overload]:
    overloads = []
    for operator, word, holds in _LESS:
        run = _ordered(operator, holds)
        overloads += [function(operator, f"{word}_{name}", (one, other), BOOL, run) for name, one, other in _COMPARABLE]
    return overloads


def _arithmetic() -> list[Overload]:
    return [
        function(operator, f"{word}_{name}", (of, of), of, run)
        for operator, word, run in (
            ("_-_", "subtract", _subtract),
            ("_*_", "multiply", _multiply),
            ("_/_", "divide", _divide),
        )
        for name, of in (("double", DOUBLE), ("int64", INT), ("uint64", UINT))
    ]


# The order of signatures counts: a variable of an unknown type gets that of the first one.
_COMPARABLE: Final = (
    ("bool", BOOL, BOOL),
    ("int64", INT, INT),
    ("int64_double", INT, DOUBLE),
    ("int64_uint64", INT, UINT),
    ("uint64", UINT, UINT),
    ("uint64_double", UINT, DOUBLE),
    ("uint64_int64", UINT, INT),
    ("double", DOUBLE, DOUBLE),
    ("double_int64", DOUBLE, INT),
    ("double_uint64", DOUBLE, UINT),
    ("string", STRING, STRING),
    ("bytes", BYTES, BYTES),
)

STANDARD: Final[tuple[Overload, ...]] = (
    function("_==_", "equals", (T, T), BOOL, equal),
    function("_!=_", "not_equals", (T, T), BOOL, _differs),
    *_comparisons(),
    *(
        function("_+_", f"add_{name}", (of, of), of, add)
        for name, of in (
            ("bytes", BYTES),
            ("double", DOUBLE),
            ("int64", INT),
            ("list", LIST),
            ("string", STRING),
            ("uint64", UINT),
        )
    ),
    *_arithmetic(),
    function("_%_", "modulo_int64", (INT, INT), INT, _modulo),
    function("_%_", "modulo_uint64", (UINT, UINT), UINT, _modulo),
    function("-_", "negate_double", (DOUBLE,), DOUBLE, _negate),
    function("-_", "negate_int64", (INT,), INT, _negate),
    function("!_", "logical_not", (BOOL,), BOOL, lambda value: not value),
    function("_&&_", "logical_and", (BOOL, BOOL), BOOL, _same),
    function("_||_", "logical_or", (BOOL, BOOL), BOOL, _same),
    function("_?_:_", "conditional", (BOOL, T, T), T, _same),
    function("@not_strictly_false", "not_strictly_false", (BOOL,), BOOL, _not_strictly_false),
    function("@in", "in_list", (T, LIST), BOOL, contains),
    function("@in", "in_map", (K, MAP), BOOL, contains),
    function("_[_]", "index_list", (LIST, INT), T, find),
    function("_[_]", "index_map", (MAP, K), V, find),
    function("_[_]", "optional_list_index_int", (optional_of(LIST), INT), optional_of(T), _same),
    function("_[_]", "optional_map_index_value", (optional_of(MAP), K), OPTIONAL, _same),
    function("_[?_]", "list_optindex_optional_int", (LIST, INT), optional_of(T), find_optional),
    function("_[?_]", "optional_list_optindex_optional_int", (optional_of(LIST), INT), optional_of(T), _same),
    function("_[?_]", "map_optindex_optional_value", (MAP, K), OPTIONAL, find_optional),
    function("_[?_]", "optional_map_optindex_optional_value", (optional_of(MAP), K), OPTIONAL, _same),
    *(
        function("size", f"size_{name}", (of,), INT, _size)
        for name, of in (("bytes", BYTES), ("list", LIST), ("map", MAP), ("string", STRING))
    ),
    *(
        method("size", f"{name}_size", (of,), INT, _size)
        for name, of in (("bytes", BYTES), ("list", LIST), ("map", MAP), ("string", STRING))
    ),
    _string_method("contains", lambda text, part: part in text),
    _string_method("startsWith", str.startswith),
    _string_method("endsWith", str.endswith),
    function("dyn", "to_dyn", (T,), DYN, _same),
    function("type", "type", (T,), type_of(T), type_of_value),
    *(function("bool", f"{of}_to_bool", (of,), BOOL, _to_bool) for of in (BOOL, STRING)),
    *(function("bytes", f"{of}_to_bytes", (of,), BYTES, _to_bytes) for of in (BYTES, STRING)),
    *(
        function("double", f"{name}_to_double", (of,), DOUBLE, _to_double)
        for name, of in (*_NUMBERS, ("string", STRING))
    ),
    *(function("int", f"{name}_to_int64", (of,), INT, _to_int) for name, of in (*_NUMBERS, ("string", STRING))),
    *(function("uint", f"{name}_to_uint64", (of,), UINT, _to_uint) for name, of in (*_NUMBERS, ("string", STRING))),
    *(
        function("string", f"{name}_to_string", (of,), STRING, _to_string)
        for name, of in (*_NUMBERS, ("string", STRING), ("bytes", BYTES), ("bool", BOOL))
    ),
    function("optional.of", "optional_of", (V,), OPTIONAL, Optional),
    function("optional.ofNonZeroValue", "optional_ofNonZeroValue", (V,), OPTIONAL, _of_non_zero),
    function("optional.none", "optional_none", (), OPTIONAL, lambda: ABSENT),
    method("value", "optional_value", (OPTIONAL,), V, _value_of),
    method("hasValue", "optional_hasValue", (OPTIONAL,), BOOL, lambda optional: optional.present),
    method("or", "optional_or_optional", (OPTIONAL, OPTIONAL), OPTIONAL, _same),
    method("orValue", "optional_orValue_value", (OPTIONAL, V), V, _same),
    method("first", "list_first", (list_of(V),), OPTIONAL, _first),
    method("last", "list_last", (list_of(V),), OPTIONAL, _last),
    function("optional.unwrap", "optional_unwrap", (list_of(OPTIONAL),), list_of(V), _unwrap),
    method("unwrapOpt", "optional_unwrapOpt", (list_of(OPTIONAL),), list_of(V), _unwrap),
    function("cel.@mapInsert", "@mapInsert_map_key_value", (MAP, K, V), MAP, _insert),
    function("cel.@mapInsert", "@mapInsert_map_map", (MAP, MAP), MAP, _insert_all),
)
