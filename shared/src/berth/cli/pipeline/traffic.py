"""NetworkTraffic in the main job: its configuration for a simulated cluster, and where the pods went by it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from berth.api.errors import DecodeError
from berth.api.livedata import decode_bandwidth
from berth.api.subjects import unescape
from berth.bus.interface import Session
from berth.sim.prometheus import PREFIX

PATIENCE: Final = timedelta(seconds=10)
"""How long the collector's first samples are waited for: two of its questions."""
_CONFIGURATION: Final = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: berth
  plugins:
    multiPoint:
      enabled:
      - name: NetworkTraffic
  pluginConfig:
  - name: NetworkTraffic
    args:
      url: {url}
      deviceName: eth0
      timeRange: 5
"""

Traffic = Mapping[str, float]
"""Received bytes per second, by node."""


def write_configuration(folder: Path, cluster: str) -> Path:
    """The default plugins and NetworkTraffic, on the Prometheus that the simulated cluster at this address serves."""
    path = folder / "berth.yaml"
    path.write_text(_CONFIGURATION.format(url=f"{cluster}{PREFIX}"), encoding="utf-8")
    return path


async def first_samples(session: Session, nodes: int) -> Traffic:
    """What the collector says of so many nodes, or of as many as it knows when the patience is over."""
    traffic: dict[str, float] = {}
    try:
        async with asyncio.timeout(PATIENCE.total_seconds()), session.read_bucket("bandwidth") as following:
            async for batch in following.batches():
                for entry in batch:
                    if entry.data is not None:
                        _take(traffic, entry.key, entry.data)
                if len(traffic) >= nodes:
                    break
    except TimeoutError:
        pass
    return traffic


def where_pods_went(traffic: Traffic, pods: Mapping[str, int]) -> str:
    """One line: the quieter and the busier half of the nodes, and how many pods each got."""
    order = sorted(traffic, key=lambda node: (traffic[node], node))
    if not order:
        return "traffic: no samples"
    half = (len(order) + 1) // 2
    quiet, busy = order[:half], order[half:]
    return f"traffic: {_told('quieter', quiet, traffic, pods)}, {_told('busier', busy, traffic, pods)}"


def _told(which: str, nodes: list[str], traffic: Traffic, pods: Mapping[str, int]) -> str:
    if not nodes:
        return f"no {which} half"
    mean = sum(traffic[node] for node in nodes) / len(nodes)
    return f"{which} half of the nodes ({mean / 1e6:.0f} MB/s on average) got {sum(pods.get(n, 0) for n in nodes)} pods"


def _take(traffic: dict[str, float], key: str, data: bytes) -> None:
    try:
        received = decode_bandwidth(data).receive
    except DecodeError:
        return
    if received is not None:
        traffic[unescape(key.partition(".")[2])] = received
