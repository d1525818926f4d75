"""Functions of expressions, with signatures and costs: CEL's standard ones, cel-go's extensions, Kubernetes'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from berth.cel.library.kubernetes import KUBERNETES
from berth.cel.library.lists import LISTS
from berth.cel.library.overloads import Overload
from berth.cel.library.standard import STANDARD
from berth.cel.library.strings import STRINGS


def _by_name(overloads: Iterable[Overload]) -> dict[str, tuple[Overload, ...]]:
    table: dict[str, tuple[Overload, ...]] = {}
    for overload in overloads:
        table[overload.name] = (*table.get(overload.name, ()), overload)
    return table


FUNCTIONS: Final[Mapping[str, tuple[Overload, ...]]] = _by_name((*STANDARD, *STRINGS, *LISTS, *KUBERNETES))
