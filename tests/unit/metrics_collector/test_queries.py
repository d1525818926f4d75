"""The PromQL of a query: few requests for all nodes, and names quoted so that no part of them is syntax."""

from datetime import timedelta

import pytest

from berth.api.config.networktraffic import BandwidthQuery
from berth.api.config.nodeload.queries import LoadQuery
from berth_metrics_collector.queries import (
    ScrapeSeconds,
    exporter_queries,
    inventory_queries,
    traffic_queries,
    usage_queries,
)


def query(*devices: str, seconds: float = 300, **other) -> BandwidthQuery:
    more = {"devices": devices} if devices else {}
    return BandwidthQuery(url="http://p:9090", time_range=timedelta(seconds=seconds), **more, **other)


def test_one_device_is_compared_and_several_are_matched():
    assert (
        traffic_queries(query("eth0"), SCRAPES).receive == 'rate(node_network_receive_bytes_total{device="eth0"}[300s])'
    )
    assert traffic_queries(query("eth.*", "bond0"), SCRAPES).transmit == (
        'rate(node_network_transmit_bytes_total{device=~"eth.*|bond0"}[300s])'
    )


def test_by_default_interfaces_of_pods_are_not_asked_for():
    selector = traffic_queries(query(), SCRAPES).scraped_at.removeprefix("timestamp(node_network_receive_bytes_total")
    assert selector.startswith('{device!~"')
    assert "|veth.*|eni.*|cali.*|" in selector


def test_every_query_selects_series_by_labels():
    chosen = query("eth0", labels=(("cluster", "east"), ("replica", ".*-0")))
    both = 'cluster="east",replica=~".*-0"}'
    for forms in (traffic_queries(chosen, SCRAPES), inventory_queries(chosen)):
        for field in forms.__dataclass_fields__:
            promql = getattr(forms, field)
            assert promql.count(both) == promql.count("node_") > 0, promql


def test_a_name_with_a_dot_stands_for_itself():
    assert '{device="eth0.100"}' in traffic_queries(query(r"eth0\.100"), SCRAPES).young


def test_names_cannot_leave_their_quotes():
    assert r'{device=~"\"}) or vector(1"}' in traffic_queries(query('"}) or vector(1'), SCRAPES).young
    assert r'{device=~"\\d+"}' in traffic_queries(query(r"\d+"), SCRAPES).young


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


def load(seconds: float = 300, **other) -> LoadQuery:
    return LoadQuery(url="http://p:9090", time_range=timedelta(seconds=seconds), **other)


SCRAPES = ScrapeSeconds(15.0, 15.0)
BUSY = 'node_cpu_seconds_total{mode!~"idle|iowait|steal"}'
AVAILABLE = "node_memory_MemAvailable_bytes[300s]"
ORDINARY = "(node_memory_MemTotal_bytes - node_memory_Hugetlb_bytes or node_memory_MemTotal_bytes)"


def test_averages_need_no_more_than_one_query_each():
    asked = usage_queries(load(), {"average"}, SCRAPES)
    assert asked.cpu == {"average": f"sum without (cpu, mode) (rate({BUSY}[300s]))"}
    assert asked.memory == {"average": f"{ORDINARY} - avg_over_time({AVAILABLE})"}


def test_exporters_lack_scrapes_when_a_range_has_fewer_than_fit_into_it():
    """300 s / 15 s = 20 scrapes, a tenth less because they jitter; of two jobs the one that is scraped more often."""
    total = "node_memory_MemTotal_bytes"
    gapped = (
        f"timestamp({total}) - timestamp({total} offset 300s) and count_over_time({total}[300s]) < 19.90"
        f" and count_over_time({total}[60s] offset 300s)"
    )
    asked = usage_queries(load(), {"average"}, ScrapeSeconds.of({"a": 15.0, "b": 60.0}))
    assert asked.gapped == gapped
    growth = f"sum without (cpu, mode) ({BUSY} - {BUSY} offset 300s) / ({gapped})"
    assert asked.cpu_over_gaps == f"{growth} unless max without (cpu, mode) (resets({BUSY}[360s]) > 0)"


def test_the_first_scrape_of_a_young_series_is_looked_for_at_every_scrape_or_sixty_points():
    total = "node_memory_MemTotal_bytes"
    asked = usage_queries(load(), {"average"}, SCRAPES)
    assert asked.young_since.startswith(f"min_over_time(timestamp({total})[300s:15s]) unless (")
    assert asked.young_since.partition(" unless ")[2] == asked.young.partition(" unless ")[2]
    assert "[3600s:60s]" in usage_queries(load(3600), {"average"}, SCRAPES).young_since


def test_a_percentile_is_of_the_use_between_two_scrapes():
    """And of memory the opposite percentile of what is available."""
    asked, points = (
        usage_queries(load(), {"p90", "deviation"}, SCRAPES),
        f"sum without (cpu, mode) (irate({BUSY}[60s]))",
    )
    assert asked.cpu["p90"] == f"quantile_over_time(0.9, {points}[300s:15s])"
    assert asked.cpu["deviation"] == f"stddev_over_time({points}[300s:15s])"
    assert asked.memory["p90"] == f"{ORDINARY} - quantile_over_time(0.1, {AVAILABLE})"
    assert asked.memory["deviation"] == f"stddev_over_time({AVAILABLE})"


def test_a_long_range_has_points_at_some_distance():
    """3600 s / 60 points = 60 s, though scraped every 15 s."""
    assert usage_queries(load(3600), {"p50"}, SCRAPES).cpu["p50"].endswith("[60s]))[3600s:60s])")


def test_queries_of_load_select_series_by_labels():
    chosen = load(labels=(("cluster", "east"),))
    asked, exporters = usage_queries(chosen, {"average", "p99"}, SCRAPES), exporter_queries(chosen)
    texts = [*asked.cpu.values(), *asked.memory.values(), asked.young, asked.young_since, asked.scraped_at]
    for promql in (*texts, exporters.names, exporters.interval):
        assert promql.count('cluster="east"') == promql.count("node_") > 0, promql
