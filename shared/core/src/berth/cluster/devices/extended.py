"""Extended resources that DeviceClasses serve (KEP 5004)."""

from __future__ import annotations

from berth.api.devices import DeviceClass
from berth.api.resources import DEVICE_CLASS_PREFIX, may_be_served
from berth.cluster.snapshot import Objects, Snapshot


class ExtendedResources:
    """The class of each extended resource: of several the newest by whole seconds, then the lower name."""

    def __init__(self, classes: Objects[DeviceClass]) -> None:
        self._classes = classes
        self._version = -1
        self._named: dict[str, DeviceClass] = {}

    @classmethod
    def of(cls, snapshot: Snapshot) -> ExtendedResources:
        """The table of a Snapshot, which lives as long as it does."""
        return snapshot.derived("extended resources", lambda: cls(snapshot.objects(DeviceClass)))

    @property
    def version(self) -> int:
        return self._classes.version

    def class_of(self, resource: str) -> DeviceClass | None:
        if self._version != self._classes.version:
            self._read()
        return self._named.get(resource)

    def __bool__(self) -> bool:
        return len(self._classes) > 0

    def _read(self) -> None:
        self._version = self._classes.version
        oldest_first = sorted(self._classes, key=lambda each: each.metadata.name, reverse=True)
        oldest_first.sort(key=lambda each: each.metadata.creation_timestamp or "")
        self._named = {
            name: each for each in oldest_first if (name := each.spec.extended_resource_name) and may_be_served(name)
        }
        self._named |= {f"{DEVICE_CLASS_PREFIX}{each.metadata.name}": each for each in self._classes}
