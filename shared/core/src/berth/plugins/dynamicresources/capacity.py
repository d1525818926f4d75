"""The capacity that a request consumes of a device (KEP 5075)."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from berth.api.devices import CapacityRange, CapacityRequestPolicy, Device, DeviceCapacity
from berth.api.resources import exact_or_zero

Amount = int | Fraction


def consumed_capacity(requests: Mapping[str, str | int | float], device: Device) -> dict[str, Amount] | None:
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
