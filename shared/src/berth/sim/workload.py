"""Made-up nodes and pods, as the dicts that one would post."""

from collections.abc import Mapping, Sequence
from typing import Any

from berth.sim.status import JsonObject

ZONE_LABEL = "topology.kubernetes.io/zone"
REGION_LABEL = "topology.kubernetes.io/region"
HOSTNAME_LABEL = "kubernetes.io/hostname"
_ZONES = ("zone-a", "zone-b", "zone-c")


def make_node(  # noqa: PLR0913 - keyword-only, each with its default
    name: str,
    *,
    cpu: str = "4",
    memory: str = "16Gi",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    zone: str = "",
    unschedulable: bool = False,
    extended: Mapping[str, str] | None = None,
) -> JsonObject:
    """Return a node that is ready and offers all of its capacity.

    Args:
        name: Name and hostname label.
        cpu: Capacity as a quantity.
        memory: Capacity as a quantity.
        pods: How many pods it may carry.
        labels: Labels besides hostname and zone.
        taints: Taints as in the API.
        zone: Value of the zone label, none when empty.
        unschedulable: Whether it is cordoned.
        extended: Extended resources by name, as quantities.
    """
    amounts = {"cpu": cpu, "memory": memory, "pods": str(pods), "ephemeral-storage": "100Gi", **(extended or {})}
    spec: JsonObject = {"taints": [dict(taint) for taint in taints]} if taints else {}
    if unschedulable:
        spec["unschedulable"] = True
    zone_labels = {ZONE_LABEL: zone} if zone else {}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME_LABEL: name, **zone_labels, **(labels or {})}},
        "spec": spec,
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "nodeInfo": {"kubeletVersion": "v1.36.0", "operatingSystem": "linux", "architecture": "amd64"},
        },
    }


def make_pod(  # noqa: PLR0913 - keyword-only, each with its default
    name: str,
    *,
    namespace: str = "default",
    cpu: str = "100m",
    memory: str = "128Mi",
    labels: Mapping[str, str] | None = None,
    scheduler: str = "berth",
    node: str = "",
    priority_class: str = "",
    spec: Mapping[str, Any] | None = None,
) -> JsonObject:
    """Return a pod of one container.

    Args:
        name: Its name.
        namespace: Its namespace.
        cpu: Request as a quantity; none when empty.
        memory: Request as a quantity; none when empty.
        labels: Its labels.
        scheduler: Its schedulerName.
        node: Where it is already bound; it waits when this is empty.
        priority_class: Its priorityClassName; none when empty.
        spec: Further members of its spec: nodeSelector, tolerations, affinity, schedulingGates, ...
    """
    wanted = {resource: amount for resource, amount in (("cpu", cpu), ("memory", memory)) if amount}
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": {"requests": wanted}}
    optional = {"nodeName": node, "priorityClassName": priority_class}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(labels or {})},
        "spec": {
            "schedulerName": scheduler,
            "containers": [container],
            **{member: value for member, value in optional.items() if value},
            **(spec or {}),
        },
    }


def make_nodes(count: int, *, cpu: str = "4", memory: str = "16Gi", pods: int = 110) -> list[JsonObject]:
    """Return equal nodes, spread over three zones."""
    width = len(str(max(count - 1, 0)))
    return [
        make_node(f"node-{number:0{width}}", cpu=cpu, memory=memory, pods=pods, zone=_ZONES[number % len(_ZONES)])
        for number in range(count)
    ]
