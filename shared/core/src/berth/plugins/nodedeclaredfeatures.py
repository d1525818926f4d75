"""NodeDeclaredFeatures: a node must declare the features of its kubelet that the pod needs.

A pod with a restart rule of the action RestartAllContainers needs ``RestartAllContainersOnContainerExits``; one in the
node's network and in a user namespace needs ``UserNamespacesHostNetworkSupport``. ``status.declaredFeatures`` of the
node has what it offers. As kube-scheduler 1.36's plugin of that name; the other features of that release are needed by
no pod before it is placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

import numpy as np

from berth.api.config.types import Point
from berth.api.node import Node
from berth.api.pod import Pod, PodSpec
from berth.cluster.columns import FeatureSet
from berth.cluster.nodes import Mask, NodeInfo, Nodes, RejectedNodes
from berth.cluster.pods import Trait
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, EventHint, Resource
from berth.framework.interface import (
    EnqueueExtensions,
    PreFilterPlugin,
    PreFilterResult,
    Reads,
    RemedyPlugin,
    RemedySentence,
    VectorFilterPlugin,
)
from berth.framework.status import SKIP, SUCCESS, CycleState, StateKey, Status, Verdicts
from berth.plugins.factory import PluginFactory, no_args

NAME: Final = "NodeDeclaredFeatures"
LACKING: Final = Status.unresolvable("node(s) didn't match Pod's required features")
REQUIRED: Final = StateKey[FeatureSet]("NodeDeclaredFeatures.required")
RESTART_ALL: Final = "RestartAllContainersOnContainerExits"
USERS_WITH_HOST_NETWORK: Final = "UserNamespacesHostNetworkSupport"
_WHY: Final = {
    RESTART_ALL: "has a restart rule with the action RestartAllContainers, and",
    USERS_WITH_HOST_NETWORK: "has hostNetwork with hostUsers: false, and",
}


class NodeDeclaredFeatures(PreFilterPlugin, VectorFilterPlugin, RemedyPlugin, EnqueueExtensions):
    name: ClassVar[str] = NAME
    reads = Reads.NODE
    only_for = Trait.NODE_FEATURES

    def pre_filter(self, state: CycleState, pod: Pod, snapshot: Snapshot) -> PreFilterResult:
        """Skip for a pod that needs none."""
        required = _required(pod.spec)
        state.write(REQUIRED, required)
        return PreFilterResult(SUCCESS if required else SKIP)

    def filter(self, state: CycleState, pod: Pod, node: NodeInfo) -> Status:
        return SUCCESS if state.read(REQUIRED) <= _declared(node.node) else LACKING

    def filter_all(self, state: CycleState, pod: Pod, nodes: Nodes) -> Verdicts:
        """Evaluated once per distinct set of features."""
        return Verdicts.refusing(_lacking(state.read(REQUIRED), nodes), LACKING)

    def remedy(self, state: CycleState, pod: Pod, nodes: RejectedNodes) -> Iterable[RemedySentence]:
        required = state.read(REQUIRED)
        for feature in sorted(required):
            lacking = _lacking(frozenset({feature}), nodes)
            yield RemedySentence(
                about=feature, nodes=lacking, before=_WHY[feature], after=f"lack the feature {feature} of the kubelet"
            )

    def events(self) -> Sequence[EventHint]:
        """No event of the pod itself: the fields that need features never change."""
        node_change = ClusterEvent(Resource.NODE, Action.ADD | Action.UPDATE_NODE_DECLARED_FEATURE)
        return (EventHint(node_change, _declares_them_now, key=lambda pod: _required(pod.spec)),)


def _declares_them_now(pod: Pod, old: object, new: object) -> bool:
    required = _required(pod.spec)
    did = isinstance(old, Node) and required <= _declared(old)
    return isinstance(new, Node) and not did and required <= _declared(new)


def _required(spec: PodSpec) -> FeatureSet:
    required = set()
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    if any(rule.action == "RestartAllContainers" for each in containers for rule in each.restart_policy_rules or ()):
        required.add(RESTART_ALL)
    if spec.host_network and spec.host_users is False:
        required.add(USERS_WITH_HOST_NETWORK)
    return frozenset(required)


def _declared(node: Node) -> FeatureSet:
    return frozenset(node.status.declared_features or ())


def _lacking(required: FeatureSet, nodes: Nodes) -> Mask:
    lacking = np.array([not required <= declared for declared in nodes.feature_sets], dtype=np.bool_)
    return lacking[nodes.declared_features]


FACTORY: Final = PluginFactory(name=NAME, points=(Point.PRE_FILTER, Point.FILTER), build=no_args(NodeDeclaredFeatures))
