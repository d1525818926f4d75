"""Selectors of devices: answers are kept per expression and device, and alike devices are asked about once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from berth.api.devices import DeviceAttribute
from berth.cel.errors import CELError
from berth.cel.library.costs import COST_LIMIT
from berth.cel.values import Failed, Quantity, Semver
from berth.cluster.devices.columns import DeviceColumns, Path, Reader, distinct
from berth.cluster.devices.pools import EXISTS, IS_ODD, DevicePools, PooledDevice

if TYPE_CHECKING:  # loaded by the first expression
    from berth.cel.selector import Attribute, DeviceSelector
    from berth.cel.selector import Device as AskedDevice

# Expressions whose answers are kept, and of all plans that are; each has a byte per device of the cluster.
MOST_EXPRESSIONS: Final = 512
# Answers of an expression about devices that are not alike to it.
_MOST_ALIKE: Final = 16_384
_UNKNOWN, NO, YES, FAILED = range(4)
# Cost that the expressions of a plan may have together, in Kubernetes' units: two seconds of work, which the search
# does without a pause on the nodes of one pod. Then their evaluations end at _CHEAP. Up to that cost, half a
# millisecond, they do not count: the usual one costs 10.
MOST_COST: Final = 2 * COST_LIMIT
_CHEAP: Final = 500


Numbers = npt.NDArray[np.intp]  # of devices
Kinds = tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]  # the first of each kind, and the kind of each


def _each(numbers: Numbers) -> Kinds:
    every = np.arange(len(numbers), dtype=np.intp)
    return every, every


class Answers:
    """The answers of one expression, by the numbers of devices."""

    def __init__(self, expression: str, pools: DevicePools, columns: DeviceColumns) -> None:
        self.expression = expression
        self.allowance = MOST_COST
        self._pools = pools
        self._columns = columns
        self._numbering = pools.numbering
        self._known = bytearray()
        self._errors: dict[int, str] = {}
        self._alike: dict[Hashable, bool | str] = {}
        self._compiled = _compiled(expression)
        self._reads = _Reads(self._compiled)

    def of(self, device: PooledDevice) -> bool | str:
        """Whether the device satisfies the expression, or the error."""
        number = device.number
        known = self._known
        answer = known[number] if number < len(known) and self._numbering == self._pools.numbering else _UNKNOWN
        if answer == _UNKNOWN:
            answer = self._ask(device)
        return answer == YES if answer != FAILED else self._errors[number]

    def codes(self) -> npt.NDArray[np.uint8]:
        """A copy of the answers by number: YES, FAILED, or others."""
        self._reserve()
        return np.array(self._known, dtype=np.uint8)

    def fill(self, may_continue: Callable[[], bool]) -> bool:
        """Ask about all devices while it may continue, alike ones once. Returns whether every answer is known."""
        self._reserve()
        known, flags = np.frombuffer(self._known, dtype=np.uint8), np.array(self._pools.flags, dtype=np.uint8)
        unknown = np.flatnonzero((known == _UNKNOWN) & (flags & EXISTS != 0))
        if not len(unknown):
            return True
        paths = self._reads.paths.items() if self._reads.key is not None else ()
        if not all(self._columns.read(path, read, may_continue) for path, read in paths):
            return False
        is_odd = flags[unknown] & IS_ODD != 0
        alike, odd = unknown[~is_odd], unknown[is_odd]
        return self._ask_kinds(known, alike, self._kinds(alike), may_continue) and self._ask_kinds(
            known, odd, _each(odd), may_continue
        )

    def _ask_kinds(
        self, known: npt.NDArray[np.uint8], numbers: Numbers, kinds: Kinds, may_continue: Callable[[], bool]
    ) -> bool:
        first, kind_of = kinds
        asked = np.zeros(len(first), dtype=np.uint8)
        done = 0
        for device in [self._pools.by_number[number] for number in numbers[first].tolist()]:
            asked[done] = _UNKNOWN if device is None else self._ask(device)
            done += 1
            if not may_continue():
                break
        known[numbers] = asked[kind_of]
        for at in np.flatnonzero(known[numbers] == FAILED).tolist():
            self._errors[int(numbers[at])] = self._errors[int(numbers[first[kind_of[at]]])]
        return done == len(first)

    def _kinds(self, numbers: Numbers) -> Kinds:
        reads = self._reads
        if reads.key is None or not len(numbers):
            return _each(numbers)
        if not reads.paths:
            return np.zeros(1, dtype=np.intp), np.zeros(len(numbers), dtype=np.intp)
        return distinct([self._columns.of(path, read)[numbers] for path, read in reads.paths.items()])

    def _reserve(self) -> None:
        if self._numbering != self._pools.numbering:
            self._known, self._numbering = bytearray(), self._pools.numbering
            self._errors.clear()
        if len(self._known) < self._pools.numbers:
            self._known.extend(bytes(self._pools.numbers - len(self._known)))

    def _ask(self, device: PooledDevice) -> int:
        self._reserve()
        answer = self._answer(device)
        if isinstance(answer, str):
            self._errors[device.number] = answer
            code = FAILED
        else:
            code = YES if answer else NO
        self._known[device.number] = code
        return code

    def _answer(self, device: PooledDevice) -> bool | str:
        read = self._reads.key
        if read is None or device.is_odd:
            return self._evaluated(device)
        key = read(device)
        known = self._alike.get(key)
        if known is None:
            if len(self._alike) > _MOST_ALIKE:
                self._alike.clear()
            known = self._alike[key] = self._evaluated(device)
        return known

    def _evaluated(self, device: PooledDevice) -> bool | str:
        if isinstance(self._compiled, str):
            return self._compiled
        asked = _asked_device(device, self._reads.names)
        evaluation = self._compiled.evaluate(asked, limit=max(_CHEAP, min(COST_LIMIT, self.allowance)))
        if evaluation.cost > _CHEAP:
            self.allowance -= evaluation.cost
        return evaluation.matches if evaluation.error is None else f"CEL runtime error: {evaluation.error.reason}"


def _compiled(expression: str) -> DeviceSelector | str:
    """The selector, or the error that stands for every answer."""
    from berth.cel.selector import compile_selector  # noqa: PLC0415 - 15 ms and a megabyte without any device

    try:
        return compile_selector(expression)
    except CELError as exc:
        return f"CEL compile error: {exc.reason}"


class SelectorAnswers:
    """The answers of the expressions used last."""

    def __init__(self, pools: DevicePools) -> None:
        self._pools = pools
        self.columns = DeviceColumns(pools)
        self._answers: OrderedDict[str, Answers] = OrderedDict()

    def of(self, expression: str, allowance: int) -> Answers:
        """The answers of an expression, which may cost no more from now on."""
        known = self._answers.get(expression)
        if known is None:
            known = self._answers[expression] = Answers(expression, self._pools, self.columns)
            if len(self._answers) > MOST_EXPRESSIONS:
                self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(expression)
        known.allowance = min(known.allowance, allowance)
        return known


def _asked_device(device: PooledDevice, names: frozenset[str] | None) -> AskedDevice:
    """The device as an expression sees it that reads entries of these names; None: of all."""
    from berth.cel.selector import Device  # noqa: PLC0415 - as above

    attributes, capacity = device.device.attributes or {}, device.device.capacity or {}
    if names is not None and not device.is_odd:
        attributes = {name: each for name, each in attributes.items() if name in names}
        capacity = {name: each for name, each in capacity.items() if name in names}
    amounts = {name: Quantity.parse(str(each.value)) for name, each in capacity.items()}
    return Device.of(
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


class _Reads:
    """What an expression reads: ``key`` is equal for alike devices. Neither if it may read whole maps.

    ``paths``: a reader for each; empty if it reads nothing, or may read whole maps.
    """

    def __init__(self, compiled: DeviceSelector | str) -> None:
        paths = [] if isinstance(compiled, str) else sorted(compiled.reads)
        readers = [each for path in paths if (each := reader_of(path)) is not None]
        self.key: Callable[[PooledDevice], Hashable] | None = None
        self.names: frozenset[str] | None = None
        self.paths: dict[Path, Reader] = {}
        if len(readers) < len(paths):
            return
        self.paths = dict(zip(paths, readers, strict=True))
        self.key = lambda device: tuple([read((device,))[0] for read in readers])
        named = [(path[1], path[2]) for path in paths if len(path) == _NAMED]
        self.names = frozenset(text for domain, name in named for text in (name, f"{domain}/{name}"))


_NAMED: Final = 3  # parts of a path to an attribute or capacity


def reader_of(path: Path) -> Reader | None:
    match path:
        case ("driver",):
            return lambda devices: [device.driver for device in devices]
        case ("allowMultipleAllocations",):
            return lambda devices: [device.is_shareable for device in devices]
        case ("attributes", domain, name):
            return _attribute_reader(domain, name)
        case ("capacity", domain, name):
            return _capacity_reader(domain, name)
        case _:
            return None


# An entry's name has its domain, or may lack the driver's.


def _attribute_reader(domain: str, name: str) -> Reader:
    full = f"{domain}/{name}"

    def read(devices: Sequence[PooledDevice]) -> list[Hashable]:
        return [
            (named.get(full) or (named.get(name) if domain == device.driver else None))
            if (named := device.device.attributes)
            else None
            for device in devices
        ]

    return read


def _capacity_reader(domain: str, name: str) -> Reader:
    full = f"{domain}/{name}"

    def read(devices: Sequence[PooledDevice]) -> list[Hashable]:
        found = [
            (named.get(full) or (named.get(name) if domain == device.driver else None))
            if (named := device.device.capacity)
            else None
            for device in devices
        ]
        return [None if each is None else each.value for each in found]

    return read
