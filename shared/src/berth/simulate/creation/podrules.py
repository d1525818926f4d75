"""What of a new pod the API server refuses, among the fields that scheduling reads; all of it at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from berth.api.node import Node
from berth.api.pod import Container, ContainerPort, Pod, PodSpec, Quantities, ResourceRequirements
from berth.api.quantity import QuantityError, milli_value
from berth.api.volumes import PersistentVolumeClaim
from berth.simulate.creation.limitranges import LimitRange
from berth.simulate.creation.namerules import is_label_key, refused_metadata
from berth.simulate.creation.placementrules import EFFECTS, refused_placement

_PORTS: Final = range(1, 65_536)
_PROTOCOLS: Final = ("TCP", "UDP", "SCTP")
_POLICIES: Final = ("PreemptLowerPriority", "Never")


def refused_pod(pod: Pod) -> Iterator[str]:
    """Each with its path, what is wanted there, and what is there."""
    spec = pod.spec
    yield from refused_metadata(pod.metadata)
    if not spec.containers:
        yield "spec.containers: want at least one"
    for path, containers in (("spec.containers", spec.containers), ("spec.initContainers", spec.init_containers)):
        for at, container in enumerate(containers or ()):
            yield from _container(container, spec, f"{path}[{at}]")
    yield from _resources(spec.resources, "spec.resources")
    yield from refused_quantities(spec.overhead, "spec.overhead")
    yield from refused_placement(spec)
    yield from _rest(spec)


def refused_node(node: Node) -> Iterator[str]:
    """The same of a node."""
    yield from refused_metadata(node.metadata)
    for at, taint in enumerate(node.spec.taints or ()):
        if not is_label_key(taint.key):
            yield f"spec.taints[{at}].key: want a key such as 'dedicated' or 'example.com/gpu', got {taint.key!r}"
        if taint.effect not in EFFECTS:
            yield f"spec.taints[{at}].effect: want {', '.join(EFFECTS)}, got {taint.effect!r}"
    for resource, quantity in (node.status.allocatable or {}).items():
        if str(quantity).startswith("-"):  # what is no quantity at all is said of every node, and counts as 0
            yield f"status.allocatable.{resource}: want 0 or more, got {quantity!r}"


def refused_limits(limits: LimitRange) -> Iterator[str]:
    """The same of a LimitRange."""
    yield from refused_metadata(limits.metadata)
    for at, limit in enumerate(limits.spec.limits or ()):
        for member, quantities in (
            ("default", limit.default),
            ("defaultRequest", limit.default_request),
            ("min", limit.min),
            ("max", limit.max),
            ("maxLimitRequestRatio", limit.max_limit_request_ratio),
        ):
            yield from refused_quantities(quantities, f"spec.limits[{at}].{member}")


def refused_claim(claim: PersistentVolumeClaim) -> Iterator[str]:
    """The same of a claim."""
    yield from refused_metadata(claim.metadata)
    yield from refused_quantities(claim.spec.resources.requests, "spec.resources.requests")


def refused_quantities(quantities: Quantities | None, path: str) -> Iterator[str]:
    """Quantities that are none, or that are negative."""
    for resource, quantity in (quantities or {}).items():
        try:
            negative = milli_value(quantity) < 0
        except QuantityError as exc:
            yield f"{path}.{resource}: {exc}"
        else:
            if negative:
                yield f"{path}.{resource}: want 0 or more, got {quantity!r}"


def _container(container: Container, spec: PodSpec, path: str) -> Iterator[str]:
    yield from _resources(container.resources, f"{path}.resources")
    for at, port in enumerate(container.ports or ()):
        yield from _port(port, f"{path}.ports[{at}]", on_host=spec.host_network)


def _resources(resources: ResourceRequirements | None, path: str) -> Iterator[str]:
    if resources is None:
        return
    wrong = [
        *refused_quantities(resources.requests, f"{path}.requests"),
        *refused_quantities(resources.limits, f"{path}.limits"),
    ]
    yield from wrong or _more_than_allowed(resources, path)


def _more_than_allowed(resources: ResourceRequirements, path: str) -> Iterator[str]:
    for resource, limit in (resources.limits or {}).items():
        request = (resources.requests or {}).get(resource, limit)
        if milli_value(request) > milli_value(limit):
            yield f"{path}.requests.{resource}: want at most the limit of {limit!r}, got {request!r}"


def _port(port: ContainerPort, path: str, *, on_host: bool) -> Iterator[str]:
    if port.container_port not in _PORTS:
        yield f"{path}.containerPort: want {_PORTS[0]}..{_PORTS[-1]}, got {port.container_port}"
    if port.host_port and port.host_port not in _PORTS:
        yield f"{path}.hostPort: want {_PORTS[0]}..{_PORTS[-1]}, got {port.host_port}"
    elif on_host and port.host_port not in (0, port.container_port):
        yield f"{path}.hostPort: want the containerPort {port.container_port} with hostNetwork, got {port.host_port}"
    if port.protocol not in _PROTOCOLS:
        yield f"{path}.protocol: want {', '.join(_PROTOCOLS)}, got {port.protocol!r}"


def _rest(spec: PodSpec) -> Iterator[str]:
    if spec.preemption_policy not in (None, *_POLICIES):
        yield f"spec.preemptionPolicy: want {', '.join(_POLICIES)}, got {spec.preemption_policy!r}"
    for at, gate in enumerate(spec.scheduling_gates or ()):
        if not is_label_key(gate.name):
            yield f"spec.schedulingGates[{at}].name: want a name such as 'example.com/quota', got {gate.name!r}"
    if spec.node_name and spec.scheduling_gates:
        yield "spec.nodeName: a pod with schedulingGates has none yet: take one of the two out"
