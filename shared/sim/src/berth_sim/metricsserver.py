"""The API ``metrics.k8s.io`` as metrics-server serves it behind the API server: lists of nodes with what they use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from berth_sim.apiserver.kinds import Route, SimulatedKind
from berth_sim.prometheus import SCRAPE_SECONDS, SimulatedPrometheus

NODE_METRICS: Final = SimulatedKind(
    group="metrics.k8s.io", version="v1beta1", plural="nodes", name="NodeMetrics", namespaced=False
)
ROUTE: Final = Route(kind=NODE_METRICS)
PATH: Final = f"/apis/{NODE_METRICS.api_version}/{NODE_METRICS.plural}"
_NANO: Final = 10**9
_KIBI: Final = 1024


def node_metrics(load: SimulatedPrometheus) -> bytes:
    """The last values of all nodes, as a NodeMetricsList."""
    moment = load.moment()
    scraped_at = datetime.fromtimestamp(moment.scraped_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    items = [
        {
            "metadata": {"name": node, "creationTimestamp": scraped_at},
            "timestamp": scraped_at,
            "window": f"{SCRAPE_SECONDS:g}s",
            "usage": {
                "cpu": f"{moment.cores(node) * _NANO:.0f}n",
                "memory": f"{moment.memory(node) / _KIBI:.0f}Ki",
            },
        }
        for node in moment.nodes
    ]
    kind = {"kind": f"{NODE_METRICS.name}List", "apiVersion": NODE_METRICS.api_version}
    return msgspec.json.encode({**kind, "metadata": {}, "items": items})
