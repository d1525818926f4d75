"""What the API server makes of a pod that is created, step by step as it does it, or why it refuses the pod."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from berth.api.meta import ObjectMeta
from berth.api.pod import Pod, PodSpec
from berth.api.workloads import SYSTEM_PRIORITIES, PriorityClass
from berth.simulate.creation import limitranges, runtimeclasses
from berth.simulate.creation.defaults import with_defaults, with_tolerations
from berth.simulate.creation.labelkeys import with_label_keys
from berth.simulate.creation.limitranges import LimitRange
from berth.simulate.creation.podrules import refused_pod
from berth.simulate.creation.runtimeclasses import RuntimeClass

_PREEMPTS = "PreemptLowerPriority"


@dataclass(slots=True, kw_only=True)
class Admitted:
    """The pod as it would be stored; ``refusals`` say why it would not, ``notes`` what only counts here."""

    pod: Pod
    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Admission:
    """Admits pods to a cluster by its PriorityClasses, LimitRanges and RuntimeClasses; other objects say nothing."""

    def __init__(self, objects: Iterable[object]) -> None:
        self._priorities: dict[str, PriorityClass] = dict(_system_classes())
        self._runtimes: dict[str, RuntimeClass] = {}
        self._limits: Mapping[str, list[LimitRange]] = defaultdict(list)
        for known in objects:
            if isinstance(known, PriorityClass):
                self._priorities[known.metadata.name] = known
            elif isinstance(known, RuntimeClass):
                self._runtimes[known.metadata.name] = known
            elif isinstance(known, LimitRange):
                self._limits[known.metadata.namespace].append(known)

    def admitted(self, pod: Pod, *, runtime: str | None) -> Admitted:
        """The pod with everything that it gets. ``runtime`` is the name of its RuntimeClass, if it names one."""
        admitted = Admitted(pod=pod, refusals=list(refused_pod(pod)))
        if admitted.refusals:
            return admitted
        spec, limits = with_defaults(pod.spec), self._limits.get(pod.metadata.namespace, ())
        for one in limits:
            spec = limitranges.with_limits(spec, one)
        spec = with_tolerations(self._with_priority(spec, admitted))
        spec = self._with_runtime(spec, runtime, admitted)
        admitted.refusals += [refusal for one in limits for refusal in limitranges.refused(spec, one)]
        spec = with_label_keys(spec, pod.metadata.labels or {})
        admitted.pod = msgspec.structs.replace(pod, spec=spec)
        return admitted

    def _with_runtime(self, spec: PodSpec, name: str | None, admitted: Admitted) -> PodSpec:
        runtime = self._runtimes.get(name) if name else None
        if name and runtime is None:
            admitted.refusals.append(
                f"spec.runtimeClassName: no RuntimeClass {name!r} in the files: add it to --cluster"
            )
            return spec
        admitted.refusals.extend(runtimeclasses.refused(spec, runtime))
        return runtimeclasses.with_runtime(spec, runtime) if runtime else spec

    def _with_priority(self, spec: PodSpec, admitted: Admitted) -> PodSpec:
        name = spec.priority_class_name
        found = self._priorities.get(name) if name else self._default_class()
        if name and found is None:
            admitted.refusals.append(
                f"spec.priorityClassName: no PriorityClass {name!r} in the files: add it to --cluster"
            )
        value, policy = (found.value, found.preemption_policy or _PREEMPTS) if found else (0, _PREEMPTS)
        for member, own, computed in (
            ("priority", spec.priority, value),
            ("preemptionPolicy", spec.preemption_policy, policy),
        ):
            if own not in (None, computed):
                _contradicted(admitted, member, own, computed, found)
        return msgspec.structs.replace(
            spec,
            priority=value if spec.priority is None else spec.priority,
            preemption_policy=spec.preemption_policy or policy,
            priority_class_name=found.metadata.name if found else "",
        )

    def _default_class(self) -> PriorityClass | None:
        """Of several that say they are the default, the API server takes the one of the lowest value."""
        defaults = (one for one in self._priorities.values() if one.global_default)
        return min(defaults, key=lambda one: one.value, default=None)


def _system_classes() -> Iterator[tuple[str, PriorityClass]]:
    for name, value in SYSTEM_PRIORITIES.items():
        yield name, PriorityClass(metadata=ObjectMeta(name=name), value=value)


def _contradicted(admitted: Admitted, member: str, own: object, computed: object, found: PriorityClass | None) -> None:
    """A pod says what is for its class to say; where there is no class it is a quick way to try one, and is let be."""
    if found is None:
        admitted.notes.append(f"spec.{member}: {own!r} counts here; the API server takes it from a PriorityClass only")
    else:
        wanted = f"want {computed!r} as PriorityClass {found.metadata.name!r} has it"
        admitted.refusals.append(f"spec.{member}: {wanted}, got {own!r}: take it out")
