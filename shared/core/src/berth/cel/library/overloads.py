"""How a function is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from berth.cel.types import CELType, list_of, map_of, optional_of, variable


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature of a function, with cel-go's id, by which costs are counted."""

    name: str
    id: str
    params: tuple[CELType, ...]
    result: CELType
    run: Callable[..., Any]
    is_method: bool = False


def function(
    name: str, overload_id: str, params: tuple[CELType, ...], result: CELType, run: Callable[..., Any]
) -> Overload:
    return Overload(name, overload_id, params, result, run)


def method(
    name: str, overload_id: str, params: tuple[CELType, ...], result: CELType, run: Callable[..., Any]
) -> Overload:
    """A function that is called on its first parameter."""
    return Overload(name, overload_id, params, result, run, is_method=True)


T: Final = variable("T")
K: Final = variable("K")
V: Final = variable("V")
LIST: Final = list_of(T)
MAP: Final = map_of(K, V)
OPTIONAL: Final = optional_of(V)
