"""ImageLocality: prefers nodes that already have the pod's images, large images above all.

Score: each image on the node counts ``size * nodes with the image / all nodes`` bytes, so that an image on one node
does not draw every pod there. The sum is clamped to 23 MiB..1000 MiB per container; the score is its position between
these two in percent. As kube-scheduler 1.36's plugin of that name.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.cluster.nodes import NodeInfo, Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.interface import MAX_SCORE, Scores, VectorScorePlugin
from berth.framework.status import CycleState
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "ImageLocality"
MIB: Final = 1024 * 1024
LEAST: Final = 23 * MIB  # smaller pulls are no reason to prefer a node (kube-scheduler's minThreshold)
MOST: Final = 1000 * MIB  # per container; more makes no node better (kube-scheduler's maxContainerThreshold)


class ImageLocality(VectorScorePlugin):
    """Scores by images. Reads all nodes, because an image counts by the share of nodes that have it."""

    name: ClassVar[str] = NAME
    depends_on_pods = False

    def score(self, state: CycleState, pod: Pod, node: NodeInfo) -> int:
        images, share_of = node.snapshot.images, _Shares(node.snapshot)
        total = sum(int(images.size_on(name, node.row) * share_of(name)) for name in self.images(pod))
        most = self.most(pod)
        return MAX_SCORE * (max(LEAST, min(total, most)) - LEAST) // (most - LEAST)

    def score_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Scores:
        snapshot, total = nodes.snapshot, np.zeros(nodes.size, dtype=np.int64)
        share_of = _Shares(snapshot)
        shares = [(name, share) for name in self.images(pod) if (share := share_of(name))]
        if not shares:
            return total
        for name, share in shares:
            sizes = nodes.take(snapshot.images.sizes(name, snapshot.columns.capacity))
            total += (sizes * share).astype(np.int64)
        most = self.most(pod)
        scores: Scores = MAX_SCORE * (np.minimum(np.maximum(total, LEAST), most) - LEAST) // (most - LEAST)
        return scores

    def images(self, pod: Pod) -> list[str]:
        """The images of init containers, containers and image volumes, with a tag as in a node's status."""
        spec = pod.spec
        names = [container.image for container in (*(spec.init_containers or ()), *(spec.containers or ()))]
        names += [str(volume.image.get("reference", "")) for volume in spec.volumes or () if volume.image is not None]
        return [tagged(image) for image in names]

    def most(self, pod: Pod) -> int:
        """Bytes from which the score is 100."""
        spec = pod.spec
        return MOST * max(1, len(spec.init_containers or ()) + len(spec.containers or ()))


class _Shares:
    def __init__(self, snapshot: Snapshot) -> None:
        self._images = snapshot.images
        self._nodes = max(snapshot.node_count, 1)

    def __call__(self, name: str) -> float:
        return self._images.nodes_with(name) / self._nodes


def tagged(image: str) -> str:
    """The image with its tag, ``latest`` by default; a colon before the last slash belongs to a registry's port."""
    return image if image.rfind(":") > image.rfind("/") else f"{image}:latest"


FACTORY: Final = PluginFactory(name=NAME, points=(Point.SCORE,), build=no_args(ImageLocality))
