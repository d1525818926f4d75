"""Equivalence classes: what follows from a pod's spec is computed once for all pods with an equal spec."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from weakref import WeakValueDictionary

import msgspec

from berth.api.pod import Affinity, NodeAffinity, Pod, PodSpec, Toleration
from berth.api.resources import Requests, pod_requests
from berth.api.selectors import (
    NodeTerm,
    NodeTerms,
    WeightedNodeTerm,
    compile_node_labels,
    compile_node_selector,
    compile_preferred,
)
from berth.cluster.columns import HostPort, host_ports

_encode = msgspec.json.Encoder().encode


class EquivalenceClasses:
    """Interns classes; one without references is dropped."""

    def __init__(self) -> None:
        self._classes: WeakValueDictionary[bytes, EquivalenceClass] = WeakValueDictionary()
        self._last: tuple[PodSpec, EquivalenceClass] | None = None

    def __len__(self) -> int:
        return len(self._classes)

    def of(self, pod: Pod, *, placed: bool = False) -> EquivalenceClass:
        """The class of a pod; for a placed pod the node's name is left out."""
        spec = pod.spec
        if self._last is not None and self._last[0] is spec and not (placed and spec.node_name):
            return self._last[1]  # a pod is ranked, then placed: its spec is encoded once
        found = self._intern(spec, placed=placed)
        if not placed:
            self._last = (spec, found)
        return found

    def _intern(self, spec: PodSpec, *, placed: bool) -> EquivalenceClass:
        if spec.volumes is not None or (placed and spec.node_name):
            node_name = "" if placed else spec.node_name
            spec = msgspec.structs.replace(spec, volumes=None, node_name=node_name)
        key = _encode(spec)
        known = self._classes.get(key)
        if known is None:
            known = self._classes[key] = EquivalenceClass(key, spec)
        return known


class EquivalenceClass:
    """A spec and what follows from it. Names, uids, labels, the node and volumes are not part of a class."""

    def __init__(self, key: bytes, spec: PodSpec) -> None:
        self.key = key
        self.spec = spec

    @cached_property
    def requests(self) -> Requests:
        return pod_requests(self.spec)

    @property
    def tolerations(self) -> tuple[Toleration, ...]:
        """Taints that the pods tolerate."""
        return tuple(self.spec.tolerations or ())

    @cached_property
    def host_ports(self) -> tuple[HostPort, ...]:
        """Ports of the node that the pods take."""
        return host_ports(self.spec)

    @cached_property
    def node_labels(self) -> NodeTerm | None:
        """nodeSelector, compiled; None when there is none."""
        return compile_node_labels(self.spec.node_selector) if self.spec.node_selector else None

    @cached_property
    def required_nodes(self) -> NodeTerms | None:
        """The required node affinity, compiled; None when there is none."""
        required = self._node_affinity.required_during_scheduling_ignored_during_execution
        return compile_node_selector(required) if required is not None else None

    def allows(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether nodeSelector and required node affinity let the pods be on a node."""
        selector, required = self.node_labels, self.required_nodes
        return (selector is None or selector.matches(name, labels)) and (
            required is None or required.matches(name, labels)
        )

    @cached_property
    def preferred_nodes(self) -> tuple[WeightedNodeTerm, ...]:
        """The preferred node affinity, compiled."""
        return compile_preferred(self._node_affinity.preferred_during_scheduling_ignored_during_execution)

    @property
    def _node_affinity(self) -> NodeAffinity:
        return (self.spec.affinity or Affinity()).node_affinity or NodeAffinity()
