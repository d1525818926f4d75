"""One evaluation's state, and how a call finds its signature, selects, and pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from berth.cel.library import FUNCTIONS, costs
from berth.cel.library.overloads import Overload
from berth.cel.library.standard import find, shown
from berth.cel.types import NULL, CELType, is_dynamic
from berth.cel.values import (
    ABSENT,
    UNKNOWN_OVERLOAD,
    Domains,
    Failed,
    Optional,
    UInt,
    UnknownValueError,
    keys,
    type_of,
)


class CostLimitReached(Exception):  # noqa: N818 - it ends an evaluation, as StopIteration ends a loop
    pass


class CELFrame:
    """One evaluation: the variables, what it cost so far, and how large the texts and lists are that it made."""

    __slots__ = ("cost", "limit", "made", "slots")

    def __init__(self, device: Any, variables: int, limit: int) -> None:
        self.slots: list[Any] = [device] + [None] * variables
        self.cost = 0
        self.limit = limit
        self.made = 0

    def pay(self, cost: int) -> None:
        self.cost += cost
        if self.cost > self.limit:
            raise CostLimitReached

    def count(self, made: str | list[Any]) -> None:
        """Count a value. Costs do not bound the memory: a sum of lists costs 1, and Go does not copy them."""
        self.made += len(made)
        if self.made > _MOST_MADE:
            raise UnknownValueError(f"texts and lists of more than {_MOST_MADE:,} characters and elements together")


# As many characters as sums of texts make at Kubernetes' limit of costs; up to 80 MB.
_MOST_MADE: Final = 10_000_000

Run = Callable[[CELFrame], Any]


def applied(
    function: Callable[..., Any], cost: costs.CallCost | None, runs: Sequence[Run], *, one_by_one: bool = False
) -> Run:
    """The call. ``one_by_one``: the first argument that fails ends it, without a cost unless it is the last one."""
    if len(runs) == 2 and not one_by_one:
        return _applied_to_two(function, cost, *runs)
    last = len(runs) - 1

    def run(frame: CELFrame) -> Any:
        args = []
        for index, part in enumerate(runs):
            value = part(frame)
            if type(value) is Failed and index < last:
                return value
            args.append(value)
        return _called(frame, function, cost, args)

    return run


def _applied_to_two(function: Callable[..., Any], cost: costs.CallCost | None, left: Run, right: Run) -> Run:
    if cost is not None:
        return lambda frame: _called(frame, function, cost, (left(frame), right(frame)))

    def run(frame: CELFrame) -> Any:
        one, other = left(frame), right(frame)
        frame.cost += 1
        if type(one) is Failed:
            return one
        if type(other) is Failed:
            return other
        value = function(one, other)
        if value.__class__ is list:
            frame.count(value)
        return value

    return run


def _called(frame: CELFrame, function: Callable[..., Any], cost: costs.CallCost | None, args: Sequence[Any]) -> Any:
    afterwards = cost in costs.PAID_AFTERWARDS
    if not afterwards:
        frame.pay(cost(args, None) if cost else 1)
    failure = next((arg for arg in args if type(arg) is Failed), None)
    value = failure
    if failure is None or function is _NOT_STRICTLY_FALSE:
        value = function(*args)
        if value.__class__ in _SIZED:
            frame.count(value)
    if afterwards and cost:
        frame.pay(cost(args, value))
    return value


_SIZED: Final = frozenset({str, list})
_NOT_STRICTLY_FALSE: Final = FUNCTIONS["@not_strictly_false"][0].run
# They find out themselves what their arguments are.
_UNGUARDED: Final = frozenset(
    {"_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "@not_strictly_false", "type", "dyn", "flatten"}
)

REGEXES: Final = frozenset({"matches", "find", "findAll"})
_NUMBERS: Final = frozenset({"int", "uint", "double"})
# Functions that their first argument carries out, with the types that can.
OF_LEFT: Final = {
    **{name: _NUMBERS | {"string", "bytes", "bool"} for name in ("_<_", "_<=_", "_>_", "_>=_")},
    "_+_": _NUMBERS | {"string", "bytes", "list"},
    **dict.fromkeys(("_-_", "_*_", "_/_"), _NUMBERS | {"string"}),
    "_%_": frozenset({"int", "uint", "string"}),
    "-_": frozenset({"int", "double", "string", "bool"}),
    "matches": frozenset({"string"}),
    **dict.fromkeys(("sort", "@sortByAssociatedKeys"), frozenset({"list", "string"})),
    "size": frozenset({"string", "bytes", "list", "map"}),
}
# Other functions whose errors do not name them.
_UNNAMED: Final = frozenset({"!_", "@in", "contains", "startsWith", "endsWith"})


def dispatch(name: str, candidates: tuple[Overload, ...], types: Sequence[CELType]) -> Callable[..., Any]:
    """The function of the signature that fits the arguments; checked at run time where types are not known before."""
    if name in _UNGUARDED or (len(candidates) == 1 and not any(map(_is_open, types))):
        return candidates[0].run
    of_name = [
        overload
        for overload in FUNCTIONS[name]
        if overload.is_method is candidates[0].is_method and len(overload.params) == len(types)
    ]
    signatures = list(candidates) if len(candidates) == 1 else of_name

    def run(*args: Any) -> Any:
        for overload in signatures:
            if all(_accepts(param, arg) for param, arg in zip(overload.params, args, strict=True)):
                return overload.run(*args)
        return _unknown_overload(name, args)

    return run


def _unknown_overload(name: str, args: Sequence[Any]) -> Failed:
    """In Kubernetes' words, which depend on how the function is made there."""
    if name in OF_LEFT:
        fits = type_of(args[0]).name in OF_LEFT[name]
        return UNKNOWN_OVERLOAD if fits else Failed(f"no such overload: {name}")
    if name in _UNNAMED:
        return UNKNOWN_OVERLOAD
    return Failed(f"no such overload: {name}({', '.join(type_of(arg).name for arg in args)})")


def without_name(run: Callable[..., Any]) -> Callable[..., Any]:
    def unnamed(*args: Any) -> Any:
        if not all(isinstance(arg, str) for arg in args[:2]):
            return UNKNOWN_OVERLOAD
        return run(*args)

    return unnamed


def _is_open(of: CELType) -> bool:
    return is_dynamic(of) or of == NULL or any(map(_is_open, of.params))


def _accepts(param: CELType, value: Any) -> bool:
    """Whether a value has the type; of a list or map its first element is asked, as by kube-scheduler."""
    if param.is_variable or is_dynamic(param):
        return True
    if type_of(value).name != param.name:
        return False
    if param.name == "list":
        return not value or _accepts(param.params[0], value[0])
    if param.name == "map":
        return not value or all(
            _accepts(of, part)
            for of, part in zip(param.params, (keys(value)[0], next(iter(value.values()))), strict=True)
        )
    return True


def selected(value: Any, key: Any) -> Any:
    if type(value) is Optional:
        return selected_optionally(value.value, key) if value.present else value
    wrong = _wrong_key(value, key)
    if wrong:
        return wrong
    return find(value, key) if isinstance(value, (dict, list)) else Failed(f"no such key: {shown(key)}")


def selected_optionally(value: Any, key: Any) -> Any:
    """An optional of the element; absent where there is none."""
    if type(value) is Optional:
        return selected_optionally(value.value, key) if value.present else ABSENT
    wrong = _wrong_key(value, key)
    if wrong:
        return wrong
    found = find(value, key) if isinstance(value, (dict, list)) else ABSENT
    return ABSENT if found is ABSENT or isinstance(found, Failed) else Optional(found)


def _wrong_key(value: Any, key: Any) -> Failed | None:
    """Why nothing can be selected by such a key."""
    kind = type(key)
    if kind not in _SELECTING:
        return Failed(f"invalid qualifier type: {go_type(key)}")
    if not isinstance(value, list):
        return None
    if kind is bool or kind is str:
        return Failed(f"unsupported index type '{type_of(key).name}' in list")
    return Failed(f"unsupported index value {key:g} in list") if kind is float and not key.is_integer() else None


_SELECTING: Final = frozenset({bool, int, UInt, float, str})


def has(value: Any, name: str) -> bool | Failed:
    if type(value) is Optional:
        return value.present and has(value.value, name)
    if isinstance(value, list):
        return _wrong_key(value, name) or False
    return isinstance(value, Domains) or (isinstance(value, dict) and name in value)


def go_type(value: Any) -> str:
    """The type's name in kube-scheduler's source, which some of its errors have."""
    name = type_of(value).name
    _, dot, kind = name.partition(".")
    return f"cel.{kind}" if dot else _GO_TYPES.get(name, f"types.{name.capitalize()}")


_GO_TYPES: Final = {"null_type": "types.Null", "optional_type": "*types.Optional", "type": "*types.Type"}
