"""The collector on the simulated traffic of the simulated cluster, which answers each of its queries."""

from __future__ import annotations

from datetime import timedelta

import pytest

from berth.api.config.networktraffic import BandwidthQuery
from berth.api.config.nodeload.queries import LoadQuery
from berth.kube.client import KubeClient
from berth_metrics_collector.prometheus import Prometheus, SourceError
from berth_metrics_collector.queries import (
    ScrapeSeconds,
    exporter_queries,
    inventory_queries,
    traffic_queries,
    usage_queries,
)
from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import node_manifests, pod_manifest
from berth_sim.prometheus import LINK_BYTES, SCRAPE_SECONDS
from harness.worlds.collector_world import by_metrics_api, by_prometheus, collecting, node_at

SCRAPES = ScrapeSeconds(SCRAPE_SECONDS, SCRAPE_SECONDS)
OVER_GAPS = {"receive_over_gaps", "transmit_over_gaps"}  # asked for when a scrape has failed, which none does there
EMPTY = {"stacked", "bonds", "young", "young_since", "gapped"}


def query_at(url: str, *devices: str) -> BandwidthQuery:
    return BandwidthQuery(url=url, devices=devices, time_range=timedelta(minutes=5))


async def test_every_query_is_answered_for_every_node():
    async with SimulatedCluster(nodes=node_manifests(3)) as cluster:
        server = Prometheus(cluster.prometheus_url)
        for query in (query_at(server.url), query_at(server.url, "eth0"), query_at(server.url, "eth.*", "en.*")):
            for forms in (traffic_queries(query, SCRAPES), inventory_queries(query)):
                for field in forms.__dataclass_fields__.keys() - OVER_GAPS:
                    rows = await server.query(getattr(forms, field))
                    assert len(rows) == (1 if field == "interval" else 0 if field in EMPTY else 3), field
        assert await server.query(traffic_queries(query_at(server.url, "wlan0"), SCRAPES).receive) == []
        server.close()


async def test_every_query_of_load_is_answered_for_every_node():
    every = {"average", "deviation", "p50", "p90", "p95", "p99"}
    async with SimulatedCluster(nodes=node_manifests(3)) as cluster:
        server = Prometheus(cluster.prometheus_url)
        query = LoadQuery(url=server.url, time_range=timedelta(minutes=5))
        asked, exporters = usage_queries(query, every, SCRAPES), exporter_queries(query)
        for promql in (*asked.cpu.values(), *asked.memory.values(), asked.scraped_at, exporters.names):
            assert len(await server.query(promql)) == 3, promql
        others = (asked.young, asked.young_since, asked.gapped, exporters.interval)
        assert [len(await server.query(each)) for each in others] == [0, 0, 0, 1]
        server.close()


async def test_any_other_query_is_refused_with_a_reason():
    async with SimulatedCluster(nodes=node_manifests(1)) as cluster:
        server = Prometheus(cluster.prometheus_url)
        with pytest.raises(SourceError, match="own queries only") as caught:
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


@pytest.mark.parametrize("by", ["prometheus", "metrics.k8s.io"])
async def test_simulated_load_reaches_the_bucket_and_grows_with_the_pods(by):
    """40 pods use 0.1 cores and 128 MiB each; what is the node's own moves by less than 5 millicores within a test."""
    nodes = node_manifests(2)
    crowd = [pod_manifest(f"p{number}", node="node-0") for number in range(40)]
    crowded = SimulatedCluster(nodes=nodes, objects=[{**pod, "kind": "Pod"} for pod in crowd])
    async with SimulatedCluster(nodes=nodes) as empty, crowded:
        found = {}
        for cluster in (empty, crowded):
            url = cluster.prometheus_url if by == "prometheus" else ""
            query = LoadQuery(url=url, time_range=timedelta(minutes=5))
            async with await KubeClient.connect(cluster.kubeconfig_path) as client:
                measure = by_prometheus() if url else by_metrics_api(client)
                async with collecting(query, node_at("node-0"), node_at("node-1"), measure=measure) as world:
                    found[cluster] = await world.until(lambda sample: sample is not None, "node-0")
        assert found[crowded].cpu.average - found[empty].cpu.average == pytest.approx(4000, abs=5)
        assert found[crowded].memory.average - found[empty].memory.average == 40 * 2**27
        assert found[empty].sampled_at.timestamp() % SCRAPE_SECONDS == 0
