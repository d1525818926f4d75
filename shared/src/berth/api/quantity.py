"""Kubernetes quantities (``500m``, ``1.5Gi``, ``2e3``) as whole numbers, rounded up as Kubernetes rounds them."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

from berth.api.errors import PermanentError

MAX_VALUE: Final = 2**63 - 1
"""Kubernetes keeps values in an int64; larger ones are cut to it."""

_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MAX_EXPONENT: Final = 64
"""Beyond it every value is 0, one unit, or cut: no need to build the number."""
_FORM: Final = re.compile(
    r"([+-]?)([0-9]{1,64}(?:\.[0-9]{0,64})?|\.[0-9]{1,64})(?:[eE]([+-]?[0-9]{1,6})|([KMGTPE]i|[numkMGTPE]?))"
)


class QuantityError(PermanentError):
    """A text that is no quantity."""


def value(quantity: str | float) -> int:
    """The quantity in base units (bytes, counts), rounded up.

    Raises:
        QuantityError: it is none.
    """
    return _rounded_up(quantity, 1)


def milli_value(quantity: str | float) -> int:
    """The quantity in thousandths (millicores for cpu), rounded up.

    Raises:
        QuantityError: it is none.
    """
    return _rounded_up(quantity, 1000)


def of_resource(resource: str, quantity: str | float) -> int:
    """The quantity in the unit that columns use: millicores for cpu, base units for everything else.

    Raises:
        QuantityError: it is none.
    """
    return milli_value(quantity) if resource == "cpu" else value(quantity)


@lru_cache(maxsize=8192)
def _rounded_up(quantity: str | float, scale: int) -> int:
    exact = _exact(str(quantity)) * scale
    return max(-MAX_VALUE, min(MAX_VALUE, math.ceil(exact) if exact > 0 else math.floor(exact)))


def _exact(text: str) -> Fraction:
    form = _FORM.fullmatch(text)
    if form is None:
        raise QuantityError(f"want a quantity such as 500m or 2Gi, got {text!r}")
    sign, digits, exponent, suffix = form.groups()
    return Fraction(f"{sign}{digits}") * _factor(exponent, suffix or "")


def _factor(exponent: str | None, suffix: str) -> Fraction:
    if exponent is not None:
        return Fraction(10) ** max(-_MAX_EXPONENT, min(_MAX_EXPONENT, int(exponent)))
    if suffix in _BINARY:
        return Fraction(1 << _BINARY[suffix])
    return Fraction(10) ** _DECIMAL[suffix]
