"""What the API server makes of a pod that is created, as far as scheduling reads it: for pods that nobody created yet.

A pod as ``kubectl get`` prints it has all of this and stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from berth.api.meta import ObjectMeta
from berth.api.pod import Container, Pod, PodSpec, ResourceRequirements
from berth.api.priorityclass import SYSTEM_PRIORITIES, PriorityClass


class UnknownPriorityClassError(Exception):
    """A pod names a PriorityClass that is not there."""


class Admission:
    """Admits pods to a cluster that has these PriorityClasses."""

    def __init__(self, classes: Iterable[PriorityClass]) -> None:
        system = (
            PriorityClass(metadata=ObjectMeta(name=name), value=value) for name, value in SYSTEM_PRIORITIES.items()
        )
        self._classes: Mapping[str, PriorityClass] = {known.metadata.name: known for known in (*system, *classes)}
        self._default = next((known for known in self._classes.values() if known.global_default), None)

    def admitted(self, pod: Pod) -> Pod:
        """The pod with its priority, and with a container's limits as its requests where it names no others.

        Raises:
            UnknownPriorityClassError: its class is not there.
        """
        spec = self._with_priority(_with_requests(pod.spec))
        return pod if spec is pod.spec else msgspec.structs.replace(pod, spec=spec)

    def _with_priority(self, spec: PodSpec) -> PodSpec:
        if spec.priority is not None:
            return spec
        found = self._class_of(spec)
        if found is None:
            return spec
        policy = spec.preemption_policy or found.preemption_policy
        name = found.metadata.name
        return msgspec.structs.replace(spec, priority=found.value, preemption_policy=policy, priority_class_name=name)

    def _class_of(self, spec: PodSpec) -> PriorityClass | None:
        if not spec.priority_class_name:
            return self._default
        found = self._classes.get(spec.priority_class_name)
        if found is None:
            raise UnknownPriorityClassError(
                f"spec.priorityClassName: no PriorityClass {spec.priority_class_name!r} in --cluster: add it there"
            )
        return found


def _with_requests(spec: PodSpec) -> PodSpec:
    containers, init_containers = _each(spec.containers), _each(spec.init_containers)
    if (containers, init_containers) == (spec.containers, spec.init_containers):
        return spec
    return msgspec.structs.replace(spec, containers=containers, init_containers=init_containers)


def _each(containers: list[Container] | None) -> list[Container] | None:
    if containers is None:
        return None
    return [msgspec.structs.replace(one, resources=_requested(one.resources)) for one in containers]


def _requested(resources: ResourceRequirements | None) -> ResourceRequirements | None:
    if resources is None or not resources.limits:
        return resources
    return msgspec.structs.replace(resources, requests={**resources.limits, **(resources.requests or {})})
