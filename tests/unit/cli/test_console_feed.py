"""What the console reads from the bus again while it follows it."""

from __future__ import annotations

import asyncio

from berth.bus.topology import CLUSTER_ID_KEY, CONTROL
from berth_cli import bus
from berth_cli.bus import NatsServer
from berth_cli.console import feed
from harness.fakes.memory_bus import MemoryBus

HERE = NatsServer("nats://there:4222")


async def test_a_cluster_that_is_named_after_nats_is_back_is_named_on_the_page(monkeypatch):
    store = MemoryBus()
    store.apply()

    async def connect(_settings, *, name):
        return await store.connect(name=name)

    monkeypatch.setattr(bus, "_connect", connect)
    for wait in ("SERVICES_SECONDS", "LOOK_SECONDS", "TICK_SECONDS"):
        monkeypatch.setattr(feed, wait, 0.0)
    following = feed.Feed(HERE)

    async def named(source: str) -> None:
        while following.model.bus.source != f"cluster {source}, NATS nats://there:4222":  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(following.run())
        with following.hub.page():
            await named("unknown (no watcher has named it yet)")
            await (await store.connect(name="watcher")).put(CONTROL, CLUSTER_ID_KEY, b"uid-1")
            await named("uid-1")
        reading.cancel()
