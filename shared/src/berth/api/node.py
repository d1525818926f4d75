"""Node, trimmed to what plugins read."""

from __future__ import annotations

from berth.api.meta import Int64, ObjectMeta, Trimmed


class Taint(Trimmed, frozen=True, kw_only=True):
    """A mark that keeps pods away which do not tolerate it."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(Trimmed, frozen=True, kw_only=True):
    """What the operator wants of the node."""

    unschedulable: bool = False
    taints: list[Taint] | None = None


class ContainerImage(Trimmed, frozen=True, kw_only=True):
    """An image that lies on the node, under all its names."""

    names: list[str] | None = None
    size_bytes: Int64 = 0


class NodeAddress(Trimmed, frozen=True, kw_only=True):
    """One address of the node, such as its InternalIP."""

    type: str
    address: str


class NodeCondition(Trimmed, frozen=True, kw_only=True):
    """A state of the node that the kubelet reports; heartbeat times are left out, they change and mean nothing here."""

    type: str
    status: str


class NodeStatus(Trimmed, frozen=True, kw_only=True):
    """What the kubelet reports. Quantities are text as written; ``berth.api.quantity`` reads them."""

    allocatable: dict[str, str | int | float] | None = None
    capacity: dict[str, str | int | float] | None = None
    conditions: list[NodeCondition] | None = None
    addresses: list[NodeAddress] | None = None
    images: list[ContainerImage] | None = None


class Node(Trimmed, frozen=True, kw_only=True):
    """A machine of the cluster. A node without a status has nothing allocatable, so that nothing fits it."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


READY = "Ready"
"""The condition by which the kubelet says that the node takes pods."""


def is_ready(node: Node) -> bool:
    """Whether the node's condition Ready is True; a node that has none does not say, and counts as ready."""
    return all(condition.status == "True" for condition in node.status.conditions or () if condition.type == READY)
