"""Devices for selectors, from a device as it stands in a ResourceSlice, and the largest slice."""

from typing import Any

import msgspec

from berth.api.devices import DeviceAttribute, ResourcePool, ResourceSlice, ResourceSliceSpec, SliceDevice
from berth.api.meta import ObjectMeta
from berth.cel.selector import Device, DeviceSelector
from berth.cel.values import Quantity, Semver


def device(driver: str = "gpu.example.com", *, shared: bool = False, capacity: Any = None, **attributes: Any) -> Device:
    """A device with attributes of the driver's domain, and quantities by name."""
    quantities = {name: Quantity.parse(text) for name, text in (capacity or {}).items()}
    return Device.of(driver, attributes, quantities, allow_multiple_allocations=shared)


def matches(selector: DeviceSelector, of: Device) -> bool:
    """Whether the device is selected; an error of the evaluation is raised."""
    evaluation = selector.evaluate(of)
    if evaluation.error is not None:
        raise evaluation.error
    return evaluation.matches


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


def the_largest_slice() -> ResourceSlice:
    """128 devices with 32 attributes each, whose names and texts are as long as the API takes, and have no pattern."""
    devices = [
        SliceDevice(
            name=f"device-{i}",
            attributes={
                f"{'d' * 60}.example/{'a' * 30}{n:02}": DeviceAttribute(string_value=_text(i * 32 + n))
                for n in range(32)
            },
        )
        for i in range(128)
    ]
    spec = ResourceSliceSpec(driver="d", node_name="n", pool=ResourcePool(name="p", resource_slice_count=1))
    return ResourceSlice(metadata=ObjectMeta(name="large"), spec=msgspec.structs.replace(spec, devices=devices))


def _text(number: int) -> str:
    return f"{number * 7919**16:064}"[:64]
