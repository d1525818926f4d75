"""The answers of HTTP extenders: the feasible nodes that they keep, their points, and the evictions that they keep.

A cycle does no I/O, so its caller asks first: ``berth.framework.cycle.nodes_to_extend`` returns the nodes that pass all
filters, the extenders answer, and ``rank`` takes the answers as an ``Extension``. The Snapshot may have changed
meanwhile: a node counts if it passes the filters now and was kept by the extenders.
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

# Stands for all extenders among the plugins that rejected a pod, as in kube-scheduler: any event may help it.
EXTENDER: Final = "Extender"
# For nodes that were not yet feasible when the extenders were asked.
NOT_ASKED: Final = Status(Status.unschedulable().code, ("extender(s) were not asked about the node(s)",), EXTENDER)
# For nodes that an extender drops without a reason, as in kube-scheduler.
LEFT_OUT: Final = Status(Status.unresolvable().code, (), EXTENDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """The extenders' answers about one pod. ``points``: by extender and node, weighted and scaled."""

    asked: frozenset[str]
    left: frozenset[str]  # nodes that all extenders keep
    rejected: Mapping[str, Status] = field(default_factory=dict)  # their reasons, if given
    points: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        # No extender was asked.
        return not self.asked

    def is_final_for(self, nodes: Collection[str]) -> bool:
        """Whether these feasible nodes need no further question: one is kept, or extenders were asked about all."""
        return any(node in self.left for node in nodes) or self.asked.issuperset(nodes)

    def mask(self, snapshot: Snapshot, *, unasked: bool = False) -> Mask:
        """bool[rows]: the nodes that extenders keep. ``unasked``: all nodes that they have not rejected."""
        mask = np.full(snapshot.size, unasked, dtype=np.bool_)
        for names, is_left in ((self.asked - self.left, False), (self.left, True)):
            rows = [row for name in names if (row := snapshot.rows.of(name)) is not None]
            mask[rows] = is_left
        return mask

    def diagnose(self, feasible: Mask, snapshot: Snapshot, diagnosis: Diagnosis) -> None:
        """Add the reasons why nodes that pass the filters were not kept."""
        by_status: dict[Status, list[int]] = {}
        for row in np.flatnonzero(feasible).tolist():
            name = snapshot.rows.names[row]
            if name not in self.left:
                status = self.rejected.get(name, LEFT_OUT) if name in self.asked else NOT_ASKED
                by_status.setdefault(status, []).append(row)
        for status, rows in by_status.items():
            diagnosis.add(status, np.array(rows, dtype=np.intp))

    def scores(self, nodes: Nodes) -> dict[str, npt.NDArray[np.int64]]:
        """By extender, int64[nodes]: its points; 0 by default."""
        names = nodes.names
        return {
            extender: np.array([given.get(name, 0) for name in names], dtype=np.int64)
            for extender, given in self.points.items()
        }


def binds(extender: ExtenderConfiguration, pod: Pod) -> bool:
    return bool(extender.bind_verb) and is_interested(extender, pod)


def is_interested(extender: ExtenderConfiguration, pod: Pod) -> bool:
    """Whether the extender handles the pod: a request or limit has one of its resources, or it names no resources."""
    if not extender.managed_resources:
        return True
    containers = (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
    return any(not extender.managed_resources.isdisjoint(_resources(container)) for container in containers)


def _resources(container: Container) -> set[str]:
    found = container.resources
    return set() if found is None else {*(found.requests or ()), *(found.limits or ())}
