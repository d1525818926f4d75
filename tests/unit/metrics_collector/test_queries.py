"""The PromQL of a query: few requests for all nodes, and names quoted so that no part of them is syntax."""

from datetime import timedelta

import pytest

from berth.api.config.networktraffic import BandwidthQuery
from berth_metrics_collector.queries import inventory_queries, traffic_queries


def query(*devices: str, seconds: float = 300, **other) -> BandwidthQuery:
    more = {"devices": devices} if devices else {}
    return BandwidthQuery(url="http://p:9090", time_range=timedelta(seconds=seconds), **more, **other)


def test_one_device_is_compared_and_several_are_matched():
    by = "sum by (instance, job, node, device)"
    assert traffic_queries(query("eth0")).receive == (
        f'{by} (rate(node_network_receive_bytes_total{{device="eth0"}}[300s]))'
    )
    assert traffic_queries(query("eth.*", "bond0")).transmit == (
        f'{by} (rate(node_network_transmit_bytes_total{{device=~"eth.*|bond0"}}[300s]))'
    )


def test_a_name_with_a_dot_stands_for_itself():
    assert '{device="eth0.100"}' in traffic_queries(query(r"eth0\.100")).count


def test_names_cannot_leave_their_quotes():
    assert r'{device=~"\"}) or vector(1"}' in traffic_queries(query('"}) or vector(1')).count
    assert r'{device=~"\\d+"}' in traffic_queries(query(r"\d+")).count


def test_the_label_that_names_nodes_is_kept_once():
    assert traffic_queries(query(node_label="kubernetes_node")).receive.startswith(
        "sum by (instance, job, kubernetes_node, device) "
    )
    assert traffic_queries(query(node_label="instance")).receive.startswith("sum by (instance, job, device) ")


@pytest.mark.parametrize(("seconds", "look"), [(300, "60s"), (60, "60s"), (10, "10s"), (7.5, "7500ms")])
def test_the_scrape_interval_is_looked_for_within_a_minute_at_most(seconds, look):
    interval = inventory_queries(query("eth0", seconds=seconds)).interval
    assert f"offset {look}))" in interval
    assert f"[{look}]))" in interval


def test_different_queries_have_different_tokens_and_equal_ones_the_same():
    different = [
        query("eth0"),
        query("eth1"),
        query("eth0", "eth1"),
        query("eth0", seconds=60),
        query("eth0", node_label="other"),
        BandwidthQuery(url="http://q:9090", devices=("eth0",), time_range=timedelta(minutes=5)),
    ]
    assert len({one.token for one in different}) == len(different)
    in_a_store_already = "qc5207ed27ab6"
    assert query("eth0").token == in_a_store_already
