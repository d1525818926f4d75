"""VolumeBinding: a pod goes where its claims have, or can get, their volumes. As kube-scheduler's plugin of that name.

A bound claim ties the pod to the nodes from which its volume is reached. One that waits for its first consumer takes a
free volume that the node reaches, or has one made for the node. Any other claim must be bound before a pod is placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.api.volumes import PersistentVolume
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import EventHint
from berth.framework.interface import EnqueueExtensions, PreFilterPlugin, PreFilterResult, VectorFilterPlugin
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SKIP, SUCCESS, Status
from berth.framework.verdicts import Verdicts
from berth.plugins.factory import PluginFactory
from berth.plugins.volumebindingargs import VolumeBindingArgs, validate
from berth.plugins.volumebindingevents import EVENTS
from berth.plugins.volumeclaims import pod_claims
from berth.plugins.volumereach import Reach, reach_of
from berth.plugins.volumesearch import VolumeSearch

NAME: Final = "VolumeBinding"
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

    def status(self, bits: int) -> Status:
        """What the bits of a node say. A volume that a driver does not understand is an error."""
        if bits & _BIT_FLAWED:
            return Status.error(
                f"could not translate pv: {next(r.flaw for r in self.bound if r is not None and r.flaw)}"
            )
        reasons = [reason for place, reason in enumerate(_REASONS) if bits >> place & 1]
        return Status.unresolvable(*reasons) if reasons else SUCCESS


NEEDS: Final = StateKey[Needs | Status]("VolumeBinding.needs")


class VolumeBinding(PreFilterPlugin, VectorFilterPlugin, EnqueueExtensions):
    """Filters by volumes."""

    name: ClassVar[str] = NAME

    def __init__(self, args: VolumeBindingArgs) -> None:
        self._timeout_seconds = args.bind_timeout_seconds

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod without claims; a rejection when one of them cannot be had anywhere."""
        if not pod.spec.volumes:
            return PreFilterResult(SKIP)
        needs = self._needs(state, pod, snapshot)
        if isinstance(needs, Status):
            return PreFilterResult(needs)
        return PreFilterResult(SUCCESS if needs.bound or needs.search else SKIP)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        """Bound claims up to the first that does not fit, then those that wait."""
        needs = self._needs(state, pod, node.snapshot)
        if isinstance(needs, Status):
            return needs
        bits = next(filter(None, (_bit_of(reach, node) for reach in needs.bound)), 0)
        if needs.search is not None:
            bits |= _BITS_OF_PROBLEM[needs.search.on_node(node).problem]
        return needs.status(bits)

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """The same for all nodes."""
        needs = self._needs(state, pod, nodes.snapshot)
        if isinstance(needs, Status):
            return Verdicts.refusing(np.ones(len(nodes), dtype=np.bool_), needs)
        bits: Bits = np.zeros(len(nodes), dtype=np.int64)
        for reach in needs.bound:
            bits = np.where(bits == 0, _bits_of(reach, nodes), bits)
        if needs.search is not None:
            bits |= np.array(_BITS_OF_PROBLEM)[needs.search.problems(nodes)]
        return Verdicts.of_bits(bits, len(_REASONS) + 1, needs.status)

    def events(self) -> Sequence[EventHint]:
        """Classes, the pod's claims, volumes, nodes, drivers and their room: added or changed in what is looked at."""
        return EVENTS

    def _needs(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> Needs | Status:
        """Found once a cycle, by Filter where a profile has no PreFilter of this plugin."""
        needs = state.find(NEEDS)
        if needs is None:
            needs = needs_of(pod, snapshot)
            state.write(NEEDS, needs)
        return needs


Bits = npt.NDArray[np.int64]


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


def _build(args: Any) -> VolumeBinding:
    return VolumeBinding(args or VolumeBindingArgs())


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER),
    build=_build,
    args_type=VolumeBindingArgs,
    validate=validate,
)
