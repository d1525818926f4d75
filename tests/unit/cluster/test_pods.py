"""Equal parts of pods and nodes are kept once, and nothing that plugins read is lost."""

from __future__ import annotations

import msgspec

from berth.api.meta import ObjectMeta, OwnerReference
from berth.api.node import ContainerImage, Node, NodeStatus
from berth.api.pod import ClaimSource, Pod, Volume
from berth.cluster.nodes import node_info
from berth.cluster.pods import EquivalenceClasses
from berth.cluster.snapshot import Snapshot
from harness.builders.objects import a_node, a_pod

DATA = Volume(name="data", persistent_volume_claim=ClaimSource(claim_name="data"))


def decoded(thing):
    """An equal object decoded from JSON: it shares no part with another object."""
    return msgspec.json.decode(msgspec.json.encode(thing), type=type(thing))


def placed(snapshot: Snapshot, pod: Pod) -> Pod:
    snapshot.place(decoded(pod), "n0")
    held = snapshot.placed(pod.uid)
    assert held is not None
    return held.pod


def owned(name: str, **more) -> Pod:
    metadata = ObjectMeta(
        name=name,
        namespace="default",
        uid=name,
        labels={"app": "web"},
        annotations={"team": "a"},
        owner_references=[OwnerReference(kind="ReplicaSet", name="web", controller=True)],
    )
    return msgspec.structs.replace(a_pod(name, **more), metadata=metadata)


def test_pods_of_one_workload_share_all_but_names():
    snapshot = Snapshot()
    one = placed(snapshot, owned("one", volumes=[Volume(name="token-1")]))
    other = placed(snapshot, owned("other", volumes=[Volume(name="token-2")]))
    assert other.spec is one.spec
    assert other.metadata.labels is one.metadata.labels
    assert other.metadata.annotations is one.metadata.annotations
    assert other.metadata.owner_references is one.metadata.owner_references
    assert (one.metadata.name, other.metadata.name) == ("one", "other")


def test_different_parts_are_not_shared():
    snapshot = Snapshot()
    placed(snapshot, owned("one"))
    other = owned("other")
    other = msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, annotations={"team": "b"}))
    assert placed(snapshot, other).metadata == other.metadata


def test_volumes_that_plugins_read_are_kept():
    held = placed(Snapshot(), owned("one", volumes=[Volume(name="token"), DATA]))
    assert held.spec.volumes == [DATA]


def test_an_image_of_many_nodes_is_kept_once():
    snapshot = Snapshot()
    for name in ("n0", "n1"):
        image = ContainerImage(names=["app@sha256:1", "app:v1"], size_bytes=7)
        node = a_node(name)
        snapshot.set_node(Node(metadata=node.metadata, status=NodeStatus(images=[image])))
    (one,), (other,) = (node_info(snapshot, name).node.status.images for name in ("n0", "n1"))
    assert one is other
    assert snapshot.images.nodes_with("app:v1") == 2


def test_removing_an_image_from_one_node_keeps_the_others():
    snapshot, sizes = Snapshot(), {"n0": 7, "n1": 8, "n2": 9}
    for name, size in sizes.items():
        images = [ContainerImage(names=["app"], size_bytes=size)]
        snapshot.set_node(Node(metadata=ObjectMeta(name=name), status=NodeStatus(images=images)))
    snapshot.remove_node("n1")
    left = {name: snapshot.images.size_on("app", snapshot.rows.of(name)) for name in ("n0", "n2")}
    assert left == {"n0": 7, "n2": 9}
    assert snapshot.images.nodes_with("app") == 2


def test_pods_of_a_daemon_set_are_a_class_of_their_own():
    classes, web = EquivalenceClasses(), a_pod("web")
    agents = OwnerReference(kind="DaemonSet", name="agent")
    agent = msgspec.structs.replace(web, metadata=ObjectMeta(name="agent", owner_references=[agents]))
    assert agent.spec is web.spec
    of_web, of_agent = classes.of(web), classes.of(agent)
    assert (of_web.of_daemon_set, of_agent.of_daemon_set) == (False, True)
    assert classes.of(web) is of_web
    assert classes.of(agent, placed=True) is of_agent
