"""The herd in real time: a Prometheus scrapes an exporter of each node, whose use of CPU follows what is placed there.

Collector, scorers and binder are processes of `berth up`; the cluster is the simulated one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from berth.api.config.nodeload.queries import LoadQuery
from berth.bus.interface import Session
from berth.messages.livedata import BANDWIDTH, decode_sample
from berth.messages.subjects import parse_key
from berth_metrics_collector.prometheus import Prometheus
from berth_metrics_collector.queries import ScrapeSeconds, usage_queries
from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import node_manifest
from harness.servers.child_processes import free_ports
from harness.servers.exporter import Exporter, exporting
from harness.servers.prometheus_server import prometheus_server
from harness.worlds.cluster_user import ClusterUser, cluster_user
from harness.worlds.herd import CORES, REQUEST, SCRAPE_SECONDS, WINDOW_SECONDS, Herd, Outcome, by_node_load
from harness.worlds.pipeline import berth_up

SCRAPES_SECONDS: Final = 240.0
"""Until the range of every series is whole, and the collector has read it."""
FOLLOWED_SECONDS: Final = 0.2
"""Between two looks at where pods are."""


async def on_prometheus(herd: Herd, scorers: int, folder: Path) -> Outcome:
    """Place the pods once, in about three minutes."""
    port = free_ports(1)[0]
    exporters = [
        Exporter(address=f"127.0.1.{number + 1}", port=port, rate=0, nodename=f"node-{number}", cores=CORES, cpu=cores)
        for number, cores in enumerate(herd.bases.tolist())
    ]
    async with AsyncExitStack() as stack:
        server = stack.enter_context(prometheus_server(folder / "prometheus", interval=f"{SCRAPE_SECONDS:g}s"))
        await stack.enter_async_context(exporting(*exporters))
        server.scrape(*(exporter.instance for exporter in exporters))
        nodes = [node_manifest(f"node-{number}", cpu=str(CORES), memory="64Gi") for number in range(herd.nodes)]
        cluster = await stack.enter_async_context(SimulatedCluster(nodes=nodes))
        config = folder / "config.yaml"
        config.write_text(by_node_load(url=server.url))
        await until_whole(server.url, herd.nodes)
        arguments = ("--kubeconfig", cluster.kubeconfig_path, "--config", config, "--scorers", scorers)
        berth = stack.enter_context(berth_up(*arguments, folder=folder))
        await asyncio.to_thread(berth.wait_until_ready)
        session = await berth.session()
        stack.push_async_callback(session.close)
        await until_sampled(session, herd.nodes)
        user = await stack.enter_async_context(cluster_user(cluster.kubeconfig_path))
        async with following(herd, exporters, user):
            placed = await place(herd, user)
    return Outcome(loads=herd.loads(placed))


async def until_whole(url: str, nodes: int) -> None:
    """Wait until every exporter's series covers the range."""
    asked = usage_queries(
        LoadQuery(url=url, time_range=timedelta(seconds=WINDOW_SECONDS)),
        {"average"},
        ScrapeSeconds(SCRAPE_SECONDS, SCRAPE_SECONDS),
    )
    server = Prometheus(url)
    async with asyncio.timeout(SCRAPES_SECONDS):
        while len(await server.query(asked.scraped_at)) < nodes or await server.query(asked.young):  # noqa: ASYNC110 - another process
            await asyncio.sleep(1)
    server.close()


async def until_sampled(session: Session, nodes: int) -> None:
    """Wait until there is a sample of every node."""
    known: set[str] = set()
    async with asyncio.timeout(SCRAPES_SECONDS), session.read_bucket(BANDWIDTH) as reader:
        async for batch in reader.batches():
            known |= {parse_key(one.key)[1] for one in batch if one.data is not None and decode_sample(one.data).cpu}
            if len(known) >= nodes:
                return


@asynccontextmanager
async def following(herd: Herd, exporters: list[Exporter], user: ClusterUser) -> AsyncIterator[None]:
    """Have each exporter show what the pods on its node use."""

    async def follow() -> None:
        while True:
            cores = herd.loads(numbers(await user.placed())) * CORES / 100
            for exporter, used in zip(exporters, cores.tolist(), strict=True):
                exporter.use(used)
            await asyncio.sleep(FOLLOWED_SECONDS)

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()


async def place(herd: Herd, user: ClusterUser) -> dict[int, int]:
    """Create the pods when they arrive; the node of each, by their numbers."""
    began, names = asyncio.get_running_loop().time(), [f"pod-{number}" for number in range(herd.pods)]

    def pod(number: int) -> dict:
        return user.pod(names[number], cpu=f"{REQUEST:g}", memory="1Gi", spec={"nodeSelector": {}})

    if not herd.seconds:
        await user.create(map(pod, range(herd.pods)))
    else:
        for number in range(herd.pods):
            await asyncio.sleep(began + herd.arrival(number) - asyncio.get_running_loop().time())
            await user.create([pod(number)])
    return numbers(await user.all_bound(names))


def numbers(placed: dict[str, str]) -> dict[int, int]:
    return {int(pod.removeprefix("pod-")): int(node.removeprefix("node-")) for pod, node in placed.items()}
