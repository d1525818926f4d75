"""Devices for selectors, from a device as it stands in a ResourceSlice."""

from typing import Any

from berth.cel.selector import Device
from berth.cel.values import Quantity, Semver


def device(driver: str = "gpu.example.com", *, shared: bool = False, capacity: Any = None, **attributes: Any) -> Device:
    """A device with attributes of the driver's domain, and quantities by name."""
    quantities = {name: Quantity.parse(text) for name, text in (capacity or {}).items()}
    return Device.of(driver, attributes, quantities, allow_multiple_allocations=shared)


def device_of(slice_device: Any) -> Device:
    """The device of JSON: attributes as {"int": 3}, capacity as {"value": "80Gi"}, and its driver beside them."""
    return Device.of(
        slice_device["driver"],
        {name: attribute_of(value) for name, value in slice_device.get("attributes", {}).items()},
        {name: Quantity.parse(value["value"]) for name, value in slice_device.get("capacity", {}).items()},
        allow_multiple_allocations=slice_device.get("allowMultipleAllocations", False),
    )


def attribute_of(value: Any) -> Any:
    if "version" in value:
        return Semver.parse(value["version"])
    return next((value[kind] for kind in ("int", "bool", "string") if kind in value), None)
