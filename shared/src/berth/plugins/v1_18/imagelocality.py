"""ImageLocality: prefers nodes that have the pod's images already, those of its containers.

Score: as today's plugin of that name, but init containers and volumes do not count: neither their images nor, for the
most that counts, their number. As in kube-scheduler 1.18.
"""

from __future__ import annotations

from typing import Final

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.plugins import imagelocality
from berth.plugins.factory import PluginFactory, no_args


class ImageLocality(imagelocality.ImageLocality):
    """Scores by the images of containers."""

    def images(self, pod: Pod) -> list[str]:
        """Of containers, as nodes write them: with a tag."""
        return [imagelocality.tagged(container.image) for container in pod.spec.containers or ()]

    def most(self, pod: Pod) -> int:
        """Bytes from which on a node is as good as can be."""
        return imagelocality.MOST * max(1, len(pod.spec.containers or ()))


FACTORY: Final = PluginFactory(name=imagelocality.NAME, points=(Point.SCORE,), build=no_args(ImageLocality))
