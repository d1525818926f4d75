"""What the API server makes of volumes, claims and storage classes that it is given: their defaults.

Without the finalizers by which the real one keeps those that are in use: nobody is here who takes them off again.
"""

from collections.abc import Mapping

from berth.sim.kinds import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, STORAGE_CLASSES, Kind
from berth.sim.status import JsonObject

_PENDING: JsonObject = {"phase": "Pending"}
_SPECS: Mapping[Kind, JsonObject] = {
    PERSISTENT_VOLUMES: {"persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem"},
    PERSISTENT_VOLUME_CLAIMS: {"volumeMode": "Filesystem"},
}
_CLASS: JsonObject = {"reclaimPolicy": "Delete", "volumeBindingMode": "Immediate"}


def with_defaults(kind: Kind, value: JsonObject) -> JsonObject:
    """Return a new object of storage as it is kept: pending, whatever its creator says of its status."""
    if kind is STORAGE_CLASSES:
        return {**_CLASS, **value}
    if kind not in _SPECS:
        return value
    return {**value, "spec": {**_SPECS[kind], **(value.get("spec") or {})}, "status": _PENDING}
