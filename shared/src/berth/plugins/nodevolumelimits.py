"""NodeVolumeLimits: a CSI driver attaches as many volumes to a node as its CSINode says, and no more.

Counted are volumes of pods on the node and those that are still attached to it, each once. In-tree volumes count for
the driver that took them over. As kube-scheduler's plugin of that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.storage import CSINode, VolumeAttachment
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import EnqueueExtensions, PreFilterPlugin, PreFilterResult, VectorFilterPlugin
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SKIP, SUCCESS, Status
from berth.framework.verdicts import Verdicts
from berth.plugins.attachedvolumes import Attached, Attachments, has_attachable, needed_volumes, volumes_of
from berth.plugins.csimigration import driver_of
from berth.plugins.factory import PluginFactory, no_args
from berth.plugins.volumeclaims import uses_claim
from berth.plugins.volumelimits import Limits, has_room, limits_of

NAME: Final = "NodeVolumeLimits"
TOO_MANY: Final = Status.unschedulable("node(s) exceed max volume count")
NEEDED: Final = StateKey[Attached | Status]("NodeVolumeLimits.needed")


class NodeVolumeLimits(PreFilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Filters by what CSINodes allow."""

    name: ClassVar[str] = NAME

    def __init__(self) -> None:
        self._attachments = Attachments()
        self._limits = Limits()

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod without volumes that are attached to nodes."""
        if not pod.spec.volumes or not has_attachable(pod):
            return PreFilterResult(SKIP)
        self._needed(state, pod, snapshot)
        return PreFilterResult()

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Whether the node has room for what the pod brings anew."""
        needed = self._needed(state, pod, node.snapshot)
        if isinstance(needed, Status):
            return needed
        limits = self._limits.by_node(node.snapshot).get(node.name, {})
        if limits.keys().isdisjoint(needed.values()):
            return SUCCESS
        return self._filter(needed, limits, node.name, node.row, node.snapshot)

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """The same for all nodes; only those whose CSINode limits one of the drivers are looked at."""
        needed = self._needed(state, pod, nodes.snapshot)
        if isinstance(needed, Status):
            return Verdicts.refusing(np.ones(len(nodes), dtype=np.bool_), needed)
        if not needed:
            return Verdicts.all_fit(len(nodes))
        refused = self._refused(needed, nodes.snapshot) if needed else {}
        if not refused:
            return Verdicts.all_fit(len(nodes))
        return Verdicts.of(refused.get(row, SUCCESS) for row in nodes.rows.tolist())

    def _refused(self, needed: Attached, snapshot: Snapshot) -> dict[int, Status]:
        """The rows that are refused. Volumes are looked at only where there may be too many of them."""
        volumes, drivers, refused = snapshot.pod_volumes, set(needed.values()), {}
        for name, limits in self._limits.by_node(snapshot).items():
            least = min((limits[driver] for driver in drivers if driver in limits), default=None)
            row = None if least is None else snapshot.rows.of(name)
            if least is None or row is None:
                continue
            most = len(needed) + volumes.count_on(row) + len(self._attachments.on_node(name, snapshot))
            status = SUCCESS if most <= least else self._filter(needed, limits, name, row, snapshot)
            if not status.is_success:
                refused[row] = status
        return refused

    def _needed(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> Attached | Status:
        """Found once a cycle, by Filter where a profile has no PreFilter of this plugin."""
        needed = state.find(NEEDED)
        if needed is None:
            needed = needed_volumes(pod, snapshot)
            state.write(NEEDED, needed)
        return needed

    def _filter(self, needed: Attached, limits: Mapping[str, int], name: str, row: int, snapshot: Snapshot) -> Status:
        present = volumes_of(snapshot.pod_volumes.on_row(row), snapshot)
        attached = self._attachments.on_node(name, snapshot)
        return SUCCESS if has_room(limits, needed=needed, present=present, attached=attached) else TOO_MANY

    def events(self) -> Sequence[EventHint]:
        """A CSINode comes or allows more, a pod with volumes goes, a claim of the pod's comes, a volume is let go."""
        return (
            EventHint(ClusterEvent(Resource.CSI_NODE, Action.ADD)),
            EventHint(ClusterEvent(Resource.CSI_NODE, Action.UPDATE), _allows_more),
            EventHint(ClusterEvent(Resource.POD, Action.DELETE), _had_volumes),
            EventHint(ClusterEvent(Resource.PERSISTENT_VOLUME_CLAIM, Action.ADD), _is_its_claim),
            EventHint(ClusterEvent(Resource.VOLUME_ATTACHMENT, Action.DELETE), _frees_a_place),
            EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE), _had_volumes),
        )


def _allows_more(_: Pod, old: object, new: object) -> bool:
    if not isinstance(old, CSINode) or not isinstance(new, CSINode):
        return True
    before = limits_of(old)
    return any(limit > before.get(driver, 0) for driver, limit in limits_of(new).items())


def _had_volumes(_: Pod, old: object, __: object) -> bool:
    if not isinstance(old, Pod):
        return True
    was_somewhere = bool(old.spec.node_name or old.status.nominated_node_name)
    return was_somewhere and has_attachable(old)


def _is_its_claim(pod: Pod, _: object, new: object) -> bool:
    return uses_claim(pod, new)


def _frees_a_place(pod: Pod, old: object, _: object) -> bool:
    """Claims may lead to any driver; an inline volume leads to its own."""
    if not isinstance(old, VolumeAttachment):
        return True
    volumes = pod.spec.volumes or ()
    found = [driver_of(volume) for volume in volumes]
    inline = {driver.name for driver, _source in filter(None, found)}
    return old.spec.attacher in inline or any(volume.persistent_volume_claim is not None for volume in volumes)


FACTORY: Final = PluginFactory(name=NAME, points=(Point.PRE_FILTER, Point.FILTER), build=no_args(NodeVolumeLimits))
