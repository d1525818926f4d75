"""NodeDeclaredFeatures: what a pod needs of the kubelet, and which nodes declare it."""

import msgspec
import pytest

from berth.api.pod import Container, ContainerRestartRule
from berth.cluster.snapshot import Snapshot
from berth.framework.cycle import rank
from berth.framework.events import Action, ClusterEvent, Resource
from berth.plugins.nodedeclaredfeatures import NAME, RESTART_ALL, USERS_WITH_HOST_NETWORK
from berth_cli.remedies.rejections import remedies_of
from harness.builders.objects import a_node, a_pod, first_attempt
from harness.builders.profiles import default_profile
from harness.worlds.queueing_hints import may_help


def declaring(*features: str, name: str = "n"):
    node = a_node(name)
    status = msgspec.structs.replace(node.status, declared_features=list(features))
    return msgspec.structs.replace(node, status=status)


def restarting(action: str) -> Container:
    return Container(name="main", restart_policy_rules=[ContainerRestartRule(action=action)])


PLAIN = a_pod()
RESTARTS_ALL = a_pod(containers=[restarting("RestartAllContainers")])
IN_INIT = a_pod(init_containers=[restarting("RestartAllContainers")])
USER_NAMESPACE = a_pod(host_network=True, host_users=False)
BOTH = a_pod(containers=[restarting("RestartAllContainers")], host_network=True, host_users=False)


def ranked(pod, *nodes):
    snapshot = Snapshot()
    for node in nodes:
        snapshot.set_node(node)
    return rank(pod, snapshot, default_profile(), attempt=first_attempt(pod))


@pytest.mark.parametrize(
    ("pod", "features", "fits"),
    [
        pytest.param(PLAIN, (), True, id="a pod that needs nothing"),
        pytest.param(RESTARTS_ALL, (), False, id="restarts all containers"),
        pytest.param(RESTARTS_ALL, (RESTART_ALL,), True, id="restarts all containers, declared"),
        pytest.param(RESTARTS_ALL, ("Other", RESTART_ALL), True, id="declared beside another"),
        pytest.param(RESTARTS_ALL, (USERS_WITH_HOST_NETWORK,), False, id="another is declared"),
        pytest.param(IN_INIT, (), False, id="of an init container"),
        pytest.param(a_pod(containers=[restarting("Restart")]), (), True, id="restarts itself only"),
        pytest.param(USER_NAMESPACE, (), False, id="user namespace in the node's network"),
        pytest.param(USER_NAMESPACE, (USERS_WITH_HOST_NETWORK,), True, id="user namespace, declared"),
        pytest.param(a_pod(host_network=True), (), True, id="the node's network alone"),
        pytest.param(a_pod(host_network=True, host_users=True), (), True, id="the node's users"),
        pytest.param(a_pod(host_users=False), (), True, id="a network of its own"),
        pytest.param(BOTH, (RESTART_ALL,), False, id="one of two"),
        pytest.param(BOTH, (USERS_WITH_HOST_NETWORK, RESTART_ALL), True, id="both"),
    ],
)
def test_a_node_declares_what_the_pod_needs(pod, features, fits):
    ranking = ranked(pod, declaring(*features))
    assert [candidate.node for candidate in ranking.candidates] == (["n"] if fits else [])
    assert ranking.unschedulable_plugins == (() if fits else (NAME,))


def test_the_message_is_kube_schedulers():
    assert ranked(RESTARTS_ALL, declaring(), declaring(name="m")).message == (
        "0/2 nodes are available: 2 node(s) didn't match Pod's required features. "
        "preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    )


@pytest.mark.parametrize(
    ("old", "new", "helps"),
    [
        pytest.param(None, declaring(), False, id="a node without it"),
        pytest.param(None, declaring(RESTART_ALL), True, id="a node with it"),
        pytest.param(declaring(), declaring(RESTART_ALL), True, id="declared now"),
        pytest.param(declaring(), declaring("Other"), False, id="another is declared now"),
        pytest.param(declaring(RESTART_ALL), declaring("Other", RESTART_ALL), False, id="was declared before"),
    ],
)
def test_a_node_that_declares_the_features_now_helps(old, new, helps):
    action = Action.ADD if old is None else Action.UPDATE_NODE_DECLARED_FEATURE
    event = ClusterEvent(Resource.NODE, action)
    assert may_help(default_profile(), {NAME}, event, RESTARTS_ALL, old, new) is helps


def test_a_remedy_names_each_missing_feature():
    snapshot = Snapshot()
    for node in (declaring(RESTART_ALL, name="n1"), declaring(name="n2")):
        snapshot.set_node(node)
    network, restarts = remedies_of(BOTH, snapshot, default_profile())
    assert network.text == (
        "has hostNetwork with hostUsers: false, and 2 nodes (n1, n2) lack the feature UserNamespacesHostNetworkSupport "
        "of the kubelet; on 1 of them nothing else refuses it"
    )
    assert restarts.text == (
        "has a restart rule with the action RestartAllContainers, and 1 node (n2) lacks the feature "
        "RestartAllContainersOnContainerExits of the kubelet; something else refuses it there too"
    )
