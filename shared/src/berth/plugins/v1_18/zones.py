"""In which zone a node is, as kube-scheduler 1.18 read it: region and zone together, the beta labels first."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from berth.cluster.nodes import Nodes

ZONE_LABELS: Final = ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone")
REGION_LABELS: Final = ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region")
Numbers = npt.NDArray[np.intp]


def zones_of(nodes: Nodes) -> Numbers:
    """intp[nodes]: a number for each zone that occurs, from 1; 0 for nodes that are in none."""
    regions, zones = _values(REGION_LABELS, nodes), _values(ZONE_LABELS, nodes)
    pairs = regions * (int(zones.max(initial=0)) + 1) + zones
    present = np.bincount(pairs, minlength=1) > 0
    present[0] = False
    numbers: Numbers = np.cumsum(present)[pairs]
    return numbers


def _values(keys: tuple[str, str], nodes: Nodes) -> Numbers:
    """A number for each value of the first of the labels that a node has; 0 for the empty value and for none."""
    known: dict[str, int] = {"": 0}
    numbers = np.zeros(len(nodes), dtype=np.intp)
    for key in reversed(keys):
        codes, column = nodes.label(key)
        table = np.array([known.setdefault(value, len(known)) for value in (*column.values, "")], dtype=np.intp)
        numbers = np.where(codes >= 0, table[codes], numbers)
    return numbers
