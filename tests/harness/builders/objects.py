"""Nodes and pods for tests, in few words."""

from __future__ import annotations

from typing import Any

from berth.api.meta import ObjectMeta
from berth.api.node import Node, NodeSpec, NodeStatus, Taint
from berth.api.pod import Container, Pod, PodSpec, Quantities, ResourceRequirements
from berth.api.subjects import Attempt, Term, Uid

ROOM: Quantities = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "110"}


def a_node(
    name: str,
    *,
    labels: dict[str, str] | None = None,
    taints: list[Taint] | None = None,
    unschedulable: bool = False,
    **allocatable: Any,
) -> Node:
    """A node with room; quantities by keyword, ``ephemeral_storage`` for ephemeral-storage."""
    given = {key.replace("_", "-"): amount for key, amount in allocatable.items()}
    return Node(
        metadata=ObjectMeta(name=name, labels=labels),
        spec=NodeSpec(unschedulable=unschedulable, taints=taints),
        status=NodeStatus(allocatable={**ROOM, **given}),
    )


def a_container(**requests: Any) -> Container:
    """A container that asks for this."""
    return Container(name="main", resources=ResourceRequirements(requests=requests))


def a_pod(name: str = "web", *, uid: str | None = None, labels: dict[str, str] | None = None, **spec: Any) -> Pod:
    """A pod of the namespace default; the spec's fields by keyword."""
    metadata = ObjectMeta(name=name, namespace="default", uid=uid or f"uid-{name}", labels=labels)
    return Pod(metadata=metadata, spec=PodSpec(**{"scheduler_name": "berth", "containers": [a_container()], **spec}))


def asking(name: str = "web", **requests: Any) -> Pod:
    """A pod whose only container asks for this."""
    return a_pod(name, containers=[a_container(**requests)])


def first_attempt(pod: Pod) -> Attempt:
    """The pod's first attempt."""
    return Attempt(uid=Uid(pod.uid), term=Term(1), n=1)
