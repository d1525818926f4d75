"""The whole pipeline on a simulated cluster, scraped by a real Prometheus, which the collector queries.

async with monitored_pipeline(folder) as monitored:
    await monitored.ask("sum(up)"), await monitored.firing(), monitored.berth, monitored.seen
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from berth_sim.cluster import SimulatedCluster
from berth_sim.nodes import node_manifests
from harness.servers.child_processes import free_ports
from harness.servers.exporter import Exporter, exporting
from harness.servers.extender import recording_extender
from harness.servers.prometheus_server import PrometheusServer, prometheus_server
from harness.worlds.cluster_user import ClusterUser, cluster_user
from harness.worlds.pipeline import BerthUp, berth_up

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy/compose/prometheus/rules/berth.yml"
SERVICES = ("watcher", "binder", "metrics-collector", "scorer-1", "scorer-2", "shadow-default")
NODES = 4
CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins:
    multiPoint:
      enabled: [{{name: NetworkTraffic}}]
  pluginConfig:
  - name: NetworkTraffic
    args: {{url: "{url}", devices: [eth0], range: 5s, maximumAge: 5s}}
extenders:
- urlPrefix: "{extender}/berth/everything"
  filterVerb: filter
  nodeCacheCapable: true
"""
SHADOW = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
"""


@dataclass(frozen=True, kw_only=True)
class Monitored:
    """The pipeline, the cluster and the Prometheus server of a test."""

    berth: BerthUp
    prometheus: PrometheusServer
    seen: ClusterUser
    exporters: list[Exporter]
    session: aiohttp.ClientSession

    async def ask(self, expression: str) -> list[dict]:
        """The rows of an instant query."""
        answer = await self._get("query", query=expression)
        return answer["data"]["result"]

    async def ask_range(self, **params: str) -> dict:
        """The answer to a query over a time: `query`, `start`, `end`, `step`."""
        return await self._get("query_range", **params)

    async def firing(self) -> dict[str, list[dict[str, str]]]:
        """The labels of alerts that fire now, by name."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in (await self._get("alerts"))["data"]["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    async def _get(self, what: str, **params: str) -> dict:
        async with self.session.get(f"{self.prometheus.url}/api/v1/{what}", params=params) as answer:
            body = await answer.json()
            assert answer.status == 200, body
            return body


@asynccontextmanager
async def monitored_pipeline(folder: Path) -> AsyncIterator[Monitored]:
    """Two scorers, a shadow, four nodes with an exporter each; alerts fire after two seconds instead of minutes."""
    nodes = node_manifests(NODES, cpu="4", memory="16Gi", pods=500)
    port = free_ports(1)[0]
    exporters = [
        Exporter(address=f"127.0.0.{number}", port=port, rate=1e6 * number, nodename=node["metadata"]["name"])
        for number, node in enumerate(nodes, start=2)
    ]
    async with AsyncExitStack() as stack:
        server = stack.enter_context(prometheus_server(folder / "prometheus", hurried_rules(folder)))
        await stack.enter_async_context(exporting(*exporters))
        server.scrape(*(exporter.instance for exporter in exporters))
        cluster = await stack.enter_async_context(SimulatedCluster(nodes=nodes))
        config = folder / "config.yaml"
        extender = stack.enter_context(recording_extender())
        extender.answers["everything/filter"] = lambda args: {"NodeNames": args["NodeNames"]}
        config.write_text(CONFIG.format(url=server.url, extender=extender.url))
        shadow = folder / "shadow.yaml"
        shadow.write_text(SHADOW)
        arguments = ("--kubeconfig", cluster.kubeconfig_path, "--config", config, "--scorers", 2)
        berth = stack.enter_context(berth_up(*arguments, "--shadow", f"default={shadow}", folder=folder))
        await asyncio.to_thread(berth.wait_until_ready)
        server.scrape_services(instances(berth))
        yield Monitored(
            berth=berth,
            prometheus=server,
            seen=await stack.enter_async_context(cluster_user(cluster.kubeconfig_path)),
            exporters=exporters,
            session=await stack.enter_async_context(aiohttp.ClientSession()),
        )


def hurried_rules(folder: Path) -> Path:
    """The rules with one change: a condition must hold for two seconds only."""
    text, changed = re.subn(r"(?m)^    for: \w+$", "    for: 2s", RULES.read_text())
    assert changed == text.count("- alert:") - 5, "five alerts do without"
    path = folder / "rules.yml"
    path.write_text(text)
    return path


def instances(berth: BerthUp) -> dict[str, str]:
    """The address of each process's metrics and health, read from the log."""
    started = (json.loads(line) for line in berth.said.splitlines() if line.startswith("{") and '"started"' in line)
    found = {line["identity"].rpartition("_")[2]: f"127.0.0.1:{line['health_port']}" for line in started}
    assert set(found) == set(SERVICES)
    return found
