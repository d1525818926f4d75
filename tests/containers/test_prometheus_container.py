"""The collector on Prometheus from the public image: the samples equal the rates of the exporters."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from berth.api.config.networktraffic import NetworkTrafficArgs, query_of
from harness.plugins.left_out import require
from harness.servers.child_processes import free_ports
from harness.servers.docker_engine import compose_image
from harness.servers.exporter import Exporter, exporting
from harness.servers.prometheus_container import prometheus_container
from harness.worlds.collector_world import collecting, node_at

pytestmark = [
    pytest.mark.timeout(900),  # the image may have to be pulled first
    pytest.mark.skipif(sys.platform != "linux", reason="containers share the network of their machine on Linux only"),
]

RATES = {"quiet": 1e6, "busy": 80e6}
RANGE = timedelta(seconds=10)


@pytest.fixture
def image() -> str:
    require("docker")
    require(f"image:{compose_image('prometheus')}")
    return compose_image("prometheus")


async def test_samples_equal_the_exporters_rates(image: str, tmp_path: Path):
    (port,) = free_ports(1)
    made = [
        Exporter(address=f"127.0.0.{number}", port=port, rate=rate, transmit=rate / 2, nodename=name)
        for number, (name, rate) in enumerate(RATES.items(), start=2)
    ]
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(exporting(*made))
        targets = [exporter.instance for exporter in made]
        url = stack.enter_context(prometheus_container(image, tmp_path / "prometheus", targets))
        query = query_of(NetworkTrafficArgs(url=url, devices=["eth0"], range=RANGE))
        nodes = [node_at(exporter.nodename, exporter.address) for exporter in made]
        world = await stack.enter_async_context(collecting(query, *nodes))
        for exporter in made:
            sample = await world.until(lambda sample: sample is not None, exporter.nodename, 60.0)
            assert sample.receive == pytest.approx(exporter.rate, rel=0.05)
            assert sample.transmit == pytest.approx(exporter.transmit, rel=0.05)
