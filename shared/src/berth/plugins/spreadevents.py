"""Which events may help a pod that PodTopologySpread refused."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from berth.api.node import Node
from berth.api.pod import Pod, TopologySpreadConstraint
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.plugins.spreadconstraints import DO_NOT_SCHEDULE, Constraint, compile_constraints

Defaults = Sequence[TopologySpreadConstraint]
_OF_PODS = Action.ADD | Action.DELETE | Action.UPDATE_POD_LABEL | Action.UPDATE_POD_TOLERATIONS
_OF_NODES = Action.ADD | Action.DELETE | Action.UPDATE_NODE_LABEL | Action.UPDATE_NODE_TAINT


def events_of(defaults: Defaults) -> Sequence[EventHint]:
    """With the constraints of pods that have none of their own."""
    return (
        EventHint(ClusterEvent(Resource.POD, _OF_PODS), partial(_pod_helps, defaults)),
        EventHint(ClusterEvent(Resource.NODE, _OF_NODES), partial(_node_helps, defaults)),
        EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE), partial(_pod_helps, defaults)),
    )


def _pod_helps(defaults: Defaults, pod: Pod, old: object, new: object) -> bool:
    """A pod of the namespace starts or ceases to count; of default constraints any may."""
    known = [other for other in (old, new) if isinstance(other, Pod)]
    if any(other.uid == pod.uid for other in known):
        return True
    if any(other.metadata.namespace != pod.metadata.namespace for other in known):
        return False
    if not pod.spec.topology_spread_constraints:
        return bool(defaults)
    constraints = compile_constraints(pod.spec.topology_spread_constraints, pod, DO_NOT_SCHEDULE)
    return any(_counts(constraint, old) != _counts(constraint, new) for constraint in constraints)


def _node_helps(defaults: Defaults, pod: Pod, old: object, new: object) -> bool:
    """A node with all the labels comes or goes, or it comes to other domains."""
    given = pod.spec.topology_spread_constraints or defaults
    keys = [constraint.topology_key for constraint in given if constraint.when_unsatisfiable == DO_NOT_SCHEDULE]
    was, now = _domains(old, keys), _domains(new, keys)
    return was != now or (now is not None and _taints_of(old) != _taints_of(new))


def _counts(constraint: Constraint, pod: object) -> bool:
    return isinstance(pod, Pod) and constraint.means(pod)


def _domains(node: object, keys: Sequence[str]) -> list[str] | None:
    """The node's values; None when it lacks one."""
    labels = (node.metadata.labels or {}) if isinstance(node, Node) else {}
    return [labels[key] for key in keys] if isinstance(node, Node) and all(key in labels for key in keys) else None


def _taints_of(node: object) -> object:
    return (node.spec.unschedulable, node.spec.taints or []) if isinstance(node, Node) else None
