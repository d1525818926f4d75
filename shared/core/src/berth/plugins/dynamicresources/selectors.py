"""Selectors of devices: the expressions' compiler is injected, and answers are kept per expression and device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from berth.cluster.devices.pools import DevicePools, PooledDevice

# Expressions whose answers are kept; each has a byte per device of the cluster.
_MOST_EXPRESSIONS: Final = 512
_UNKNOWN, _NO, _YES, _FAILED = range(4)


class SelectorError(Exception):
    """An expression cannot be compiled, or fails on a device. The text is kube-scheduler's."""


class Selector(Protocol):
    """A compiled expression."""

    def matches(self, device: PooledDevice) -> bool:
        """Whether the device satisfies it.

        Raises:
            SelectorError: it fails on this device.
        """
        ...


CompileSelector = Callable[[str], Selector]


class Answers:
    """The answers of one expression, by the numbers of devices."""

    def __init__(self, compile_selector: CompileSelector, expression: str, pools: DevicePools) -> None:
        self._pools = pools
        self._numbering = pools.numbering
        self._known = bytearray()
        self._errors: dict[int, str] = {}
        self.error = ""
        try:
            self._selector = compile_selector(expression)
        except SelectorError as exc:
            self.error = f"CEL compile error: {exc}"

    def of(self, device: PooledDevice) -> bool | str:
        """Whether the device satisfies the expression, or the error."""
        if self.error:
            return self.error
        number = device.number
        known = self._known
        answer = known[number] if number < len(known) and self._numbering == self._pools.numbering else _UNKNOWN
        if answer == _UNKNOWN:
            answer = self._ask(device)
        return answer == _YES if answer != _FAILED else self._errors[number]

    def _ask(self, device: PooledDevice) -> int:
        if self._numbering != self._pools.numbering:
            self._known, self._numbering = bytearray(), self._pools.numbering
            self._errors.clear()
        if device.number >= len(self._known):
            self._known.extend(bytes(self._pools.numbers - len(self._known)))
        try:
            answer = _YES if self._selector.matches(device) else _NO
        except SelectorError as exc:
            self._errors[device.number] = f"CEL runtime error: {exc}"
            answer = _FAILED
        self._known[device.number] = answer
        return answer


class SelectorAnswers:
    """The answers of the expressions used last."""

    def __init__(self, compile_selector: CompileSelector, pools: DevicePools) -> None:
        self._compile = compile_selector
        self._pools = pools
        self._answers: OrderedDict[str, Answers] = OrderedDict()

    def of(self, expression: str) -> Answers:
        known = self._answers.get(expression)
        if known is None:
            known = self._answers[expression] = Answers(self._compile, expression, self._pools)
            if len(self._answers) > _MOST_EXPRESSIONS:
                self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(expression)
        return known
