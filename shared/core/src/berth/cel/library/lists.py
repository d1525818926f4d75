"""Functions of lists: Kubernetes' (sum, min, ...), cel-go's extension (version 3), and sets."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cmp_to_key, reduce
from itertools import pairwise
from typing import Any, Final

from berth.cel.library.overloads import LIST, Overload, T, function, method
from berth.cel.library.standard import add, contains
from berth.cel.types import BOOL, BYTES, DOUBLE, DYN, INT, STRING, UINT, CELType, list_of
from berth.cel.values import UNKNOWN_OVERLOAD, Failed, UInt, compare, equal, type_of

_SUMMABLE: Final = (INT, UINT, DOUBLE)
_COMPARABLE: Final = (INT, UINT, DOUBLE, BOOL, STRING, BYTES)
_ZEROS: Final = {INT: 0, UINT: UInt(0), DOUBLE: 0.0}
# lists.range makes this many numbers before their cost is known, and no more can be paid for.
_MAX_RANGE: Final = 1_000_000


def _sum_from(zero: Any) -> Callable[[list[Any]], Any]:
    def step(total: Any, value: Any) -> Any:
        if isinstance(total, Failed):
            return total
        return add(total, value) if type(value) is type(total) else UNKNOWN_OVERLOAD

    return lambda values: reduce(step, values, zero)


def _is_sorted(values: list[Any]) -> Any:
    for one, other in pairwise(values):
        order = compare(one, other)
        if isinstance(order, int) and order > 0:
            return False
    return True


def _extreme(name: str, better: Callable[[int], bool]) -> Callable[[list[Any]], Any]:
    def run(values: list[Any]) -> Any:
        if not values:
            return Failed(f"{name} called on empty list")
        best = values[0]
        for value in values[1:]:
            order = compare(value, best)
            if isinstance(order, int) and better(order):
                best = value
        return best

    return run


_min: Final = _extreme("min", lambda order: order < 0)
_max: Final = _extreme("max", lambda order: order > 0)


def _index_of(values: list[Any], item: Any) -> int:
    return next((index for index, value in enumerate(values) if equal(value, item) is True), -1)


def _last_index_of(values: list[Any], item: Any) -> int:
    index = _index_of(values[::-1], item)
    return index if index < 0 else len(values) - 1 - index


def _slice(values: list[Any], start: int, end: int) -> Any:
    call = f"cannot slice({start}, {end})"
    if start < 0 or end < 0:
        return Failed(f"{call}, negative indexes not supported")
    if start > end:
        return Failed(f"{call}, start index must be less than or equal to end index")
    return values[start:end] if end <= len(values) else Failed(f"{call}, list is length {len(values)}")


def _flatten(values: Any, depth: int = 1) -> Any:
    if not isinstance(values, list):
        name = "map(dyn, dyn)" if isinstance(values, dict) else type_of(values).name
        return Failed(f"no such overload: {name}.flatten()")
    if depth < 0:
        return Failed("level must be non-negative")
    flat: list[Any] = []
    for value in values:
        flat.extend(_flatten(value, depth - 1) if isinstance(value, list) and depth else [value])
    return flat


def _distinct(values: list[Any]) -> list[Any]:
    unique: list[Any] = []
    for value in values:
        if all(equal(value, other) is not True for other in unique):
            unique.append(value)
    return unique


def _range(size: int) -> Any:
    if size > _MAX_RANGE:
        return Failed(f"lists.range({size}) costs more than an expression may")
    return list(range(size))


def _sort_by(values: list[Any], keys: list[Any]) -> Any:
    if len(values) != len(keys):
        return Failed(
            "@sortByAssociatedKeys() expected a list of the same size as the associated keys list, "
            f"but got {len(values)} and {len(keys)} elements respectively"
        )
    if not keys:
        return values
    if isinstance(compare(keys[0], keys[0]), Failed) and not _is_nan(keys[0]):
        return Failed("list elements must be comparable")
    if any(type(key) is not type(keys[0]) for key in keys):
        return Failed("list elements must have the same type")

    def order(one: tuple[Any, Any], other: tuple[Any, Any]) -> int:
        answer = compare(one[0], other[0])
        return answer if isinstance(answer, int) else 0

    return [value for _, value in sorted(zip(keys, values, strict=True), key=cmp_to_key(order))]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _intersects(one: list[Any], other: list[Any]) -> bool:
    return any(contains(value, other) for value in one)


def _includes(values: list[Any], part: list[Any]) -> bool:
    return all(contains(value, values) for value in part)


def _equivalent(one: list[Any], other: list[Any]) -> bool:
    return _includes(one, other) and _includes(other, one)


def _of_each(template: Callable[[CELType], Overload], elements: tuple[CELType, ...]) -> tuple[Overload, ...]:
    return tuple(template(element) for element in elements)


LISTS: Final[tuple[Overload, ...]] = (
    *_of_each(
        lambda of: method("isSorted", f"list_{of}_is_sorted_bool", (list_of(of),), BOOL, _is_sorted), _COMPARABLE
    ),
    *_of_each(lambda of: method("sum", f"list_{of}_sum_{of}", (list_of(of),), of, _sum_from(_ZEROS[of])), _SUMMABLE),
    *_of_each(lambda of: method("max", f"list_{of}_max_{of}", (list_of(of),), of, _max), _COMPARABLE),
    *_of_each(lambda of: method("min", f"list_{of}_min_{of}", (list_of(of),), of, _min), _COMPARABLE),
    method("indexOf", "list_a_index_of_int", (LIST, T), INT, _index_of),
    method("lastIndexOf", "list_a_last_index_of_int", (LIST, T), INT, _last_index_of),
    method("slice", "list_slice", (LIST, INT, INT), LIST, _slice),
    method("flatten", "list_flatten", (list_of(LIST),), LIST, _flatten),
    method("flatten", "list_flatten_int", (list_of(DYN), INT), list_of(DYN), _flatten),
    *_of_each(
        lambda of: method("sort", f"list_{of}_sort", (list_of(of),), list_of(of), lambda v: _sort_by(v, v)), _COMPARABLE
    ),
    *_of_each(
        lambda of: method(
            "@sortByAssociatedKeys", f"list_{of}_sortByAssociatedKeys", (LIST, list_of(of)), LIST, _sort_by
        ),
        _COMPARABLE,
    ),
    function("lists.range", "lists_range", (INT,), list_of(INT), _range),
    method("reverse", "list_reverse", (LIST,), LIST, lambda values: values[::-1]),
    method("distinct", "list_distinct", (LIST,), LIST, _distinct),
    function("sets.contains", "list_sets_contains_list", (LIST, LIST), BOOL, _includes),
    function("sets.intersects", "list_sets_intersects_list", (LIST, LIST), BOOL, _intersects),
    function("sets.equivalent", "list_sets_equivalent_list", (LIST, LIST), BOOL, _equivalent),
)
