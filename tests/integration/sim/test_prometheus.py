"""The simulated exporters have the same traffic as the simulated Prometheus."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest

from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import node_manifests
from berth_sim.prometheus import LINK_BYTES


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def cluster(clock: Clock) -> AsyncIterator[SimulatedCluster]:
    async with SimulatedCluster(nodes=node_manifests(2), clock=clock, kubelet=None) as cluster:
        yield cluster


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def counters(cluster: SimulatedCluster, node: str) -> dict[str, float]:
    code, text = await get(f"{cluster.url}/sim/exporters/{node}/metrics")
    assert code == 200
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, _, value in lines}


async def test_service_discovery_lists_each_node_at_the_requested_address(cluster):
    code, text = await get(f"{cluster.url}/sim/exporters")
    assert code == 200
    here = cluster.url.removeprefix("http://")
    assert json.loads(text) == [
        {
            "targets": [here],
            "labels": {
                "__metrics_path__": f"/sim/exporters/{node}/metrics",
                "instance": f"{node}:9100",
                "node": node,
            },
        }
        for node in ("node-0", "node-1")
    ]


async def test_counters_grow_by_the_rate_of_the_simulated_prometheus(cluster, clock):
    assert (await counters(cluster, "node-0"))["node_network_receive_bytes_total"] == 0
    clock.now += timedelta(seconds=10)
    after = await counters(cluster, "node-0")
    query = 'rate(node_network_receive_bytes_total{device="eth0"}[60s])'
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{cluster.prometheus_url}/api/v1/query", params={"query": query}) as answer,
    ):
        rows = (await answer.json())["data"]["result"]
    (rate,) = [float(row["value"][1]) for row in rows if row["metric"]["node"] == "node-0"]
    assert after["node_network_receive_bytes_total"] == pytest.approx(10 * rate, abs=1)
    assert after["node_network_transmit_bytes_total"] > 0


async def test_an_exporter_has_its_nodes_name_and_link(cluster):
    _, text = await get(f"{cluster.url}/sim/exporters/node-1/metrics")
    assert 'node_uname_info{nodename="node-1",sysname="Linux"} 1' in text
    assert f'node_network_speed_bytes{{device="eth0"}} {LINK_BYTES:.0f}' in text
    assert 'node_network_flags{device="eth0"} 4099' in text  # 0x1003: up, broadcast, multicast


async def test_a_missing_node_has_no_exporter(cluster):
    code, text = await get(f"{cluster.url}/sim/exporters/node-9/metrics")
    assert (code, text) == (404, "there is no node 'node-9'\n")
