"""How many volumes of each CSI driver a node may have, and whether some more fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from weakref import ref

from berth.api.storage import CSINode
from berth.cluster.snapshot import Snapshot
from berth.plugins.attachedvolumes import Attached


class Limits:
    """What CSINodes allow, gone through again when one of them has changed."""

    def __init__(self) -> None:
        self._seen: tuple[ref[Snapshot], int] | None = None
        self._by_node: dict[str, dict[str, int]] = {}

    def by_node(self, snapshot: Snapshot) -> Mapping[str, Mapping[str, int]]:
        """By node and driver; nodes that limit nothing are not among them."""
        csi_nodes = snapshot.objects(CSINode)
        seen = (ref(snapshot), csi_nodes.version)
        if seen != self._seen:
            found = {node.metadata.name: limits_of(node) for node in csi_nodes}
            self._seen, self._by_node = seen, {name: limits for name, limits in found.items() if limits}
        return self._by_node


def has_room(limits: Mapping[str, int], *, needed: Attached, present: Attached, attached: Attached) -> bool:
    """Whether what is needed and not there yet fits beside what the node's pods have and what else is attached.

    What is attached and used by no pod counts beside a pod that will use it, as in kube-scheduler.
    """
    new = Counter(driver for volume, driver in needed.items() if volume not in present)
    taken = Counter(present.values())
    taken.update(driver for volume, driver in attached.items() if volume not in present)
    return all(taken[driver] + count <= limits[driver] for driver, count in new.items() if driver in limits)


def limits_of(node: CSINode) -> dict[str, int]:
    """How many volumes of each driver the node may have; a driver that is missing may have any number."""
    drivers = [(driver.name, driver.allocatable) for driver in node.spec.drivers or ()]
    return {name: room.count for name, room in drivers if room is not None and room.count is not None}
