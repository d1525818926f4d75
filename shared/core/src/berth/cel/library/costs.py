"""Costs of calls in Kubernetes' units, by the signature that a call has.

A name, a selection and an index cost 1, a list 10, a map 30, and a call at least 1. These are the same numbers as
kube-scheduler's, so that an expression ends at the same limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from berth.cel.values import Address, Cidr, Quantity, Semver, Url, size

# Kubernetes' limits for a selector: resource.k8s.io/v1, CELSelectorExpressionMaxCost and ...MaxLength.
COST_LIMIT: Final = 1_000_000
MAX_LENGTH_BYTES: Final = 10 * 1024

NAME: Final = 1
LIST: Final = 10
MAP: Final = 30

_PER_CHARACTER: Final = 0.1
_PER_REGEX_CHARACTER: Final = 0.25
_SET_LIKE: Final = 2.0

# Called with the arguments, and with the result where it decides the cost.
CallCost = Callable[[Sequence[Any], Any], int]


def _characters(factor: float = _PER_CHARACTER) -> CallCost:
    return lambda args, _result: math.ceil(size(args[0]) * factor)


def _regex(args: Sequence[Any], _result: Any) -> int:
    text = math.ceil((1.0 + size(args[0])) * _PER_CHARACTER)
    return text * math.ceil(size(args[1]) * _PER_REGEX_CHARACTER)


def _shorter(args: Sequence[Any], _result: Any) -> int:
    return math.ceil(min(size(args[0]), size(args[1])) * _PER_CHARACTER)


def _equality(args: Sequence[Any], result: Any) -> int:
    return 1 if type(args[0]) in _FLAT else _shorter(args, result)


_FLAT: Final = frozenset({Quantity, Semver, Url, Address, Cidr})


def _both(args: Sequence[Any], _result: Any) -> int:
    return math.ceil((size(args[0]) + size(args[1])) * _PER_CHARACTER)


def _contains(args: Sequence[Any], _result: Any) -> int:
    return math.ceil(size(args[0]) * _PER_CHARACTER) * math.ceil(size(args[1]) * _PER_CHARACTER)


def _traversal(value: Any) -> int:
    match value:
        case str():
            return int(len(value.encode()) * _PER_CHARACTER)
        case bytes():
            return int(len(value) * _PER_CHARACTER)
        case list():
            return sum(map(_traversal, value))
        case dict():
            return sum(_traversal(key) + _traversal(entry) for key, entry in value.items())
        case _:
            return 1


def _made(_args: Sequence[Any], result: Any) -> int:
    return 1 + LIST + size(result)


def _flattened(args: Sequence[Any], _result: Any) -> int:
    depth = args[1] if len(args) > 1 else 1
    return 1 + LIST + int(size(args[0]) * depth)


def _among_themselves(argument: int) -> CallCost:
    def cost(args: Sequence[Any], _result: Any) -> int:
        values = args[argument]
        if not isinstance(values, list):
            return 1
        factor = _SET_LIKE
        if values and isinstance(values[0], (str, bytes)):
            factor += _PER_CHARACTER
        return 1 + LIST + int(len(values) ** 2 * factor)

    return cost


def _sets(factor: float) -> CallCost:
    return lambda args, _result: 1 + int(size(args[0]) * size(args[1]) * factor)


def _joined(_args: Sequence[Any], result: Any) -> int:
    return math.ceil(size(result) * 2 * _PER_CHARACTER)


def _contains_address(args: Sequence[Any], _result: Any) -> int:
    return math.ceil(2 * size(args[0]) * _PER_CHARACTER)


def _contains_network(args: Sequence[Any], result: Any) -> int:
    return _contains_address(args, result) + math.ceil(size(args[0]) * _PER_CHARACTER) + 1


def _with_parsed(cost: CallCost) -> CallCost:
    return lambda args, result: cost(args, result) + math.ceil(size(args[1]) * _PER_CHARACTER)


_VERSIONS: Final = ("semver", "isSemver", "ip")

# By function, whatever its signature.
_BY_FUNCTION: Final[dict[str, CallCost]] = {
    **dict.fromkeys(
        ("isSorted", "sum", "max", "min", "indexOf", "lastIndexOf"), lambda args, _result: _traversal(args[0])
    ),
    **dict.fromkeys(
        (
            "url",
            "lowerAscii",
            "upperAscii",
            "substring",
            "trim",
            "cidr",
            "isIP",
            "isCIDR",
            "quantity",
            "isQuantity",
            *_VERSIONS,
        ),
        _characters(),
    ),
    **dict.fromkeys(("replace", "split", "ip.isCanonical"), _characters(2 * _PER_CHARACTER)),
    **dict.fromkeys(("find", "findAll"), _regex),
    "join": _joined,
    "containsIP": _contains_address,
    "containsCIDR": _contains_network,
    "_==_": _equality,
}
# By signature: they come first.
_BY_SIGNATURE: Final[dict[str, CallCost]] = {
    **dict.fromkeys(("starts_with_string", "ends_with_string", "string_to_bytes", "bytes_to_string"), _characters()),
    "strings_quote": _characters(),
    "in_list": lambda args, _result: size(args[1]),
    **{
        f"{word}_{of}": _shorter
        for word in ("less", "greater", "less_equals", "greater_equals")
        for of in ("string", "bytes")
    },
    "not_equals": _shorter,
    "add_string": _both,
    "add_bytes": _both,
    "matches_string": _regex,
    "contains_string": _contains,
    "cidr_ip": lambda _args, _result: 1,
    "cidr_contains_ip_string": _with_parsed(_contains_address),
    "cidr_contains_cidr_string": _with_parsed(_contains_network),
    **dict.fromkeys(("list_slice", "lists_range", "list_reverse"), _made),
    **dict.fromkeys(("list_flatten", "list_flatten_int"), _flattened),
    "list_distinct": _among_themselves(0),
    **{f"list_{of}_sort": _among_themselves(0) for of in ("int", "uint", "double", "bool", "string", "bytes")},
    **{
        f"list_{of}_sortByAssociatedKeys": _among_themselves(1)
        for of in ("int", "uint", "double", "bool", "string", "bytes")
    },
    "list_sets_contains_list": _sets(1),
    "list_sets_intersects_list": _sets(1),
    "list_sets_equivalent_list": _sets(2),
}
# Where the result decides, a call is paid for after it was made.
PAID_AFTERWARDS: Final = frozenset({_made, _joined})


def cost_of(function: str, signature: str) -> CallCost | None:
    """What a call costs; None for 1. ``signature`` is empty if the call may have several."""
    return _BY_SIGNATURE.get(signature) or _BY_FUNCTION.get(function)
