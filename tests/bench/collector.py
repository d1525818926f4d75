"""The CPU time of a metrics collector process for an interval, with every node's values new in each.

    make bench-collector ARGS="--nodes 5000 --plugins NetworkTraffic,NodeLoad"

A played Prometheus answers each of the collector's queries with one series a node, of traffic one a device, labelled as
kube-prometheus-stack labels them. NATS is a real server.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec
import typer
from aiohttp import web
from rich.console import Console

from berth.api.config.nodeload.plugins import load_queries
from berth.api.config.presets import DEFAULT_NAME
from berth.bus.session import NatsBus
from berth.bus.settings import BusSettings
from berth.bus.topology import BANDWIDTH, bucket_stream
from berth.messages.subjects import key
from berth_metrics_collector.queries import (
    ScrapeSeconds,
    exporter_queries,
    inventory_queries,
    traffic_queries,
    usage_queries,
)
from berth_metrics_collector.settings import read_configuration, traffic_queries_of
from harness.servers.child_processes import free_ports, spawn, stop
from harness.servers.nats_server import nats_server
from harness.worlds.collector_world import mirrored, node_at

PLUGINS: Final = ("NetworkTraffic", "NodeLoad")
VERSION: Final = "kubescheduler.config.k8s.io/v1"
SCRAPES: Final = ScrapeSeconds(15.0, 15.0)
AT_ONCE: Final = 256
TICKS: Final = os.sysconf("SC_CLK_TCK")

console = Console(highlight=False, soft_wrap=True)
Value = Callable[[int, float], float]  # by number of the node and time of the scrape


class PlayedPrometheus:
    """Answers by the text of a query; scrapes every node once an interval."""

    def __init__(self, nodes: int, devices: int, interval: float) -> None:
        self.answers: Mapping[str, Answer] = {}
        self._nodes = nodes
        self._devices = devices
        self._interval = interval
        self._made: dict[str, tuple[float, bytes]] = {}

    async def respond(self, request: web.BaseRequest) -> web.Response:
        promql = request.query["query"]
        scraped_at = time.time() // self._interval * self._interval
        made = self._made.get(promql)
        if made is None or made[0] != scraped_at:
            made = self._made[promql] = (scraped_at, self._answer(promql, scraped_at))
        return web.Response(body=made[1], content_type="application/json")

    def _answer(self, promql: str, scraped_at: float) -> bytes:
        found = self.answers.get(promql)
        rows = [
            {"metric": {**one, **found.labels}, "value": [scraped_at, f"{found.value(number, scraped_at):.17g}"]}
            for number in range(self._nodes if found else 0)
            for one in self._series(number, self._devices if found.devices else 0)
        ]
        return msgspec.json.encode({"status": "success", "data": {"resultType": "vector", "result": rows}})

    def _series(self, number: int, devices: int) -> Iterator[dict[str, str]]:
        labels = {
            "container": "node-exporter",
            "endpoint": "http-metrics",
            "instance": f"{address(number)}:9100",
            "job": "node-exporter",
            "namespace": "monitoring",
            "pod": f"prometheus-node-exporter-{number:05x}",
            "service": "prometheus-node-exporter",
        }
        if not devices:
            yield labels
        for device in range(devices):
            yield {**labels, "device": f"eth{device}"}


def configuration(plugins: Sequence[str], url: str) -> str:
    """As YAML."""
    enabled = [{"name": plugin} for plugin in plugins]
    given = [{"name": plugin, "args": {"url": url, "range": "2m"}} for plugin in plugins]
    profile = {"plugins": {"multiPoint": {"enabled": enabled}}, "pluginConfig": given}
    file = {"apiVersion": VERSION, "kind": "KubeSchedulerConfiguration", "profiles": [profile]}
    return msgspec.json.encode(file).decode()


def address(number: int) -> str:
    return f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"


def name(number: int) -> str:
    return f"ip-{address(number).replace('.', '-')}.eu-west-1.compute.internal"


class Answer(NamedTuple):
    """The series of one query: ``value`` by number of the node and time of the scrape."""

    value: Value
    labels: Mapping[str, str] = {}
    devices: bool = True


def answers(path: Path) -> Mapping[str, Answer]:
    """By query; those without a series are left out: of young ones, gaps, bonds, devices upon others."""
    found: dict[str, Answer] = {}
    read = read_configuration(path, provider=DEFAULT_NAME, gates="")
    for query in traffic_queries_of(read):
        traffic, inventory = traffic_queries(query, SCRAPES), inventory_queries(query)
        found |= dict.fromkeys((traffic.receive, traffic.transmit), Answer(lambda n, at: 1e6 * (n % 97) + at % 1e5))
        found[traffic.scraped_at] = Answer(scraped)
        found |= dict.fromkeys((inventory.flags, inventory.named_by), Answer(lambda *_: 0))
        found[inventory.info] = Answer(lambda *_: 1, {"operstate": "up", "duplex": "full"})
        found[inventory.speed] = Answer(lambda *_: 125e6)
        found[inventory.interval] = Answer(lambda *_: 15)
        found[inventory.names] = Answer(scraped, UNAME, devices=False)
    for query, demand in load_queries(read).items():
        usage, exporters = usage_queries(query, demand.statistics, SCRAPES), exporter_queries(query)
        found |= dict.fromkeys(usage.cpu.values(), Answer(lambda n, at: n % 61 + at % 100 / 7, devices=False))
        found |= dict.fromkeys(usage.memory.values(), Answer(lambda n, at: 1e9 * (n % 61) + at, devices=False))
        found[usage.scraped_at] = Answer(scraped, devices=False)
        found[exporters.names] = Answer(scraped, UNAME, devices=False)
        found[exporters.interval] = Answer(lambda *_: 15, devices=False)
    return found


UNAME: Final = {"nodename": "", "release": "6.1.0", "sysname": "Linux"}


def scraped(number: int, at: float) -> float:
    return at + number % 1000 / 1000


async def measure(
    plugins: Sequence[str], *, nodes: int, devices: int, interval: float, rounds: int
) -> tuple[float, int]:
    """CPU seconds of the collector an interval, and its memory in kB."""
    with nats_server() as server, tempfile.TemporaryDirectory(prefix="berth-bench-") as text:
        folder = Path(text)
        prometheus, port = PlayedPrometheus(nodes, devices, interval), free_ports(1)[0]
        path = folder / "scheduler.yaml"
        path.write_text(configuration(plugins, f"http://127.0.0.1:{port}"))
        prometheus.answers = answers(path)
        runner = web.ServerRunner(web.Server(prometheus.respond, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        session = await NatsBus(BusSettings(servers=(server.address,))).connect(name="bench")
        await session.apply()
        put = partial(session.put, "cluster")
        for first in range(0, nodes, AT_ONCE):
            made = (node_at(name(number), address(number)) for number in range(first, min(first + AT_ONCE, nodes)))
            await asyncio.gather(*(put(key("node", node.metadata.name), mirrored(node)) for node in made))
        ready = folder / "ready"
        command = [sys.executable, "-m", "berth_metrics_collector", "--config", str(path), "--nats", server.address]
        environment = {**os.environ, "BERTH_COLLECTOR_INTERVAL": f"{interval}s"}
        process = spawn([*command, "--health-port=0", "--ready-file", str(ready)], folder / "log", environment)
        try:
            while not ready.exists():
                if process.poll() is not None:
                    raise RuntimeError((folder / "log").read_text())
                await asyncio.sleep(0.1)
            await asyncio.sleep(interval)
            before, last = cpu_seconds(process.pid), (await session.state(bucket_stream(BANDWIDTH))).last_sequence
            await asyncio.sleep(interval * rounds)
            used = cpu_seconds(process.pid) - before
            written = (await session.state(bucket_stream(BANDWIDTH))).last_sequence - last
            console.print(f"{written / rounds:.0f} samples written an interval")
            return used / rounds, peak_kilobytes(process.pid)
        finally:
            stop([process])
            await session.close()
            await runner.cleanup()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_kilobytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main(
    nodes: Annotated[int, typer.Option(help="Nodes with an exporter each.")] = 5000,
    devices: Annotated[int, typer.Option(help="Devices of each node that count.")] = 1,
    plugins: Annotated[str, typer.Option(help="The plugins whose samples are measured.")] = ",".join(PLUGINS),
    interval: Annotated[float, typer.Option(help="Seconds between two rounds, and two scrapes.")] = 15.0,
    rounds: Annotated[int, typer.Option(help="Intervals to measure.")] = 8,
) -> None:
    """Print the collector's CPU seconds an interval."""
    seconds, kilobytes = asyncio.run(
        measure(plugins.split(","), nodes=nodes, devices=devices, interval=interval, rounds=rounds)
    )
    console.print(
        f"{plugins}, {nodes} nodes: {seconds:.2f} s of CPU an interval of {interval:g} s, {kilobytes // 1024} MiB peak"
    )


if __name__ == "__main__":
    typer.run(main)
