"""Nodes and pods for tests: one builder of each, with defaults that fit every test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from berth.api.meta import ObjectMeta
from berth.api.node import UNSCHEDULABLE_TAINT, Node, NodeSpec, NodeStatus, Taint
from berth.api.pod import Container, Pod, PodSpec, PodStatus, Quantities, ResourceRequirements
from berth.messages.subjects import Attempt, Term, Uid

ROOM: Quantities = {"cpu": "4", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "110"}


def a_node(
    name: str,
    *,
    labels: dict[str, str] | None = None,
    taints: list[Taint] | None = None,
    unschedulable: bool = False,
    version: int | None = None,
    **allocatable: Any,
) -> Node:
    """A node with ``ROOM``; other quantities by keyword, ``ephemeral_storage`` for ephemeral-storage.

    A cordoned one has the taint that Kubernetes gives it.
    """
    given = {key.replace("_", "-"): amount for key, amount in allocatable.items()}
    if unschedulable:
        taints = [*(taints or ()), UNSCHEDULABLE_TAINT]
    return Node(
        metadata=ObjectMeta(name=name, uid=f"uid-{name}", labels=labels, resource_version=_text(version)),
        spec=NodeSpec(unschedulable=unschedulable, taints=taints),
        status=NodeStatus(allocatable={**ROOM, **given}),
    )


def a_container(**requests: Any) -> Container:
    """A container with these requests."""
    return Container(name="main", resources=ResourceRequirements(requests=requests))


def a_pod(
    name: str = "web",
    *,
    uid: str | None = None,
    labels: dict[str, str] | None = None,
    version: int | None = None,
    cpu: str | None = None,
    node: str = "",
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    """A pod of the namespace default; ``metadata`` and ``status`` are further fields of these, keywords of its spec."""
    identity = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", "labels": labels}
    container = a_container(cpu=cpu) if cpu else a_container()
    wanted = {"scheduler_name": "berth", "node_name": node, "containers": [container], **spec}
    return Pod(
        metadata=ObjectMeta(**{**identity, "resource_version": _text(version), **(metadata or {})}),
        spec=PodSpec(**wanted),
        status=PodStatus(**(status or {})),
    )


def pod_requesting(name: str = "web", **requests: Any) -> Pod:
    """A pod whose only container has these requests."""
    return a_pod(name, containers=[a_container(**requests)])


def first_attempt(pod: Pod) -> Attempt:
    """The pod's first attempt."""
    return Attempt(uid=Uid(pod.uid), term=Term(1), n=1)


def _text(version: int | None) -> str:
    return "" if version is None else str(version)
