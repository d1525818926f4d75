"""Selectors of devices: answers are kept per expression and device, and alike devices are asked about once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final

from berth.api.devices import DeviceAttribute
from berth.cel.errors import CELError
from berth.cel.selector import Attribute, Selector, compile_selector
from berth.cel.selector import Device as AskedDevice
from berth.cel.values import Failed, Quantity, Semver
from berth.cluster.devices.pools import DevicePools, PooledDevice

# Expressions whose answers are kept; each has a byte per device of the cluster.
_MOST_EXPRESSIONS: Final = 512
# Answers of an expression about devices that it can tell apart.
_MOST_ALIKE: Final = 16_384
_UNKNOWN, _NO, _YES, _FAILED = range(4)


class Answers:
    """The answers of one expression, by the numbers of devices."""

    def __init__(self, expression: str, pools: DevicePools) -> None:
        self._pools = pools
        self._numbering = pools.numbering
        self._known = bytearray()
        self._errors: dict[int, str] = {}
        self._alike: dict[Hashable, bool | str] = {}
        self._selector: Selector | None = None
        self.error = ""
        try:
            self._selector = compile_selector(expression)
        except CELError as exc:
            self.error = f"CEL compile error: {exc.reason}"
        self._keys = _keys_of(self._selector)

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
        answer = self._answer(device)
        if isinstance(answer, str):
            self._errors[device.number] = answer
            code = _FAILED
        else:
            code = _YES if answer else _NO
        self._known[device.number] = code
        return code

    def _answer(self, device: PooledDevice) -> bool | str:
        if self._keys is None or device.is_odd:
            return self._evaluated(device)
        key = tuple([read(device) for read in self._keys])
        known = self._alike.get(key)
        if known is None:
            if len(self._alike) > _MOST_ALIKE:
                self._alike.clear()
            known = self._alike[key] = self._evaluated(device)
        return known

    def _evaluated(self, device: PooledDevice) -> bool | str:
        assert self._selector is not None
        try:
            return self._selector.matches(asked_device(device))
        except CELError as exc:
            return f"CEL runtime error: {exc.reason}"


class SelectorAnswers:
    """The answers of the expressions used last."""

    def __init__(self, pools: DevicePools) -> None:
        self._pools = pools
        self._answers: OrderedDict[str, Answers] = OrderedDict()

    def of(self, expression: str) -> Answers:
        known = self._answers.get(expression)
        if known is None:
            known = self._answers[expression] = Answers(expression, self._pools)
            if len(self._answers) > _MOST_EXPRESSIONS:
                self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(expression)
        return known


def asked_device(device: PooledDevice) -> AskedDevice:
    """The device as expressions see it."""
    attributes, capacity = device.device.attributes or {}, device.device.capacity or {}
    amounts = {name: Quantity.parse(str(each.value)) for name, each in capacity.items()}
    return AskedDevice.of(
        device.driver,
        {name: _value_of(each) for name, each in attributes.items()},
        {name: amount for name, amount in amounts.items() if isinstance(amount, Quantity)},
        allow_multiple_allocations=device.is_shareable,
    )


def _value_of(attribute: DeviceAttribute) -> Attribute | Failed | None:
    if attribute.version_value is not None:
        return Semver.parse(attribute.version_value)
    for value in (attribute.string_value, attribute.int_value, attribute.bool_value):
        if value is not None:
            return value
    return None


_Reader = Callable[[PooledDevice], Hashable]


def _keys_of(selector: Selector | None) -> list[_Reader] | None:
    """Readers of what the expression can read, equal for alike devices; None if it may read whole maps."""
    readers = [] if selector is None else [_reader(path) for path in sorted(selector.reads.paths)]
    found = [each for each in readers if each is not None]
    return found if len(found) == len(readers) else None


def _reader(path: tuple[str, ...]) -> _Reader | None:
    match path:
        case ("driver",):
            return lambda device: device.driver
        case ("allowMultipleAllocations",):
            return lambda device: device.is_shareable
        case ("attributes", domain, name):
            return _named(domain, name, lambda device: device.device.attributes)
        case ("capacity", domain, name):
            return _named(domain, name, lambda device: device.device.capacity)
        case _:
            return None


def _named(domain: str, name: str, entries: Callable[[PooledDevice], dict[str, Hashable] | None]) -> _Reader:
    """The entry of a domain: its name has the domain, or may lack the driver's."""
    full = f"{domain}/{name}"

    def read(device: PooledDevice) -> Hashable:
        named = entries(device)
        if not named:
            return None
        if domain != device.driver:
            return named.get(full)
        return named.get(name), named.get(full)

    return read
