"""Devices without hardware: a played driver that publishes GPUs of every node, and their DeviceClass."""

import asyncio
from typing import Final

from berth_sim.apiserver.kinds import DEVICE_CLASSES, NODES, RESOURCE_SLICES
from berth_sim.apiserver.resources import Resources
from berth_sim.apiserver.status import JsonObject
from berth_sim.apiserver.store import Key, StoreEvent

DRIVER: Final = "gpu.example.com"
CLASS: Final = "gpu.example.com"
MODELS: Final = ("a100", "h100")  # by turns of nodes
_MEMORY: Final = {"a100": "40Gi", "h100": "80Gi"}


class DeviceDriver:
    """Keeps a ResourceSlice for each node, from the node's arrival to its end; without devices per node none.

    A slice that somebody deletes is published again, with the same devices.
    """

    def __init__(self, resources: Resources, per_node: int) -> None:
        self._resources = resources
        self._per_node = per_node
        self._models: dict[str, str] = {}  # by node
        self._due: dict[Key, None] = {}
        self._call: asyncio.Handle | None = None

    def start(self) -> None:
        if not self._per_node:
            return
        if ("", CLASS) not in self._resources.store.table(DEVICE_CLASSES).items:
            self._resources.create(DEVICE_CLASSES, "", class_manifest())
        table = self._resources.store.table(NODES)
        table.listeners[self._take] = None
        self._resources.store.table(RESOURCE_SLICES).listeners[self._take_slice] = None
        for stored in table.in_order():
            self._keep(stored.key)

    def stop(self) -> None:
        self._resources.store.table(NODES).listeners.pop(self._take, None)
        self._resources.store.table(RESOURCE_SLICES).listeners.pop(self._take_slice, None)
        if self._call is not None:
            self._call.cancel()

    def _take(self, change: StoreEvent) -> None:
        if change.before is not None and change.after is not None:
            return
        self._look_at(change.key)

    def _take_slice(self, change: StoreEvent) -> None:
        if change.after is None:
            self._look_at(("", change.key[1].removesuffix(f"-{DRIVER}")))

    def _look_at(self, node: Key) -> None:
        self._due[node] = None
        if self._call is None:  # not within the write that is being reported
            self._call = asyncio.get_running_loop().call_soon(self._work)

    def _work(self) -> None:
        self._call = None
        due, self._due = self._due, {}
        for key in due:
            self._keep(key)

    def _keep(self, node: Key) -> None:
        store, slice_key = self._resources.store, ("", f"{node[1]}-{DRIVER}")
        is_there = node in store.table(NODES).items
        is_published = slice_key in store.table(RESOURCE_SLICES).items
        if is_there and not is_published:
            number = len(store.table(RESOURCE_SLICES).items)
            model = self._models.setdefault(node[1], MODELS[number % len(MODELS)])
            manifest = slice_manifest(node[1], self._per_node, model=model)
            self._resources.create(RESOURCE_SLICES, "", manifest)
        elif is_published and not is_there:
            store.remove(RESOURCE_SLICES, slice_key)


def slice_manifest(node: str, count: int, *, model: str) -> JsonObject:
    devices = [
        {
            "name": f"gpu-{number}",
            "attributes": {"model": {"string": model}, "index": {"int": number}, "numa": {"int": number * 2 // count}},
            "capacity": {"memory": {"value": _MEMORY[model]}},
        }
        for number in range(count)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-{DRIVER}"}, "spec": spec}


def class_manifest() -> JsonObject:
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    return {"metadata": {"name": CLASS}, "spec": {"selectors": [selector], "extendedResourceName": "example.com/gpu"}}
