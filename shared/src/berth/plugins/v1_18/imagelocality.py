"""ImageLocality: prefers nodes that have the pod's images already, those of its containers.

Score: as today's plugin of that name, but images of init containers and of volumes do not count, and the most that
counts is 1000 MiB, however many containers there are. As in kube-scheduler 1.18.
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
        """Bytes from which on a node is as good as can be: the same for every pod."""
        return imagelocality.MOST


FACTORY: Final = PluginFactory(name=imagelocality.NAME, points=(Point.SCORE,), build=no_args(ImageLocality))
