"""Limits on the work that one pod causes in a cycle and on the bus, so that no pod delays others.

A pod above the limits is not scheduled, and the reason is reported. The limits are ten times the largest known need;
each costs at most 25 ms per cycle at 5,000 nodes.

A placed pod cannot be refused. Above the limits its pod affinity has no effect on other pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from berth.api.meta import LabelSelector
from berth.api.pod import (
    Affinity,
    Container,
    NodeAffinity,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
)


class Part(NamedTuple):
    """A part of the spec whose number is limited.

    ``microseconds``: cost of one in a cycle at 5,000 nodes, measured with a thousand.
    """

    name: str
    most: int
    microseconds: float
    count: Callable[[PodSpec], int]


# Bytes of a pod's JSON that scheduling reads; usually 1 to 4 KiB. At this size 2,000 pods that wait for a volume fill
# RANKED (128 MiB), and the 64 messages of a scorer are 4 MiB.
MOST_BYTES: Final = 64 * 1024

# Messages have the devices of as many.
MOST_CLAIMS: Final = 128

_encode: Final = msgspec.json.Encoder().encode


def bytes_of(pod: Pod) -> int:
    """Bytes of the JSON that scheduling reads. The status does not count, because berth writes conditions there.

    Neither does the whole pod for extenders: only PENDING has it, while the pod waits for a scorer.
    """
    return len(_encode(pod.metadata)) + len(_encode(pod.spec))


def refusal(pod: Pod) -> str:
    """Why the pod is not scheduled, in one sentence; empty if it may be."""
    excess = [f"{number} {part.name} (at most {part.most})" for part, number in _excess(pod.spec)]
    if (size := bytes_of(pod)) > MOST_BYTES:
        excess.append(f"{size} bytes (at most {MOST_BYTES})")
    return f"the pod has more than a scheduling cycle can take: {', '.join(excess)}" if excess else ""


def is_within_limits(spec: PodSpec) -> bool:
    return next(_excess(spec), None) is None


def cycle_milliseconds(pod: Pod) -> int:
    """Approximate extra milliseconds of a cycle at 5,000 nodes compared to a pod without selectors."""
    return int(sum(part.microseconds * part.count(pod.spec) for part in _parts_of(pod.spec)) / 1000)


def _excess(spec: PodSpec) -> Iterator[tuple[Part, int]]:
    return ((part, number) for part in _parts_of(spec) if (number := part.count(spec)) > part.most)


def pod_affinity_counts(affinity: Affinity) -> bool:
    """Whether the pod affinity of a placed pod counts for others: it is within the limits."""
    spec = PodSpec(affinity=affinity)
    return all(part.count(spec) <= part.most for part in PARTS)


def _node_expressions(spec: PodSpec) -> int:
    terms = list(_node_terms(spec.affinity))
    expressions = sum(len(term.match_expressions or ()) + len(term.match_fields or ()) for term in terms)
    return len(spec.node_selector or ()) + max(len(terms), expressions)


def _node_values(spec: PodSpec) -> int:
    return sum(
        len(expression.values or ())
        for term in _node_terms(spec.affinity)
        for expression in (*(term.match_expressions or ()), *(term.match_fields or ()))
    )


def _affinity_terms(spec: PodSpec) -> int:
    return sum(1 for _ in _pod_terms(spec.affinity))


def _label_requirements(spec: PodSpec) -> int:
    selectors = [
        *(term.label_selector for term in _pod_terms(spec.affinity)),
        *(term.namespace_selector for term in _pod_terms(spec.affinity)),
        *(constraint.label_selector for constraint in spec.topology_spread_constraints or ()),
    ]
    keys = sum(len(constraint.match_label_keys or ()) for constraint in spec.topology_spread_constraints or ())
    return keys + sum(map(_size_of, selectors))


def _namespaces(spec: PodSpec) -> int:
    return sum(len(term.namespaces or ()) for term in _pod_terms(spec.affinity))


def _spread_constraints(spec: PodSpec) -> int:
    return len(spec.topology_spread_constraints or ())


def _tolerations(spec: PodSpec) -> int:
    return len(spec.tolerations or ())


def _containers(spec: PodSpec) -> int:
    return len(spec.containers or ()) + len(spec.init_containers or ())


def _ports(spec: PodSpec) -> int:
    return sum(len(container.ports or ()) for container in _all_containers(spec))


def _resources(spec: PodSpec) -> int:
    return sum(
        len(container.resources.requests or ()) + len(container.resources.limits or ())
        for container in _all_containers(spec)
        if container.resources is not None
    )


def _volumes(spec: PodSpec) -> int:
    return len(spec.volumes or ())


MOST_VOLUMES: Final = 1000


# Values of label selectors are not limited, because they are looked up in a set.
def _claims(spec: PodSpec) -> int:
    return len(spec.resource_claims or ())


PARTS: Final = (
    Part("node selector expressions", 1000, 17, _node_expressions),
    Part("values of node selector expressions", 20_000, 0.3, _node_values),
    Part("pod affinity and anti-affinity terms", 256, 100, _affinity_terms),
    Part("requirements of pod label selectors", 1000, 10, _label_requirements),
    Part("namespaces of pod affinity terms", 1000, 10, _namespaces),
    Part("topology spread constraints", 64, 100, _spread_constraints),
    Part("tolerations", 1000, 1.5, _tolerations),
    Part("containers", 1000, 4, _containers),
    Part("container ports", 2000, 2, _ports),
    Part("requests and limits of containers", 4000, 2, _resources),
    Part("volumes", MOST_VOLUMES, 10, _volumes),
    Part("resource claims", MOST_CLAIMS, 100, _claims),
)
_OF_SELECTORS: Final = (_node_values, _affinity_terms, _label_requirements, _namespaces, _spread_constraints)
_PARTS_OF_PLAIN_PODS: Final = tuple(part for part in PARTS if part.count not in _OF_SELECTORS)


def _parts_of(spec: PodSpec) -> tuple[Part, ...]:
    # Only the parts that the pod may have: most pods have neither affinity nor spread constraints.
    return PARTS if spec.affinity is not None or spec.topology_spread_constraints else _PARTS_OF_PLAIN_PODS


def _node_terms(affinity: Affinity | None) -> Iterator[NodeSelectorTerm]:
    nodes = (affinity.node_affinity if affinity is not None else None) or _NO_NODE_AFFINITY
    required = nodes.required_during_scheduling_ignored_during_execution
    if required is not None:
        yield from required.node_selector_terms or ()
    for weighted in nodes.preferred_during_scheduling_ignored_during_execution or ():
        yield weighted.preference


def _pod_terms(affinity: Affinity | None) -> Iterator[PodAffinityTerm]:
    if affinity is None:
        return
    for pods in (affinity.pod_affinity or _NO_POD_AFFINITY, affinity.pod_anti_affinity or _NO_POD_AFFINITY):
        yield from pods.required_during_scheduling_ignored_during_execution or ()
        for weighted in pods.preferred_during_scheduling_ignored_during_execution or ():
            yield weighted.pod_affinity_term


def _all_containers(spec: PodSpec) -> Iterable[Container]:
    return (*(spec.containers or ()), *(spec.init_containers or ()))


def _size_of(selector: LabelSelector | None) -> int:
    if selector is None:
        return 0
    return len(selector.match_labels or ()) + len(selector.match_expressions or ())


_NO_NODE_AFFINITY: Final = NodeAffinity()
_NO_POD_AFFINITY: Final = PodAffinity()
