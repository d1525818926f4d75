"""Scores of 1.18 by nodes: images, labels, taints, avoided controllers."""

import json

import msgspec
import pytest

from berth.api.meta import OwnerReference, SelectorRequirement
from berth.api.node import ContainerImage, Taint
from berth.api.pod import Affinity, Container, NodeSelectorTerm, PreferredNodeTerm, Toleration, Volume
from berth.api.pod import NodeAffinity as Affine
from berth.cluster.snapshot import Snapshot
from berth.plugins.imagelocality import MIB
from berth.plugins.nodeaffinity import NodeAffinityArgs
from berth_plugins_1_18.preferavoidpods import ANNOTATION, NodePreferAvoidPods
from berth_plugins_1_18.scores import ImageLocalityV118, NodeAffinityV118, TaintTolerationV118
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import points


def cluster(*nodes) -> Snapshot:
    snapshot = Snapshot()
    for node in nodes:
        snapshot.set_node(node)
    return snapshot


def with_images(name: str, **sizes: int):
    node = a_node(name)
    images = [ContainerImage(names=[f"{image}:latest"], size_bytes=size * MIB) for image, size in sizes.items()]
    return msgspec.structs.replace(node, status=msgspec.structs.replace(node.status, images=images))


def running(*images: str, **spec):
    return a_pod(containers=[Container(name=f"c{i}", image=image) for i, image in enumerate(images)], **spec)


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        # 250 MiB on 1 of 2 nodes count as 125; 100 * (125 - 23) / (1000 - 23)
        pytest.param(running("one"), {"a": 10, "b": 0}, id="on one node of two"),
        # 250 MiB; 100 * 227 / 977
        pytest.param(running("both"), {"a": 23, "b": 23}, id="on both"),
        # 125 + 250 MiB; 100 * (375 - 23) / (2000 - 23)
        pytest.param(running("one", "both"), {"a": 17, "b": 11}, id="two containers"),
        pytest.param(running("one", init_containers=[Container(image="both")]), {"a": 10, "b": 0}, id="not of init"),
        pytest.param(
            running("one", volumes=[Volume(name="v", image={"reference": "both"})]), {"a": 10, "b": 0}, id="nor volumes"
        ),
        pytest.param(running("huge"), {"a": 0, "b": 100}, id="1000 MiB a container are the most"),
    ],
)
def test_only_images_of_containers_count(pod, expected):
    nodes = cluster(with_images("a", one=250, both=250), with_images("b", both=250, huge=5000))
    assert points(ImageLocalityV118(), pod, nodes) == expected


def term(weight: int, *, zone: str | None = None, node: str | None = None) -> PreferredNodeTerm:
    labels = [SelectorRequirement(key="zone", operator="In", values=[zone])] if zone else None
    names = [SelectorRequirement(key="metadata.name", operator="In", values=[node])] if node else None
    return PreferredNodeTerm(weight=weight, preference=NodeSelectorTerm(match_expressions=labels, match_fields=names))


def preferring(*terms: PreferredNodeTerm):
    affinity = Affine(preferred_during_scheduling_ignored_during_execution=list(terms))
    return a_pod(affinity=Affinity(node_affinity=affinity))


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        # raw 30, 10, 0; 100 * 10 / 30
        pytest.param(preferring(term(30, zone="x"), term(10, zone="y")), {"a": 100, "b": 33, "c": 0}, id="labels"),
        # the name in the first term does not count, and neither does the second term: raw 5, 0, 0
        pytest.param(
            preferring(term(5, zone="x", node="c"), term(50, node="b")), {"a": 100, "b": 0, "c": 0}, id="not names"
        ),
        pytest.param(preferring(term(50, node="b")), {"a": 0, "b": 0, "c": 0}, id="names alone"),
    ],
)
def test_only_labels_of_preferred_terms_count(pod, expected):
    nodes = cluster(a_node("a", labels={"zone": "x"}), a_node("b", labels={"zone": "y"}), a_node("c"))
    assert points(NodeAffinityV118(NodeAffinityArgs()), pod, nodes) == expected


def test_fewer_untolerated_mild_taints_are_better():
    mild = [Taint(key=key, effect="PreferNoSchedule") for key in ("k", "l", "m")]
    nodes = cluster(a_node("a", taints=mild), a_node("b", taints=mild[:2]), a_node("c"))
    tolerations = [Toleration(key="k", operator="Exists"), Toleration(key="l", operator="Exists", effect="NoSchedule")]
    # raw 2 (l, m), 1 (l), 0; 100 - 100 * raw / 2
    assert points(TaintTolerationV118(), a_pod(tolerations=tolerations), nodes) == {"a": 0, "b": 50, "c": 100}
    assert points(TaintTolerationV118(), a_pod(tolerations=[Toleration(operator="Exists")]), nodes) == dict.fromkeys(
        "abc", 100
    )


def avoiding(name: str, annotation: str):
    node = a_node(name)
    metadata = msgspec.structs.replace(node.metadata, annotations={ANNOTATION: annotation})
    return msgspec.structs.replace(node, metadata=metadata)


def signature(kind: str, uid: str) -> str:
    controller = {"kind": kind, "uid": uid, "apiVersion": "v1", "name": "x", "controller": True}
    return json.dumps({"preferAvoidPods": [{}, {"podSignature": {"podController": controller}, "reason": "r"}]})


def owned(kind: str, uid: str, *, controller: bool = True):
    pod = a_pod()
    owner = OwnerReference(kind=kind, name="x", uid=uid, controller=controller)
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=[owner]))


@pytest.mark.parametrize(
    ("pod", "avoiders"),
    [
        pytest.param(owned("ReplicaSet", "u1"), {"set"}, id="a replica set"),
        pytest.param(
            owned("ReplicationController", "u1"), {"controller"}, id="a replication controller of the same uid"
        ),
        pytest.param(owned("ReplicaSet", "u2"), set(), id="another uid"),
        pytest.param(owned("StatefulSet", "u3"), set(), id="other kinds are never avoided"),
        pytest.param(owned("ReplicaSet", "u1", controller=False), set(), id="nor an owner that is no controller"),
        pytest.param(a_pod(), set(), id="nor a pod without controller"),
    ],
)
def test_avoided_nodes_score_0_and_all_others_100(pod, avoiders):
    nodes = cluster(
        avoiding("set", signature("ReplicaSet", "u1")),
        avoiding("controller", signature("ReplicationController", "u1")),
        avoiding("stateful", signature("StatefulSet", "u3")),
        avoiding("odd", "{"),
        a_node("plain"),
    )
    expected = {name: 0 if name in avoiders else 100 for name in ("set", "controller", "stateful", "odd", "plain")}
    assert points(NodePreferAvoidPods(), pod, nodes) == expected


def test_a_changed_annotation_counts():
    pod, nodes = owned("ReplicaSet", "u1"), cluster(a_node("a"), a_node("b"))
    plugin = NodePreferAvoidPods()
    assert points(plugin, pod, nodes) == {"a": 100, "b": 100}
    nodes.set_node(avoiding("b", signature("ReplicaSet", "u1")))
    assert points(plugin, pod, nodes) == {"a": 100, "b": 0}
    nodes.remove_node("b")
    nodes.set_node(a_node("c"))
    assert points(plugin, pod, nodes) == {"a": 100, "c": 100}
    nodes.set_node(avoiding("a", signature("ReplicaSet", "u1")))
    nodes.set_node(avoiding("a", signature("ReplicaSet", "u9")))
    assert points(plugin, pod, nodes) == {"a": 100, "c": 100}
