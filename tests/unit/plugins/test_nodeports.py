"""NodePorts: two pods cannot take one port of one address of a node."""

import msgspec
import pytest

from berth.api.pod import Container, ContainerPort
from berth.cluster.nodes import Nodes, node_info
from berth.cluster.snapshot import Snapshot
from berth.framework.events import Action, ClusterEvent, Resource
from berth.framework.status import CycleState
from berth.plugins.nodeports import TAKEN, NodePorts
from harness.builders.objects import a_node, a_pod
from harness.builders.profiles import default_profile
from harness.worlds.queueing_hints import may_help


def taking(name: str, port: int, address: str = "", protocol: str = "TCP", **container):
    given = ContainerPort(container_port=80, host_port=port, host_ip=address, protocol=protocol)
    return a_pod(name, containers=[Container(name="c", ports=[given], **container)])


def is_refused(pod, *there) -> bool:
    snapshot, plugin = Snapshot(), NodePorts()
    snapshot.set_node(a_node("n"))
    for other in there:
        snapshot.place(other, "n")
    state = CycleState(snapshot.class_of(pod))
    if plugin.pre_filter(state, pod, snapshot).status.is_skip:
        return False
    verdicts = plugin.filter_all(state, pod, Nodes(snapshot))
    return verdicts.statuses[verdicts.codes[0]] == TAKEN


@pytest.mark.parametrize(
    ("wanted", "there", "refused"),
    [
        pytest.param(taking("a", 80), taking("b", 80), True, id="the same port"),
        pytest.param(taking("a", 80), taking("b", 81), False, id="another port"),
        pytest.param(taking("a", 80), taking("b", 80, protocol="UDP"), False, id="another protocol"),
        pytest.param(taking("a", 80, "10.0.0.1"), taking("b", 80, "10.0.0.2"), False, id="another address"),
        pytest.param(taking("a", 80, "10.0.0.1"), taking("b", 80), True, id="one address and all"),
        pytest.param(taking("a", 80), taking("b", 80, "10.0.0.1"), True, id="all addresses and one"),
        pytest.param(a_pod("a"), taking("b", 80), False, id="no port of the node's"),
    ],
)
def test_a_port_can_be_taken_once(wanted, there, refused):
    assert is_refused(wanted, there) is refused


def test_a_sidecar_keeps_its_port_and_an_init_container_does_not():
    ports = [ContainerPort(host_port=80)]
    sidecar = Container(name="s", restart_policy="Always", ports=ports)
    assert is_refused(taking("a", 80), a_pod("b", init_containers=[sidecar]))
    assert not is_refused(
        taking("a", 80), a_pod("b", init_containers=[msgspec.structs.replace(sidecar, restart_policy=None)])
    )


def test_a_port_is_free_when_its_last_user_is_deleted():
    snapshot, pod = Snapshot(), taking("a", 80)
    plugin, state = NodePorts(), CycleState(snapshot.class_of(pod))
    snapshot.set_node(a_node("n"))
    for name in ("b", "c"):  # a node may come to have both: the kubelet decides
        snapshot.place(taking(name, 80), "n")
    seen = []
    for uid in ("uid-b", "uid-c"):
        snapshot.remove_pod(uid)
        seen.append(plugin.filter(state, pod, node_info(snapshot, "n")))
    assert [status == TAKEN for status in seen] == [True, False]


@pytest.mark.parametrize(("gone", "helps"), [(taking("b", 80), True), (taking("b", 81), False)])
def test_only_deleting_a_user_of_the_port_helps(gone, helps):
    was = msgspec.structs.replace(gone, spec=msgspec.structs.replace(gone.spec, node_name="n"))
    event = ClusterEvent(Resource.POD, Action.DELETE)
    assert may_help(default_profile(), {"NodePorts"}, event, taking("a", 80), was, None) is helps
