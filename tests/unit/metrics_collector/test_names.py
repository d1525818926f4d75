"""Which node an exporter speaks for: the chain, names that differ, doubles, and who is reported."""

from datetime import UTC, datetime, timedelta

import pytest

from berth.api.livedata import LINK_CAPACITY_ANNOTATION, Bandwidth
from berth_metrics_collector.nodenames import ExporterDirectory, host_of, name
from berth_metrics_collector.prometheus import SampleRow
from berth_metrics_collector.samples import Target, TargetSample
from harness.worlds.collector_world import node_at

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def sample(instance="x:9100", *, label="", job="node", receive=1.0, devices=("eth0",), ago=0, capacity=None):
    return TargetSample(
        target=Target(instance=instance, job=job, label=label),
        bandwidth=Bandwidth(receive=receive, sampled_at=T0 - timedelta(seconds=ago), capacity=capacity),
        devices=frozenset(devices),
    )


def uname(instance: str, nodename: str, *, job="node", seen="1") -> SampleRow:
    return SampleRow(metric={"instance": instance, "job": job, "nodename": nodename}, value=(0.0, seen))


NODES = ExporterDirectory([node_at("node-1.example.com", "10.0.0.1"), node_at("node-2", "10.0.0.2")])


@pytest.mark.parametrize(
    ("label", "nodename", "instance", "expected"),
    [
        pytest.param("node-2", "node-1", "10.0.0.1:9100", "node-2", id="the label before all"),
        pytest.param("", "node-2", "10.0.0.1:9100", "node-2", id="then the kernel's host name"),
        pytest.param("", "NODE-1", "zzz:9100", "node-1.example.com", id="in any case, without the domain"),
        pytest.param("", "node-2.other.net", "zzz:9100", "node-2", id="or with another domain"),
        pytest.param("", "renamed", "10.0.0.1:9100", "node-1.example.com", id="then the address"),
        pytest.param("nonsense", "", "10.0.0.2:9100", "node-2", id="a label that is no node's is passed over"),
        pytest.param("", "", "node-2:9100", "node-2", id="then the host part as a name"),
        pytest.param("", "", "10.0.0.99:9100", None, id="an address that is nobody's"),
        pytest.param("", "other", "other:9100", None, id="a machine that is no node"),
    ],
)
def test_the_chain(label, nodename, instance, expected):
    assert NODES.node_of(Target(instance=instance, job="node", label=label), nodename) == expected


def test_a_short_name_that_two_nodes_share_names_neither():
    nodes = ExporterDirectory([node_at("node-1.a.net"), node_at("node-1.b.net")])
    assert nodes.node_of(Target(instance="x:1", job="j"), "node-1") is None
    assert nodes.node_of(Target(instance="x:1", job="j"), "node-1.b.net") == "node-1.b.net"


def test_an_address_that_two_nodes_claim_names_neither():
    nodes = ExporterDirectory([node_at("a", "10.0.0.1"), node_at("b", "10.0.0.1")])
    assert nodes.node_of(Target(instance="10.0.0.1:9100", job="j"), "") is None


def test_whoever_is_not_recognised_is_reported_on_either_side():
    named = name([sample("10.0.0.2:9100"), sample("printer:9100")], [], NODES)
    assert (set(named.samples), named.strangers, named.missing) == (
        {"node-2"},
        ("printer:9100",),
        ("node-1.example.com",),
    )


def test_of_two_host_names_that_an_exporter_had_the_later_counts():
    names = [uname("x:9100", "node-1", seen="20"), uname("x:9100", "node-2", seen="10")]
    assert set(name([sample("x:9100")], names, NODES).samples) == {"node-1.example.com"}


def test_two_exporters_of_one_node_and_the_same_device_count_once_the_fresher_and_are_reported():
    stale, fresh = sample(label="node-2", job="a", receive=5.0, ago=9), sample(label="node-2", job="b", receive=7.0)
    for order in ([stale, fresh], [fresh, stale]):
        named = name(order, [], NODES)
        assert named.samples["node-2"].receive == 7.0
        assert named.doubles == ("node-2",)


def test_two_exporters_of_one_node_and_different_devices_are_added_up():
    one = sample(label="node-2", job="a", receive=5.0, devices=("eth0",), ago=9, capacity=10.0)
    two = sample(label="node-2", job="b", receive=7.0, devices=("eth1",), capacity=20.0)
    named = name([one, two], [], NODES)
    assert named.samples["node-2"] == Bandwidth(receive=12.0, capacity=30.0, sampled_at=T0 - timedelta(seconds=9))
    assert named.doubles == ()


def test_a_node_that_says_its_links_capacity_itself_is_believed():
    nodes = ExporterDirectory(
        [
            node_at("a", annotations={LINK_CAPACITY_ANNOTATION: "10G"}),
            node_at("b", annotations={LINK_CAPACITY_ANNOTATION: "?"}),
        ]
    )
    named = name([sample(label="a", capacity=5.0), sample(label="b", capacity=5.0)], [], nodes)
    # 10 Gbit/s = 1.25e9 byte/s
    assert (named.samples["a"].capacity, named.samples["b"].capacity) == (1.25e9, 5.0)


@pytest.mark.parametrize(
    ("instance", "host"),
    [("10.0.0.1:9100", "10.0.0.1"), ("[fd00::1]:9100", "fd00::1"), ("fd00::1", "fd00::1"), ("host", "host")],
)
def test_the_host_part_of_an_instance(instance, host):
    assert host_of(instance) == host
