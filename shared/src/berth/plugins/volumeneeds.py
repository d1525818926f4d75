"""What a pod's claims ask of nodes, and what is said of a node that cannot give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from berth.api.pod import Pod
from berth.api.volumes import PersistentVolume
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.status import SUCCESS, Status
from berth.framework.verdicts import Verdicts
from berth.plugins.volumeclaims import pod_claims
from berth.plugins.volumereach import Reach, reach_of
from berth.plugins.volumesearch import VolumeSearch

Bits = npt.NDArray[np.int64]

OUT_OF_REACH: Final = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUMES: Final = "node(s) didn't find available persistent volumes to bind"
NOT_ENOUGH: Final = "node(s) did not have enough free storage"
VOLUME_GONE: Final = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
UNBOUND: Final = Status.unresolvable("pod has unbound immediate PersistentVolumeClaims")
_REASONS: Final = (OUT_OF_REACH, NO_VOLUMES, NOT_ENOUGH, VOLUME_GONE)
"""In the order in which they are said; a node's reasons are kept as bits, the first one's being 1."""
_BIT_OUT_OF_REACH, _BIT_GONE, _BIT_FLAWED = 1, 8, 16
_BITS_OF_PROBLEM: Final = (0, 2, 4)
"""By the problem that a search has with a node: none, no volume, no room."""


@dataclass(frozen=True, slots=True)
class Needs:
    """``bound``: from where the volumes of bound claims are reached, None for a volume that is not there any more.

    ``search``: for claims that wait for their first consumer, where there are any.
    """

    bound: tuple[Reach | None, ...]
    search: VolumeSearch | None

    def of_node(self, node: NodeInfo) -> Status:
        """Bound claims up to the first that does not fit, then those that wait."""
        bits = next(filter(None, (_bit_of(reach, node) for reach in self.bound)), 0)
        if self.search is not None:
            bits |= _BITS_OF_PROBLEM[self.search.on_node(node).problem]
        return self._status(bits)

    def of_nodes(self, nodes: Nodes) -> Verdicts:
        """The same for all nodes."""
        bits: Bits = np.zeros(len(nodes), dtype=np.int64)
        for reach in self.bound:
            bits = np.where(bits == 0, _bits_of(reach, nodes), bits)
        if self.search is not None:
            bits |= np.array(_BITS_OF_PROBLEM)[self.search.problems(nodes)]
        return Verdicts.of_bits(bits, len(_REASONS) + 1, self._status)

    def _status(self, bits: int) -> Status:
        """What the bits of a node say. A volume that a driver does not understand is an error."""
        if bits & _BIT_FLAWED:
            flaw = next(reach.flaw for reach in self.bound if reach is not None and reach.flaw)
            return Status.error(f"could not translate pv: {flaw}")
        reasons = [reason for place, reason in enumerate(_REASONS) if bits >> place & 1]
        return Status.unresolvable(*reasons) if reasons else SUCCESS


def needs_of(pod: Pod, snapshot: Snapshot) -> Needs | Status:
    """What the pod's claims ask of a node; a Status when one of them cannot be had anywhere."""
    claims = pod_claims(pod, snapshot)
    if isinstance(claims, Status):
        return claims
    if claims.immediate:
        return UNBOUND
    volumes = [snapshot.objects(PersistentVolume).named(claim.spec.volume_name) for claim in claims.bound]
    bound = tuple(None if volume is None else reach_of(volume) for volume in volumes)
    return Needs(bound, VolumeSearch(claims.waiting, snapshot) if claims.waiting else None)


def _bit_of(reach: Reach | None, node: NodeInfo) -> int:
    if reach is None:
        return _BIT_GONE
    if reach.is_flawed(node):
        return _BIT_FLAWED
    return 0 if reach.includes(node) else _BIT_OUT_OF_REACH


def _bits_of(reach: Reach | None, nodes: Nodes) -> Bits:
    if reach is None:
        return np.full(len(nodes), _BIT_GONE, dtype=np.int64)
    return np.where(reach.flawed(nodes), _BIT_FLAWED, np.where(reach.mask(nodes), 0, _BIT_OUT_OF_REACH))
