"""Extended resources that DeviceClasses serve (KEP 5004)."""

from __future__ import annotations

from berth.api.devices import EXTENDED_RESOURCE_CLAIM, DeviceClass, ResourceClaim
from berth.api.pod import Pod
from berth.api.resources import DEVICE_CLASS_PREFIX, may_be_served
from berth.cluster.objects import Objects
from berth.cluster.snapshot import Snapshot


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


class ExtendedClaims:
    """The claims that were made for extended resources, by the namespace and uid of their pod."""

    def __init__(self, claims: Objects[ResourceClaim]) -> None:
        self._of_pod: dict[tuple[str, str], dict[str, ResourceClaim]] = {}
        for claim in claims:
            self._show(None, claim)
        claims.follow(self._show)

    @classmethod
    def of(cls, snapshot: Snapshot) -> ExtendedClaims:
        """The table of a Snapshot, which lives as long as it does."""
        return snapshot.derived("extended claims", lambda: cls(snapshot.objects(ResourceClaim)))

    def of_pod(self, pod: Pod) -> ResourceClaim | None:
        """The claim of this pod; any, if there are several."""
        return next(iter(self._of_pod.get((pod.metadata.namespace, pod.uid), {}).values()), None)

    def _show(self, before: ResourceClaim | None, now: ResourceClaim | None) -> None:
        if before is not None and (uid := extended_pod(before)):
            claims = self._of_pod[before.metadata.namespace, uid]
            del claims[before.metadata.uid]
            if not claims:
                del self._of_pod[before.metadata.namespace, uid]
        if now is not None and (uid := extended_pod(now)):
            self._of_pod.setdefault((now.metadata.namespace, uid), {})[now.metadata.uid] = now


def is_extended_claim(claim: ResourceClaim) -> bool:
    return (claim.metadata.annotations or {}).get(EXTENDED_RESOURCE_CLAIM) == "true"


def extended_pod(claim: ResourceClaim) -> str:
    """The uid of the pod for whose extended resources the claim was made; empty for another claim."""
    if not is_extended_claim(claim):
        return ""
    return next((owner.uid for owner in claim.metadata.owner_references or () if owner.controller), "")
