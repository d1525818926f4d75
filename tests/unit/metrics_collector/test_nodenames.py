"""Which node an exporter belongs to: the order of attempts, differing names, addresses, and what is shared."""

import random
from ipaddress import IPv6Address

import pytest

from berth.api.config.networktraffic import LINK_CAPACITY_ANNOTATION
from berth.api.meta import ObjectMeta
from berth.api.node import Node, NodeAddress, NodeStatus
from berth_metrics_collector.nodenames import NodeNames, host_of, nodes_of
from berth_metrics_collector.samples import Target, host_names
from harness.worlds.collector_world import node_at, sample_row

NODES = NodeNames([node_at("node-1.example.com", "10.0.0.1"), node_at("node-2", "10.0.0.2")])


def node_with(name: str, labels: dict[str, str] | None = None, **addresses: str) -> Node:
    made = [NodeAddress(type=kind, address=address) for kind, address in addresses.items()]
    return Node(metadata=ObjectMeta(name=name, uid=name, labels=labels), status=NodeStatus(addresses=made))


def found(nodes: NodeNames, nodename: str = "", instance: str = "", label: str = "") -> str | None:
    return nodes.node_of(Target(instance=instance, job="j", label=label), nodename)


@pytest.mark.parametrize(
    ("label", "nodename", "instance", "expected"),
    [
        pytest.param("node-2", "node-1", "10.0.0.1:9100", "node-2", id="the label first"),
        pytest.param("", "node-2", "10.0.0.1:9100", "node-2", id="then the kernel's host name"),
        pytest.param("", "NODE-1", "zzz:9100", "node-1.example.com", id="in any case, without the domain"),
        pytest.param("", "node-2.other.net", "zzz:9100", "node-2", id="or with another domain"),
        pytest.param("", "renamed", "10.0.0.1:9100", "node-1.example.com", id="then the address"),
        pytest.param("nonsense", "", "10.0.0.2:9100", "node-2", id="an unknown label is skipped"),
        pytest.param("", "", "node-2:9100", "node-2", id="then the host part as a name"),
        pytest.param("", "", "10.0.0.99:9100", None, id="an unknown address"),
        pytest.param("", "other", "other:9100", None, id="a machine that is not a node"),
        pytest.param("NODE-2.:9100", "", "", "node-2", id="a label with a port, in capitals, with a final dot"),
        pytest.param("10.0.0.2:9100", "", "zzz:9100", "node-2", id="a label that is an address"),
        pytest.param("", "", "http://node-2:9100/metrics", "node-2", id="an instance that is a URL"),
        pytest.param("", "", "node-1.example.com:9100", "node-1.example.com", id="a full name with a port"),
        pytest.param("", "node-1.other.net", "zzz:9100", None, id="two full names of different domains"),
    ],
)
def test_the_order_of_attempts(label, nodename, instance, expected):
    assert NODES.node_of(Target(instance=instance, job="node", label=label), nodename) == expected


def test_a_short_name_that_two_nodes_share_matches_neither():
    nodes = NodeNames([node_at("node-1.a.net"), node_at("node-1.b.net")])
    assert found(nodes, "node-1") is None
    assert found(nodes, "node-1.b.net") == "node-1.b.net"
    assert found(NodeNames([node_at("node-1"), node_at("node-1.b.net")]), "node-1") == "node-1"


def test_an_address_that_two_nodes_claim_matches_neither():
    nodes = NodeNames([node_at("a", "10.0.0.1"), node_at("b", "10.0.0.1")])
    assert found(nodes, instance="10.0.0.1:9100") is None


def test_a_node_is_named_by_its_other_names_too():
    hostname = {"kubernetes.io/hostname": "rack-7"}
    nodes = NodeNames([node_with("i-0123", hostname, InternalDNS="ip-10-0-0-1.ec2.internal", ExternalIP="1.2.3.4")])
    for name in ("rack-7", "ip-10-0-0-1.ec2.internal", "IP-10-0-0-1", "1.2.3.4"):
        assert found(nodes, name) == "i-0123", name
    assert found(nodes, instance="1.2.3.4:9100") == "i-0123"


def test_the_name_of_a_node_goes_before_the_other_name_of_another():
    nodes = NodeNames([node_with("a", Hostname="b"), node_with("b", Hostname="a")])
    assert (found(nodes, "a"), found(nodes, "b")) == ("a", "b")


@pytest.mark.parametrize(
    "text", ["10.9.9.9:9100", "10", "10.0.0", "10.0.0.1.2", "010.0.0.1", "10.0.0.256", "10.example"]
)
def test_an_address_is_no_host_name_that_ends_at_its_first_dot(text):
    """Nodes that are named by their addresses, as some providers do."""
    nodes = NodeNames([node_at("10.0.0.1", "10.0.0.1")])
    assert [found(nodes, text), found(nodes, instance=text), found(nodes, label=text)] == [None] * 3


def test_nodes_named_by_their_addresses_are_found_by_any_of_them():
    nodes = NodeNames([node_at(f"10.0.0.{number}", f"192.168.0.{number}") for number in range(1, 9)])
    for number in range(1, 9):
        name = f"10.0.0.{number}"
        for text in (name, f"{name}:9100", f"192.168.0.{number}:9100", f"[::ffff:{name}]:9100"):
            assert {found(nodes, text), found(nodes, instance=text), found(nodes, label=text)} == {name}, text


@pytest.mark.parametrize("seed", range(50))
def test_an_ipv6_address_is_found_in_any_notation(seed):
    rng = random.Random(seed)
    addresses = [IPv6Address(0xFD00 << 112 | rng.getrandbits(rng.choice([8, 64, 112]))) for _ in range(5)]
    addresses = list(dict.fromkeys(addresses))

    def written(address: IPv6Address) -> str:
        text = rng.choice([address.compressed, address.exploded])
        return rng.choice([text, text.upper()])

    nodes = NodeNames([node_at(f"n{number}", written(address)) for number, address in enumerate(addresses)])
    for number, address in enumerate(addresses):
        for form in ("[{}]:9100", "{}", "[{}]", "http://[{}]:9100/metrics", "{}%eth0"):
            assert found(nodes, instance=form.format(written(address))) == f"n{number}"


def test_exporters_and_nodes_are_joined_by_all_labels():
    """Two clusters in one server whose exporters have equal addresses: the kernel's names tell them apart."""
    ours, theirs = (
        Target(instance="10.0.0.9:9100", job="node", others=frozenset({("cluster", name)})) for name in ("a", "b")
    )
    rows = [
        sample_row(1, instance=ours.instance, job="node", cluster=cluster, nodename=host, release="6")
        for cluster, host in (("a", "node-2"), ("b", "somewhere-else"))
    ]
    assert nodes_of([ours, theirs], host_names(rows, "node"), NODES) == {ours: "node-2"}


def test_the_later_of_two_host_names_counts():
    names = [("node-1", "20"), ("node-2", "10")]
    rows = [sample_row(seen, instance="x", job="j", nodename=name) for name, seen in names]
    assert list(host_names(rows, "node").values()) == ["node-1"]


def test_an_annotated_link_capacity_is_in_bytes():
    annotated = (
        node_at(name, annotations={LINK_CAPACITY_ANNOTATION: text}) for name, text in (("a", "10G"), ("b", "?"))
    )
    assert NodeNames(annotated).capacities == {"a": 1.25e9}  # 10 Gbit/s


@pytest.mark.parametrize(
    ("instance", "host"),
    [
        ("10.0.0.1:9100", "10.0.0.1"),
        ("[fd00::1]:9100", "fd00::1"),
        ("fd00::1", "fd00::1"),
        ("host", "host"),
        ("host.:9100", "host"),
        ("https://host:9100/metrics?x=1", "host"),
        ("", ""),
    ],
)
def test_the_host_part_of_an_instance(instance, host):
    assert host_of(instance) == host


def test_what_pods_may_have_of_a_node_is_known_in_the_units_of_samples():
    nodes = NodeNames([node_at("a"), Node(metadata=ObjectMeta(name="b"), status=NodeStatus(allocatable={"cpu": "?"}))])
    assert nodes.allocatable == {"a": {"cpu": 64000, "memory": 256 * 2**30}, "b": {}}
