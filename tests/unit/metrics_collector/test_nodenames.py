"""Which node an exporter belongs to: the order of attempts, differing names, duplicates, and what is reported."""

from datetime import UTC, datetime, timedelta

import pytest

from berth.api.bandwidth import LINK_CAPACITY_ANNOTATION
from berth.messages.livedata import Bandwidth, decode_bandwidth, encode_bandwidth
from berth_metrics_collector.nodenames import NodeNames, host_of, match_samples
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


NODES = NodeNames([node_at("node-1.example.com", "10.0.0.1"), node_at("node-2", "10.0.0.2")])


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
    ],
)
def test_the_order_of_attempts(label, nodename, instance, expected):
    assert NODES.node_of(Target(instance=instance, job="node", label=label), nodename) == expected


def test_a_short_name_that_two_nodes_share_matches_neither():
    nodes = NodeNames([node_at("node-1.a.net"), node_at("node-1.b.net")])
    assert nodes.node_of(Target(instance="x:1", job="j"), "node-1") is None
    assert nodes.node_of(Target(instance="x:1", job="j"), "node-1.b.net") == "node-1.b.net"


def test_an_address_that_two_nodes_claim_matches_neither():
    nodes = NodeNames([node_at("a", "10.0.0.1"), node_at("b", "10.0.0.1")])
    assert nodes.node_of(Target(instance="10.0.0.1:9100", job="j"), "") is None


def test_unmatched_exporters_and_nodes_are_reported():
    matched = match_samples([sample("10.0.0.2:9100"), sample("printer:9100")], [], NODES)
    assert (set(matched.samples), matched.unmatched, matched.missing) == (
        {"node-2"},
        ("printer:9100",),
        ("node-1.example.com",),
    )


def test_the_later_of_two_host_names_counts():
    names = [uname("x:9100", "node-1", seen="20"), uname("x:9100", "node-2", seen="10")]
    assert set(match_samples([sample("x:9100")], names, NODES).samples) == {"node-1.example.com"}


def test_of_two_exporters_with_the_same_device_the_fresher_counts():
    stale, fresh = sample(label="node-2", job="a", receive=5.0, ago=9), sample(label="node-2", job="b", receive=7.0)
    for order in ([stale, fresh], [fresh, stale]):
        matched = match_samples(order, [], NODES)
        assert matched.samples["node-2"].receive == 7.0
        assert matched.duplicates == ("node-2",)


def test_two_exporters_with_different_devices_are_added_up():
    one = sample(label="node-2", job="a", receive=5.0, devices=("eth0",), ago=9, capacity=10.0)
    two = sample(label="node-2", job="b", receive=7.0, devices=("eth1",), capacity=20.0)
    matched = match_samples([one, two], [], NODES)
    assert matched.samples["node-2"] == Bandwidth(receive=12.0, capacity=30.0, sampled_at=T0 - timedelta(seconds=9))
    assert matched.duplicates == ()


def test_an_annotated_link_capacity_takes_precedence():
    nodes = NodeNames(
        [
            node_at("a", annotations={LINK_CAPACITY_ANNOTATION: "10G"}),
            node_at("b", annotations={LINK_CAPACITY_ANNOTATION: "?"}),
        ]
    )
    matched = match_samples([sample(label="a", capacity=5.0), sample(label="b", capacity=5.0)], [], nodes)
    # 10 Gbit/s = 1.25e9 byte/s
    assert (matched.samples["a"].capacity, matched.samples["b"].capacity) == (1.25e9, 5.0)


@pytest.mark.parametrize(
    ("annotated", "reported"),
    [
        pytest.param({}, (2e15,), id="of one card"),
        pytest.param({}, (6e14, 6e14), id="of two exporters together"),
        pytest.param({LINK_CAPACITY_ANNOTATION: "100P"}, (5.0,), id="annotated"),  # 1e17 bit/s = 1.25e16 byte/s
    ],
)
def test_a_capacity_that_readers_refuse_is_unknown_and_the_rates_stay(annotated, reported):
    nodes = NodeNames([node_at("a", annotations=annotated)])
    samples = [
        sample(label="a", job=str(n), devices=(f"eth{n}",), capacity=capacity) for n, capacity in enumerate(reported)
    ]
    found = match_samples(samples, [], nodes).samples["a"]
    assert decode_bandwidth(encode_bandwidth(found)) == found
    assert (found.receive, found.capacity) == (float(len(reported)), None)


@pytest.mark.parametrize(
    ("instance", "host"),
    [("10.0.0.1:9100", "10.0.0.1"), ("[fd00::1]:9100", "fd00::1"), ("fd00::1", "fd00::1"), ("host", "host")],
)
def test_the_host_part_of_an_instance(instance, host):
    assert host_of(instance) == host
