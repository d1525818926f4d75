"""NodePreferAvoidPods: avoids nodes whose annotation lists the pod's controller.

Score: 0 if the node's annotation ``scheduler.alpha.kubernetes.io/preferAvoidPods`` has the pod's ReplicaSet or
ReplicationController by kind and uid, else 100: with the weight 10,000 this outweighs all other scores. An invalid
annotation is ignored. As kube-scheduler 1.18's plugin of that name.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar, Final

import msgspec
import numpy as np

from berth.api.config.types import Point
from berth.api.meta import OwnerReference
from berth.api.node import Node
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo, Nodes, info_of_row
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import MAX_SCORE, Scores, VectorScorePlugin
from berth.framework.status import CycleState
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "NodePreferAvoidPods"
ANNOTATION: Final = "scheduler.alpha.kubernetes.io/preferAvoidPods"
KINDS: Final = ("ReplicationController", "ReplicaSet")
Controllers = frozenset[tuple[str, str]]  # (kind, uid)


class NodePreferAvoidPods(VectorScorePlugin):
    """Scores by the node's annotation."""

    name: ClassVar[str] = NAME

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        owner = _controller_of(pod)
        return 0 if owner is not None and (owner.kind, owner.uid) in avoided_controllers(node.node) else MAX_SCORE

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        owner, snapshot = _controller_of(pod), nodes.snapshot
        scores = np.full(snapshot.size, MAX_SCORE, dtype=np.int64)
        if owner is not None:
            scores[snapshot.derived(NAME, lambda: AvoidingNodes(snapshot)).rows(owner)] = 0
        return nodes.take(scores)


class AvoidingNodes:
    """The annotated nodes of one Snapshot by row, updated with its changes; usually empty."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._by_row: dict[int, Controllers] = {}
        self._seen = -1

    def rows(self, owner: OwnerReference) -> list[int]:
        """The nodes to avoid for this controller's pods."""
        self._refresh()
        return [row for row, controllers in self._by_row.items() if (owner.kind, owner.uid) in controllers]

    def _refresh(self) -> None:
        snapshot = self._snapshot
        changed = snapshot.changed_since(self._seen) if self._seen >= 0 else None
        if changed is None:
            self._by_row.clear()
        for row in range(snapshot.size) if changed is None else changed.nodes:
            self._update(row)
        self._seen = snapshot.version

    def _update(self, row: int) -> None:
        info = info_of_row(self._snapshot, row)
        controllers = avoided_controllers(info.node) if info is not None else frozenset()
        if controllers:
            self._by_row[row] = controllers
        else:
            self._by_row.pop(row, None)


class Controller(msgspec.Struct, frozen=True):
    kind: str = ""
    uid: str = ""


class Signature(msgspec.Struct, frozen=True, rename="camel"):
    pod_controller: Controller | None = None


class Avoided(msgspec.Struct, frozen=True, rename="camel"):
    pod_signature: Signature = Signature()


class Annotation(msgspec.Struct, frozen=True, rename="camel"):
    prefer_avoid_pods: list[Avoided] | None = None


def avoided_controllers(node: Node) -> Controllers:
    written = (node.metadata.annotations or {}).get(ANNOTATION)
    return _read(written) if written else frozenset()


@lru_cache(maxsize=1024)
def _read(annotation: str) -> Controllers:
    try:
        entries = msgspec.json.decode(annotation, type=Annotation).prefer_avoid_pods or ()
    except msgspec.MsgspecError:
        return frozenset()
    named = (entry.pod_signature.pod_controller for entry in entries)
    return frozenset((controller.kind, controller.uid) for controller in named if controller is not None)


def _controller_of(pod: Pod) -> OwnerReference | None:
    owner = next((owner for owner in pod.metadata.owner_references or () if owner.controller), None)
    return owner if owner is not None and owner.kind in KINDS else None


FACTORY: Final = PluginFactory(
    name=NAME, points=(Point.SCORE,), build=no_args(NodePreferAvoidPods), only_in_presets=True
)
