"""Simulated node exporters at `<cluster>/sim/exporters`: the made-up traffic of simulated nodes, for a real Prometheus.

    http_sd_configs: [{url: http://<cluster>/sim/exporters}]

names one target a node; each is scraped at this same address, under a path of its own. Their counters grow by the rates
that `berth.sim.prometheus` makes up, so that a Prometheus which scrapes them shows the traffic that the simulated one
tells of.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec
from aiohttp import web

from berth.sim.prometheus import DEVICE, FLAGS, LINK_BYTES, Moment, SimulatedPrometheus

PATH: Final = "/sim/exporters"
PORT: Final = 9100
"""Of the node exporter: what an instance is called, not where it listens."""
MOMENT_SECONDS: Final = 1.0
"""For how long the count of each node's pods is good enough: scrapes of all nodes come one after another."""
_CONTENT_TYPE: Final = "text/plain"


@dataclass(slots=True, kw_only=True)
class Counters:
    """What one node's network card has counted, in bytes, up to `at` (Unix seconds)."""

    at: float
    received: float = 0.0
    transmitted: float = 0.0

    def grow(self, moment: Moment, node: str, until: float) -> None:
        """Count what went by since the last look."""
        elapsed = max(0.0, until - self.at)
        self.received += moment.rate(node, "receive") * elapsed
        self.transmitted += moment.rate(node, "transmit") * elapsed
        self.at = until


class SimulatedExporters:
    """One exporter a node; counters start from 0 at the first scrape, as after a reboot."""

    def __init__(self, traffic: SimulatedPrometheus) -> None:
        self._traffic = traffic
        self._counters: dict[str, Counters] = {}
        self._moment: Moment | None = None

    def respond(self, request: web.BaseRequest) -> web.Response:
        """Answer what is asked for below PATH."""
        rest = request.path.removeprefix(PATH).strip("/")
        if not rest:
            return web.Response(body=msgspec.json.encode(self._targets(request.host)), content_type="application/json")
        node = rest.removesuffix("/metrics")
        if node not in self._recent().nodes:
            return web.Response(status=HTTPStatus.NOT_FOUND, text=f"there is no node {node!r}\n")
        return web.Response(text="\n".join([*self._lines(node), ""]), content_type=_CONTENT_TYPE)

    def _targets(self, host: str) -> list[dict[str, object]]:
        """The answer to Prometheus's HTTP service discovery; `host` is what it calls this server."""
        return [
            {
                "targets": [host],
                "labels": {"__metrics_path__": f"{PATH}/{node}/metrics", "instance": f"{node}:{PORT}", "node": node},
            }
            for node in self._recent().nodes
        ]

    def _lines(self, node: str) -> Iterator[str]:
        moment, now = self._recent(), self._traffic.now()
        counters = self._counters.setdefault(node, Counters(at=now))
        counters.grow(moment, node, now)
        device = f'{{device="{DEVICE}"}}'
        yield f'node_uname_info{{nodename="{node}",sysname="Linux"}} 1'
        yield "# TYPE node_network_receive_bytes_total counter"
        yield f"node_network_receive_bytes_total{device} {counters.received:.0f}"
        yield "# TYPE node_network_transmit_bytes_total counter"
        yield f"node_network_transmit_bytes_total{device} {counters.transmitted:.0f}"
        yield f"node_network_flags{device} {FLAGS}"
        yield f"node_network_speed_bytes{device} {LINK_BYTES:.0f}"

    def _recent(self) -> Moment:
        moment = self._moment
        if moment is None or self._traffic.now() - moment.now > MOMENT_SECONDS:
            moment = self._moment = self._traffic.moment()
        return moment
