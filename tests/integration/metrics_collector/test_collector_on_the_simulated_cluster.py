"""The collector on the simulated traffic of the simulated cluster, which answers each of its queries."""

from __future__ import annotations

from datetime import timedelta

import pytest

from berth.api.config.networktraffic import BandwidthQuery
from berth_metrics_collector.prometheus import Prometheus, PrometheusError
from berth_metrics_collector.queries import inventory_queries, traffic_queries
from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import node_manifests, pod_manifest
from berth_sim.prometheus import LINK_BYTES, SCRAPE_SECONDS
from harness.worlds.collector_world import collecting, node_at


def query_at(url: str, *devices: str) -> BandwidthQuery:
    return BandwidthQuery(url=url, devices=devices, time_range=timedelta(minutes=5))


async def test_every_query_is_answered_for_every_node():
    async with SimulatedCluster(nodes=node_manifests(3)) as cluster:
        server = Prometheus(cluster.prometheus_url)
        for query in (query_at(server.url), query_at(server.url, "eth0"), query_at(server.url, "eth.*", "en.*")):
            for forms in (traffic_queries(query), inventory_queries(query)):
                for field in forms.__dataclass_fields__:
                    rows = await server.query(getattr(forms, field))
                    assert len(rows) == {"interval": 1, "stacked": 0, "bonds": 0}.get(field, 3), field
        assert await server.query(traffic_queries(query_at(server.url, "wlan0")).receive) == []
        server.close()


async def test_any_other_query_is_refused_with_a_reason():
    async with SimulatedCluster(nodes=node_manifests(1)) as cluster:
        server = Prometheus(cluster.prometheus_url)
        with pytest.raises(PrometheusError, match="own queries only") as caught:
            await server.query("up")
        assert caught.value.cause == "refused"
        server.close()


async def test_simulated_traffic_reaches_the_bucket_and_grows_with_the_pods():
    nodes = node_manifests(2)
    crowd = [pod_manifest(f"p{number}", node="node-0") for number in range(40)]
    crowded = SimulatedCluster(nodes=nodes, objects=[{**pod, "kind": "Pod"} for pod in crowd])
    async with SimulatedCluster(nodes=nodes) as empty, crowded:
        found = {}
        for cluster in (empty, crowded):
            query = query_at(cluster.prometheus_url)
            async with collecting(query, node_at("node-0"), node_at("node-1")) as world:
                found[cluster] = await world.until(lambda sample: sample is not None, "node-0")
        assert found[empty].capacity == LINK_BYTES
        # 40 pods x 0.5 MB/s; the wave moves by less than 1 MB/s within a test
        assert found[crowded].receive - found[empty].receive == pytest.approx(20e6, abs=1e6)
        assert found[empty].sampled_at.timestamp() % SCRAPE_SECONDS == 0
