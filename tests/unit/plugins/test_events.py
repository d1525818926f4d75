"""Queueing hints: events that may help a rejected pod requeue it, and others do not."""

from datetime import timedelta

import msgspec
import pytest

from berth.api.config.networktraffic import NetworkTrafficArgs
from berth.api.config.nodeload.args import NodeLoadArgs
from berth.api.meta import ObjectMeta
from berth.api.node import Node, NodeCondition, Taint
from berth.api.pod import (
    Affinity,
    ContainerPort,
    LabelSelector,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Toleration,
    TopologySpreadConstraint,
)
from berth.api.workloads import Namespace
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.interface import EnqueueExtensions
from berth.framework.profile import POINT_TYPES, REFUSING
from berth.plugins.additional.nodefailures import NodeFailuresArgs
from berth.plugins.registry import BUILT_IN
from berth.profiles.installed import known_plugins
from harness.builders.objects import a_container, a_node, a_pod, pod_requesting
from harness.builders.profiles import profile_of
from harness.worlds.queueing_hints import may_help

ARGS = {
    "NetworkTraffic": NetworkTrafficArgs(url="http://prometheus:9090", saturation_percent=90),
    "NodeLoad": NodeLoadArgs(usage_thresholds={"cpu": 65}),
    "NodeFailures": NodeFailuresArgs(back_off=timedelta(minutes=1)),
}
"""Arguments for plugins whose defaults are invalid, or reject no pod."""
RELEASES = {"1.36": BUILT_IN, "1.18": known_plugins(release="1.18")}


def made(name: str, release: str = "1.36"):
    factory = RELEASES[release][name]
    return factory.build(ARGS.get(factory.name) or (factory.args_type() if factory.args_type else None))


@pytest.mark.parametrize(
    ("release", "name"),
    [
        pytest.param(release, name, id=f"{name} of {release}")
        for release, plugins in RELEASES.items()
        for name, factory in plugins.items()
        if REFUSING & set(factory.points)
    ],
)
def test_plugins_that_reject_pods_register_events(release, name):
    plugin = made(name, release)
    refuses = any(isinstance(plugin, POINT_TYPES[point]) for point in REFUSING)
    assert refuses
    assert isinstance(plugin, EnqueueExtensions)
    assert plugin.events()
    assert all(hint.event.action for hint in plugin.events())


def bound(name: str = "other", **spec):
    return a_pod(name, **{"node_name": "n0", **spec})


def taking(port: int, name: str = "web", **spec):
    container = msgspec.structs.replace(a_container(), ports=[ContainerPort(host_port=port, container_port=port)])
    return a_pod(name, containers=[container], **spec)


def a_namespace(name: str, **labels: str) -> Namespace:
    return Namespace(metadata=ObjectMeta(name=name, labels=labels or None))


def conditioned(ready: str):
    node = a_node("n")
    status = msgspec.structs.replace(node.status, conditions=[NodeCondition(type="Ready", status=ready)])
    return msgspec.structs.replace(node, status=status)


def zoned(zone: str | None, name: str = "n", **more):
    return a_node(name, labels={"zone": zone} if zone else None, **more)


TAINTED = a_node("n", taints=[Taint(key="gpu", effect="NoSchedule")])
OTHER_TAINT = a_node("n", taints=[Taint(key="spot", effect="NoSchedule")])
MILD = a_node("n", taints=[Taint(key="gpu", effect="PreferNoSchedule")])
GPU_USER = a_pod(tolerations=[Toleration(key="gpu", operator="Exists")])
WEB = LabelSelector(match_labels={"app": "web"})
SPREAD = a_pod(
    labels={"app": "web"},
    topology_spread_constraints=[
        TopologySpreadConstraint(
            max_skew=1, topology_key="zone", when_unsatisfiable="DoNotSchedule", label_selector=WEB
        )
    ],
)
TERM = PodAffinityTerm(topology_key="zone", label_selector=WEB)
ANYWHERE = PodAffinityTerm(topology_key="zone", label_selector=WEB, namespace_selector=LabelSelector())
TOGETHER = a_pod(
    affinity=Affinity(pod_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[TERM]))
)
APART = a_pod(
    affinity=Affinity(pod_anti_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[TERM]))
)
TOGETHER_ANYWHERE = a_pod(
    affinity=Affinity(pod_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[ANYWHERE]))
)
IN_TEAM = PodAffinityTerm(
    topology_key="zone", label_selector=WEB, namespace_selector=LabelSelector(match_labels={"team": "x"})
)
TOGETHER_IN_TEAM = a_pod(
    affinity=Affinity(pod_affinity=PodAffinity(required_during_scheduling_ignored_during_execution=[IN_TEAM]))
)
TOGETHER_WITH_ITSELF = a_pod(labels={"app": "web"}, affinity=TOGETHER.spec.affinity)
ON_SSD = a_pod(node_selector={"disk": "ssd"}, topology_spread_constraints=SPREAD.spec.topology_spread_constraints)
HONORING_TAINTS = a_pod(
    topology_spread_constraints=[
        msgspec.structs.replace(each, node_taints_policy="Honor") for each in SPREAD.spec.topology_spread_constraints
    ]
)
IN_ZONE_A = a_pod(node_selector={"zone": "a"})
TWO_CPUS = pod_requesting(cpu="2")
BOUND_WEB = bound(labels={"app": "web"})
OTHER_NAMESPACE = msgspec.structs.replace(
    BOUND_WEB,
    metadata=msgspec.structs.replace(BOUND_WEB.metadata, namespace="elsewhere"),
)

RESOURCES = {Node: Resource.NODE, Pod: Resource.POD, Namespace: Resource.NAMESPACE}


def changed(action: Action, old: object, new: object) -> tuple[ClusterEvent, object, object]:
    """The event, and the object before and after."""
    return ClusterEvent(RESOURCES[type(old or new)], action), old, new


def added(new: object):
    return changed(Action.ADD, None, new)


def deleted(old: object):
    return changed(Action.DELETE, old, None)


def relabelled(old: Node, new: Node):
    return changed(Action.UPDATE_NODE_LABEL, old, new)


def retainted(old: Node, new: Node):
    return changed(Action.UPDATE_NODE_TAINT, old, new)


@pytest.mark.parametrize(
    ("plugin", "pod", "change", "helps"),
    [
        pytest.param(
            "NodeUnschedulable",
            a_pod(),
            changed(Action.UPDATE_NODE_ALLOCATABLE, None, a_node("n")),
            False,
            id="more allocatable on a node",
        ),
        pytest.param("NodeUnschedulable", a_pod(), deleted(bound()), False, id="a pod goes"),
        pytest.param(
            "NodeName", a_pod(node_name="n"), relabelled(a_node("n"), a_node("n")), False, id="the node is changed"
        ),
        pytest.param("TaintToleration", GPU_USER, added(TAINTED), True, id="a taint that it tolerates"),
        pytest.param("TaintToleration", GPU_USER, added(OTHER_TAINT), False, id="a taint that it does not tolerate"),
        pytest.param("TaintToleration", a_pod(), added(MILD), True, id="a mild taint"),
        pytest.param("TaintToleration", a_pod(), retainted(TAINTED, OTHER_TAINT), False, id="one taint for another"),
        pytest.param(
            "TaintToleration",
            GPU_USER,
            retainted(OTHER_TAINT, TAINTED),
            True,
            id="the taint becomes one that it tolerates",
        ),
        pytest.param(
            "TaintToleration", a_pod(), relabelled(TAINTED, a_node("n")), False, id="a label of a tainted node"
        ),
        pytest.param("NodeAffinity", IN_ZONE_A, relabelled(zoned("b"), zoned("a")), True, id="the node comes to match"),
        pytest.param(
            "NodeAffinity", IN_ZONE_A, relabelled(zoned("a"), zoned("b")), False, id="the node matches no more"
        ),
        pytest.param("NodeAffinity", IN_ZONE_A, retainted(zoned("b"), zoned("a")), False, id="a taint of the node"),
        pytest.param(
            "NodePorts", taking(80), deleted(taking(80, "o", node_name="n0")), True, id="who has the port goes"
        ),
        pytest.param("NodePorts", taking(80), deleted(taking(80, "o")), False, id="who has the port was on no node"),
        pytest.param(
            "NodePorts", taking(80), deleted(taking(81, "o", node_name="n0")), False, id="who has another port goes"
        ),
        pytest.param("NodePorts", taking(80), added(a_node("n")), True, id="a node for any port"),
        pytest.param("NodePorts", taking(80), relabelled(zoned("a"), zoned("b")), False, id="a label of a node"),
        pytest.param("NodeResourcesFit", TWO_CPUS, deleted(bound()), True, id="a pod of a node goes"),
        pytest.param("NodeResourcesFit", TWO_CPUS, deleted(a_pod("waiting")), False, id="a pod of no node goes"),
        pytest.param("NodeResourcesFit", TWO_CPUS, added(a_node("n", cpu="1")), False, id="a node that is too small"),
        pytest.param("NodeResourcesFit", TWO_CPUS, added(a_node("n", pods="0")), False, id="a node for no pods"),
        pytest.param(
            "NodeResourcesFit",
            TWO_CPUS,
            relabelled(zoned("a"), zoned("b")),
            False,
            id="a node label frees no resources",
        ),
        pytest.param("PodTopologySpread", SPREAD, added(zoned("a")), True, id="a node of a zone"),
        pytest.param("PodTopologySpread", SPREAD, added(zoned(None)), False, id="a node of no zone"),
        pytest.param("PodTopologySpread", SPREAD, deleted(zoned("a")), True, id="a node of a zone goes"),
        pytest.param(
            "PodTopologySpread", SPREAD, relabelled(zoned("a"), zoned("b")), True, id="a node comes to another zone"
        ),
        pytest.param(
            "PodTopologySpread",
            SPREAD,
            relabelled(zoned(None), zoned(None, "n", cpu="9")),
            False,
            id="a node of no zone grows",
        ),
        pytest.param(
            "PodTopologySpread", SPREAD, retainted(zoned("a", unschedulable=True), zoned("a")), False, id="uncordoned"
        ),
        pytest.param(
            "PodTopologySpread",
            HONORING_TAINTS,
            retainted(zoned("a", unschedulable=True), zoned("a")),
            True,
            id="uncordoned, where the constraint honors taints",
        ),
        pytest.param(
            "PodTopologySpread",
            ON_SSD,
            relabelled(zoned("a"), a_node("n", labels={"zone": "a", "disk": "ssd"})),
            True,
            id="a node comes to count by the pod's node selector",
        ),
        pytest.param(
            "PodTopologySpread",
            SPREAD,
            changed(
                Action.UPDATE_POD_TERMINATING,
                BOUND_WEB,
                bound(labels={"app": "web"}, metadata={"deletion_timestamp": "2026-01-01T00:00:00Z"}),
            ),
            True,
            id="one of its kind begins to terminate",
        ),
        pytest.param("PodTopologySpread", SPREAD, deleted(BOUND_WEB), True, id="one of its kind goes"),
        pytest.param(
            "PodTopologySpread", SPREAD, deleted(bound(labels={"app": "db"})), False, id="one of another kind goes"
        ),
        pytest.param("PodTopologySpread", SPREAD, added(OTHER_NAMESPACE), False, id="one of another namespace comes"),
        pytest.param(
            "InterPodAffinity", TOGETHER, relabelled(zoned(None), zoned("a")), True, id="a node comes to a zone"
        ),
        pytest.param(
            "InterPodAffinity",
            TOGETHER,
            relabelled(zoned("a"), zoned(None)),
            True,
            id="a node leaves its zone, which an existing pod may keep from this one",
        ),
        pytest.param("InterPodAffinity", APART, deleted(zoned("a")), True, id="a node goes with its pods"),
        pytest.param(
            "InterPodAffinity",
            TOGETHER_WITH_ITSELF,
            deleted(BOUND_WEB),
            True,
            id="the last of its kind goes: it may be the first anywhere",
        ),
        pytest.param("InterPodAffinity", TOGETHER, deleted(BOUND_WEB), False, id="one that it wants to be with goes"),
        pytest.param(
            "InterPodAffinity",
            APART,
            relabelled(zoned("a"), zoned(None)),
            True,
            id="a node leaves the zone to be avoided",
        ),
        pytest.param(
            "InterPodAffinity",
            APART,
            relabelled(zoned(None), zoned("a")),
            False,
            id="a node comes to a zone that may be avoided",
        ),
        pytest.param("InterPodAffinity", APART, added(zoned(None)), True, id="a node outside all zones"),
        pytest.param("InterPodAffinity", a_pod(), added(zoned("a")), True, id="a node, for a pod without requests"),
        pytest.param(
            "InterPodAffinity",
            a_pod(),
            retainted(TAINTED, a_node("n")),
            False,
            id="a taint changes nothing between pods",
        ),
        pytest.param(
            "InterPodAffinity",
            TOGETHER,
            changed(Action.UPDATE, a_namespace("other", team="x"), a_namespace("other")),
            False,
            id="a namespace that no term looks at",
        ),
        pytest.param(
            "InterPodAffinity",
            a_pod(),
            changed(Action.UPDATE, a_namespace("default", team="x"), a_namespace("default")),
            True,
            id="its own namespace, which an existing pod's anti-affinity may select no more",
        ),
        pytest.param(
            "InterPodAffinity",
            a_pod(),
            changed(Action.UPDATE, a_namespace("default", team="x"), a_namespace("default", team="x")),
            False,
            id="its own namespace, with the same labels",
        ),
        pytest.param(
            "InterPodAffinity",
            TOGETHER_IN_TEAM,
            changed(Action.UPDATE, a_namespace("other"), a_namespace("other", team="x")),
            True,
            id="a namespace that a term may select now",
        ),
        pytest.param(
            "InterPodAffinity", TOGETHER, added(OTHER_NAMESPACE), False, id="one of a namespace that is not meant"
        ),
        pytest.param("InterPodAffinity", TOGETHER_ANYWHERE, added(OTHER_NAMESPACE), True, id="one of any namespace"),
        pytest.param(
            "NodeReady",
            a_pod(),
            changed(Action.UPDATE_NODE_CONDITION, conditioned("False"), conditioned("True")),
            True,
            id="ready",
        ),
        pytest.param("NodeReady", a_pod(), added(conditioned("False")), False, id="not ready"),
        pytest.param("NodeFilterLabel", a_pod(), added(zoned("a")), False, id="a node without the label"),
        pytest.param(
            "NodeFilterLabel", a_pod(), added(a_node("n", labels={"cpu": "true"})), True, id="a node with the label"
        ),
        pytest.param(
            "SchedulingGates",
            a_pod(),
            changed(Action.UPDATE_POD_LABEL, a_pod(), a_pod()),
            False,
            id="its labels, while it has gates",
        ),
        pytest.param("TenantSpread", a_pod(), added(a_node("n")), False, id="a node, for a pod without a tenant"),
    ],
)
def test_queueing_hints_match_events_that_help(plugin, pod, change, helps):
    event, old, new = change
    if plugin == "SchedulingGates":
        assert any(hint.event.matches(event) for hint in made(plugin).events()) is helps
    else:
        assert may_help(profile_of(made(plugin)), [plugin], event, pod, old, new) is helps


def test_an_event_that_helps_one_of_several_plugins_requeues():
    profile = profile_of(made("TaintToleration"), made("NodeResourcesFit"))
    added = ClusterEvent(Resource.NODE, Action.ADD)
    both = ["TaintToleration", "NodeResourcesFit"]
    assert may_help(profile, both, added, TWO_CPUS, None, TAINTED)
    assert not may_help(profile, ["TaintToleration"], added, TWO_CPUS, None, TAINTED)
    assert not may_help(profile, both, ClusterEvent(Resource.POD, Action.ADD), TWO_CPUS, None, bound())
