"""Which events may help a pod that InterPodAffinity refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from berth.api.node import Node
from berth.api.pod import Pod
from berth.api.podterms import PodTerm, compile_pod_terms
from berth.framework.events import Action, ClusterEvent, EventHint, Resource


def _pod_helps(pod: Pod, old: object, new: object) -> bool:
    """It comes and satisfies the affinity; it goes, or is not meant any more, and stood against the anti-affinity."""
    was, now = old if isinstance(old, Pod) else None, new if isinstance(new, Pod) else None
    if now is not None and now.uid == pod.uid:
        return True
    terms = compile_pod_terms(pod.spec.affinity, pod.metadata.namespace)
    if now is not None and _all_mean(terms.required, now) and not (was and _all_mean(terms.required, was)):
        return True
    if was is None:
        return False
    freed = any(_means(term, was) and not (now and _means(term, now)) for term in terms.required_apart)
    return freed or (now is None and _kept_apart_from(was, pod))


def _kept_apart_from(gone: Pod, pod: Pod) -> bool:
    terms = compile_pod_terms(gone.spec.affinity, gone.metadata.namespace)
    return any(_means(term, pod) for term in terms.required_apart)


def _node_helps(pod: Pod, old: object, new: object) -> bool:
    """It is new and in the domains that are asked for, or it comes to one, or it leaves one that was to be avoided.

    A pod that asks for nothing was refused by terms of placed pods, whose labels are not known here.
    """
    if not isinstance(new, Node):
        return False
    terms = compile_pod_terms(pod.spec.affinity, pod.metadata.namespace)
    now = new.metadata.labels or {}
    if not isinstance(old, Node):
        return all(term.topology_key in now for term in terms.required)
    was = old.metadata.labels or {}
    if not terms.required and not terms.required_apart:
        return was != now
    comes = any(term.topology_key in now and _moves(term, was, now) for term in terms.required)
    return comes or any(term.topology_key in was and _moves(term, was, now) for term in terms.required_apart)


def _moves(term: PodTerm, was: Mapping[str, str], now: Mapping[str, str]) -> bool:
    return was.get(term.topology_key) != now.get(term.topology_key)


def _namespace_helps(pod: Pod, _: object, __: object) -> bool:
    """A namespace that other terms select now: only terms of the pod itself are known here."""
    terms = compile_pod_terms(pod.spec.affinity, pod.metadata.namespace)
    return any(term.selector.looks_at_namespaces for term in (*terms.required, *terms.required_apart))


def _all_mean(terms: Sequence[PodTerm], pod: Pod) -> bool:
    return bool(terms) and all(_means(term, pod) for term in terms)


def _means(term: PodTerm, pod: Pod) -> bool:
    """What selects namespaces by labels is taken to select all of them: better one try too many."""
    selector, meta = term.selector, pod.metadata
    covered = selector.looks_at_namespaces or meta.namespace in selector.namespaces
    return covered and selector.labels.matches(meta.labels or {})


EVENTS: Final[Sequence[EventHint]] = (
    EventHint(ClusterEvent(Resource.POD, Action.ADD | Action.DELETE | Action.UPDATE_POD_LABEL), _pod_helps),
    EventHint(ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_LABEL), _node_helps),
    EventHint(ClusterEvent(Resource.NAMESPACE, Action.ADD | Action.UPDATE), _namespace_helps),
    EventHint(ClusterEvent(Resource.NOMINATION, Action.DELETE), _pod_helps),
)
