"""The devices of a node that a plan may take, and what the search reads of them.

The capacity that a request consumes of a shareable device follows KEP 5075.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from berth.api.devices import CapacityRange, CapacityRequestPolicy, DeviceCapacity, SliceDevice
from berth.api.node import Node
from berth.api.resources import exact_or_zero
from berth.cluster.devices.columns import DeviceColumns, distinct
from berth.cluster.devices.pools import (
    EXISTS,
    HAS_CAPACITY,
    HAS_TAINTS,
    IS_SHAREABLE,
    Amount,
    DevicePools,
    NodePool,
    PooledDevice,
    PoolState,
)
from berth.plugins.dynamicresources.requests import Plan, Request
from berth.plugins.dynamicresources.selectors import NO, YES

K = TypeVar("K")
V = TypeVar("V")
_MOST_TRAITS: Final = 100_000  # distinct traits, or lists of them, that a plan keeps


class DeviceTrait:
    """What distinguishes a device for a plan. Devices with the same trait are alike, unless they share something.

    ``selectable`` and ``usable``: a bit per request; usable devices are selectable and have no taint in the way.
    ``errors``: by request, of selectors. ``values``: by constraint. ``consumed``: by request, of shareable devices.
    """

    __slots__ = ("consumed", "errors", "selectable", "usable", "values")

    def __init__(self, values: tuple[object, ...]) -> None:
        self.selectable = 0
        self.usable = 0
        self.errors: dict[int, str] | None = None
        self.values = values
        self.consumed: dict[int, dict[str, Amount]] | None = None

    @property
    def matters(self) -> bool:
        return bool(self.selectable or self.errors)


class DeviceTraits:
    """The traits of devices for one plan, evaluated on first use."""

    def __init__(self, plan: Plan, pools: DevicePools, columns: DeviceColumns) -> None:
        self._plan = plan
        self._pools = pools
        self._columns = columns
        self._numbering = pools.numbering
        self.kinds: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)  # by number, after ``fill``; -1: unknown
        self._kind_of: dict[DeviceTrait, int] = {}
        self._known: dict[tuple[object, ...], DeviceTrait] = {}
        self._lists: dict[tuple[DeviceTrait, ...], tuple[DeviceTrait, ...]] = {}
        self._of_views: dict[NodePool, tuple[tuple[PooledDevice, ...], tuple[DeviceTrait, ...]]] = {}
        self._of_nodes: dict[tuple[NodePool, ...], Candidates] = {}
        self._ask = [each.of for each in plan.expressions]
        self._reads_capacity = any(each.capacity for each in plan.requests)

    def of(self, device: PooledDevice) -> DeviceTrait:
        answers = tuple([ask(device) for ask in self._ask])
        constraints = self._plan.constraints
        values = tuple([each.value_of(device) for each in constraints]) if constraints else ()
        taints = device.device.taints
        if device.is_shareable or (self._reads_capacity and device.device.capacity):
            return self._made(device, answers, values)
        key = (answers, values, tuple(taints) if taints else None)
        known = self._known.get(key)
        if known is None:
            if len(self._known) > _MOST_TRAITS:
                self._known.clear()
            known = self._known[key] = self._made(device, answers, values)
        return known

    def fill(self, may_continue: Callable[[], bool]) -> bool:
        """Find the traits of all devices whose answers are known, alike ones once; returns whether it is done."""
        read = [(("constraint", each.attribute), each.attributes_of) for each in self._plan.constraints]
        if not all(self._columns.read(path, reader, may_continue) for path, reader in read):
            return False
        pools, kinds = self._pools, self._reserved()
        flags = np.array(pools.flags, dtype=np.uint8)
        apart = IS_SHAREABLE | HAS_TAINTS | (HAS_CAPACITY if self._reads_capacity else 0)
        found = (kinds < 0) & (flags & (EXISTS | apart) == EXISTS)
        codes = [each.codes() for each in self._plan.expressions]
        for column in codes:
            found &= (column == YES) | (column == NO)
        numbers = np.flatnonzero(found)
        if not len(numbers):
            return True
        columns: list[npt.NDArray[Any]] = [np.zeros(len(kinds), dtype=np.int32), *codes]
        columns += [self._columns.of(path, reader) for path, reader in read]
        first, of_devices = distinct([column[numbers] for column in columns])
        devices = [pools.by_number[number] for number in numbers[first].tolist()]
        traits = [self._kind_of.setdefault(self.of(each), len(self._kind_of)) for each in devices if each is not None]
        kinds[numbers] = np.array(traits, dtype=np.int32)[of_devices]
        return True

    def _reserved(self) -> npt.NDArray[np.int32]:
        if self._numbering != self._pools.numbering or len(self._kind_of) > _MOST_TRAITS:
            self.kinds, self._numbering = self.kinds[:0], self._pools.numbering
            self._kind_of.clear()
        missing = self._pools.numbers - len(self.kinds)
        self.kinds = np.concatenate((self.kinds, np.full(missing, -1, dtype=np.int32)))
        return self.kinds

    def shared(self, traits: tuple[DeviceTrait, ...]) -> tuple[DeviceTrait, ...]:
        """The same traits, kept once for all alike nodes."""
        if len(self._lists) > _MOST_TRAITS:
            self._lists.clear()
        return self._lists.setdefault(traits, traits)

    def of_view(self, view: NodePool, node: Node) -> tuple[tuple[PooledDevice, ...], tuple[DeviceTrait, ...]]:
        """The candidates of a pool. Of a pool that many nodes see they are found once."""
        known = self._of_views.get(view)
        if known is None:
            known = self._found(view, node)
            if _is_same_everywhere(view):
                self._keep(self._of_views, view, known)
        return known

    def of_nodes(self, views: tuple[NodePool, ...], make: Callable[[], Candidates]) -> Candidates:
        """The same candidates for all nodes that see these pools, so that they are searched once."""
        known = self._of_nodes.get(views)
        if known is None:
            known = make()
            if all(map(_is_same_everywhere, views)):
                self._keep(self._of_nodes, views, known)
        return known

    @staticmethod
    def _keep(table: dict[K, V], key: K, value: V) -> None:
        if len(table) > _MOST_TRAITS:
            table.clear()
        table[key] = value

    def _found(self, view: NodePool, node: Node) -> tuple[tuple[PooledDevice, ...], tuple[DeviceTrait, ...]]:
        every = tuple(map(self.of, view.devices))
        if any(device.part.per_device for device in view.devices):
            every = tuple(
                trait if device.is_for(node) else _elsewhere(trait)
                for device, trait in zip(view.devices, every, strict=True)
            )
        if all(trait.matters for trait in every):
            return view.devices, self.shared(every)
        found = [(device, trait) for device, trait in zip(view.devices, every, strict=True) if trait.matters]
        return tuple(device for device, _ in found), self.shared(tuple(trait for _, trait in found))

    def _made(self, device: PooledDevice, answers: tuple[bool | str, ...], values: tuple[object, ...]) -> DeviceTrait:
        trait = DeviceTrait(values)
        for request in self._plan.requests:
            self._add(trait, request, device, answers)
        return trait

    @staticmethod
    def _add(trait: DeviceTrait, request: Request, device: PooledDevice, answers: tuple[bool | str, ...]) -> None:
        for where, number in request.selectors:
            answer = answers[number]
            if answer is not True:
                if isinstance(answer, str):
                    trait.errors = {**(trait.errors or {}), request.number: f"{where}{answer}"}
                return
        if request.capacity or device.is_shareable:
            consumed = consumed_capacity(request.capacity, device.device)
            if consumed is None:
                return
            if device.is_shareable:
                trait.consumed = {**(trait.consumed or {}), request.number: consumed}
        bit = 1 << request.number
        trait.selectable |= bit
        if not request.blocking(device.device.taints):
            trait.usable |= bit


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The candidates of a node in the order of search.

    ``is_simple``: none is shareable or consumes counters, so that alike nodes have the same solution. ``trouble``: the
    first pool that is not usable; ``has_invalid``: some pool is invalid.
    """

    devices: tuple[PooledDevice, ...]
    traits: tuple[DeviceTrait, ...]
    is_simple: bool
    trouble: NodePool | None
    has_invalid: bool


NO_CANDIDATES: Final = Candidates((), (), True, None, False)


def candidates_of(node: Node, views: tuple[NodePool, ...], traits: DeviceTraits) -> Candidates:
    """Find the candidates of a node that sees these pools."""
    if not views:
        return NO_CANDIDATES

    def make() -> Candidates:
        found = [traits.of_view(view, node) for view in views]
        devices = found[0][0] if len(found) == 1 else tuple(chain.from_iterable(devices for devices, _ in found))
        of_devices = found[0][1] if len(found) == 1 else tuple(chain.from_iterable(each for _, each in found))
        return Candidates(devices, of_devices, _are_simple(devices), _trouble(views), _has_invalid(views))

    return traits.of_nodes(views, make)


def _is_same_everywhere(view: NodePool) -> bool:
    return view.is_shared and not any(device.part.per_device for device in view.devices)


def _are_simple(devices: Sequence[PooledDevice]) -> bool:
    return all(each.consumes is None and not each.is_shareable for each in devices)


def _elsewhere(trait: DeviceTrait) -> DeviceTrait:
    # A device for other nodes is not selectable, but its selectors are asked first.
    other = DeviceTrait(trait.values)
    other.errors = trait.errors
    return other


def _trouble(views: Sequence[NodePool]) -> NodePool | None:
    return next((view for view in views if view.state is not PoolState.USABLE), None)


def _has_invalid(views: Sequence[NodePool]) -> bool:
    return any(view.state is PoolState.INVALID for view in views)


def consumed_capacity(requests: Mapping[str, str | int | float], device: SliceDevice) -> dict[str, Amount] | None:
    """The amount of each capacity of the device, or None if its policies or sizes rule the request out."""
    capacities = device.capacity or {}
    if any(name not in capacities for name in requests):
        return None
    consumed: dict[str, Amount] = {}
    for name, capacity in capacities.items():
        amount = _consumed(requests.get(name), capacity)
        if amount is None or amount > exact_or_zero(capacity.value):
            return None
        consumed[name] = amount
    return consumed


def _consumed(request: str | float | None, capacity: DeviceCapacity) -> Amount | None:
    policy = capacity.request_policy
    if request is None:
        default = None if policy is None else policy.default
        amount = exact_or_zero(capacity.value if default is None else default)
        return amount if policy is None or _is_valid(amount, policy) else None
    amount = exact_or_zero(request)
    if policy is None:
        return amount
    if policy.valid_range is not None and policy.valid_range.min is not None:
        amount = _rounded_up(amount, policy.valid_range)
    elif policy.valid_values:
        valid = sorted(value for each in policy.valid_values if (value := exact_or_zero(each)) >= amount)
        amount = valid[0] if valid else amount
    return amount if _is_valid(amount, policy) else None


def _rounded_up(amount: Amount, valid: CapacityRange) -> Amount:
    least = exact_or_zero(valid.min or 0)
    if amount <= least:
        return least
    step = exact_or_zero(valid.step or 0)
    return amount if step <= 0 else least + -((least - amount) // step) * step


def _is_valid(amount: Amount, policy: CapacityRequestPolicy) -> bool:
    if policy.default is not None and amount == exact_or_zero(policy.default):
        return True
    if policy.valid_range is not None:
        most = policy.valid_range.max
        if most is not None and amount > exact_or_zero(most):
            return False
        least, step = exact_or_zero(policy.valid_range.min or 0), exact_or_zero(policy.valid_range.step or 0)
        return step <= 0 or (amount - least) % step == 0
    return not policy.valid_values or any(amount == exact_or_zero(each) for each in policy.valid_values)
