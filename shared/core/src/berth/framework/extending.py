"""What HTTP extenders have to say in one cycle: which of the feasible nodes they leave, their points, and evictions.

A cycle does no I/O. So whoever calls it asks first: ``berth.framework.cycle.nodes_to_extend`` says which nodes pass all
filters, the extenders answer, and ``rank`` takes their answers as an ``Extension``. The Snapshot may have changed
meanwhile: a node counts when it passes the filters now and was left by the extenders.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.config.configuration import ExtenderConfiguration
from berth.api.pod import Container, Pod
from berth.cluster.nodes import Mask, Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.status import Diagnosis, Status

EXTENDER: Final = "Extender"
"""Stands for all extenders among the plugins that have rejected a pod, as in kube-scheduler: any event may help it."""
NOT_ASKED: Final = Status(Status.unschedulable().code, ("extender(s) were not asked about the node(s)",), EXTENDER)
"""For nodes that were not feasible yet when the extenders were asked."""
LEFT_OUT: Final = Status(Status.unresolvable().code, (), EXTENDER)
"""For nodes that an extender leaves out without a word. kube-scheduler names no reason either."""


NO_CANDIDATE: Final = "no candidate node for preemption"
"""kube-scheduler's words when extenders leave none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictions:
    """The evictions that extenders leave, by node the victims' uids, the best first; or why there is none."""

    left: Mapping[str, frozenset[str]] = field(default_factory=dict)
    message: str = NO_CANDIDATE


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The extenders' answers about one pod. ``points``: by extender and node, weighted and scaled."""

    asked: frozenset[str]
    left: frozenset[str]
    """Of those, the nodes that all extenders leave."""
    rejected: Mapping[str, Status] = field(default_factory=dict)
    """Why they reject a node, where they say it."""
    points: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    evictions: Evictions | None = None
    """None: they were asked about none."""

    @property
    def says_nothing(self) -> bool:
        """Whether nobody was asked anything."""
        return not self.asked and self.evictions is None

    def is_final_for(self, nodes: Collection[str]) -> bool:
        """Whether these nodes, feasible by now, need no further question: one is left, or all were asked about."""
        return any(node in self.left for node in nodes) or self.asked.issuperset(nodes)

    def mask(self, snapshot: Snapshot, *, unasked: bool = False) -> Mask:
        """bool[rows]: the nodes that extenders leave. ``unasked``: all nodes that they have not rejected."""
        mask = np.full(snapshot.size, unasked, dtype=np.bool_)
        for names, is_left in ((self.asked - self.left, False), (self.left, True)):
            rows = [row for name in names if (row := snapshot.rows.of(name)) is not None]
            mask[rows] = is_left
        return mask

    def diagnose(self, feasible: Mask, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
        """Add why the nodes that pass the filters are not left."""
        by_status: dict[Status, list[int]] = {}
        for row in np.flatnonzero(feasible).tolist():
            name = snapshot.rows.names[row]
            if name not in self.left:
                status = self.rejected.get(name, LEFT_OUT) if name in self.asked else NOT_ASKED
                by_status.setdefault(status, []).append(row)
        for status, rows in by_status.items():
            diagnosis.add(status, np.array(rows, dtype=np.intp))

    def scores(self, nodes: Nodes) -> dict[str, npt.NDArray[np.int64]]:
        """By extender, int64[nodes]: its points; 0 where it has given none."""
        names = nodes.names
        return {
            extender: np.array([given.get(name, 0) for name in names], dtype=np.int64)
            for extender, given in self.points.items()
        }


def binds(extender: ExtenderConfiguration, pod: Pod) -> bool:
    """Whether the extender binds the pod, in place of the binder."""
    return bool(extender.bind_verb) and is_interested(extender, pod)


def is_interested(extender: ExtenderConfiguration, pod: Pod) -> bool:
    """Whether the pod is the extender's: it has one of its resources in a request or limit, or those are not named."""
    if not extender.managed_resources:
        return True
    containers = (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
    return any(not extender.managed_resources.isdisjoint(_resources(container)) for container in containers)


def _resources(container: Container) -> set[str]:
    found = container.resources
    return set() if found is None else {*(found.requests or ()), *(found.limits or ())}
