"""Who uses a device, as people read it."""

from __future__ import annotations

from berth.api.devices import ResourceClaim
from berth.cluster.devices.ledger import DeviceLedger
from berth.cluster.snapshot import Snapshot


def users_of(device: str, snapshot: Snapshot) -> list[str]:
    """The pods with the device or a share of it, as ``namespace/name``; of a claim without a pod the claim."""
    ledger, claims = DeviceLedger.of(snapshot), snapshot.objects(ResourceClaim)
    found: dict[str, None] = {}
    for uid in (*ledger.owners_of(device), *ledger.sharers_of(device)):
        claim = claims.api_object(uid)
        if claim is None:
            found["a pod in flight"] = None  # berth's own: its claim is not written yet
            continue
        pods = [each.name for each in claim.status.reserved_for or () if each.resource == "pods"]
        names = [f"{claim.metadata.namespace}/{name}" for name in pods] or [f"claim {claim.key}"]
        found.update(dict.fromkeys(names))
    return list(found)
