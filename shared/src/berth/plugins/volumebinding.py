"""VolumeBinding: a pod goes where its claims have, or can get, their volumes. As kube-scheduler's plugin of that name.

A bound claim ties the pod to the nodes from which its volume is reached. One that waits for its first consumer takes a
free volume that the node reaches, or has one made for the node; the pod is bound when that is done. Any other claim
must be bound before a pod is placed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.pod import Pod
from berth.cluster.nodeinfo import NodeInfo
from berth.cluster.nodes import Nodes
from berth.cluster.snapshot import Snapshot
from berth.framework.events import EventHint
from berth.framework.interface import (
    SNAPSHOT,
    EnqueueExtensions,
    PreBindPlugin,
    PreFilterPlugin,
    PreFilterResult,
    ReservePlugin,
    VectorFilterPlugin,
)
from berth.framework.state import CycleState, StateKey
from berth.framework.status import SKIP, SUCCESS, Status
from berth.framework.verdicts import Verdicts
from berth.framework.writes import Write
from berth.plugins.factory import PluginFactory
from berth.plugins.volumebindingargs import VolumeBindingArgs, validate
from berth.plugins.volumebindingevents import EVENTS
from berth.plugins.volumeneeds import Needs, needs_of
from berth.plugins.volumepromises import give_up, progress, suppose, writes_of
from berth.plugins.volumesearch import Plan

NAME: Final = "VolumeBinding"
NEEDS: Final = StateKey[Needs | Status]("VolumeBinding.needs")
PLAN: Final = StateKey[Plan]("VolumeBinding.plan")


class VolumeBinding(PreFilterPlugin, VectorFilterPlugin, ReservePlugin, PreBindPlugin, EnqueueExtensions):
    """Filters by volumes, and sees to it that a pod has its own."""

    name: ClassVar[str] = NAME
    too_late = "binding volumes: context deadline exceeded"

    def __init__(self, args: VolumeBindingArgs) -> None:
        self.wait_seconds = args.bind_timeout_seconds

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
        return needs if isinstance(needs, Status) else needs.of_node(node)

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """The same for all nodes."""
        needs = self._needs(state, pod, nodes.snapshot)
        if isinstance(needs, Status):
            return Verdicts.refusing(np.ones(len(nodes), dtype=np.bool_), needs)
        return needs.of_nodes(nodes)

    def reserve(self, state: CycleState, pod: Pod, node: str) -> Status:
        """Choose volumes for the claims that wait, and let nobody else have them."""
        if not pod.spec.volumes:
            return SUCCESS
        snapshot = state.read(SNAPSHOT)
        needs, info = needs_of(pod, snapshot), snapshot.node_info(node)
        if isinstance(needs, Status):
            return needs
        if needs.search is None or info is None:
            return SUCCESS
        status = needs.of_node(info)
        if status.is_success:
            plan = needs.search.on_node(info)
            state.write(PLAN, plan)
            suppose(plan, node, snapshot)
        return status

    def unreserve(self, state: CycleState, pod: Pod, node: str) -> None:
        """Others may have the volumes."""
        plan = state.find(PLAN)
        if plan is not None:
            give_up(plan, state.read(SNAPSHOT))

    def writes(self, state: CycleState, pod: Pod, node: str) -> tuple[Write, ...]:
        """What has claims bound: volumes that are kept for them, and the node for which others are made."""
        plan = state.find(PLAN)
        return () if plan is None else writes_of(plan, node)

    def pre_bind(self, state: CycleState, pod: Pod, node: str) -> Status:
        """Wait until they are bound."""
        plan, info = state.find(PLAN), state.read(SNAPSHOT).node_info(node)
        return SUCCESS if plan is None or info is None else progress(plan, info)

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


def _build(args: Any) -> VolumeBinding:
    return VolumeBinding(args or VolumeBindingArgs())


FACTORY: Final = PluginFactory(
    name=NAME,
    points=(Point.PRE_FILTER, Point.FILTER, Point.RESERVE, Point.PRE_BIND),
    build=_build,
    args_type=VolumeBindingArgs,
    validate=validate,
)
