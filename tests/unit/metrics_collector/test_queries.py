"""The PromQL of a query: few requests for all nodes, and names quoted so that no part of them is syntax."""

from datetime import timedelta

import pytest

from berth.api.config.networktraffic import BandwidthQuery
from berth_metrics_collector.queries import inventory_queries, traffic_queries


def query(*devices: str, seconds: float = 300, **other) -> BandwidthQuery:
    more = {"devices": devices} if devices else {}
    return BandwidthQuery(url="http://p:9090", time_range=timedelta(seconds=seconds), **more, **other)


def test_one_device_is_compared_and_several_are_matched():
    assert traffic_queries(query("eth0")).receive == 'rate(node_network_receive_bytes_total{device="eth0"}[300s])'
    assert traffic_queries(query("eth.*", "bond0")).transmit == (
        'rate(node_network_transmit_bytes_total{device=~"eth.*|bond0"}[300s])'
    )


def test_by_default_interfaces_of_pods_are_not_asked_for():
    selector = traffic_queries(query()).scraped_at.removeprefix("timestamp(node_network_receive_bytes_total")
    assert selector.startswith('{device!~"')
    assert "|veth.*|eni.*|cali.*|" in selector


def test_every_query_selects_series_by_labels():
    chosen = query("eth0", labels=(("cluster", "east"), ("replica", ".*-0")))
    both = 'cluster="east",replica=~".*-0"}'
    for forms in (traffic_queries(chosen), inventory_queries(chosen)):
        for field in forms.__dataclass_fields__:
            promql = getattr(forms, field)
            assert promql.count(both) == promql.count("node_") > 0, promql


def test_a_name_with_a_dot_stands_for_itself():
    assert '{device="eth0.100"}' in traffic_queries(query(r"eth0\.100")).count


def test_names_cannot_leave_their_quotes():
    assert r'{device=~"\"}) or vector(1"}' in traffic_queries(query('"}) or vector(1')).count
    assert r'{device=~"\\d+"}' in traffic_queries(query(r"\d+")).count


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
        query("eth0", labels=(("cluster", "east"),)),
        query(),
        BandwidthQuery(url="http://q:9090", devices=("eth0",), time_range=timedelta(minutes=5)),
    ]
    assert len({one.token for one in different}) == len(different)
    in_a_store_already = "qc5207ed27ab6"
    assert query("eth0").token == in_a_store_already
