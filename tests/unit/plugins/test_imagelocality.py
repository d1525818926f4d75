"""ImageLocality: bytes that need not be fetched, as far as their image is spread."""

import pytest

from berth.api.meta import ObjectMeta
from berth.api.node import ContainerImage, Node, NodeStatus
from berth.api.pod import Container, Volume
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.status import CycleState
from berth.plugins.imagelocality import MIB, ImageLocality
from harness.builders.objects import a_pod


def image(name: str, mebibytes: int) -> ContainerImage:
    return ContainerImage(names=[name], size_bytes=mebibytes * MIB)


def node_with(name: str, images: list[ContainerImage]) -> Node:
    return Node(metadata=ObjectMeta(name=name), status=NodeStatus(images=images))


def scored(pod, *images_of_nodes) -> list[int]:
    snapshot = Snapshot()
    for number, images in enumerate(images_of_nodes):
        snapshot.set_node(node_with(f"n{number}", images))
    return ImageLocality().score_all(CycleState(snapshot.class_of(pod)), pod, Nodes(snapshot)).tolist()


def running(*images: str, **spec):
    return a_pod(containers=[Container(name=f"c{i}", image=name) for i, name in enumerate(images)], **spec)


@pytest.mark.parametrize(
    ("pod", "nodes", "points"),
    [
        # 250 MiB on 1 of 2 nodes count as 125; 100 * (125 - 23) / (1000 - 23)
        pytest.param(running("app:v1"), [[image("app:v1", 250)], []], [10, 0], id="on one node of two"),
        # 250 MiB; 100 * 227 / 977
        pytest.param(running("app:v1"), [[image("app:v1", 250)]] * 2, [23, 23], id="on both"),
        # 70 + 125 MiB; 100 * (195 - 23) / (2000 - 23)
        pytest.param(running("a:1", "b:1"), [[image("a:1", 140), image("b:1", 250)], []], [8, 0], id="two containers"),
        pytest.param(running("a:1"), [[image("a:1", 5000)]], [100], id="more than 1000 MiB is no better"),
        pytest.param(running("a:1"), [[image("a:1", 23)]], [0], id="23 MiB are no reason"),
        pytest.param(running("reg:5000/a"), [[image("reg:5000/a:latest", 1000)]], [100], id="no tag is latest"),
        # 500 MiB; 100 * 477 / 1977
        pytest.param(
            running("a:1", init_containers=[Container(name="i", image="b:1")]),
            [[image("b:1", 500)]],
            [24],
            id="init containers count",
        ),
        # 500 MiB; 100 * 477 / 977
        pytest.param(
            running("a:1", volumes=[Volume(name="v", image={"reference": "b:1"})]),
            [[image("b:1", 500)]],
            [48],
            id="an image volume counts, but is no container",
        ),
    ],
)
def test_scores_follow_the_bytes_on_the_node(pod, nodes, points):
    assert scored(pod, *nodes) == points


def test_the_share_of_nodes_follows_image_changes():
    pod, snapshot = running("a:1"), Snapshot()
    plugin, state = ImageLocality(), CycleState(snapshot.class_of(pod))

    def see(name, images):
        snapshot.set_node(node_with(name, images))
        return plugin.score_all(state, pod, Nodes(snapshot)).tolist()

    assert see("n0", [image("a:1", 1000)]) == [100]
    assert see("n1", []) == [48, 0]  # 500 MiB; 100 * 477 / 977
    assert see("n1", [image("a:1", 1000)]) == [100, 100]
    assert see("n0", []) == [0, 48]
    snapshot.remove_node("n0")
    assert plugin.score_all(state, pod, Nodes(snapshot)).tolist()[1] == 100
