"""RuntimeClasses: what the runtime of a pod takes for itself, and on which nodes it is."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from berth.api.meta import ObjectMeta, Trimmed
from berth.api.pod import PodSpec, Quantities, Toleration
from berth.api.quantity import milli_value


class Overhead(Trimmed, frozen=True, kw_only=True):
    """What a pod of the class takes beside its containers."""

    pod_fixed: Quantities | None = None


class Scheduling(Trimmed, frozen=True, kw_only=True):
    """The nodes that have the runtime."""

    node_selector: dict[str, str] | None = None
    tolerations: list[Toleration] | None = None


class RuntimeClass(Trimmed, frozen=True, kw_only=True):
    """A way to run containers."""

    metadata: ObjectMeta
    overhead: Overhead | None = None
    scheduling: Scheduling | None = None


def with_runtime(spec: PodSpec, runtime: RuntimeClass) -> PodSpec:
    """The pod with its runtime's overhead, nodes and tolerations."""
    if runtime.overhead is not None:
        spec = msgspec.structs.replace(spec, overhead=runtime.overhead.pod_fixed)
    scheduling = runtime.scheduling
    if scheduling is None:
        return spec
    own = spec.tolerations or []
    more = [toleration for toleration in scheduling.tolerations or () if toleration not in own]
    selector = {**(spec.node_selector or {}), **(scheduling.node_selector or {})}
    return msgspec.structs.replace(spec, node_selector=selector or None, tolerations=[*own, *more])


def refused(spec: PodSpec, runtime: RuntimeClass | None) -> Iterator[str]:
    """What of a pod contradicts its runtime; a pod without one has no overhead."""
    overhead = runtime.overhead if runtime else None
    if spec.overhead is not None and (overhead is None or _read(overhead.pod_fixed) != _read(spec.overhead)):
        yield "spec.overhead: is the RuntimeClass's to say, and is refused with another value: take the field out"
    scheduling = runtime.scheduling if runtime else None
    own = spec.node_selector or {}
    for label, wanted in ((scheduling.node_selector if scheduling else None) or {}).items():
        if own.get(label, wanted) != wanted:
            yield f"spec.nodeSelector.{label}: want {wanted!r} as the RuntimeClass has it, got {own[label]!r}"


def _read(quantities: Quantities | None) -> dict[str, int]:
    return {resource: milli_value(quantity) for resource, quantity in (quantities or {}).items()}
