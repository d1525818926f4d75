"""NetworkTraffic end to end: a real Prometheus, collector, scorers, binder, and a burst between two samples."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest

from berth.api.config.networktraffic import BandwidthQuery
from berth.messages.attempts import Decision, Outcome
from berth.messages.encoding import decode
from berth_metrics_collector.prometheus import Prometheus
from berth_metrics_collector.queries import ScrapeSeconds, traffic_queries
from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import node_manifests
from harness.servers.child_processes import free_ports
from harness.servers.exporter import Exporter, exporting
from harness.servers.prometheus_server import prometheus_server
from harness.worlds.cluster_user import cluster_user, eventually
from harness.worlds.pipeline import BerthUp, berth_up

pytestmark = [pytest.mark.requires("nats-server", "prometheus"), pytest.mark.timeout(180)]

RANGE_SECONDS = 10
PODS, NODES = 500, 20
MEGA = 1e6
CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins:
    score:
      disabled: [{{name: "*"}}]
      enabled: [{{name: network_traffic}}]
  pluginConfig:
  - name: NetworkTraffic
    args: {{url: "{url}", devices: [eth0], range: {seconds}s}}
"""


async def test_500_pods_between_two_samples_overload_no_node(tmp_path, monkeypatch):
    nodes = node_manifests(NODES, cpu="64", memory="256Gi", pods=1000)
    names = [node["metadata"]["name"] for node in nodes]
    port = free_ports(1)[0]
    rates = {name: 9 * MEGA if name == names[0] else 10 * MEGA for name in names}  # one node has a little less traffic
    made = [
        Exporter(address=f"127.0.0.{number}", port=port, rate=rates[name], nodename=name)
        for number, name in enumerate(names, start=2)
    ]
    monkeypatch.setenv("BERTH_COLLECTOR_INTERVAL", "120s")  # one poll at the start, none during the burst
    async with AsyncExitStack() as stack:
        server = stack.enter_context(prometheus_server(tmp_path / "prometheus"))
        await stack.enter_async_context(exporting(*made))
        server.scrape(*(exporter.instance for exporter in made))
        await until_scraped_for_the_whole_range(server.url, NODES)
        cluster = await stack.enter_async_context(SimulatedCluster(nodes=nodes))
        config = tmp_path / "config.yaml"
        config.write_text(CONFIG.format(url=server.url, seconds=RANGE_SECONDS))
        arguments = ("--kubeconfig", cluster.kubeconfig_path, "--config", config, "--scorers", 2)
        berth = stack.enter_context(berth_up(*arguments, folder=tmp_path))
        await asyncio.to_thread(berth.wait_until_ready)
        await until_sampled(berth, NODES)
        seen = await stack.enter_async_context(cluster_user(cluster.kubeconfig_path))
        pods = [f"web-{number}" for number in range(PODS)]
        await seen.create(seen.pod(name, cpu="10m", memory="16Mi", spec={"nodeSelector": {}}) for name in pods)
        placed = Counter((await seen.all_bound(pods, seconds=60)).values())
        assert len(placed) == NODES
        assert max(placed.values()) <= 2 * PODS / NODES, placed
        decisions = await every_decision(berth, PODS)
        details = [decision.candidates[0].details["NetworkTraffic"] for decision in decisions]
        assert all(" MB/s receive, sampled " in detail for detail in details)
        assert sum("estimated for" in detail for detail in details) > PODS / 2


async def until_scraped_for_the_whole_range(url: str, count: int) -> None:
    """Wait until the collector's query, which it sends only once, has a complete result."""
    query = BandwidthQuery(url=url, devices=("eth0",), time_range=timedelta(seconds=RANGE_SECONDS))
    server, asked = Prometheus(url), traffic_queries(query, ScrapeSeconds(1.0, 1.0))
    ask = server.query
    async with asyncio.timeout(60):
        while len(await ask(asked.scraped_at)) < count or await ask(asked.young):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.5)
    server.close()


async def until_sampled(berth: BerthUp, count: int) -> None:
    """Wait until the bucket holds samples of this number of nodes."""
    session = await berth.session()
    try:
        async with asyncio.timeout(30), session.read_bucket("bandwidth") as following:
            keys: set[str] = set()
            async for batch in following.batches():
                keys |= {entry.key for entry in batch}
                if len(keys) >= count:
                    return
    finally:
        await session.close()


async def every_decision(berth: BerthUp, count: int) -> list[Decision]:
    """The Decisions that bound this number of pods; the last of them are stored a moment after the Bindings."""
    session = await berth.session()

    async def bound() -> list[Decision]:
        stored = [one async for one in session.scan("DECISIONS", "berth.decision.>")]
        decisions = [decode(message.data, Decision) for message in stored]
        found = [decision for decision in decisions if decision.outcome is Outcome.BOUND]
        assert len(found) <= count
        return found if len(found) == count else []

    try:
        return await eventually(bound, f"{count} Decisions that bound a pod")
    finally:
        await session.close()
